"""What Spark finds in the topic: the archive's flights per airline, and the hours of the day."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from heliograph.demo.outcome import Hour


class Analysis(msgspec.Struct, frozen=True):
    """Spark's part.

    Args:
        archived: different flights in the archive, per airline.
        messages: messages in the archive; more than flights if a publisher had to repeat a call.
        hours: the hours of the day that have flights, in order.
        seconds: how long it took, Spark's start included.
    """

    archived: Mapping[str, int]
    messages: int
    hours: Sequence[Hour]
    seconds: float


def analyse(endpoint: str, topic: str, folder: Path) -> Analysis:
    """Archive the topic below `folder`, and measure it there."""
    raise NotImplementedError
