"""The late and the cancelled: a forwarder that puts them into a work queue, and workers that take the worst first.

Both ends are at-least-once, so both remember flights and not messages. The forwarder acknowledges a flight only after
the queue has answered, and puts none in twice unless an answer was lost; the workers count a flight once, however often
it came. What finally is in the dead letters, the broker is asked.
"""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec
from google.cloud.pubsub_v1.subscriber.message import Message

from heliograph.demo.commands import CommandRefused, Commands
from heliograph.demo.flights import LATE_MINUTES, Flight
from heliograph.demo.latency import Durations, Percentiles
from heliograph.demo.receipts import Receipts
from heliograph.demo.stream import Stream
from heliograph.errors import Unavailable

QUEUE = "delays"
PRIORITY_CANCELLED = 9
PRIORITY_LATE_MAX = 8
MINUTES_PER_PRIORITY = 30
SETTINGS = {
    "name": QUEUE,
    "ack_deadline_secs": 10,
    "default_max_retries": 3,
    # short, so that a flight that fails four times is a dead letter within two seconds
    "retry_policy": {"minimum_backoff": 0.2, "maximum_backoff": 1.0},
}
WORKERS = 4
CONSUME_SECONDS = 1.0
DAY_MINUTES = 24 * 60
# The broker's answers to somebody whose lease is over, or whose ack or nack was carried out before and sent again.
NOT_HELD = frozenset({"MessageNotFound", "AckDeadlineExceeded"})


class Job(msgspec.Struct, frozen=True):
    """What the queue carries: the flight, and when the forwarder handed it in."""

    flight: Flight
    queued_ns: int


class Delay(msgspec.Struct, frozen=True):
    """What a worker finds out about a flight that left late.

    Args:
        departure: when it really left, local time.
        minutes: how late that was.
    """

    departure: datetime.datetime
    minutes: int


def priority(flight: Flight) -> int:
    """0-9: a cancelled flight is the worst (9), of the others each half hour beyond the first counts one, up to 8."""
    if flight.dep_delay is None:
        return PRIORITY_CANCELLED
    return min((flight.dep_delay - LATE_MINUTES - 1) // MINUTES_PER_PRIORITY, PRIORITY_LATE_MAX)


def work_off(flight: Flight) -> Delay:
    """The worker's work: when the flight left, from the clock times.

    Nothing is wrong with it, and it fails on a cancelled flight: there is no time to take apart.

    Raises:
        TypeError: the flight has no departure time.
    """
    left = _minutes(flight.dep_time)  # type: ignore[arg-type]  # the defect that this demonstration needs
    due = _minutes(flight.sched_dep_time)
    minutes = (left - due) % DAY_MINUTES
    if flight.dep_delay is not None:
        minutes += (flight.dep_delay - minutes) // DAY_MINUTES * DAY_MINUTES  # more than a day late, or early
    midnight = datetime.datetime(flight.year, flight.month, flight.day)
    return Delay(midnight + datetime.timedelta(minutes=due + minutes), minutes)


def _minutes(clock_time: int) -> int:
    """Minutes since midnight of a clock time like 517 or 2359."""
    hours, minutes = divmod(clock_time, 100)
    return hours * 60 + minutes


class Forwarder:
    """Subscribes to the topic and puts what is late or cancelled into the queue.

    Args:
        subscription: full resource name.
        commands: the work-queue door.
        expected: how many different flights the topic will carry.
        on_first: called for each flight looked at for the first time.
    """

    def __init__(
        self, subscription: str, commands: Commands, expected: int, on_first: Callable[[], None] | None = None
    ) -> None:
        self.seen = Receipts(expected, on_first)
        self.queued = Receipts()
        self.enqueue = Durations()
        self._subscription = subscription
        self._commands = commands
        self._decode = msgspec.json.Decoder(Flight).decode
        self._in_queue: set[int] = set()
        self._handing_in: set[int] = set()
        self._lock = threading.Lock()
        self._stream: Stream | None = None

    def start(self) -> None:
        """Make the queue, and open the stream."""
        self._commands.call("queue.create", SETTINGS)
        self._stream = Stream(self._subscription, self._receive)

    def failure(self) -> BaseException | None:
        """What ended the stream; None = it runs, or was stopped."""
        return None if self._stream is None else self._stream.failure()

    def stop(self) -> None:
        """Close the stream, the acknowledgements sent. Idempotent."""
        if self._stream is not None:
            self._stream.close()

    def _receive(self, message: Message) -> None:
        flight = self._decode(message.data)
        if (flight.cancelled or flight.late) and not self._forward(flight):
            message.nack()
            return
        message.ack()
        self.seen.add(flight.carrier, flight.row)

    def _forward(self, flight: Flight) -> bool:
        """Have the flight in the queue; False = another thread is just handing it in, and might fail."""
        with self._lock:
            if flight.row in self._in_queue:
                return True
            if flight.row in self._handing_in:
                return False
            self._handing_in.add(flight.row)
        try:
            job = {"flight": flight, "queued_ns": time.time_ns()}
            started_ns = time.perf_counter_ns()
            self._commands.call("queue.publish", {"queue": QUEUE, "message": job, "priority": priority(flight)})
            self.enqueue.add(time.perf_counter_ns() - started_ns)
            with self._lock:
                self._in_queue.add(flight.row)
        finally:
            with self._lock:
                self._handing_in.discard(flight.row)
        self.queued.add(flight.carrier, flight.row)
        return True


class Workers:
    """Several workers on the queue, each a thread with a connection of its own.

    Args:
        endpoint: HOST:PORT of the broker.
        handling_seconds: how long a worker is busy with a late flight, beside the computation.
        on_settled: called for each flight that was worked off or has become a dead letter.
    """

    def __init__(
        self, endpoint: str, handling_seconds: float = 0.0, on_settled: Callable[[], None] | None = None
    ) -> None:
        self.worked = Receipts(on_first=on_settled)
        self.dead = Receipts(on_first=on_settled)
        self.failures_by_error: dict[str, int] = {}
        self.complete = threading.Event()
        self.completed = 0.0
        self._waits = {level: Durations() for level in range(PRIORITY_CANCELLED + 1)}
        self._expected: int | None = None
        self._handling_seconds = handling_seconds
        self._stopping = threading.Event()
        self._commands = Commands(endpoint, self._stopping)
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(WORKERS, "worker")
        self._running: list[Future[None]] = []

    def start(self) -> None:
        """Begin to work."""
        self._running = [self._threads.submit(self._run, f"worker-{number}") for number in range(1, WORKERS + 1)]

    def expect(self, count: int) -> None:
        """Say how many flights there are in all; `complete` is set when so many are worked off or dead letters."""
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

    def waits(self) -> dict[int, Percentiles]:
        """Per priority that occurred: how long flights waited in the queue until a worker first took them."""
        found = {level: durations.percentiles() for level, durations in self._waits.items()}
        return {level: percentiles for level, percentiles in found.items() if percentiles.count}

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
        self.worked.add(flight.carrier, flight.row)
        self._check()

    def _give_back(self, flight: Flight, held: dict[str, Any], error: Exception) -> None:
        with self._lock:
            name = f"{type(error).__name__}: {error}"
            self.failures_by_error[name] = self.failures_by_error.get(name, 0) + 1
        try:
            answer = self._commands.call("queue.nack", held)
        except CommandRefused as refusal:
            if refusal.reason not in NOT_HELD:
                raise
            return
        if answer.get("action") == "dead_lettered":
            self.dead.add(flight.carrier, flight.row)
            self._check()

    def _ask_for_dead_letters(self) -> None:
        """After a crash: the answer that a flight is a dead letter may have been lost, the dead letter is not."""
        if left_in_queue(self._commands):
            return
        for flight in dead_letters(self._commands):
            self.dead.add(flight.carrier, flight.row)
        self._check()

    def _check(self) -> None:
        settled = len(self.worked) + len(self.dead)
        if self._expected is not None and settled >= self._expected and not self.complete.is_set():
            self.completed = time.monotonic()
            self.complete.set()


def dead_letters(commands: Commands, page: int = 1_000) -> Iterator[Flight]:
    """The flights in the queue's dead letters, as the broker lists them."""
    offset = 0
    while True:
        answer = commands.call("dlq.list", {"queue": QUEUE, "limit": page, "offset": offset})
        for entry in answer["messages"]:
            yield msgspec.convert(entry["message"], Job).flight
        offset += len(answer["messages"])
        if not answer["messages"] or offset >= answer["total"]:
            return


def left_in_queue(commands: Commands) -> int:
    """How many messages the queue still holds, waiting, delayed (they are part of its depth) or leased."""
    statistics = commands.call("queue.stats", {"queue": QUEUE})
    return int(statistics["depth"]) + int(statistics["outstanding"])
