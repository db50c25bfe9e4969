"""One broker per data directory: a lock that the operating system drops when its process ends, however it ends."""

from __future__ import annotations

import os
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]
    import msvcrt


class DirectoryLock:
    """The lock on a data directory, held from creation until `release()`.

    Args:
        path: the lock file, made if missing. It stays behind: to remove it would let two processes lock two files of
            the same name.

    Raises:
        BlockingIOError: another process (or this one, once more) holds it.
        OSError: the file cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Let others have the directory. Idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _lock(descriptor: int) -> None:
    if fcntl is not None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    try:  # type: ignore[unreachable]  # mypy checks for one platform
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
    except OSError as error:
        raise BlockingIOError(*error.args) from error
