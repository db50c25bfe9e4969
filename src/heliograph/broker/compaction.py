"""Making a store as small as it can be, while no broker serves it."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec

from heliograph.broker.clock import SystemClock
from heliograph.broker.housekeeping import MEMORY_BUDGET_BYTES, Housekeeping
from heliograph.errors import StoreRefused, Unavailable
from heliograph.store.compaction import rewrite
from heliograph.store.directory import FILE_NAME, damaged, take, unusable
from heliograph.store.lock import DirectoryLock
from heliograph.store.rows import Trim
from heliograph.store.snapshot import Progress, no_progress
from heliograph.store.sqlite import SqliteStore
from heliograph.store.sqlite_file import Connect


class Compacted(msgspec.Struct, frozen=True):
    """A store that was written anew: its file, and how many bytes it took before, its log included, and takes now."""

    path: str
    bytes_before: int
    bytes_after: int


def compact(
    directory: Path,
    *,
    now_ns: int | None = None,
    progress: Progress = no_progress,
    connect: Connect = sqlite3.connect,
) -> Compacted:
    """Let messages past their retention go, put a checkpoint in the place of the journal, and write the file anew.

    Args:
        directory: the data directory.
        now_ns: what time it is, for retention; None = the machine's.
        progress: told of the work.
        connect: `sqlite3.connect`, or what a test puts in its place.

    Raises:
        StoreRefused: there is no store, or it is in use, not ours, newer, damaged, or cannot be written. It holds what
            it held before.
    """
    path = directory / FILE_NAME
    lock = take(path, connect, make=False)
    try:
        log = path.with_name(path.name + "-wal")
        bytes_before = path.stat().st_size + (log.stat().st_size if log.exists() else 0)
        progress("recovering", 0, None)
        trims = _settle(directory, lock, SystemClock().now_ns() if now_ns is None else now_ns, connect)
        settled_bytes = path.stat().st_size
        rewrite(path, connect, trims, lambda size: progress("writing anew", size, settled_bytes))
        return Compacted(str(path), bytes_before, path.stat().st_size)
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "another program" in str(error):
            raise StoreRefused(f"{path} is open in another program, and was left as it is: close that one") from error
        raise unusable(directory, error) from error
    except sqlite3.Error as error:
        raise damaged(path, error) from error
    except (OSError, Unavailable) as error:
        raise unusable(directory, error) from error
    finally:
        lock.release()


def _settle(directory: Path, lock: DirectoryLock, now_ns: int, connect: Connect) -> dict[int, Trim]:
    store = SqliteStore(directory, connect=connect, lock=lock, events_bytes_max=None)
    try:
        housekeeping = Housekeeping(store, MEMORY_BUDGET_BYTES)
        housekeeping.recover(now_ns)
        commit = housekeeping.settle()
        commit.wait()
        if commit.error is not None:
            raise Unavailable(str(commit.error))
        return store.trims
    finally:
        store.close()
