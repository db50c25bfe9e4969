"""The data directory of the SQLite store: one broker at a time, and nothing that is not ours is touched."""

from __future__ import annotations

import errno
import os
import sqlite3
from pathlib import Path

from heliograph.errors import StoreRefused
from heliograph.store.lock import DirectoryLock
from heliograph.store.sqlite_file import Connect, check_header, create, sync
from heliograph.store.upgrade import upgrade

FILE_NAME = "heliograph.db"
LOCK_NAME = "heliograph.lock"


def take(path: Path, connect: Connect, *, make: bool = True) -> DirectoryLock:
    """Lock the directory of the file `path` and see to it that there is a store, of this format.

    Args:
        path: the file.
        connect: `sqlite3.connect`, or what a test puts in its place.
        make: make the directory and the store if missing.

    Raises:
        StoreRefused: it is missing, in use, not ours, newer, or cannot be used.
    """
    directory = path.parent
    lock_path = directory / LOCK_NAME
    try:
        if make:
            _make(directory)
        elif not path.exists():
            raise missing(directory)
        if path.exists() and not lock_path.exists():
            # Before the lock, so that a directory that is not ours gets no file. Never while a broker may have the file
            # open: were it in this process, closing our second descriptor would take all its locks on the file.
            check_header(path)
        lock = DirectoryLock(lock_path)
    except BlockingIOError as error:
        raise StoreRefused(
            f"The data directory {directory} is in use by another broker: stop that one, or choose another directory"
        ) from error
    except (FileExistsError, NotADirectoryError) as error:
        raise StoreRefused(f"{directory} is not a directory: choose another data directory") from error
    except OSError as error:
        raise unusable(directory, error) from error
    try:
        if path.exists():
            check_header(path)
            if not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, "its heliograph.db is read-only")
            upgrade(path, connect)
        elif make:
            create(path, connect)
        else:
            raise missing(directory)
    except (sqlite3.Error, OSError) as error:
        lock.release()
        raise unusable(directory, error) from error
    except BaseException:
        lock.release()
        raise
    return lock


def _make(directory: Path) -> None:
    """Make the directory and those above it durably: a power cut must not take it with all that is in it."""
    absent = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for path in absent:
        sync(path.parent)


def missing(directory: Path) -> StoreRefused:
    """There is no store."""
    return StoreRefused(f"There is no Heliograph store in {directory}: name the directory that `serve` was given")


def unusable(directory: Path, error: Exception) -> StoreRefused:
    """The system does not let us."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    remedy = "free some space there" if "full" in reason or "space" in reason else "make it writable"
    return StoreRefused(f"The data directory {directory} cannot be used ({reason}): {remedy}, or choose another")


def damaged(path: Path, error: Exception) -> StoreRefused:
    """The file is not what was written."""
    return StoreRefused(
        f"{path} is damaged, and was left as it is ({error}): restore it from a backup, "
        "or choose another data directory"
    )
