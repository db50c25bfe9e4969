"""The workers: they take the worst from the queue first.

A flight counts once, however often it came. What finally is in the dead letters, the broker is asked.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec

from heliograph.demo.commands import CommandRefused, Commands
from heliograph.demo.delays import (
    PRIORITY_CANCELLED,
    QUEUE,
    Job,
    dead_letters,
    left_in_queue,
    work_off,
)
from heliograph.demo.flights import Flight
from heliograph.demo.latency import Durations, Percentiles
from heliograph.demo.receipts import Receipts
from heliograph.errors import Unavailable

WORKERS = 4
CONSUME_SECONDS = 1.0
# The broker's answers to somebody whose lease is over, or whose ack or nack was carried out before and sent again.
NOT_HELD = frozenset({"MessageNotFound", "AckDeadlineExceeded"})


class Task(msgspec.Struct, frozen=True):
    """What workers have to know.

    Args:
        endpoint: HOST:PORT of the broker.
        handling_seconds: how long a worker is busy with a late flight, beside the computation.
    """

    endpoint: str
    handling_seconds: float = 0.0


class WorkDone(msgspec.Struct, frozen=True, kw_only=True):
    """What the workers have done.

    Args:
        worked: flights worked off (by `Flight.row`), per airline.
        dead: flights that became dead letters.
        waits: per priority that occurred, how long flights waited in the queue until a worker first took them.
        failures_by_error: what they failed with, and how often.
        repeated: how often a flight was worked off once more.
    """

    worked: dict[str, set[int]]
    dead: dict[str, set[int]]
    waits: dict[int, Percentiles]
    failures_by_error: dict[str, int]
    repeated: int


class Workers:
    """Several workers on the queue, each a thread with a connection of its own; complete when all that is expected is
    worked off or among the dead letters."""

    def __init__(self, task: Task) -> None:
        self.complete = threading.Event()
        self.completed = 0.0
        self._worked = Receipts()
        self._dead = Receipts()
        self._failures_by_error: Counter[str] = Counter()
        self._waits = {level: Durations() for level in range(PRIORITY_CANCELLED + 1)}
        self._expected: int | None = None
        self._handling_seconds = task.handling_seconds
        self._stopping = threading.Event()
        self._commands = Commands(task.endpoint, self._stopping)
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(WORKERS, "worker")
        self._running: list[Future[None]] = []

    def start(self) -> None:
        """Begin to work."""
        self._running = [self._threads.submit(self._run, f"worker-{number}") for number in range(1, WORKERS + 1)]

    def expect(self, count: int) -> None:
        """Learn how many flights there are in all."""
        self._expected = count
        self._check()

    def failure(self) -> BaseException | None:
        """What ended a worker before its time; None = they run, or were stopped."""
        for running in self._running:
            if running.done() and (error := running.exception()) is not None:
                return error
        return None

    def stop(self) -> None:
        """Let each finish what it holds. Idempotent."""
        self._stopping.set()
        self._threads.shutdown()

    def done(self) -> int:
        """How many flights are worked off or dead letters."""
        return len(self._worked) + len(self._dead)

    def result(self) -> WorkDone:
        """What they have done so far."""
        waits = {level: durations.percentiles() for level, durations in self._waits.items()}
        return WorkDone(
            worked=self._worked.by_airline(),
            dead=self._dead.by_airline(),
            waits={level: found for level, found in waits.items() if found.count},
            failures_by_error=dict(self._failures_by_error),
            repeated=self._worked.repeated,
        )

    def _run(self, name: str) -> None:
        question = {"queue": QUEUE, "consumer_id": name, "timeout": CONSUME_SECONDS, "ack_deadline": 10}
        try:
            while not self._stopping.is_set():
                delivery = self._commands.call("queue.consume", question)
                if delivery.get("message_id") is not None:
                    self._handle(delivery)
                elif self._expected is not None and not self.complete.is_set():
                    self._ask_for_dead_letters()
        except Unavailable:
            if not self._stopping.is_set():
                raise
        finally:
            self._commands.close()

    def _handle(self, delivery: dict[str, Any]) -> None:
        job = msgspec.convert(delivery["message"], Job)
        if delivery["retry_count"] == 0:
            self._waits[delivery["priority"]].add(time.time_ns() - job.queued_ns)
        held = {"queue": QUEUE, "message_id": delivery["message_id"], "lease_id": delivery["lease_id"]}
        try:
            work_off(job.flight)
        except Exception as error:
            self._give_back(job.flight, held, error)
        else:
            self._stopping.wait(self._handling_seconds)
            self._done(job.flight, held)

    def _done(self, flight: Flight, held: dict[str, Any]) -> None:
        try:
            self._commands.call("queue.ack", held)
        except CommandRefused as refusal:
            if refusal.reason not in NOT_HELD:
                raise
            if not refusal.repeated:
                return  # the lease ran out: somebody else has it, or will
        self._worked.add(flight.carrier, flight.row)
        self._check()

    def _give_back(self, flight: Flight, held: dict[str, Any], error: Exception) -> None:
        with self._lock:
            self._failures_by_error[f"{type(error).__name__}: {error}"] += 1
        try:
            answer = self._commands.call("queue.nack", held)
        except CommandRefused as refusal:
            if refusal.reason not in NOT_HELD:
                raise
            return
        if answer.get("action") == "dead_lettered":
            self._dead.add(flight.carrier, flight.row)
            self._check()

    def _ask_for_dead_letters(self) -> None:
        """After a crash: the answer that a flight is a dead letter may have been lost, the dead letter is not."""
        if left_in_queue(self._commands):
            return
        for flight in dead_letters(self._commands):
            self._dead.add(flight.carrier, flight.row)
        self._check()

    def _check(self) -> None:
        if self._expected is not None and self.done() >= self._expected and not self.complete.is_set():
            self.completed = time.monotonic()
            self.complete.set()


def from_task(task: bytes) -> Workers:
    """Workers for a `Task` in msgpack: for another process."""
    return Workers(msgspec.msgpack.decode(task, type=Task))
