"""Publishing to disk and consuming from it: answered only when durable, many operations to a commit."""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Figures, Load, Scale
from benchmarks.scenarios import suite
from heliograph.broker.broker import LocalBroker
from heliograph.broker.reply import Reply
from heliograph.engine.message import Delivery, Draft
from heliograph.store.sqlite import SqliteStore

TOPIC = "projects/bench/topics/orders"
SUBSCRIPTION = "projects/bench/subscriptions/billing"
WAIT_SECONDS_MAX = 60.0
CALLS = {1: 5_000, 100: 1_000}  # by batch, when something else goes on meanwhile
CALLS_ONE_BY_ONE = 200  # each waits for the disk
CONSUMED = 200_000
PUBLISH_TARGETS = {
    (1, 1): "as sqlite_alone: one commit a call, and no more",
    (1, 256): "20k a second",
    (100, 64): "100k a second",
}  # by batch and calls in flight


@suite.scenario(batch=(1, 100), payload_bytes=(100,))
def sqlite_alone(scale: Scale, *, batch: int, payload_bytes: int) -> Iterator[Load]:
    """SQLite without Heliograph: one transaction for each batch, one row for each message; the disk's own pace."""
    rows = [(b"x" * payload_bytes,)] * batch
    calls = scale.count(CALLS_ONE_BY_ONE)
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as directory:
        database = sqlite3.connect(Path(directory) / "peer.db", isolation_level=None)
        database.executescript(
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; CREATE TABLE m (id INTEGER PRIMARY KEY, d)"
        )

        def run() -> Figures:
            for _ in range(calls):
                database.execute("BEGIN")
                database.executemany("INSERT INTO m (d) VALUES (?)", rows)
                database.execute("COMMIT")
            return {"commits": calls}

        try:
            yield Load(run, calls * batch)
        finally:
            database.close()


def _publish_target(*, batch: int, in_flight: int, payload_bytes: int) -> str:
    return PUBLISH_TARGETS.get((batch, in_flight), "") if payload_bytes == 100 else ""


@suite.scenario(
    peer="sqlite_alone", target=_publish_target, batch=(1, 100), in_flight=(1, 64, 256), payload_bytes=(100,)
)
def durable_publish(scale: Scale, *, batch: int, in_flight: int, payload_bytes: int) -> Iterator[Load]:
    """Publish through the broker on a SQLite store, with so many calls waiting for their answer at a time."""
    drafts = [Draft(b"x" * payload_bytes)] * batch
    calls = scale.count(CALLS_ONE_BY_ONE if in_flight == 1 else CALLS[batch])
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as directory:
        store = SqliteStore(directory)
        broker = LocalBroker(store)
        broker.create_topic(TOPIC).result(WAIT_SECONDS_MAX)

        def run() -> Figures:
            before, begin = store.commits, time.perf_counter()
            waiting: deque[Reply[list[str]]] = deque()
            for _ in range(calls):
                waiting.append(broker.publish(TOPIC, drafts))
                if len(waiting) >= in_flight:
                    waiting.popleft().result(WAIT_SECONDS_MAX)
            for reply in waiting:
                reply.result(WAIT_SECONDS_MAX)
            commits = store.commits - before
            figures = {"commits": commits, "messages a commit": calls * batch / commits}
            return figures | ({"ms a call": 1e3 * (time.perf_counter() - begin) / calls} if in_flight == 1 else {})

        try:
            yield Load(run, calls * batch)
        finally:
            broker.close()


@suite.scenario(target="100k a second", batch=(100, 1000), in_flight=(16,), payload_bytes=(100,))
def durable_consume(scale: Scale, *, batch: int, in_flight: int, payload_bytes: int) -> Iterator[Load]:
    """Pull and acknowledge; both wait for the commit, with so many pulls and acknowledgements under way at a time."""
    operations = scale.count(CONSUMED, multiple_of=batch)
    drafts = [Draft(b"x" * payload_bytes)] * batch
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as directory:
        store = SqliteStore(directory)
        broker = LocalBroker(store)
        broker.create_topic(TOPIC).result(WAIT_SECONDS_MAX)
        broker.create_subscription(SUBSCRIPTION, TOPIC).result(WAIT_SECONDS_MAX)

        def publish() -> None:
            for reply in [broker.publish(TOPIC, drafts) for _ in range(operations // batch)]:
                reply.result(WAIT_SECONDS_MAX)

        def run() -> Figures:
            before = store.commits
            consume(broker, operations, batch, in_flight)
            commits = store.commits - before
            return {"commits": commits, "messages a commit": operations / commits}

        try:
            yield Load(run, operations, prepare=publish)
        finally:
            broker.close()


def consume(broker: LocalBroker, messages: int, batch: int, in_flight: int) -> None:
    """Pull and acknowledge so many messages: a delivery is acknowledged when its lease is durable."""
    pulls: deque[Reply[list[Delivery]]] = deque()
    acknowledgements: deque[Reply[list[str]]] = deque()
    asked = consumed = 0
    while consumed < messages:
        while asked < messages and len(pulls) < in_flight:
            pulls.append(broker.pull(SUBSCRIPTION, min(batch, messages - asked)))
            asked += batch
        deliveries = pulls.popleft().result(WAIT_SECONDS_MAX)
        assert deliveries, "a message is missing"
        consumed += len(deliveries)
        ack_ids = [delivery.ack_id for delivery in deliveries]
        acknowledgements.append(broker.acknowledge(SUBSCRIPTION, ack_ids))
        if len(acknowledgements) >= in_flight:
            acknowledgements.popleft().result(WAIT_SECONDS_MAX)
    for reply in acknowledgements:
        reply.result(WAIT_SECONDS_MAX)
