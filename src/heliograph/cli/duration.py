"""Durations and instants as people write them: `90s`, `10m`, `12h`, `7d`; `2026-11-28T02:35:00Z`, or `10m` for ten
minutes ago."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import typer

_UNIT_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
_DURATION = re.compile(r"(?P<number>\d+(\.\d+)?)(?P<unit>[smhd]?)")


def parse_duration(text: str) -> float:
    """The number of seconds that `text` means; a bare number is seconds.

    Raises:
        typer.BadParameter: it is no duration.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a duration: write 90s, 10m, 12h or 7d")
    return float(found["number"]) * _UNIT_SECONDS[found["unit"]]


def proto_duration(seconds: float) -> str:
    """As Pub/Sub's JSON writes it: `600s`, `0.5s`."""
    return f"{seconds:.9f}".rstrip("0").rstrip(".") + "s"


def parse_instant(text: str) -> str:
    """An instant as Pub/Sub's JSON writes it: from a date and time, `now`, or a duration ago.

    Raises:
        typer.BadParameter: it is none of these.
    """
    if text == "now":
        instant = datetime.now(UTC)
    elif _DURATION.fullmatch(text):
        instant = datetime.now(UTC) - timedelta(seconds=parse_duration(text))
    else:
        try:
            instant = datetime.fromisoformat(text)
        except ValueError:
            raise typer.BadParameter(f"{text!r} is not an instant: write 2026-11-28T02:35:00Z, now, or 10m") from None
        if instant.tzinfo is None:
            instant = instant.replace(tzinfo=UTC)
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")
