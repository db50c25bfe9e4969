"""How much memory processes hold at most, while something is measured. Linux only: it reads /proc."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import Unavailable

EVERY_SECONDS = 0.2
PROC = Path("/proc")


class Resident:
    """Named groups of processes, each a process with all that it has started; looked at every 0.2 s.

    Pages that processes share, as forked ones do, count for each of them: what is told is never too little.

    Args:
        roots: by group, the process that it begins with.
    """

    def __init__(self, roots: Mapping[str, int]) -> None:
        self._roots = roots
        self.peaks_bytes = dict.fromkeys(roots, 0)
        self.peak_bytes = 0  # of all groups at one time

    def look(self) -> None:
        """Note what they hold now."""
        children: dict[int, list[int]] = {}
        for process, parent in _parents():
            children.setdefault(parent, []).append(process)
        total = 0
        for group, root in self._roots.items():
            held = sum(map(_resident_bytes, _tree(root, children)))
            self.peaks_bytes[group] = max(self.peaks_bytes[group], held)
            total += held
        self.peak_bytes = max(self.peak_bytes, total)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Look all the time while the block runs. Raises: Unavailable (there is no /proc)."""
        if not PROC.is_dir():
            raise Unavailable("memory of other processes is read from /proc, which there is none of here")
        over = threading.Event()

        def watch() -> None:
            while not over.wait(EVERY_SECONDS):
                self.look()

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self.look()


def _parents() -> Iterator[tuple[int, int]]:
    for each in PROC.iterdir():
        if each.name.isdigit():
            try:
                fields = (each / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended
                continue
            yield int(each.name), int(fields[1])


def _tree(root: int, children: Mapping[int, list[int]]) -> Iterator[int]:
    yield root
    for child in children.get(root, ()):
        yield from _tree(child, children)


def _resident_bytes(process: int) -> int:
    try:
        return int((PROC / str(process) / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
