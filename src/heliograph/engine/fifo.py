"""Growing sequences, added at the end and taken from the front: eight bytes each, where numbers in a deque take forty.
A work queue has one for every message that waits."""

from __future__ import annotations

import zlib
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice
from operator import sub

CHUNK = 1024  # sequences that are allocated, and given back, together
PACKED_AT_ONCE = 64 * 1024  # sequences
_COMPRESSION = 1  # the quickest: a checkpoint is made while everybody waits
_BIG_ENDIAN = array("H", [1]).tobytes()[0] == 0


class Fifo:
    """Sequences, the lowest first. Everything is O(1) a sequence."""

    __slots__ = ("_chunks", "_start", "last")

    def __init__(self, sequences: Iterable[int] = ()) -> None:
        self.last = 0  # the highest that was ever here
        self._chunks: deque[array[int]] = deque()  # none is empty
        self._start = 0  # in the first of them: those before are gone
        self.extend(sequences)

    def append(self, sequence: int) -> None:
        """It is higher than all others."""
        chunks = self._chunks
        if not chunks or len(chunks[-1]) >= CHUNK:
            chunks.append(array("Q"))
        chunks[-1].append(sequence)
        self.last = sequence

    def extend(self, sequences: Iterable[int]) -> None:
        """They grow, and are higher than all others."""
        more = iter(sequences)
        if self._chunks and len(self._chunks[-1]) < CHUNK:
            self._chunks[-1].extend(islice(more, CHUNK - len(self._chunks[-1])))
        while chunk := array("Q", islice(more, CHUNK)):
            self._chunks.append(chunk)
        if self._chunks:
            self.last = self._chunks[-1][-1]

    def first(self, count: int) -> list[int]:
        """The lowest `count`, or all, without taking them."""
        if not self._chunks or count <= 0:
            return []
        sequences = self._chunks[0][self._start : self._start + count].tolist()
        for chunk in islice(self._chunks, 1, None):
            if len(sequences) >= count:
                break
            sequences += chunk[: count - len(sequences)].tolist()
        return sequences

    def peek(self) -> int:
        """The lowest; 0 = none."""
        return self._chunks[0][self._start] if self._chunks else 0

    def drop(self, count: int) -> None:
        """Take the lowest `count`, of at least as many."""
        while count:
            left = len(self._chunks[0]) - self._start
            if count < left:
                self._start += count
                return
            self._chunks.popleft()
            self._start = 0
            count -= left

    def __len__(self) -> int:
        return sum(map(len, self._chunks)) - self._start

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def __iter__(self) -> Iterator[int]:
        start = self._start
        for chunk in self._chunks:
            yield from islice(chunk, start, None)
            start = 0


def pack(sequences: Iterable[int]) -> bytes:
    """Growing sequences in few bytes: the gaps between them, compressed. Neighbours take next to nothing. Piece by
    piece, so that a checkpoint takes no memory to speak of."""
    compressor = zlib.compressobj(_COMPRESSION)
    parts: list[bytes] = []
    more, last = iter(sequences), 0
    while numbers := array("Q", islice(more, PACKED_AT_ONCE)):
        gaps = array("Q", [numbers[0] - last])
        gaps.extend(map(sub, islice(numbers, 1, None), numbers))
        last = numbers[-1]
        if _BIG_ENDIAN:
            gaps.byteswap()
        parts.append(compressor.compress(gaps.tobytes()))
    parts.append(compressor.flush())
    return b"".join(parts)


def unpack(packed: bytes) -> Sequence[int]:
    """What `pack` was given."""
    decompressor = zlib.decompressobj()
    sequences = array("Q")
    rest, last = b"", 0
    while not decompressor.eof:
        piece = decompressor.decompress(packed, PACKED_AT_ONCE * 8)
        assert piece or decompressor.eof, "packed sequences are cut short"
        packed = decompressor.unconsumed_tail
        rest += piece
        whole = len(rest) // 8 * 8
        gaps, rest = array("Q", rest[:whole]), rest[whole:]
        if _BIG_ENDIAN:
            gaps.byteswap()
        sequences.extend(islice(accumulate(gaps, initial=last), 1, None))
        last = sequences[-1] if sequences else 0
    return sequences
