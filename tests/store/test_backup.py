"""`store backup`: a copy as of one moment, whole or not there."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.broker.clock import SimulatedClock
from heliograph.errors import StoreRefused
from heliograph.store import backup as backup_module
from heliograph.store.backup import backup
from heliograph.store.lock import DirectoryLock
from heliograph.store.sqlite import SqliteStore
from heliograph.store.verification import check
from tests.store import directories
from tests.store.directories import Draft, contents, fill, make


def test_a_backup_is_a_data_directory_with_the_same_in_it(tmp_path: Path) -> None:
    data_dir = make(tmp_path / "data")
    made = backup(data_dir, tmp_path / "deep" / "copy")
    assert made.path == str(tmp_path / "deep" / "copy" / "heliograph.db")
    copied, original = (contents(path)["heliograph.db"] for path in (tmp_path / "deep" / "copy", data_dir))
    assert copied[directories.PAGE_BYTES :] == original[directories.PAGE_BYTES :]  # the first page counts changes
    assert check(tmp_path / "deep" / "copy").is_sound


def test_what_a_killed_broker_left_in_its_log_is_in_the_backup(tmp_path: Path) -> None:
    data_dir = directories.killed(tmp_path / "data", tmp_path / "killed")
    backup(data_dir, tmp_path / "copy")
    assert sorted(contents(tmp_path / "copy")) == ["heliograph.db"]
    assert check(tmp_path / "copy").messages == 2_000


def test_a_broker_starts_from_a_backup_and_serves_on(tmp_path: Path) -> None:
    backup(make(tmp_path / "data"), tmp_path / "copy")
    broker = LocalBroker(SqliteStore(tmp_path / "copy"), SimulatedClock())
    assert broker.publish("a", [Draft(b"more")]).result() == ["1000000001001"]
    assert len(broker.pull("b-reader", 10_000).result()) == 1_000
    broker.close()
    assert check(tmp_path / "copy").is_sound


def test_a_backup_while_serving_is_of_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup_module, "PAGES_PER_STEP", 3)
    broker = LocalBroker(SqliteStore(tmp_path / "data"))
    fill(broker)
    published = 0

    def publish_meanwhile(_step: str, _done: int, _total: int | None) -> None:
        nonlocal published
        broker.publish("a", [Draft(b"meanwhile")] * 100).result()
        published += 1

    made = backup(tmp_path / "data", tmp_path / "copy", progress=publish_meanwhile)
    assert made.in_use
    assert published > 10
    report = check(tmp_path / "copy")
    assert (report.is_sound, report.messages) == (True, 2_000)
    assert broker.log_bounds("a") == (1, 1_000 + 100 * published)
    broker.close()


def test_backups_under_load_are_sound_and_hold_up_nobody(tmp_path: Path) -> None:
    broker = LocalBroker(SqliteStore(tmp_path / "data", durability="none"))
    fill(broker)
    over = threading.Event()

    def load() -> None:
        while not over.is_set():
            broker.publish("a", [Draft(b"under load")] * 20).result()
            deliveries = broker.pull("a-reader", 20).result()
            broker.acknowledge("a-reader", [delivery.ack_id for delivery in deliveries])

    thread = threading.Thread(target=load)
    thread.start()
    try:
        for number in range(3):
            backup(tmp_path / "data", tmp_path / f"copy{number}")
    finally:
        over.set()
        thread.join()
    assert [check(tmp_path / f"copy{number}").findings for number in range(3)] == [[], [], []]
    broker.close()


def test_an_empty_directory_will_do(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    backup(make(tmp_path / "data"), tmp_path / "copy")
    assert check(tmp_path / "copy").is_sound


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    data_dir = make(tmp_path / "data")
    backup(data_dir, tmp_path / "copy")
    before = contents(tmp_path / "copy")
    with pytest.raises(StoreRefused, match="is not empty, and was left as it is"):
        backup(data_dir, tmp_path / "copy")
    assert contents(tmp_path / "copy") == before


def test_a_store_is_not_backed_up_onto_itself(tmp_path: Path) -> None:
    data_dir = make(tmp_path / "data")
    with pytest.raises(StoreRefused, match="is not empty, and was left as it is"):
        backup(data_dir, data_dir)
    assert check(data_dir).is_sound


def test_a_target_that_holds_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "notes.txt").write_text("mine")
    with pytest.raises(StoreRefused, match="is not empty, and was left as it is"):
        backup(make(tmp_path / "data"), tmp_path / "copy")
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["notes.txt"]


def test_a_file_in_the_targets_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "copy").write_text("mine")
    with pytest.raises(StoreRefused, match="is not a directory"):
        backup(make(tmp_path / "data"), tmp_path / "copy")
    assert (tmp_path / "copy").read_text() == "mine"


def test_what_a_killed_backup_left_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "heliograph.db.new").write_bytes(b"half")
    (tmp_path / "copy" / "heliograph.lock").touch()
    backup(make(tmp_path / "data"), tmp_path / "copy")
    assert sorted(contents(tmp_path / "copy")) == ["heliograph.db"]


def test_two_backups_do_not_meet_in_one_target(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    lock = DirectoryLock(tmp_path / "copy" / "heliograph.lock")
    with pytest.raises(StoreRefused, match="is not empty"):
        backup(make(tmp_path / "data"), tmp_path / "copy")
    lock.release()


def _interrupted(*_arguments: object) -> None:
    raise KeyboardInterrupt


def _full(*_arguments: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(("failure", "error"), [(_interrupted, KeyboardInterrupt), (_full, StoreRefused)])
def test_a_backup_that_does_not_come_to_its_end_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Callable[..., None], error: type[BaseException]
) -> None:
    monkeypatch.setattr(backup_module, "sync", failure)
    with pytest.raises(error):
        backup(make(tmp_path / "data"), tmp_path / "copy")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


def test_a_full_disk_is_the_targets_fault_not_a_damage(tmp_path: Path) -> None:
    class Full(sqlite3.Connection):
        def backup(self, *_arguments: Any, **_more: Any) -> None:
            raise sqlite3.OperationalError("database or disk is full")

    def connect(*arguments: Any, **more: Any) -> sqlite3.Connection:
        return sqlite3.connect(*arguments, factory=Full, **more)

    with pytest.raises(StoreRefused, match=r"copy cannot be used \(database or disk is full\): free some space there"):
        backup(make(tmp_path / "data"), tmp_path / "copy", connect=connect)
    assert not (tmp_path / "copy").exists()


def test_a_missing_store_is_refused_and_no_target_made(tmp_path: Path) -> None:
    with pytest.raises(StoreRefused, match="There is no Heliograph store"):
        backup(tmp_path / "nothing", tmp_path / "copy")
    assert list(tmp_path.iterdir()) == []
