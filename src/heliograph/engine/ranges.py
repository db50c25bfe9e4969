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


def from_runs(runs: Sequence[Run]) -> Iterator[int]:
    """The sequences of the runs."""
    for first, stop in runs:
        yield from range(first, stop)
