"""From an older format of the file to this one: the steps, and how they are taken.

Each step leads from one format to the next, within one transaction for all of them, and behind a copy of the file as it
was: a killed upgrade has not happened, and an unwanted one can be undone.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from heliograph.errors import StoreRefused
from heliograph.store.sqlite_file import (
    BUSY_SECONDS,
    FORMAT_VERSION,
    Connect,
    format_version,
    remove,
    sync,
    unfinished_path,
)

Step = Callable[[sqlite3.Connection], None]
"""Makes the next format of one, in the transaction that is open: tables and rows, not `user_version`."""

STEPS: Mapping[int, Step] = {}
"""By the format that each begins with, one for every format that was ever released but this one. A release that only
adds facts or fields has a step that does nothing, so that an older program refuses what it would not understand."""

_log = logging.getLogger(__name__)


def upgrade(path: Path, connect: Connect, steps: Mapping[int, Step] | None = None) -> None:
    """Bring the file to `FORMAT_VERSION` if it is older. The caller has the directory's lock, and nobody the file open.

    Args:
        path: the file.
        connect: `sqlite3.connect`, or what a test puts in its place.
        steps: `STEPS`, or what a test puts in its place.

    Raises:
        StoreRefused: no steps lead from its format to this one. It is as it was.
        sqlite3.Error, OSError: it could not be done. It is as it was.
    """
    if format_version(path) >= FORMAT_VERSION:
        return
    connection = connect(str(path), isolation_level=None, timeout=BUSY_SECONDS)
    try:
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])  # a log may know more than the header
        if version >= FORMAT_VERSION:
            return
        known = STEPS if steps is None else steps
        missing = [older for older in range(version, FORMAT_VERSION) if older not in known]
        if missing:
            raise StoreRefused(
                f"{path} has format {version}, from which this Heliograph cannot upgrade, and was left as it is: "
                "start a release in between once, or choose another data directory"
            )
        copy = _copy(connection, path, version, connect)
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("BEGIN IMMEDIATE")
        for older in range(version, FORMAT_VERSION):
            known[older](connection)
        connection.execute(f"PRAGMA user_version = {FORMAT_VERSION}")
        connection.execute("COMMIT")
    finally:
        connection.close()  # which undoes what is not committed
    _log.warning("upgraded %s from format %d to %d; as it was it is in %s", path, version, FORMAT_VERSION, copy)


def _copy(connection: sqlite3.Connection, path: Path, version: int, connect: Connect) -> Path:
    """The file as it is, under a name of its own that it has when it is complete."""
    target = path.with_name(f"{path.name}.format-{version}")
    unfinished = unfinished_path(target)
    remove(unfinished)
    try:
        copy = connect(str(unfinished), isolation_level=None)
        try:
            connection.backup(copy)
        finally:
            copy.close()
        sync(unfinished)
        unfinished.rename(target)
        sync(path.parent)
    except BaseException:
        with suppress(OSError):
            remove(unfinished)
        raise
    return target
