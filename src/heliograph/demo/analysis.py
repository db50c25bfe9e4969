"""What Spark finds in the topic: the archive's flights per airline, and the hours of the day."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from heliograph.demo.figures import FlightFigures, run_flights, start_spark


class Analysis(msgspec.Struct, frozen=True):
    """Spark's part.

    Args:
        figures: see `FlightFigures`.
        start_seconds: how long Spark took to start.
        seconds: how long the work took, the start left out.
    """

    figures: FlightFigures
    start_seconds: float
    seconds: float

    @property
    def messages(self) -> int:
        """Messages in the archive; more than flights if a publisher had to repeat a call."""
        return sum(self.figures.messages.values())


def analyse(endpoint: str, topic: str, folder: Path) -> Analysis:
    """Archive the topic below `folder`, and measure it there.

    Args:
        endpoint: HOST:PORT of the broker.
        topic: full name.
        folder: `archive` is made in it.

    Raises:
        HeliographError: no Java, no PySpark, or the broker did not answer.
    """
    started = time.monotonic()
    session = start_spark(endpoint, topic)
    try:
        ready = time.monotonic()
        figures = run_flights(session, endpoint=endpoint, topic=topic, archive_directory=folder / "archive")
        return Analysis(figures, ready - started, time.monotonic() - ready)
    finally:
        session.stop()
