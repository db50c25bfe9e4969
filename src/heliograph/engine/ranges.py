"""Sorted sequences as runs: how checkpoints, seeks and snapshots tell what a subscription holds."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from heliograph.engine.fifo import pack, unpack

Run = tuple[int, int]  # first, and one behind the last


def to_runs(sequences: Iterable[int]) -> list[Run]:
    """The runs of growing sequences."""
    runs: list[Run] = []
    first = stop = -1
    for sequence in sequences:
        if sequence == stop:
            stop += 1
            continue
        if stop > first:
            runs.append((first, stop))
        first, stop = sequence, sequence + 1
    if stop > first:
        runs.append((first, stop))
    return runs


def first_outside(runs: Sequence[Run], cover: Sequence[Run]) -> int:
    """The lowest number of growing runs that is in none of the growing runs `cover`; 0 = none."""
    index = 0
    for first, stop in runs:
        while first < stop:
            while index < len(cover) and cover[index][1] <= first:
                index += 1
            if index == len(cover) or cover[index][0] > first:
                return first
            first = cover[index][1]
    return 0


def from_runs(runs: Sequence[Run]) -> Iterator[int]:
    """The sequences of the runs."""
    for first, stop in runs:
        yield from range(first, stop)


def pack_runs(runs: Iterable[Run]) -> bytes:
    """Maximal runs in few bytes: where each begins and ends, which grows."""
    return pack(edge for run in runs for edge in run)


def unpack_runs(packed: bytes) -> list[Run]:
    """What `pack_runs` was given; nothing for no bytes at all."""
    edges = unpack(packed) if packed else ()
    return list(zip(edges[::2], edges[1::2], strict=True))


def union(*runs: Iterable[Run]) -> list[Run]:
    """What is in any of them, as maximal runs."""
    merged: list[Run] = []
    for first, stop in sorted(run for some in runs for run in some):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        elif first < stop:
            merged.append((first, stop))
    return merged


def difference(runs: Sequence[Run], without: Sequence[Run]) -> list[Run]:
    """What is in maximal `runs`, and not in `without`."""
    left: list[Run] = []
    index = 0
    for first, stop in runs:
        while index < len(without) and without[index][1] <= first:
            index += 1
        gap = index
        while gap < len(without) and without[gap][0] < stop:
            if first < without[gap][0]:
                left.append((first, without[gap][0]))
            first = without[gap][1]
            gap += 1
        if first < stop:
            left.append((first, stop))
    return left


def intersection(runs: Sequence[Run], others: Sequence[Run]) -> list[Run]:
    """What is in both; each is of maximal runs."""
    return difference(runs, difference(runs, others))


def between(runs: Sequence[Run], first: int, stop: int) -> list[Run]:
    """What of the runs is in [first, stop)."""
    return [(max(a, first), min(b, stop)) for a, b in runs if a < stop and b > first]


def joined(runs: Iterable[Run], gap_max: int) -> list[Run]:
    """Growing runs, with the gaps between them filled that are no larger than that."""
    spans: list[Run] = []
    for first, stop in runs:
        if spans and first - spans[-1][1] <= gap_max:
            spans[-1] = (spans[-1][0], stop)
        else:
            spans.append((first, stop))
    return spans


def count_of(runs: Iterable[Run]) -> int:
    """How many sequences there are."""
    return sum([stop - first for first, stop in runs])


class Runs:
    """Growing runs, added at the end and taken from the front.

    Args:
        runs: what is here at first.
    """

    __slots__ = ("_runs", "count")

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self._runs = deque(runs)
        self.count = count_of(self._runs)  # of sequences

    def add(self, runs: Sequence[Run]) -> None:
        """They are higher than all that is here."""
        self._runs.extend(runs)
        self.count += count_of(runs)

    def take(self, last: int) -> Iterator[Run]:
        """Take those up to sequence `last`, run by run."""
        runs = self._runs
        while runs and runs[0][0] <= last:
            first, stop = runs.popleft()
            if stop > last + 1:
                runs.appendleft((last + 1, stop))
                stop = last + 1
            self.count -= stop - first
            yield first, stop

    def put_back(self, run: Run) -> None:
        """It was taken, and is here again."""
        self._runs.appendleft(run)
        self.count += run[1] - run[0]

    def first_run(self, count: int) -> Run:
        """Up to `count` of the lowest sequences, as far as they are neighbours."""
        first, stop = self._runs[0]
        return first, min(stop, first + count)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._runs)
