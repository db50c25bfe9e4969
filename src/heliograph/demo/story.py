"""The story: a broker starts, everybody works, Spark reads it all back, and the books are balanced."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from heliograph.demo import probe, topics
from heliograph.demo.balance import Evidence, draw_up
from heliograph.demo.broker_process import BrokerProcess
from heliograph.demo.cast import Cast
from heliograph.demo.commands import Commands
from heliograph.demo.delays import dead_letters, left_in_queue
from heliograph.demo.figures import FlightFigures, run_flights
from heliograph.demo.flights import Flight, by_airline
from heliograph.demo.latency import Percentiles
from heliograph.demo.outcome import Hour, Outcome, Throughput
from heliograph.demo.progress import Step, Steps
from heliograph.errors import HeliographError, Unavailable

LEASE_SECONDS = 10.5  # what a closed stream held would be delivered again after this


class Story:
    """One run.

    Args:
        flights: what is to be published, in the order of the file.
        folder: an empty directory for the broker's data and the archive.
        steps: where progress is shown.
        kills_broker: kill the broker with SIGKILL when half of the flights are published, and start it again.
    """

    def __init__(self, flights: Sequence[Flight], folder: Path, steps: Steps, *, kills_broker: bool = False) -> None:
        self._airlines = by_airline(flights)
        self._count = len(flights)
        self._folder = folder
        self._steps = steps
        self._broker = BrokerProcess(folder / "broker", folder / "broker.log")
        self._crash = Crash(self._broker, self._count // 2, steps) if kills_broker else None

    def tell(self) -> Outcome:
        """Run it from beginning to end; the broker is stopped in the end, whatever happens.

        Raises:
            HeliographError: it could not be run to its end; the text says why.
        """
        started = time.monotonic()
        step = self._steps.begin(Step("Start the broker"))
        with self._broker as broker, topics.emulator_host(broker.endpoint):
            topics.create()
            self._steps.finish(step, f"on port {broker.port}")
            at_rest = self._probe()
            cast = self._play()
            played = time.monotonic()
            figures, analysis_seconds = self._analyse()
            # what a subscriber did not acknowledge is delivered again when its lease is over
            threading.Event().wait(max(0.0, played + LEASE_SECONDS - time.monotonic()))
            evidence, again = self._gather(cast, figures)
        return Outcome(
            balance=draw_up(evidence),
            throughput=[*_throughput(cast, self._count), Throughput("archived and measured by Spark, from its own start", figures_count(figures), analysis_seconds)],
            latency=_latency(cast, at_rest),
            hours=hours(figures),
            waits=cast.workers.waits(),
            handling_seconds=cast.handling_seconds,
            aircraft=cast.ordered.order.aircraft,
            legs_checked=cast.ordered.order.checked,
            repeated=again,
            failures_by_error=cast.workers.failures_by_error,
            broker_killed=self._crash is not None,
            seconds=time.monotonic() - started,
            machine=_machine(),
        )
