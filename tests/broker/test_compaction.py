"""`store compact`: as small as it can be, as a whole or not at all."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.broker.clock import SimulatedClock
from heliograph.broker.compaction import compact
from heliograph.engine.message import Draft
from heliograph.errors import StoreRefused
from heliograph.store import compaction as compaction_module
from heliograph.store.inspection import stats
from heliograph.store.sqlite import SqliteStore
from heliograph.store.verification import check
from tests.store import directories
from tests.store.directories import fill, make

NOW_NS = SimulatedClock().now_ns() + 1  # all is older


def settings(file: Path) -> list[int | str]:
    """What the file must not lose: how it gives space back, what it is, its version, its log."""
    names = ("auto_vacuum", "page_size", "application_id", "user_version", "journal_mode")
    with closing(sqlite3.connect(file)) as connection:
        return [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names]


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return make(tmp_path / "data")


def test_what_nobody_needs_goes_and_the_sizes_are_told(data_dir: Path) -> None:
    before = (data_dir / "heliograph.db").stat().st_size
    compacted = compact(data_dir, now_ns=NOW_NS)
    assert compacted.bytes_before == before
    assert compacted.bytes_after == (data_dir / "heliograph.db").stat().st_size < before * 0.95
    found = stats(data_dir)
    assert [(topic.name, topic.first_sequence, topic.messages) for topic in found.topics] == [
        ("a", 201, 800),
        ("b", 1, 1_000),
    ]
    assert (found.journal_rows, found.free_bytes) == (1, 0)


def test_a_compacted_store_is_sound_and_of_the_same_kind(data_dir: Path) -> None:
    before = settings(data_dir / "heliograph.db")
    compact(data_dir, now_ns=NOW_NS)
    assert check(data_dir).is_sound
    assert settings(data_dir / "heliograph.db") == before
    assert sorted(path.name for path in data_dir.iterdir()) == ["heliograph.db", "heliograph.lock"]


def test_a_broker_goes_on_where_it_was(data_dir: Path) -> None:
    compact(data_dir, now_ns=NOW_NS)
    broker = LocalBroker(SqliteStore(data_dir), SimulatedClock())
    counted = broker.statistics("a-reader")
    assert (counted.ready, counted.outstanding, counted.totals.acknowledged) == (700, 100, 200)
    assert broker.publish("a", [Draft(b"more")]).result() == ["1000000001001"]
    assert broker.pull("b-reader", 1).result()[0].message.data == directories.payload("b", 1)
    broker.close()


def test_messages_past_their_retention_go(data_dir: Path) -> None:
    compact(data_dir, now_ns=NOW_NS + 8 * 86_400 * 10**9)
    assert [topic.messages for topic in stats(data_dir).topics] == [0, 0]


def test_what_a_killed_broker_left_in_its_log_is_kept(tmp_path: Path) -> None:
    data_dir = directories.killed(tmp_path / "data", tmp_path / "killed")
    compact(data_dir, now_ns=NOW_NS)
    report = check(data_dir)
    assert (report.is_sound, report.messages) == (True, 1_800)


def test_a_broker_that_serves_is_left_alone(tmp_path: Path) -> None:
    broker = LocalBroker(SqliteStore(tmp_path / "data"))
    fill(broker)
    with pytest.raises(StoreRefused, match="is in use by another broker: stop that one"):
        compact(tmp_path / "data")
    broker.publish("a", [Draft(b"more")]).result()
    broker.close()


def test_no_broker_starts_meanwhile(data_dir: Path) -> None:
    refused: list[str] = []

    def look(step: str, _done: int, _total: int | None) -> None:
        with pytest.raises(StoreRefused, match="in use"):
            SqliteStore(data_dir)
        refused.append(step)

    compact(data_dir, now_ns=NOW_NS, progress=look)
    assert refused[0] == "recovering"
    SqliteStore(data_dir).close()


def test_another_program_with_the_file_open_is_asked_to_close_it(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction_module, "BUSY_SECONDS", 0.01)
    with closing(sqlite3.connect(data_dir / "heliograph.db")) as other:
        other.execute("SELECT * FROM journal").fetchone()
        with pytest.raises(StoreRefused, match="is open in another program, and was left as it is: close that one"):
            compact(data_dir, now_ns=NOW_NS)
    assert check(data_dir).is_sound
    assert compact(data_dir, now_ns=NOW_NS).bytes_after > 0


def test_a_missing_store_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(StoreRefused, match="There is no Heliograph store"):
        compact(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_store_is_refused_untouched(data_dir: Path) -> None:
    file = data_dir / "heliograph.db"
    directories.flip(file, directories.offset_of(file, directories.payload("b", 420)))
    before = file.read_bytes()
    with pytest.raises(StoreRefused, match="is damaged, and was left as it is"):
        compact(data_dir, now_ns=NOW_NS)
    assert file.read_bytes() == before


@pytest.mark.parametrize("statement", ["VACUUM INTO", "PRAGMA journal_mode = DELETE"])
def test_a_disk_that_is_full_leaves_the_store_as_good_as_it_was(data_dir: Path, statement: str) -> None:
    class Full(sqlite3.Connection):
        def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
            if sql.startswith(statement):
                raise sqlite3.OperationalError("database or disk is full")
            return super().execute(sql, *arguments)

    def connect(*arguments: Any, **more: Any) -> sqlite3.Connection:
        return sqlite3.connect(*arguments, factory=Full, **more)

    with pytest.raises(StoreRefused, match="free some space there"):
        compact(data_dir, now_ns=NOW_NS, connect=connect)
    assert sorted(path.name for path in data_dir.iterdir()) == ["heliograph.db", "heliograph.lock"]
    assert check(data_dir).is_sound
    assert settings(data_dir / "heliograph.db")[-1] == "wal"


def test_a_compaction_that_was_killed_half_way_is_no_obstacle(data_dir: Path) -> None:
    """It had switched the log off, and its copy was half made."""
    (data_dir / "heliograph.db.new").write_bytes(b"half")
    directories.edit(data_dir / "heliograph.db", "PRAGMA journal_mode = DELETE")
    assert check(data_dir).is_sound
    broker = LocalBroker(SqliteStore(data_dir), SimulatedClock())
    broker.publish("a", [Draft(b"more")]).result()
    assert (data_dir / "heliograph.db-wal").exists()
    broker.close()
    assert compact(data_dir, now_ns=NOW_NS).bytes_after > 0
    assert check(data_dir).is_sound
