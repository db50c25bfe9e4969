"""Everybody at work at once: publishers, ordered subscriber, forwarder and workers, started, watched and stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from heliograph.demo import publishers, workers
from heliograph.demo.commands import Commands
from heliograph.demo.flights import Flight
from heliograph.demo.forwarder import Forwarder
from heliograph.demo.ordered_subscriber import OrderedSubscriber
from heliograph.demo.part_process import PartProcess, in_one_line
from heliograph.demo.progress import Step, Steps
from heliograph.demo.topics import NAMES
from heliograph.demo.workers import WORKERS, WorkDone
from heliograph.errors import Unavailable

STALL_SECONDS_MAX = 90.0
LOOK_EVERY_SECONDS = 0.5
# How long all workers together are busy with the late flights, about: enough for a queue to form, in which the worst
# overtake the others.
HANDLING_SECONDS_ALL = 10.0
HANDLING_SECONDS_MAX = 0.03


class _Completes(Protocol):
    """Something that goes on by itself until it is complete."""

    complete: threading.Event
    completed: float


class Cast:
    """Those who take part.

    Args:
        endpoint: HOST:PORT of the broker.
        airlines: flights per airline, in the order in which they are to be published.
        steps: where progress is shown.
        on_published: called with the number of flights answered so far, from any thread; must be quick.
    """

    def __init__(
        self,
        endpoint: str,
        airlines: Mapping[str, Sequence[Flight]],
        steps: Steps,
        on_published: Callable[[int], None],
    ) -> None:
        count = sum(map(len, airlines.values()))
        late = sum(flight.late for flights in airlines.values() for flight in flights)
        self.handling_seconds = min(HANDLING_SECONDS_ALL * WORKERS / max(late, 1), HANDLING_SECONDS_MAX)
        self.started = 0.0
        self._steps = steps
        self._over = threading.Event()
        self._publish = Step("Publish, one publisher per airline", count)
        self._consume = Step("Consume in order, check and acknowledge", count)
        self._forward = Step("Forward the late and the cancelled", count)
        self._work = Step("Work off the queue, worst first", None)

        def published(done: int) -> None:
            self._publish.reach(done)
            on_published(done)

        self.publishers = PartProcess(
            "publishers",
            publishers.from_task,
            publishers.encode_task(NAMES.flights, airlines),
            list[publishers.Answer],
            published,
        )
        self.ordered = OrderedSubscriber(NAMES.ordered, count, self._consume.advance)
        self.forwarder = Forwarder(NAMES.forwarder, Commands(endpoint, self._over), count, self._forward.advance)
        task = workers.Task(endpoint, self.handling_seconds)
        self.workers = PartProcess(
            "workers", workers.from_task, msgspec.msgpack.encode(task), WorkDone, self._work.reach
        )

    def play(self, check: Callable[[], None]) -> None:
        """Everybody works until everything is done; nobody works any more afterwards, whatever happened.

        Args:
            check: called now and then; what it raises ends the play.

        Raises:
            HeliographError: somebody failed, or nothing moved for too long.
        """
        try:
            self.ordered.start()
            self.forwarder.start()
            self.workers.start()
            self.started = time.monotonic()
            for step in (self._publish, self._consume, self._forward, self._work):
                self._steps.begin(step)
            self.publishers.start()
            self._await(self.publishers, self._publish, check)
            self._await(self.ordered.acknowledged, self._consume, check)
            self._await(self.forwarder.seen, self._forward, check)
            self._work.total = len(self.forwarder.queued)
            self.workers.expect(len(self.forwarder.queued))
            self._await(self.workers, self._work, check)
        finally:
            self._stop()

    def _stop(self) -> None:
        self._over.set()
        self.workers.stop()
        self.ordered.stop()
        self.forwarder.stop()
        self.publishers.stop()

    def _await(self, part: _Completes, step: Step, check: Callable[[], None]) -> None:
        """Wait for a part to complete, looking after everybody meanwhile."""
        moved, moved_at = -1, time.monotonic()
        while not part.complete.wait(LOOK_EVERY_SECONDS):
            check()
            for who, failure in self._failures().items():
                if failure is not None:
                    raise Unavailable(f"The {who} failed: {in_one_line(failure)}") from failure
            done = self._publish.done + self._consume.done + self._forward.done + self._work.done
            if done != moved:
                moved, moved_at = done, time.monotonic()
            elif time.monotonic() - moved_at > STALL_SECONDS_MAX:
                raise Unavailable(f"Nothing has moved for {STALL_SECONDS_MAX:.0f} s. {step.line()}")
        self._steps.finish(step, at=part.completed)

    def _failures(self) -> dict[str, BaseException | None]:
        return {
            "publishers": self.publishers.failure(),
            "ordered subscriber": self.ordered.failure(),
            "forwarder": self.forwarder.failure(),
            "workers": self.workers.failure(),
        }
