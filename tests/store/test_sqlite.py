"""What only the SQLite store does: its directory, its file, its durability."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from heliograph.engine.facts import CheckpointBegun, MessagesPublished
from heliograph.engine.message import Message
from heliograph.errors import Internal, StoreRefused, Unavailable
from heliograph.store import sqlite_file
from heliograph.store.sqlite import SqliteStore
from tests.store.facts import acknowledged, committed, messages, published, put, recovered, sequences, until


def snapshot(directory: Path) -> dict[str, bytes]:
    """Every file's content, but the lock and SQLite's shared memory, which hold nothing."""
    return {
        path.name: path.read_bytes()
        for path in directory.iterdir()
        if path.name != "heliograph.lock" and not path.name.endswith("-shm")
    }


def edit(path: Path, change: str) -> None:
    """Change the file behind the store's back."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(change)
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data directory with a store of three groups."""
    data_dir = tmp_path / "data"
    store = SqliteStore(data_dir)
    put(store, published(1, 100))
    put(store, acknowledged(1, 2))
    put(store, published(101, 103), published(1, 1, topic_number=2))
    store.close()
    return data_dir


FACTS = [recovered(1, 100), acknowledged(1, 2), recovered(101, 103), recovered(1, 1, topic_number=2)]


# ── the directory ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_missing_directory_is_made_with_its_parents(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "a" / "b").close()
    assert sorted(path.name for path in (tmp_path / "a" / "b").iterdir()) == ["heliograph.db", "heliograph.lock"]


def test_a_closed_store_leaves_one_file_and_the_lock(data_dir: Path) -> None:
    assert sorted(path.name for path in data_dir.iterdir()) == ["heliograph.db", "heliograph.lock"]


def test_a_directory_with_strange_characters_works(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "a?b#c%20 ü'\"")
    put(store, published(1, 3))
    assert sequences(store, 1, 3) == [1, 2, 3]
    store.close()


def test_a_relative_directory_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = SqliteStore("data")
    put(store, published(1, 3))
    assert sequences(store, 1, 3) == [1, 2, 3]
    store.close()


def refusal(directory: Path, **arguments: Any) -> str:
    """The one line with which the directory is refused."""
    with pytest.raises(StoreRefused) as caught:
        list(SqliteStore(directory, **arguments).recover())
    assert "\n" not in caught.value.message
    return caught.value.message


def test_a_directory_in_use_is_refused_until_it_is_free(data_dir: Path) -> None:
    store = SqliteStore(data_dir)
    assert refusal(data_dir) == (
        f"The data directory {data_dir} is in use by another broker: stop that one, or choose another directory"
    )
    store.close()
    SqliteStore(data_dir).close()


def test_a_directory_in_use_by_another_process_is_refused(data_dir: Path) -> None:
    store = SqliteStore(data_dir)
    program = f"from heliograph.store.sqlite import SqliteStore\nSqliteStore({str(data_dir)!r})"
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, env=_env())
    assert other.returncode == 1
    assert other.stderr.splitlines()[-1].endswith("stop that one, or choose another directory")
    store.close()


def test_a_refused_second_broker_of_the_process_leaves_the_first_ones_locks_on_the_file(data_dir: Path) -> None:
    """Closing any descriptor of a file ends all locks that the process has on it. Then another program that only looked
    into the file took itself for the last one, removed the log, and what was committed afterwards was lost."""
    store = SqliteStore(data_dir)
    put(store, published(104, 104))
    refusal(data_dir)
    program = f"import sqlite3\nsqlite3.connect({str(data_dir / 'heliograph.db')!r}).execute('SELECT * FROM journal')"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)
    put(store, published(105, 105))
    assert sequences(store, 100, 200) == [100, 101, 102, 103, 104, 105]
    store.close()


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("x")
    assert refusal(tmp_path / "data") == f"{tmp_path}/data is not a directory: choose another data directory"
    assert "is not a directory" in refusal(tmp_path / "data" / "below")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a file system that nobody can write to")
def test_a_directory_that_cannot_be_made_is_refused() -> None:
    assert refusal(Path("/proc/heliograph")) == (
        "The data directory /proc/heliograph cannot be used (No such file or directory): make it writable, or choose "
        "another"
    )


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_cannot_be_written_is_refused(data_dir: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir(mode=0o500)
    assert "Permission denied): make it writable" in refusal(empty)
    (data_dir / "heliograph.db").chmod(0o400)
    assert "is read-only" in refusal(data_dir)


def test_a_disk_error_while_the_file_is_made_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    assert "(database or disk is full): free some space there" in refusal(
        tmp_path, connect=partial(sqlite3.connect, factory=FullAtOnce)
    )
    assert [path.name for path in tmp_path.iterdir()] == ["heliograph.lock"]


def test_a_half_made_file_of_a_killed_process_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "heliograph.db.new").write_bytes(b"half")
    SqliteStore(tmp_path).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["heliograph.db", "heliograph.lock"]


class FullAtOnce(sqlite3.Connection):
    def executescript(self, *arguments: Any) -> Any:
        raise sqlite3.OperationalError("database or disk is full")


# ── files that are refused, and left as they are ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("content", [b"", b"garbage", b"SQLite format 3\0", os.urandom(10_000)])
def test_garbage_is_refused_untouched(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "heliograph.db").write_bytes(content)
    assert "heliograph.db is not a Heliograph store" in refusal(tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"heliograph.db": content}


def test_another_programs_database_is_refused_untouched(tmp_path: Path) -> None:
    edit(tmp_path / "heliograph.db", "CREATE TABLE journal (position INTEGER PRIMARY KEY); PRAGMA user_version = 1")
    before = snapshot(tmp_path)
    assert "heliograph.db is not a Heliograph store" in refusal(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["heliograph.db"]
    assert snapshot(tmp_path) == before


def test_a_newer_file_is_refused_untouched(data_dir: Path) -> None:
    edit(data_dir / "heliograph.db", "PRAGMA user_version = 999")
    before = snapshot(data_dir)
    assert "made by a newer Heliograph (format 999, this one knows 1)" in refusal(data_dir)
    assert snapshot(data_dir) == before


def test_a_file_whose_newer_version_is_still_in_its_log_is_refused_untouched(data_dir: Path) -> None:
    connection = sqlite3.connect(data_dir / "heliograph.db", isolation_level=None)
    connection.execute("PRAGMA user_version = 999")
    before = snapshot(data_dir)
    assert "heliograph.db-wal" in before
    assert "made by a newer Heliograph" in refusal(data_dir)
    assert snapshot(data_dir) == before
    connection.close()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("UPDATE journal SET body = x'00' WHERE position = 2", "journal row 2: checksum mismatch"),
        ("UPDATE journal SET body = CAST(body AS TEXT) || 'x' WHERE position = 2", "journal row 2: checksum mismatch"),
        ("UPDATE journal SET body = 5 WHERE position = 2", "journal row 2: checksum mismatch"),
        ("UPDATE journal SET checksum = 'x' WHERE position = 2", "journal row 2: checksum mismatch"),
        ("UPDATE messages SET first_sequence = 'x' WHERE first_sequence = 101", "is damaged"),
        ("UPDATE journal SET checksum = checksum + 1 WHERE position = 1", "journal row 1: checksum mismatch"),
        ("DELETE FROM journal WHERE position = 1", "journal row 1 is missing"),
        ("DELETE FROM journal WHERE position = 2", "journal row 2 is missing"),
        ("DELETE FROM journal WHERE position = 3", "the journal does not know message"),
        ("UPDATE messages SET body = x'00' WHERE first_sequence = 101", "messages 101 to 103 of topic 1: checksum"),
        ("DELETE FROM messages WHERE first_sequence = 1 AND topic_number = 1", "messages 1 to 100 of topic 1"),
        ("UPDATE messages SET last_sequence = 99 WHERE last_sequence = 100", "messages 1 to 100 of topic 1"),
        ("UPDATE messages SET topic_number = 3 WHERE topic_number = 2", "messages 1 to 1 of topic 2 are missing"),
        ("INSERT INTO trims VALUES (1, 100, 0)", "the trim of topic 1: checksum mismatch"),
        ("DROP TABLE journal", "no such table"),
    ],
)
def test_a_damaged_file_is_refused_untouched(data_dir: Path, change: str, what: str) -> None:
    edit(data_dir / "heliograph.db", change)
    before = snapshot(data_dir)
    assert what in refusal(data_dir)
    assert snapshot(data_dir) == before


def test_a_file_cut_short_is_refused_untouched(data_dir: Path) -> None:
    path = data_dir / "heliograph.db"
    path.write_bytes(path.read_bytes()[:6000])
    before = snapshot(data_dir)
    assert "restore it from a backup" in refusal(data_dir)
    assert snapshot(data_dir) == before


def test_a_refused_directory_is_free_again(data_dir: Path) -> None:
    edit(data_dir / "heliograph.db", "UPDATE journal SET checksum = 0 WHERE position = 3")
    assert "is damaged" in refusal(data_dir)
    assert "is damaged" in refusal(data_dir)


def test_a_flipped_byte_is_never_a_silent_hole(data_dir: Path) -> None:
    """Wherever it is, recovery gives every fact or is refused."""
    path = data_dir / "heliograph.db"
    whole = path.read_bytes()
    accepted = 0
    for offset in range(0, len(whole), 37):
        path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 0x41]) + whole[offset + 1 :])
        for leftover in ("heliograph.db-wal", "heliograph.db-shm"):
            (data_dir / leftover).unlink(missing_ok=True)
        try:
            store = SqliteStore(data_dir)
        except StoreRefused:
            continue
        try:
            assert list(store.recover()) == FACTS, f"byte {offset}"
            accepted += 1
        except StoreRefused:
            pass
        finally:
            store.close()
    assert accepted > 0  # pages have room that nothing uses


def test_a_message_damaged_while_the_store_is_open_is_an_error(data_dir: Path) -> None:
    store = SqliteStore(data_dir)
    edit(data_dir / "heliograph.db", "UPDATE messages SET body = x'00' WHERE first_sequence = 101")
    assert sequences(store, 1, 100) == list(range(1, 101))
    with pytest.raises(Internal, match="Messages 101 to 103 of topic 1 are damaged"):
        sequences(store, 1, 103)
    store.close()


# ── what a killed process leaves ────────────────────────────────────────────────────────────────────────────────────


def _env() -> dict[str, str]:
    source = str(Path(sqlite_file.__file__).parents[2])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])}


_ENDLESS = """
import sys
from heliograph.engine.facts import CheckpointBegun, MessagesPublished
from heliograph.engine.message import Message
from heliograph.store.sqlite import SqliteStore

store = SqliteStore(sys.argv[1])
recovered = [fact.last_sequence for fact in store.recover()]
sequence = recovered[-1] if recovered else 0
while True:
    messages = [Message(sequence + number, 1, b"x" * 100) for number in range(1, 11)]
    sequence += 10
    commit = store.append([MessagesPublished("t1", 1, messages)])
    if sequence % 30 == 0:
        commit.wait()
        assert commit.error is None
        print(sequence, flush=True)
"""


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_killed_process_loses_nothing_that_was_committed(tmp_path: Path) -> None:
    answered = 0
    for lines in (1, 7, 23):
        process = subprocess.Popen(
            [sys.executable, "-c", _ENDLESS, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=_env()
        )
        assert process.stdout is not None
        for _ in range(lines):
            answered = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read()
        process.wait()
        process.stdout.close()
        answered = int(rest.splitlines()[-1]) if rest.endswith("\n") else answered
        store = SqliteStore(tmp_path)
        recovered_count = sum(len(fact.messages) for fact in store.recover() if isinstance(fact, MessagesPublished))
        present = sequences(store, 1, 10**9)
        store.close()
        assert present == list(range(1, recovered_count + 1))
        assert recovered_count >= answered


def test_a_log_cut_at_any_byte_gives_a_prefix(tmp_path: Path) -> None:
    """A power cut: the file as it was, and SQLite's log up to some byte."""
    store = SqliteStore(tmp_path / "data")
    for number in range(1, 40):
        put(store, published(number * 3 - 2, number * 3), acknowledged(number))
    files = snapshot(tmp_path / "data")
    store.close()
    expected = [
        fact for number in range(1, 40) for fact in (recovered(number * 3 - 2, number * 3), acknowledged(number))
    ]
    lengths = []
    for cut in range(0, len(files["heliograph.db-wal"]) + 1, 1777):
        copy = tmp_path / str(cut)
        copy.mkdir()
        (copy / "heliograph.db").write_bytes(files["heliograph.db"])
        (copy / "heliograph.db-wal").write_bytes(files["heliograph.db-wal"][:cut])
        store = SqliteStore(copy, durability="none")
        facts = list(store.recover())
        put(store, acknowledged(99))
        store.close()
        assert facts == expected[: len(facts)]
        assert len(facts) % 2 == 0
        lengths.append(len(facts))
    assert lengths == sorted(lengths)
    assert lengths[-1] > 70


# ── commits ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("durability", "synchronous"), [("full", 2), ("process", 1), ("none", 0)])
def test_durability_is_sqlites_synchronous(tmp_path: Path, durability: Any, synchronous: int) -> None:
    seen = []

    class Watched(sqlite3.Connection):
        def execute(self, statement: str, *arguments: Any) -> sqlite3.Cursor:
            if statement == "COMMIT":
                seen.append(super().execute("PRAGMA synchronous").fetchone()[0])
                seen.append(super().execute("PRAGMA journal_mode").fetchone()[0])
            return super().execute(statement, *arguments)

    store = SqliteStore(tmp_path, durability=durability, connect=partial(sqlite3.connect, factory=Watched))
    put(store, published(1, 1))
    store.close()
    assert seen == [synchronous, "wal"]
    assert store.durability == durability


def test_commits_and_facts_are_counted(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    put(store, published(1, 1), acknowledged(1))
    put(store, acknowledged(2))
    store.close()
    assert (store.commits, store.facts_written) == (2, 3)


def test_small_batches_of_a_group_share_a_row(tmp_path: Path) -> None:
    gate = Gate()
    store = SqliteStore(tmp_path, connect=gate.connect)
    gate.shut()
    store.append([acknowledged(1)])
    gate.wait_until_reached()
    for first in range(1, 301):
        store.append([published(first, first), published(first, first, topic_number=2)])
    gate.open()
    store.close()
    connection = sqlite3.connect(tmp_path / "heliograph.db")
    assert connection.execute("SELECT count(*) FROM messages").fetchone()[0] == 4
    connection.close()
    again = SqliteStore(tmp_path)
    assert list(again.recover())[1:] == [
        recovered(first, first, topic_number=topic) for first in range(1, 301) for topic in (1, 2)
    ]
    again.close()


def test_trimmed_rows_leave_the_file(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path, trim_delay_seconds=0.0)
    for first in range(1, 1001, 100):
        put(store, published(first, first + 99))
    store.trim(1, 551)
    store.close()
    connection = sqlite3.connect(tmp_path / "heliograph.db")
    assert connection.execute("SELECT min(first_sequence), count(*) FROM messages").fetchone() == (501, 5)
    connection.close()


def test_a_large_trim_is_done_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_file, "TRIMMED_ROWS_MAX", 3)
    store = SqliteStore(tmp_path)
    for first in range(1, 1001, 100):
        put(store, published(first, first + 99))
    store.trim(1, 901)
    assert sequences(store, 1, 2000) == list(range(901, 1001))
    assert [remaining_rows(tmp_path), remaining_rows(tmp_path, store), remaining_rows(tmp_path, store)] == [10, 7, 4]
    store.close()
    assert remaining_rows(tmp_path) == 1


def test_what_is_not_committed_yet_is_not_trimmed_for_its_age(tmp_path: Path) -> None:
    """It is not in the file, where its age would be seen: a topic with a retention lost what it had just received."""
    gate = Gate()
    store = SqliteStore(tmp_path, connect=gate.connect, trim_delay_seconds=0.0)
    put(store, published(1, 3))
    gate.shut()
    commit = store.append([published(4, 6)])
    store.trim(1, 7, published_before_ns=10**18 + 4)
    gate.open()
    assert committed(commit)
    assert sequences(store, 1, 9) == [4, 5, 6]
    store.close()


def test_free_space_is_given_back_while_the_store_is_open(tmp_path: Path) -> None:
    """Each statement that was to give back two thousand pages gave back one."""
    store = SqliteStore(tmp_path, durability="none", trim_delay_seconds=0.0)
    large = [Message(sequence, 1, b"x" * 100_000) for sequence in range(1, 301)]
    for start in range(0, 300, 10):
        put(store, MessagesPublished("t1", 1, large[start : start + 10]))
    store.trim(1, 301)
    until(lambda: (tmp_path / "heliograph.db").stat().st_size < 6_000_000)
    store.close()


def test_space_left_free_by_a_store_that_was_closed_is_given_back_by_the_next(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path, durability="none")
    put(store, MessagesPublished("t1", 1, [Message(1, 1, b"x" * 10_000_000)]))
    store.close()
    edit(tmp_path / "heliograph.db", "UPDATE messages SET body = zeroblob(10)")
    again = SqliteStore(tmp_path, durability="none", trim_delay_seconds=0.0)
    put(again, acknowledged(1))
    until(lambda: (tmp_path / "heliograph.db").stat().st_size < 6_000_000)
    again.close()


def test_an_unfinished_trim_goes_on_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_file, "TRIMMED_ROWS_MAX", 3)
    store = SqliteStore(tmp_path)
    for first in range(1, 1001, 100):
        put(store, published(first, first + 99))
    store.trim(1, 901)
    store.close()
    store = SqliteStore(tmp_path)
    assert sequences(store, 1, 2000) == list(range(901, 1001))
    assert remaining_rows(tmp_path, store) == 7  # what is held there is not known before somebody says it
    store.trim(1, 901)
    assert [remaining_rows(tmp_path, store) for _ in range(3)] == [4, 1, 1]
    store.close()


def remaining_rows(data_dir: Path, store: SqliteStore | None = None) -> int:
    """Rows of messages, after one more commit of `store`."""
    if store is not None:
        put(store, acknowledged(1))
    connection = sqlite3.connect(data_dir / "heliograph.db")
    (count,) = connection.execute("SELECT count(*) FROM messages").fetchone()
    connection.close()
    assert isinstance(count, int)
    return count


def test_a_reader_that_stops_half_way_holds_nothing_up(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    for first in range(1, 10001, 50):
        store.append([published(first, first + 49)])
    store.append([]).wait()
    reading = store.read_log(1, 1, 10**9)
    next(reading)
    put(store, published(10001, 10001))
    store.close()
    assert not (tmp_path / "heliograph.db-wal").exists()
    with pytest.raises(Unavailable, match="closed"):
        list(reading)


# ── failures ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Gate:
    """Connections whose COMMIT waits for a gate, and fails while `error` is set, before or after it took effect."""

    def __init__(self) -> None:
        self.error: sqlite3.Error | None = None
        self.takes_effect = False
        self._open = threading.Event()
        self._open.set()
        self._reached = threading.Semaphore(0)

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def wait_until_reached(self) -> None:
        assert self._reached.acquire(timeout=30)

    def connect(self, *arguments: Any, **options: Any) -> sqlite3.Connection:
        gate = self

        class Gated(sqlite3.Connection):
            def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
                if statement != "COMMIT":
                    return super().execute(statement, *values)
                gate._reached.release()
                assert gate._open.wait(30)
                if gate.error is None or gate.takes_effect:
                    cursor = super().execute(statement, *values)
                if gate.error is not None:
                    raise gate.error
                return cursor

        return Gated(*arguments, **options)


FULL = sqlite3.OperationalError("database or disk is full")


@pytest.mark.parametrize("takes_effect", [False, True], ids=["commit did not happen", "commit happened after all"])
def test_a_failed_commit_is_retried_and_leaves_no_hole(tmp_path: Path, takes_effect: bool) -> None:
    gate = Gate()
    gate.takes_effect = takes_effect
    store = SqliteStore(tmp_path, connect=gate.connect, retry_seconds=(0.0, 0.0))
    put(store, published(1, 3))
    gate.error = FULL
    assert not committed(store.append([published(4, 6)]))
    store.append([published(7, 9)])
    gate.error = None
    until(lambda: store.failing is None)
    put(store, published(10, 12))
    assert sequences(store, 1, 99) == list(range(1, 13))
    store.close()
    again = SqliteStore(tmp_path)
    assert list(again.recover()) == [recovered(first, first + 2) for first in (1, 4, 7, 10)]
    again.close()


def test_no_second_checkpoint_is_due_while_one_waits_to_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heliograph.store.sqlite.CHECKPOINT_BYTES_MIN", 100)
    gate = Gate()
    store = SqliteStore(tmp_path, connect=gate.connect)
    put(store, published(1, 30))
    assert store.checkpoint_due
    gate.shut()
    commit = store.checkpoint([CheckpointBegun(1)])
    assert not store.checkpoint_due
    gate.open()
    assert committed(commit)
    assert not store.checkpoint_due
    store.close()


def test_why_it_fails_is_sqlites_own_error(tmp_path: Path) -> None:
    gate = Gate()
    store = SqliteStore(tmp_path, connect=gate.connect, retry_seconds=(0.0, 0.0))
    gate.error = FULL
    commit = store.append([published(1, 3)])
    assert not committed(commit)
    assert (commit.error, store.failing) == (FULL, FULL)
    gate.error = None
    store.close()


def test_a_failed_first_commit_is_retried(tmp_path: Path) -> None:
    gate = Gate()
    gate.error = FULL
    store = SqliteStore(tmp_path, connect=gate.connect, retry_seconds=(0.0, 0.0))
    assert not committed(store.append([published(1, 3)]))
    gate.error = None
    until(lambda: store.failing is None)
    assert sequences(store, 1, 99) == [1, 2, 3]
    store.close()


def test_a_connection_that_cannot_be_opened_is_a_failure_like_others(tmp_path: Path) -> None:
    unable = [sqlite3.OperationalError("unable to open database file")]

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        if unable and not options.get("uri") and Path(arguments[0]).suffix == ".db":
            raise unable[0]
        return sqlite3.Connection(*arguments, **options)

    store = SqliteStore(tmp_path, connect=connect, retry_seconds=(0.0, 0.0))
    assert not committed(store.append([published(1, 3)]))
    unable.clear()
    until(lambda: store.failing is None)
    assert sequences(store, 1, 99) == [1, 2, 3]
    store.close()


def test_what_was_answered_before_a_failure_is_there_when_the_store_never_recovers(tmp_path: Path) -> None:
    gate = Gate()
    store = SqliteStore(tmp_path, connect=gate.connect, retry_seconds=(0.0, 0.0))
    put(store, published(1, 3))
    gate.error = FULL
    assert not committed(store.append([published(4, 6)]))
    with pytest.raises(Unavailable, match="disk is full"):
        store.close()
    again = SqliteStore(tmp_path)
    assert list(again.recover()) == [recovered(1, 3)]
    again.close()


def test_a_full_disk(tmp_path: Path) -> None:
    """SQLite's own limit of pages stands for the disk: the statement fails, not the commit."""
    limit = [20]

    class Small(sqlite3.Connection):
        def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
            if statement == "BEGIN IMMEDIATE":
                super().execute(f"PRAGMA max_page_count = {limit[0]}")
            return super().execute(statement, *values)

    store = SqliteStore(
        tmp_path, connect=partial(sqlite3.connect, factory=Small), retry_seconds=(0.0, 0.01), trim_delay_seconds=0.0
    )
    answered = 0
    while committed(store.append([published(answered + 1, answered + 100)])):
        answered += 100
    assert "full" in str(store.failing)
    assert sequences(store, 1, 10**6) == list(range(1, answered + 1))
    limit[0] = 10**6
    until(lambda: store.failing is None)
    put(store, published(answered + 101, answered + 200))
    assert sequences(store, 1, 10**6) == list(range(1, answered + 201))
    store.close()


def test_the_messages_are_the_same_object_format_as_published(data_dir: Path) -> None:
    store = SqliteStore(data_dir)
    assert [message for batch in store.read_log(1, 99, 102) for message in batch] == messages(99, 102)
    store.close()
