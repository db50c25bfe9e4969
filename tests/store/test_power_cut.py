"""What a power cut leaves: the file and its log as they were at any moment, cut at any byte, half written. Each either
opens with every commit up to some point, and every answered one, or is refused; never with a hole that nobody sees."""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.broker.clock import SimulatedClock
from heliograph.broker.housekeeping import Housekeeping
from heliograph.engine.engine import Engine
from heliograph.engine.facts import CheckpointBegun
from heliograph.engine.message import Draft
from heliograph.errors import Internal, StoreRefused, Unavailable
from heliograph.store.rows import decode_facts
from heliograph.store.sqlite import SqliteStore
from tests.engine.invariants import check_engine, differences, full_state
from tests.portions import quick_first
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
        try:
            return self.opened(directory, now_ns)
        except StoreRefused:
            return None

    def opened(self, directory: Path, now_ns: int) -> int:
        appends = self.appends(directory)
        store = SqliteStore(directory, durability="none")
        try:
            # not a whole broker: that would forward dead letters at once
            ours = Housekeeping(store, 5_000)
            ours.recover(now_ns)
            assert appends >= 0
            self.compare(ours.engine, self.traffic.twin(appends, now_ns), now_ns)
        finally:
            store.close()
        broker = LocalBroker(SqliteStore(directory, durability="none"), SimulatedClock(now_ns))
        for topic in broker.list_topics():
            broker.publish(topic.name, [Draft(b"it goes on")]).result(30)
        broker.close()
        return appends

    def compare(self, ours: Engine, twin: Engine, now_ns: int) -> None:
        check_engine(ours)
        states = [comparable(full_state(engine, now_ns)) for engine in (ours, twin)]
        assert differences(*states) == []
        for name, subscription in twin.subscriptions.items():
            sequences = subscription.unacknowledged()
            messages = ours.subscriptions[name].topic.log.select(sequences)
            assert messages == subscription.topic.log.select(sequences)


# ── what may be left ────────────────────────────────────────────────────────────────────────────────────────────────


class Files(NamedTuple):
    """The file and its log, as bytes."""

    main: bytes
    log: bytes


@pytest.fixture(params=quick_first(range(3), 1))
def camera(request: pytest.FixtureRequest, tmp_path: Path) -> Camera:
    """One that has watched a broker for a while, which is closed now."""
    camera = Camera(tmp_path, request.param)
    for _ in range(100):
        camera.traffic.step()
    camera.traffic.broker.close()
    assert len(camera.moments) >= 5
    assert camera.traffic.store.checkpoints
    return camera


def files(directory: Path) -> Files:
    log = directory / LOG
    return Files((directory / FILE).read_bytes(), log.read_bytes() if log.exists() else b"")


def laid_out(place: Path, left: Files) -> Path:
    """A directory with these files."""
    directory = place / "left"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    (directory / FILE).write_bytes(left.main)
    if left.log:
        (directory / LOG).write_bytes(left.log)
    return directory


def test_the_files_at_any_moment_open_with_every_answered_commit(camera: Camera) -> None:
    for moment in camera.moments:
        appends = camera.outcome(moment.directory, moment.now_ns)
        assert appends is not None, moment.statement
        assert moment.answered <= appends <= moment.appended, moment.statement


def test_a_log_cut_at_any_byte_opens_with_a_prefix_or_is_refused(camera: Camera) -> None:
    """A cut in what was safe already is more than a power cut does: SQLite may have moved later pages into the file."""
    for moment in camera.moments[:12]:
        main, log = files(moment.directory)
        for _ in range(2):
            left = Files(main, log[: camera.chance.randrange(len(log) + 1)])
            appends = camera.outcome(laid_out(camera.place, left), moment.now_ns)
            assert appends is None or appends <= moment.appended


def test_a_file_cut_at_any_byte_is_refused(camera: Camera) -> None:
    main, _ = files(camera.traffic.data_dir)
    now_ns = camera.traffic.clock.now_ns()
    for cut in [*(camera.chance.randrange(1, len(main)) for _ in range(10)), len(main) - 1, len(main) - 4096]:
        assert camera.outcome(laid_out(camera.place, Files(main[:cut], b"")), now_ns) is None


def test_a_file_cut_at_any_byte_beside_its_log_is_refused_or_whole(camera: Camera) -> None:
    for moment in camera.moments[:12]:
        main, log = files(moment.directory)
        for cut in (camera.chance.randrange(100, len(main)), len(main) - camera.chance.randrange(1, 4096)):
            appends = camera.outcome(laid_out(camera.place, Files(main[:cut], log)), moment.now_ns)
            assert appends is None or appends >= moment.answered


@pytest.mark.slow
def test_pages_that_are_being_copied_into_the_file_may_be_there_in_any_part(camera: Camera) -> None:
    for moment in camera.moments[:12]:
        before = files(moment.directory)
        directory = laid_out(camera.place, before)
        connection = sqlite3.connect(directory / FILE)
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        after, _ = files(directory)
        connection.close()
        pages = [
            after[start : start + 4096] if camera.chance.random() < 0.5 else before.main[start : start + 4096]
            for start in range(0, len(after), 4096)
        ]
        main = b"".join(page.ljust(4096, b"\0") for page in pages)
        left = Files(main[: max(len(before.main), camera.chance.randrange(len(main)))], before.log)
        appends = camera.outcome(laid_out(camera.place, left), moment.now_ns)
        assert appends is not None, moment.statement
        assert moment.answered <= appends <= moment.appended, moment.statement


@pytest.mark.slow
def test_files_that_were_copied_one_after_the_other_open_with_a_prefix_or_are_refused(camera: Camera) -> None:
    """No power cut leaves such a pair. What is wrong in a message's own row is told when the row is read: to tell it at
    the start, the start would have to read every message; `heliograph store check` does."""
    for earlier, later in pairwise(camera.moments[:12]):
        old, new = files(earlier.directory), files(later.directory)
        for left in (Files(old.main, new.log), Files(new.main, old.log)):
            with contextlib.suppress(Internal, Unavailable):
                appends = camera.outcome(laid_out(camera.place, left), later.now_ns)
                assert appends is None or appends <= later.appended
