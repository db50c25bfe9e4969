"""What a power cut leaves: the file and its log as they were at any moment, cut at any byte, half written. Each either
opens with every commit up to some point, and every answered one, or is refused; never with a hole that nobody sees."""

from __future__ import annotations

import random
import sqlite3
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.broker.clock import SimulatedClock
from heliograph.engine.facts import CheckpointBegun
from heliograph.engine.message import Draft
from heliograph.errors import StoreRefused
from heliograph.store.rows import decode_facts
from heliograph.store.sqlite import SqliteStore
from tests.engine.invariants import check_engine, differences, full_state
from tests.store.traffic import Traffic, comparable, small_limits

FILE, LOG = "heliograph.db", "heliograph.db-wal"


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    small_limits(monkeypatch)
    monkeypatch.setattr("heliograph.store.sqlite_file.CHECKPOINT_PAGES", 40)  # SQLite's own checkpoints


class Moment(NamedTuple):
    """The files as they were.

    Args:
        directory: a copy of them.
        answered: so many appends were surely committed.
        appended: and no more than so many can be.
        now_ns: the broker's time.
        statement: between which the writer was.
    """

    directory: Path
    answered: int
    appended: int
    now_ns: int
    statement: str


class Camera:
    """Takes pictures of the files while a broker works on them, between two statements of its writer thread.

    Copies are made by another process: were the files opened and closed in this one, SQLite would lose its locks.
    """

    def __init__(self, place: Path, seed: int, *, share: float = 0.02) -> None:
        self.place = place
        self.chance = random.Random(seed)
        self.share = share
        self.moments: list[Moment] = []
        self.facts_at: dict[int, int] = {0: 0}  # how many facts there were with each row of the journal
        self.traffic = Traffic(place / "data", seed, connect=self.connect)

    def connect(self, path: str, **options: Any) -> sqlite3.Connection:
        camera = self

        class Connection(sqlite3.Connection):
            def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
                if statement.startswith("INSERT INTO journal"):
                    camera.note(*values[0])
                camera.look(f"before {statement}")
                cursor = super().execute(statement, *values)
                if not statement.startswith(("PRAGMA", "SELECT")):  # those have not ended yet
                    camera.look(f"after {statement}")
                return cursor

        return sqlite3.connect(path, **options, **({} if "uri" in options else {"factory": Connection}))

    def note(self, position: int, checksum: int, body: bytes) -> None:
        facts = decode_facts(body, checksum)
        new = 0 if isinstance(facts[0], CheckpointBegun) else len(facts)
        self.facts_at[position] = self.facts_at[position - 1] + new

    def look(self, statement: str) -> None:
        if hasattr(self, "traffic") and hasattr(self.traffic, "broker") and self.chance.random() < self.share:
            self.take(statement)

    def take(self, statement: str = "") -> Moment:
        traffic = self.traffic
        answered, appended, now_ns = traffic.answered(), len(traffic.store.appends) + 1, traffic.clock.now_ns()
        directory = self.place / f"moment-{len(self.moments)}"
        directory.mkdir()
        names = [str(traffic.data_dir / name) for name in (FILE, LOG) if (traffic.data_dir / name).exists()]
        subprocess.run(["cp", *names, str(directory)], check=True)
        self.moments.append(Moment(directory, answered, appended, now_ns, statement))
        return self.moments[-1]

    def appends(self, directory: Path) -> int:
        """With how many appends the file is; -1 if that cannot be told."""
        connection = sqlite3.connect((directory / FILE).as_uri() + "?mode=ro", uri=True)
        try:
            (position,) = connection.execute("SELECT coalesce(max(position), 0) FROM journal").fetchone()
        except sqlite3.Error:
            return -1
        finally:
            connection.close()
        left = self.facts_at[position]
        for index, (facts, _) in enumerate(self.traffic.store.appends):
            if left <= 0:
                return index
            left -= len(facts)
        return len(self.traffic.store.appends)

    def outcome(self, directory: Path, now_ns: int) -> int | None:
        """Opens a copy: with how many appends it is, all of them there with every message; None = it is refused."""
        appends = self.appends(directory)
        clock = SimulatedClock(now_ns)
        try:
            broker = LocalBroker(SqliteStore(directory, durability="none"), clock, memory_budget_bytes=5_000)
        except StoreRefused:
            return None
        try:
            assert appends >= 0
            twin = self.traffic.twin(appends, now_ns)
            check_engine(broker._engine)
            ours, expected = (comparable(full_state(engine, now_ns)) for engine in (broker._engine, twin))
            assert differences(ours, expected) == []
            for name, subscription in twin.subscriptions.items():
                sequences = subscription.unacknowledged()
                ours = broker._engine.subscriptions[name].topic.log.select(sequences)
                assert ours == subscription.topic.log.select(sequences)
            for topic in broker.list_topics():
                broker.publish(topic.name, [Draft(b"it goes on")]).result(10)
            return appends
        finally:
            broker.close()


@pytest.mark.parametrize("seed", range(4))
def test_the_files_at_any_moment_open_with_every_answered_commit(tmp_path: Path, seed: int) -> None:
    camera = Camera(tmp_path, seed)
    for _ in range(120):
        camera.traffic.step()
    camera.traffic.broker.close()
    assert len(camera.moments) > 8
    for moment in camera.moments:
        appends = camera.outcome(moment.directory, moment.now_ns)
        assert appends is not None, moment.statement
        assert moment.answered <= appends <= moment.appended, moment.statement
