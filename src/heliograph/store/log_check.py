"""SQLite's write-ahead log, looked at by itself.

SQLite reads the log up to the first frame whose checksum is wrong, and takes that for its end: so it must be after a
crash, but a byte that flipped in the middle hides what was committed behind it. A crash can break the last transaction
only, since the next one is not begun before it is safe; so a log that goes on behind a broken transaction is damaged.

The form is that of https://www.sqlite.org/fileformat2.html, section 4.
"""

from __future__ import annotations

import struct
from array import array
from pathlib import Path

_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_MAGIC = 0x377F0682  # with the lowest bit set: its checksums are of big-endian words
_WORD_BITS = 0xFFFFFFFF


def log_problem(path: Path) -> str | None:
    """What is wrong with the log at `path`, in one line; None if nothing is, or there is none.

    Args:
        path: of the log; nobody writes it meanwhile.

    Raises:
        OSError: it cannot be read.
    """
    if not path.exists() or path.stat().st_size < _HEADER.size:
        return None
    with path.open("rb") as file:
        header = file.read(_HEADER.size)
        magic, _, page_bytes, _, salt_1, salt_2, *sums = _HEADER.unpack(header)
        big_endian = bool(magic & 1)
        if magic & ~1 != _MAGIC or _checksum(header[:24], (0, 0), big_endian) != tuple(sums):
            return "its header is damaged, so all of it is ignored"
        running = (sums[0], sums[1])
        number, broken, broken_commit = 0, 0, False
        while len(frame := file.read(_FRAME.size + page_bytes)) == _FRAME.size + page_bytes:
            number += 1
            _, commit_pages, frame_salt_1, frame_salt_2, *sums = _FRAME.unpack_from(frame)
            if not broken:
                if (frame_salt_1, frame_salt_2) == (salt_1, salt_2):
                    running = _checksum(frame[:8] + frame[_FRAME.size :], running, big_endian)
                    if running == tuple(sums):
                        continue
                broken = number
            if (frame_salt_1, frame_salt_2) != (salt_1, salt_2):
                continue
            if broken_commit:
                return f"its frame {broken} is damaged, and so all that follows is ignored"
            broken_commit = commit_pages > 0
    return None


def logged_pages(path: Path) -> set[int]:
    """Numbers of the pages that the log at `path` has, among them those of a last transaction that is not whole.

    Raises:
        OSError: it cannot be read.
    """
    pages: set[int] = set()
    with path.open("rb") as file:
        header = file.read(_HEADER.size)
        if len(header) < _HEADER.size:
            return pages
        _, _, page_bytes, _, *salts, _, _ = _HEADER.unpack(header)
        while len(frame := file.read(_FRAME.size)) == _FRAME.size:
            page, _, *frame_salts, _, _ = _FRAME.unpack(frame)
            if frame_salts == salts:
                pages.add(page)
            file.seek(page_bytes, 1)
    return pages


def _checksum(content: bytes, seed: tuple[int, int], big_endian: bool) -> tuple[int, int]:
    words = array("I", content)
    if big_endian != (struct.pack("=H", 1) == b"\0\1"):
        words.byteswap()
    first, second = seed
    for index in range(0, len(words), 2):
        first = (first + words[index] + second) & _WORD_BITS
        second = (second + words[index + 1] + first) & _WORD_BITS
    return first, second
