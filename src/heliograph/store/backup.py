"""A copy of a store as of one moment, also while a broker serves it."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path

import msgspec

from heliograph.errors import StoreRefused
from heliograph.store.directory import FILE_NAME, LOCK_NAME, damaged, unusable
from heliograph.store.lock import DirectoryLock
from heliograph.store.snapshot import Progress, Snapshot, no_progress, snapshot
from heliograph.store.sqlite_file import Connect, remove, sync, unfinished_path

PAGES_PER_STEP = 2_000


class BackupMade(msgspec.Struct, frozen=True):
    """A backup: a data directory of its own.

    Args:
        path: its file.
        bytes: of the file.
        in_use: a broker served the original meanwhile.
    """

    path: str
    bytes: int
    in_use: bool


def backup(
    directory: Path, target: Path, *, progress: Progress = no_progress, connect: Connect = sqlite3.connect
) -> BackupMade:
    """Copy the store of a data directory. The copy has its name only when it is complete and on the disk.

    Args:
        directory: the data directory.
        target: the data directory to make; missing, or empty.
        progress: told of the work.
        connect: `sqlite3.connect`, or what a test puts in its place.

    Raises:
        StoreRefused: there is no store, or it is not ours, newer or damaged; the target is not empty, or it cannot be
            written there. Nothing is left of a copy then.
    """
    try:
        with snapshot(directory, connect) as taken:
            return _into(target, taken, progress, connect)
    except sqlite3.Error as error:
        raise damaged(directory / FILE_NAME, error) from error


def _into(target: Path, taken: Snapshot, progress: Progress, connect: Connect) -> BackupMade:
    path = target / FILE_NAME
    unfinished = unfinished_path(path)
    made = not target.exists()
    try:
        target.mkdir(parents=True, exist_ok=True)
        leftovers = {LOCK_NAME, unfinished.name}  # of an attempt that was killed
        if any(entry.name not in leftovers for entry in target.iterdir()):
            raise _not_empty(target)
        lock = DirectoryLock(target / LOCK_NAME)
    except BlockingIOError as error:
        raise _not_empty(target) from error
    except (FileExistsError, NotADirectoryError) as error:
        raise StoreRefused(f"{target} is not a directory: name one that is missing or empty") from error
    except OSError as error:
        raise unusable(target, error) from error
    try:
        if path.exists():  # made since we looked
            raise _not_empty(target)
        _copy(taken, unfinished, progress, connect)
        unfinished.rename(path)
        sync(target)
        sync(target.parent)
        return BackupMade(str(path), path.stat().st_size, taken.in_use)
    except BaseException as error:
        with suppress(OSError):
            remove(unfinished)
        if made and not path.exists():
            with suppress(OSError):
                (target / LOCK_NAME).unlink()
                target.rmdir()
        if isinstance(error, OSError):
            raise unusable(target, error) from error
        raise
    finally:
        lock.release()


def _copy(taken: Snapshot, unfinished: Path, progress: Progress, connect: Connect) -> None:
    """Page by page, as they are in the snapshot."""
    remove(unfinished)
    copy = connect(str(unfinished), isolation_level=None)
    try:
        taken.connection.backup(
            copy,
            pages=PAGES_PER_STEP,
            progress=lambda _, left, total: progress("copying pages", total - left, total),
        )
    except sqlite3.Error as error:
        if str(error) in ("database or disk is full", "disk I/O error"):
            raise unusable(unfinished.parent, error) from error  # the target's: the original is only read
        raise
    finally:
        copy.close()
    sync(unfinished)


def _not_empty(target: Path) -> StoreRefused:
    return StoreRefused(f"{target} is not empty, and was left as it is: name a directory that is missing or empty")
