"""Publishing to disk: answered only when durable, many operations to a commit."""

from __future__ import annotations

import sqlite3
import tempfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Figures, Load, Scale
from benchmarks.scenarios import suite
from heliograph.broker.broker import LocalBroker
from heliograph.broker.reply import Reply
from heliograph.engine.message import Draft
from heliograph.store.sqlite import SqliteStore

TOPIC = "projects/bench/topics/orders"
WAIT_SECONDS_MAX = 60.0
CALLS = {1: 5_000, 100: 1_000}  # by batch, when something else goes on meanwhile
CALLS_ONE_BY_ONE = 200  # each waits for the disk


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


@suite.scenario(peer="sqlite_alone", batch=(1, 100), in_flight=(1, 1000), payload_bytes=(100,))
def durable_publish(scale: Scale, *, batch: int, in_flight: int, payload_bytes: int) -> Iterator[Load]:
    """Publish through the broker on a SQLite store, with so many calls waiting for their answer at a time."""
    drafts = [Draft(b"x" * payload_bytes)] * batch
    calls = scale.count(CALLS_ONE_BY_ONE if in_flight == 1 else CALLS[batch])
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as directory:
        store = SqliteStore(directory)
        broker = LocalBroker(store)
        broker.create_topic(TOPIC).result(WAIT_SECONDS_MAX)

        def run() -> Figures:
            before = store.commits
            waiting: deque[Reply[list[str]]] = deque()
            for _ in range(calls):
                waiting.append(broker.publish(TOPIC, drafts))
                if len(waiting) >= in_flight:
                    waiting.popleft().result(WAIT_SECONDS_MAX)
            for reply in waiting:
                reply.result(WAIT_SECONDS_MAX)
            commits = store.commits - before
            return {"commits": commits, "messages a commit": calls * batch / commits}

        try:
            yield Load(run, calls * batch)
        finally:
            broker.close()
