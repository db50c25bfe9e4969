"""`google.protobuf.Duration` ⇄ nanoseconds."""

from __future__ import annotations

from typing import Any

from heliograph.engine.settings import SECOND_NS
from heliograph.errors import InvalidArgument


def nanoseconds(duration: Any) -> int:
    """A `Duration` as nanoseconds."""
    return int(duration.seconds) * SECOND_NS + int(duration.nanos)


def put(duration: Any, value_ns: int) -> None:
    """Write nanoseconds into a `Duration`."""
    duration.seconds, duration.nanos = divmod(value_ns, SECOND_NS)


def check_between(what: str, value_ns: int, bounds_seconds: tuple[int, int], bounds_text: str) -> None:
    """A duration within its bounds.

    Raises:
        InvalidArgument: in the words of the real service (protocol 1.5.3, 1.5.9).
    """
    low, high = bounds_seconds
    if not low * SECOND_NS <= value_ns <= high * SECOND_NS:
        raise InvalidArgument(
            f"The value for {what} is out of bounds. You passed {value_ns / SECOND_NS:.15g}s in the request, but the "
            f"value must be between {bounds_text}."
        )
