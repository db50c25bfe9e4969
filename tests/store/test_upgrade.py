"""An older format becomes this one, all or nothing, and a copy of what it was stays."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from heliograph.errors import StoreRefused
from heliograph.store import upgrade as upgrades
from heliograph.store.rows import trim_checksum
from heliograph.store.sqlite import SqliteStore
from heliograph.store.sqlite_file import FORMAT_VERSION, format_version
from heliograph.store.upgrade import STEPS
from heliograph.store.verification import check
from tests.store.directories import contents, make


def older(directory: Path) -> Path:
    """A data directory in a format before the first: its trims had no checksums."""
    make(directory)
    with sqlite3.connect(directory / "heliograph.db") as connection:
        connection.execute("DROP TABLE trims")
        connection.execute("CREATE TABLE trims (topic_number INTEGER PRIMARY KEY, up_to INTEGER NOT NULL)")
        connection.execute("INSERT INTO trims VALUES (1, 101)")
        connection.execute("DELETE FROM messages WHERE topic_number = 1 AND last_sequence <= 100")
        connection.execute("PRAGMA user_version = 0")
    connection.close()
    return directory


def to_first(connection: sqlite3.Connection) -> None:
    trims = connection.execute("SELECT topic_number, up_to FROM trims").fetchall()
    connection.execute("DROP TABLE trims")
    connection.execute("CREATE TABLE trims (topic_number INTEGER PRIMARY KEY, up_to INTEGER, checksum INTEGER)")
    rows = [(number, up_to, trim_checksum(number, up_to)) for number, up_to in trims]
    connection.executemany("INSERT INTO trims VALUES (?, ?, ?)", rows)


@pytest.fixture
def step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrades, "STEPS", {0: to_first})


def test_every_format_before_this_one_has_a_step() -> None:
    assert sorted(STEPS) == list(range(1, FORMAT_VERSION))


@pytest.mark.usefixtures("step")
def test_an_older_file_is_upgraded_when_it_is_opened_and_a_copy_stays(tmp_path: Path) -> None:
    directory = older(tmp_path / "data")
    before = (directory / "heliograph.db").read_bytes()
    SqliteStore(directory).close()
    assert format_version(directory / "heliograph.db") == FORMAT_VERSION
    with sqlite3.connect(directory / "heliograph.db") as connection:
        assert connection.execute("SELECT * FROM trims").fetchall() == [(1, 101, trim_checksum(1, 101))]
    connection.close()
    copy = directory / "heliograph.db.format-0"
    assert (format_version(copy), copy.stat().st_size) == (0, len(before))
    assert sorted(path.name for path in directory.iterdir()) == ["heliograph.db", copy.name, "heliograph.lock"]


@pytest.mark.usefixtures("step")
def test_an_upgraded_store_is_opened_as_any_other_and_not_upgraded_again(tmp_path: Path) -> None:
    directory = older(tmp_path / "data")
    SqliteStore(directory).close()
    (directory / "heliograph.db.format-0").unlink()
    SqliteStore(directory).close()
    assert check(directory).format_version == FORMAT_VERSION
    assert not (directory / "heliograph.db.format-0").exists()


def test_an_upgrade_that_fails_has_not_happened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(connection: sqlite3.Connection) -> None:
        to_first(connection)
        raise sqlite3.OperationalError("database or disk is full")

    directory = older(tmp_path / "data")
    before = (directory / "heliograph.db").read_bytes()
    monkeypatch.setattr(upgrades, "STEPS", {0: fails})
    with pytest.raises(StoreRefused, match="full"):
        SqliteStore(directory)
    assert (directory / "heliograph.db").read_bytes() == before
    monkeypatch.setattr(upgrades, "STEPS", {0: to_first})
    SqliteStore(directory).close()


@pytest.mark.usefixtures("step")
def test_without_a_copy_there_is_no_upgrade(tmp_path: Path) -> None:
    directory = older(tmp_path / "data")
    before = contents(directory)

    def connect(name: str, *arguments: Any, **options: Any) -> sqlite3.Connection:
        if "format-0" in name:
            raise sqlite3.OperationalError("unable to open database file")
        return sqlite3.connect(name, *arguments, **options)

    with pytest.raises(StoreRefused, match="unable to open"):
        SqliteStore(directory, connect=connect)
    assert contents(directory) == before


def test_a_format_from_which_no_step_leads_is_refused_and_left_as_it_was(tmp_path: Path) -> None:
    directory = older(tmp_path / "data")
    before = contents(directory)
    with pytest.raises(StoreRefused, match="has format 0, from which this Heliograph cannot upgrade"):
        SqliteStore(directory)
    assert contents(directory) == before


def test_what_only_reads_does_not_upgrade(tmp_path: Path) -> None:
    directory = older(tmp_path / "data")
    before = contents(directory)
    with pytest.raises(StoreRefused, match="has the older format 0: start `heliograph serve`"):
        check(directory)
    assert contents(directory) == before
