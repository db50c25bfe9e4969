"""Writing a store anew, without what it does not need any more: no broker serves it meanwhile."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from heliograph.store.rows import Trim
from heliograph.store.sqlite_file import BUSY_SECONDS, Connect, remove, sync, unfinished_path
from heliograph.store.trimming import TRIMMED_ROWS_MAX, trim_rows

_PROGRESS_STEPS = 20_000  # of SQLite's machine, between two looks at how far it is


def rewrite(path: Path, connect: Connect, trims: dict[int, Trim], advance: Callable[[int], None]) -> None:
    """Put a compact copy of the file in its place: all or nothing. The caller has the directory's lock.

    Args:
        path: the file; nobody has it open.
        connect: `sqlite3.connect`, or what a test puts in its place.
        trims: by topic, what goes before.
        advance: told how many bytes the copy has.

    Raises:
        sqlite3.Error, OSError: it could not be done; the file is as it was.
    """
    unfinished = unfinished_path(path)
    remove(unfinished)
    connection = connect(str(path), isolation_level=None, timeout=BUSY_SECONDS)
    try:
        _trim(connection, trims)
        # Nobody else may have the file open: a log that is left over would be taken for the copy's.
        (mode,) = connection.execute("PRAGMA journal_mode = DELETE").fetchone()
        if mode != "delete":
            raise sqlite3.OperationalError("another program is using the file")
        try:
            _copy(connection, unfinished, connect, advance)
            unfinished.rename(path)
        except BaseException:
            with suppress(OSError):
                remove(unfinished)
            with suppress(sqlite3.Error):
                connection.execute("PRAGMA journal_mode = WAL").fetchone()
            raise
    finally:
        connection.close()
    sync(path.parent)


def _trim(connection: sqlite3.Connection, trims: dict[int, Trim]) -> None:
    while trims:
        connection.execute("BEGIN IMMEDIATE")
        trims = trim_rows(connection, trims, TRIMMED_ROWS_MAX)
        connection.execute("COMMIT")


def _copy(connection: sqlite3.Connection, unfinished: Path, connect: Connect, advance: Callable[[int], None]) -> None:
    def look() -> None:
        with suppress(OSError):
            advance(unfinished.stat().st_size)

    connection.set_progress_handler(look, _PROGRESS_STEPS)
    connection.execute("VACUUM INTO ?", (str(unfinished),))
    connection.set_progress_handler(None, 0)
    copy = connect(str(unfinished), isolation_level=None)
    try:
        copy.execute("PRAGMA journal_mode = WAL").fetchone()
    finally:
        copy.close()
    sync(unfinished)
