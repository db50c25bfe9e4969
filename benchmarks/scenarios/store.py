"""The SQLite store alone: what durability costs without engine and broker."""

from __future__ import annotations

import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Figures, Load, Scale
from benchmarks.scenarios import suite
from heliograph.engine.facts import Fact, MessagesAcknowledged, MessagesLeased, MessagesPublished
from heliograph.engine.message import Message
from heliograph.store.protocol import Commit, Durability
from heliograph.store.sqlite import SqliteStore

TOPIC = "projects/bench/topics/orders"
SUBSCRIPTION = "projects/bench/subscriptions/billing"
NOW_NS = 1_700_000_000_000_000_000
APPENDS = {1: 20_000, 100: 5_000}  # by batch
LONE_APPENDS = 200  # each waits for the disk
RECOVERED = 1_000_000


class Publisher:
    """Makes the facts of publications to one topic."""

    def __init__(self, batch: int, payload_bytes: int) -> None:
        self._batch = batch
        self._data = b"x" * payload_bytes
        self._next = 1

    def fact(self) -> MessagesPublished:
        """The next batch."""
        first, self._next = self._next, self._next + self._batch
        messages = [Message(sequence, NOW_NS, self._data) for sequence in range(first, self._next)]
        return MessagesPublished(TOPIC, 1, messages)

    def consumed(self) -> list[Fact]:
        """What follows when the latest batch is delivered and acknowledged."""
        sequences = list(range(self._next - self._batch, self._next))
        return [
            MessagesLeased(SUBSCRIPTION, self._next, sequences, NOW_NS, NOW_NS, ""),
            MessagesAcknowledged(SUBSCRIPTION, sequences),
        ]


@suite.scenario(batch=(1, 100), in_flight=(64,), payload_bytes=(100,), durability=("full", "none"))
def store_append(
    scale: Scale, *, batch: int, in_flight: int, payload_bytes: int, durability: Durability
) -> Iterator[Load]:
    """Append published batches with so many waiting for their commit at a time."""
    calls = scale.count(APPENDS[batch])
    publisher = Publisher(batch, payload_bytes)
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as directory:
        store = SqliteStore(directory, durability=durability)

        def run() -> Figures:
            before = store.commits
            waiting: deque[Commit] = deque()
            for _ in range(calls):
                waiting.append(store.append([publisher.fact()]))
                if len(waiting) >= in_flight:
                    waiting.popleft().wait()
            store.append([]).wait()
            return {"commits": store.commits - before}

        try:
            yield Load(run, calls * batch)
        finally:
            store.close()


@suite.scenario(batch=(1, 100), payload_bytes=(100,))
def store_append_alone(scale: Scale, *, batch: int, payload_bytes: int) -> Iterator[Load]:
    """Append, wait for the commit, append the next: the latency of a commit."""
    calls = scale.count(LONE_APPENDS)
    publisher = Publisher(batch, payload_bytes)
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as directory:
        store = SqliteStore(directory)

        def run() -> Figures:
            before = store.commits
            seconds = []
            for _ in range(calls):
                begin = time.perf_counter()
                store.append([publisher.fact()]).wait()
                seconds.append(time.perf_counter() - begin)
            seconds.sort()
            return {
                "commits": store.commits - before,
                "ms, median": 1e3 * seconds[len(seconds) // 2],
                "ms, p99": 1e3 * seconds[len(seconds) * 99 // 100],
            }

        try:
            yield Load(run, calls * batch)
        finally:
            store.close()


@suite.scenario(batch=(1, 100), consumed=(False, True), payload_bytes=(100,))
def store_recover(scale: Scale, *, batch: int, consumed: bool, payload_bytes: int) -> Iterator[Load]:
    """Read every fact back: of publications alone, or each with its delivery and acknowledgement."""
    operations = scale.count(RECOVERED, multiple_of=batch)
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as directory:
        _fill(directory, operations // batch, Publisher(batch, payload_bytes), consumed)
        size_bytes = (Path(directory) / "heliograph.db").stat().st_size
        store = SqliteStore(directory)

        def run() -> Figures:
            facts = sum(1 for _ in store.recover())
            return {"facts": facts, "bytes a message": size_bytes / operations}

        try:
            yield Load(run, operations)
        finally:
            store.close()


@suite.scenario(batch=(1, 100), payload_bytes=(100,))
def store_read_log(scale: Scale, *, batch: int, payload_bytes: int) -> Iterator[Load]:
    """Read a topic's log from end to end."""
    operations = scale.count(RECOVERED, multiple_of=batch)
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as directory:
        _fill(directory, operations // batch, Publisher(batch, payload_bytes), consumed=False)
        store = SqliteStore(directory)

        def run() -> Figures:
            batches = sum(1 for _ in store.read_log(1, 1, operations))
            return {"messages a batch": operations / batches}

        try:
            yield Load(run, operations)
        finally:
            store.close()


def _fill(directory: str, appends: int, publisher: Publisher, consumed: bool) -> None:
    """A store as 64 publishers in flight leave it."""
    store = SqliteStore(directory, durability="none")
    for number in range(appends):
        commit = store.append([publisher.fact()])
        if consumed:
            commit = store.append(publisher.consumed())
        if number % 64 == 0:
            commit.wait()
    store.close()
