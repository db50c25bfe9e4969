"""A `datetime` to the nanosecond, which is what publish times are."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, SupportsIndex

from heliograph.engine.settings import SECOND_NS


class DatetimeWithNanoseconds(datetime):
    """A `datetime` in UTC that also knows the nanoseconds which `datetime` has no room for.

    It is what spec 000 and 002 call `PreciseDate`, and has the names of the class in Google's libraries, without
    needing them. Arithmetic gives plain microseconds, as with any `datetime`.
    """

    _nanosecond: int

    @classmethod
    def from_ns(cls, instant_ns: int) -> DatetimeWithNanoseconds:
        """The instant `instant_ns` nanoseconds after the epoch.

        Raises:
            OverflowError, ValueError: beyond the year 9999.
        """
        seconds, nanosecond = divmod(instant_ns, SECOND_NS)
        # whole seconds only: a float of today's seconds is not exact to the microsecond
        whole = datetime.fromtimestamp(seconds, UTC)
        moment = cls(
            whole.year,
            whole.month,
            whole.day,
            whole.hour,
            whole.minute,
            whole.second,
            nanosecond // 1_000,
            tzinfo=UTC,
        )
        moment._nanosecond = nanosecond
        return moment

    @property
    def nanosecond(self) -> int:
        """Nanoseconds after the full second, 0 to 999,999,999."""
        # results of arithmetic are of this class too, made by `datetime` itself
        return getattr(self, "_nanosecond", self.microsecond * 1_000)

    def timestamp_ns(self) -> int:
        """Nanoseconds since the epoch."""
        return int(self.replace(microsecond=0).timestamp()) * SECOND_NS + self.nanosecond

    def rfc3339(self) -> str:
        """As RFC 3339, with as many digits as are needed: `2026-01-14T09:30:00.123456789Z`."""
        text = self.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")
        fraction = f".{self.nanosecond:09}".rstrip("0").rstrip(".")
        return f"{text}{fraction}Z"

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        if hasattr(self, "_nanosecond"):
            return type(self).from_ns, (self.timestamp_ns(),)
        return super().__reduce_ex__(protocol)


__all__ = ["DatetimeWithNanoseconds"]
