"""The story: a broker starts, everybody works, Spark reads it all back, and the books are balanced."""

from __future__ import annotations

import contextlib
import os
import platform
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from heliograph.demo import probe, topics
from heliograph.demo.analysis import Analysis, analyse
from heliograph.demo.balance import Evidence, draw_up
from heliograph.demo.broker_process import BrokerProcess
from heliograph.demo.cast import Cast
from heliograph.demo.commands import Commands
from heliograph.demo.crash import Crash
from heliograph.demo.delays import dead_letters, left_in_queue
from heliograph.demo.flights import Flight, by_airline
from heliograph.demo.latency import Percentiles, percentiles
from heliograph.demo.outcome import Outcome, Throughput
from heliograph.demo.progress import Step, Steps
from heliograph.demo.topics import NAMES
from heliograph.errors import Unavailable

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
            step = self._steps.begin(Step("Measure latency, one message at a time", probe.COUNT))
            at_rest = probe.measure(on_arrival=step.advance)
            self._steps.finish(step)
            cast = self._play()
            played = time.monotonic()
            step = self._steps.begin(Step("Archive and measure with Spark"))
            analysis = analyse(broker.endpoint, NAMES.flights, self._folder)
            self._steps.finish(step, f"Spark's start took {analysis.start_seconds:.0f} s")
            # what a subscriber did not acknowledge is delivered again when its lease is over
            threading.Event().wait(max(0.0, played + LEASE_SECONDS - time.monotonic()))
            evidence, again = self._evidence(cast, analysis)
        return Outcome(
            balance=draw_up(evidence),
            throughput=_throughput(cast, self._count, analysis),
            latency=_latency(cast, at_rest),
            hours=analysis.figures.hours,
            waits=cast.workers.result().waits,
            handling_seconds=cast.handling_seconds,
            aircraft=cast.ordered.order.aircraft,
            legs_checked=cast.ordered.order.checked,
            repeated=_repeated(cast, self._count, analysis, again),
            failures_by_error=cast.workers.result().failures_by_error,
            broker_killed=self._crash is not None,
            seconds=time.monotonic() - started,
            machine=_machine(),
        )

    def _play(self) -> Cast:
        published = self._crash.published if self._crash is not None else lambda _: None
        cast = Cast(self._broker.endpoint, self._airlines, self._steps, published)
        with self._crash or contextlib.nullcontext():
            cast.play(self._check)
        return cast

    def _check(self) -> None:
        """Raises: Unavailable (the broker is gone, and not because of us)."""
        if self._crash is not None and self._crash.failure is not None:
            raise Unavailable(f"The broker did not come back: {self._crash.failure}")
        code = self._broker.ended()
        if code is not None:
            how = f"by signal {-code}" if code < 0 else f"with exit code {code}: {self._broker.last_words()}"
            raise Unavailable(f"The broker ended before its time, {how}")

    def _evidence(self, cast: Cast, analysis: Analysis) -> tuple[Evidence, int]:
        """What everybody has seen, and how many messages the subscriptions delivered once more at the end.

        After a crash, acknowledgements that were on their way may be lost and their messages come again: they are
        known, and acknowledged now. A message that nobody knows is a difference all the same.
        """
        commands = Commands(self._broker.endpoint)
        acknowledged, seen = cast.ordered.acknowledged.rows(), cast.forwarder.seen.rows()
        again = {NAMES.ordered: acknowledged, NAMES.forwarder: seen}
        rows = {
            subscription: [msgspec.json.decode(data, type=Flight).row for _, data in topics.drain(subscription)]
            for subscription in again
        }
        unknown = sum(row not in known for subscription, known in again.items() for row in rows[subscription])
        known = sum(map(len, rows.values())) - unknown
        published: dict[str, dict[int, str]] = {}
        for answer in cast.publishers.result():
            published.setdefault(answer.carrier, {})[answer.row] = answer.message_id
        dead: dict[str, set[int]] = {}
        for flight in dead_letters(commands):
            dead.setdefault(flight.carrier, set()).add(flight.row)
        evidence = Evidence(
            flights=self._airlines,
            published=published,
            archived=analysis.figures.flights,
            acknowledged=cast.ordered.acknowledged.by_airline(),
            queued=cast.forwarder.queued.by_airline(),
            worked=cast.workers.result().worked,
            dead=dead,
            order_violations=cast.ordered.order.violations,
            left_unacknowledged=unknown if self._crash is not None else unknown + known,
            left_in_queue=left_in_queue(commands),
        )
        commands.close()
        return evidence, known


def _throughput(cast: Cast, count: int, analysis: Analysis) -> list[Throughput]:
    def since_start(completed: float) -> float:
        return completed - cast.started

    work = cast.workers.result()
    jobs = sum(map(len, work.worked.values())) + sum(map(len, work.dead.values()))
    return [
        Throughput("published and answered (durable)", count, since_start(cast.publishers.completed)),
        Throughput(
            "delivered in order, checked, acknowledged", count, since_start(cast.ordered.acknowledged.completed)
        ),
        Throughput("looked at by the forwarder", count, since_start(cast.forwarder.seen.completed)),
        Throughput("queued, and worked off or dead-lettered", jobs, since_start(cast.workers.completed)),
        Throughput("archived and measured by Spark, once started", analysis.messages, analysis.seconds),
    ]


def _latency(cast: Cast, at_rest: Percentiles) -> dict[str, Percentiles]:
    return {
        "publish() to callback, one message at a time": at_rest,
        "publish() to durable answer, all at once": percentiles(
            answer.duration_ns for answer in cast.publishers.result()
        ),
        "publish time to ordered callback, all at once": cast.ordered.delivery.percentiles(),
        "queue.publish to durable answer": cast.forwarder.enqueue.percentiles(),
    }


def _repeated(cast: Cast, count: int, analysis: Analysis, again: int) -> dict[str, int]:
    return {
        "publishes (the client repeated a call whose answer was lost)": analysis.messages - count,
        "ordered deliveries": cast.ordered.acknowledged.repeated + again,
        "deliveries to the forwarder": cast.forwarder.seen.repeated,
        "late flights worked off": cast.workers.result().repeated,
    }


def _machine() -> str:
    return f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}"
