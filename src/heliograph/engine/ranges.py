"""Sorted sequences as runs: how checkpoints tell what a subscription holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

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
