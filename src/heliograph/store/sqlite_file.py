"""The file of the SQLite store: its format, how it is made, checked and opened, and how a group is written to it.

========  =====================================================================================================
journal   one row for each group of facts that was committed together. Positions are consecutive, so a missing
          row is noticed. The first is 1, or a checkpoint, which has taken the place of those before it
messages  the messages that the journal's MessagesPublished facts refer to; see `rows.py`
history   rows that a checkpoint has taken the place of, kept as an event log; see `history.py`
trims     for each topic the sequence below which messages are gone, save those that somebody still holds
========  =====================================================================================================
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from heliograph.errors import StoreRefused
from heliograph.store.rows import Group, JournalRow, Trim
from heliograph.store.trimming import TRIMMED_ROWS_MAX, insert_messages, trim_rows

Connect = Callable[..., sqlite3.Connection]

APPLICATION_ID = 0x48656C69  # "Heli", at byte 68 of the file
# Raise it with every released change of the schema, of a fact or of the message, and add a step to `upgrade.py`: an
# older broker would not see what it does not know, and must refuse the file.
FORMAT_VERSION = 1

PAGE_BYTES = 4096
CHECKPOINT_PAGES = 4096  # of the write-ahead log before SQLite copies them into the file
LOG_BYTES_MAX = 64 * 1024 * 1024  # it grows while somebody reads for long (a backup), and then shrinks to this
CACHE_KIB = 8 * 1024  # of SQLite's page cache
FREE_PAGES_MIN = 1024  # so many free pages, and
FREE_SHARE = 4  # more than one in so many, before the file gives them back, so that it stays near its live data
VACUUM_PAGES = 500  # given back per commit: a few milliseconds
GIVE_BACK = {0: Trim(0)}  # as a trim, of no topic: there is space to give back
BUSY_SECONDS = 5.0  # how long to wait for somebody who looks into the file with another program
ROWS_PER_INSERT = 64  # one statement for many rows: between statements another thread may take the interpreter

_SCHEMA = """
CREATE TABLE journal (
    position INTEGER PRIMARY KEY,
    checksum INTEGER NOT NULL,
    body BLOB NOT NULL
);
CREATE TABLE messages (
    id INTEGER PRIMARY KEY,
    topic_number INTEGER NOT NULL,
    first_sequence INTEGER NOT NULL,
    last_sequence INTEGER NOT NULL,
    newest_publish_time_ns INTEGER NOT NULL,
    checksum INTEGER NOT NULL,
    body BLOB NOT NULL
);
CREATE UNIQUE INDEX messages_by_sequence ON messages (topic_number, last_sequence, first_sequence);
CREATE TABLE trims (
    topic_number INTEGER PRIMARY KEY,
    up_to INTEGER NOT NULL,
    checksum INTEGER NOT NULL
);
"""

_HISTORY = """
CREATE TABLE IF NOT EXISTS history (
    position INTEGER PRIMARY KEY,
    checksum INTEGER NOT NULL,
    body BLOB NOT NULL
)
"""

_HEADER_BYTES = 100
_MAGIC = b"SQLite format 3\0"


def check_header(path: Path) -> None:
    """Refuse a file that is not a store, or a newer one, without opening it as a database.

    Raises:
        StoreRefused: so it is.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        header = file.read(_HEADER_BYTES)
    if header[:16] != _MAGIC or int.from_bytes(header[68:72], "big") != APPLICATION_ID:
        raise not_ours(path)
    _check_version(path, int.from_bytes(header[60:64], "big"))
    if not has_log(path) and path.stat().st_size % PAGE_BYTES:
        raise StoreRefused(
            f"{path} was cut short, and was left as it is: restore it from a backup, or choose another data directory"
        )


def format_version(path: Path) -> int:
    """What the header of a store's file says, which may be behind its log. Raises: OSError."""
    with path.open("rb") as file:
        return int.from_bytes(file.read(_HEADER_BYTES)[60:64], "big")


def not_ours(path: Path) -> StoreRefused:
    """Some other file of that name."""
    return StoreRefused(
        f"{path} is not a Heliograph store, and was left as it is: choose another data directory, or move it away"
    )


def _check_version(path: Path, version: int) -> None:
    if version > FORMAT_VERSION:
        raise StoreRefused(
            f"{path} was made by a newer Heliograph (format {version}, this one knows {FORMAT_VERSION}), and was left "
            "as it is: upgrade Heliograph, or choose another data directory"
        )


def create(path: Path, connect: Connect) -> None:
    """Make an empty store. It has its name only when it is complete, so nobody ever meets half a one.

    Raises:
        sqlite3.Error, OSError: it could not be made; nothing is left behind.
    """
    unfinished = unfinished_path(path)
    remove(unfinished)
    try:
        connection = connect(str(unfinished), isolation_level=None)
        try:
            connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # so that a file can give space back later
            connection.executescript(
                f"BEGIN; {_SCHEMA} {_HISTORY}; PRAGMA application_id = {APPLICATION_ID}; "
                f"PRAGMA user_version = {FORMAT_VERSION}; COMMIT;"
            )
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise sqlite3.OperationalError("its file system lacks the shared memory that SQLite's log needs")
        finally:
            connection.close()
        sync(unfinished)
        unfinished.rename(path)
        sync(path.parent)
    except BaseException:
        with suppress(OSError):
            remove(unfinished)
        raise


def unfinished_path(path: Path) -> Path:
    """Where a file is made that will be `path`."""
    return path.with_name(path.name + ".new")


def remove(path: Path) -> None:
    """A file that is not needed, and what SQLite keeps beside it."""
    for suffix in ("", "-journal", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Make a file's content, or a directory's list of names, durable."""
    if path.is_dir() and os.name == "nt":
        return  # Windows does not open directories
    descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def has_log(path: Path) -> bool:
    """Whether there is something in the write-ahead log beside the file: it is open, or was not closed in order."""
    log = path.with_name(path.name + "-wal")
    return log.exists() and log.stat().st_size > 0


def open_reader(path: Path, connect: Connect, *, alone: bool = False) -> sqlite3.Connection:
    """A connection that cannot change the file, for one thread at a time.

    Args:
        path: the file.
        connect: `sqlite3.connect`, or what a test puts in its place.
        alone: nobody writes meanwhile, so that no file needs to be made beside it for those who read.

    Raises:
        StoreRefused: the file is newer than this program, or older and not upgraded yet.
        sqlite3.Error: it cannot be opened.
    """
    whole = alone and not has_log(path)
    connection = connect(
        path.absolute().as_uri() + ("?immutable=1" if whole else "?mode=ro"),
        uri=True,
        isolation_level=None,
        check_same_thread=False,
        timeout=BUSY_SECONDS,
    )
    connection.text_factory = bytes  # there is no text; a damaged row must not become an error text that quotes it
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        _check_version(path, version)
        if version < FORMAT_VERSION:
            raise StoreRefused(
                f"{path} has the older format {version}: start `heliograph serve` on it once, which upgrades it and "
                "keeps a copy as it was"
            )
    except BaseException:
        connection.close()
        raise
    return connection


class History(Protocol):
    """What keeps rows that the journal is done with."""

    def take_over(self, connection: sqlite3.Connection, position: int) -> None:
        """Within a transaction: the journal's rows up to `position` are about to go."""


class Writer:
    """The one connection that changes the file; for one thread.

    Args:
        path: the file, which exists.
        connect: `sqlite3.connect`, or what a test puts in its place.
        synchronous: SQLite's setting: "FULL", "NORMAL" or "OFF".
        history: takes over what checkpoints replace.
    """

    def __init__(self, path: Path, connect: Connect, synchronous: str, history: History) -> None:
        self._path = path
        self._connect = connect
        self._synchronous = synchronous
        self._history = history
        self._connection: sqlite3.Connection | None = None
        self._position = -1  # of the last journal row that is known to be durable; -1 = not known yet

    def write(self, group: Group) -> dict[int, Trim]:
        """Make a group durable, all or nothing. Returns the trims that are not finished: their messages are gone for
        readers, but not all rows are, or the file has space to give back.

        After a failure the connection is dropped, and the next call, which must bring the same group, finds out whether
        it is in the file after all: a commit that failed on its last step may be.

        Raises:
            sqlite3.Error: it could not be written.
        """
        try:
            if self._connection is None:
                self._connection = self._open()
                if group.journal is not None and self._is_there(self._connection, group.journal):
                    self._position += 1
                    return group.trims
            unfinished = self._insert(self._connection, group)
        except BaseException:
            self._drop()
            raise
        if group.journal is not None:
            self._position += 1
        return unfinished

    def close(self) -> None:
        """Move everything into the file itself and close it. What fails here is tried again by the next opening."""
        if self._connection is not None:
            with suppress(sqlite3.Error):
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._drop()

    def _open(self) -> sqlite3.Connection:
        connection = self._connect(str(self._path), isolation_level=None, check_same_thread=False, timeout=BUSY_SECONDS)
        try:
            # so it was made; but a compaction that was killed, or a copy made with other tools, has it otherwise
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES_MAX}")
            connection.execute(f"PRAGMA cache_size = {-CACHE_KIB}")
            connection.execute("PRAGMA secure_delete = OFF")  # some builds write zeros over all that is trimmed
            # Begin with an empty write-ahead log: what is left in it from before may never have reached the disk, and
            # what is written behind such a place would be lost with it.
            busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            if busy:
                raise sqlite3.OperationalError("another program is using the file")
            connection.execute(_HISTORY)
            if self._position < 0:
                self._position = connection.execute("SELECT coalesce(max(position), 0) FROM journal").fetchone()[0]
        except BaseException:
            connection.close()
            raise
        return connection

    def _is_there(self, connection: sqlite3.Connection, row: JournalRow) -> bool:
        """Whether an earlier attempt to write the group succeeded without our knowing."""
        found = connection.execute(
            "SELECT checksum, body FROM journal WHERE position = ?", (self._position + 1,)
        ).fetchone()
        if found is not None and found != tuple(row):
            raise sqlite3.DatabaseError("another program has written to the file")
        return found is not None

    def _insert(self, connection: sqlite3.Connection, group: Group) -> dict[int, Trim]:
        connection.execute("BEGIN IMMEDIATE")
        for start in range(0, len(group.messages), ROWS_PER_INSERT):
            insert_messages(connection, group.messages[start : start + ROWS_PER_INSERT])
        if group.journal is not None:
            connection.execute("INSERT INTO journal VALUES (?, ?, ?)", (self._position + 1, *group.journal))
            if group.replaces:
                self._history.take_over(connection, self._position)
                connection.execute("DELETE FROM journal WHERE position <= ?", (self._position,))
        unfinished = trim_rows(connection, group.trims, TRIMMED_ROWS_MAX) if group.trims else {}
        gave_back = _give_back(connection) if group.trims or group.replaces else 0
        if gave_back and space_to_give_back(connection):
            unfinished |= GIVE_BACK
        connection.execute("COMMIT")
        if gave_back and not unfinished:
            with suppress(sqlite3.Error):  # the file shrinks now; it may wait for the next time
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        return unfinished

    def _drop(self) -> None:
        """Close the connection, which also undoes a transaction that is not finished."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()


def space_to_give_back(connection: sqlite3.Connection) -> bool:
    """Whether so many pages are free that the file should shrink."""
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    return bool(free > FREE_PAGES_MIN and free * FREE_SHARE > pages)


def _give_back(connection: sqlite3.Connection) -> int:
    """Shrink the file by some pages when many are free. Returns by how many."""
    if not space_to_give_back(connection):
        return 0
    for _ in range(VACUUM_PAGES):
        # One page each time: it answers a row without columns for each page, and Python asks for the first only.
        connection.execute("PRAGMA incremental_vacuum(1)")
    return VACUUM_PAGES
