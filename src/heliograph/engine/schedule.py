"""Instants by sequence, the earliest first: delays and expiries of one subscription."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush


class Schedule:
    """At most one instant for each sequence. Adding and removing are O(log n); a removed one leaves a mark in the heap
    that goes when its time comes, or when such marks are the majority."""

    __slots__ = ("_heap", "_instants")

    def __init__(self) -> None:
        self._instants: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []

    def add(self, sequence: int, instant_ns: int) -> None:
        """It is due at `instant_ns`."""
        self._instants[sequence] = instant_ns
        heappush(self._heap, (instant_ns, sequence))

    def remove(self, sequence: int) -> bool:
        """It is not due any more. False if it was not here."""
        if self._instants.pop(sequence, None) is None:
            return False
        if len(self._heap) > 2 * len(self._instants) + 64:
            self._heap = [(instant_ns, sequence) for sequence, instant_ns in self._instants.items()]
            heapify(self._heap)
        return True

    def due(self, now_ns: int) -> list[int]:
        """Those whose instant has come, in order of instants; they stay here until they are removed, but are due once
        only."""
        heap, instants = self._heap, self._instants
        sequences: list[int] = []
        while heap and heap[0][0] <= now_ns:
            instant_ns, sequence = heappop(heap)
            # one that left and came back with its old instant has two entries, next to each other
            if instants.get(sequence) == instant_ns and (not sequences or sequences[-1] != sequence):
                sequences.append(sequence)
        return sequences

    def requeue(self, sequences: Sequence[int]) -> None:
        """What `due` gave could not be dealt with: it gives them again."""
        for sequence in sequences:
            heappush(self._heap, (self._instants[sequence], sequence))

    def next_ns(self) -> int | None:
        """The earliest instant, or that of one that was removed since."""
        return self._heap[0][0] if self._heap else None

    def instant_ns(self, sequence: int) -> int:
        """When it is due; 0 = never."""
        return self._instants.get(sequence, 0)

    def instants(self) -> dict[int, int]:
        """A copy: instants by sequence."""
        return dict(self._instants)

    def __len__(self) -> int:
        return len(self._instants)

    def __iter__(self) -> Iterator[int]:
        return iter(self._instants)
