"""What a subscription may deliver next: priority bands, in each the oldest first.

Adding, taking and discarding are O(1), or O(log n) for messages that came back; nothing here ever scans the backlog.
Ageing (`first_aged`) moves nothing either: within a band the oldest message has risen furthest and stands in front, so
the fronts of the bands tell what comes next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush, merge
from itertools import islice

from heliograph.engine.fifo import Fifo, pack

BandOf = Callable[[int, int], int]
"""From a sequence and its own priority to the band in which it stands by now."""


# A band is swept only when it has more marks than messages, and so many at least, so that sweeping is O(1) a message.
_MARKS_MIN = 64


class _Band:
    """Sequences of one priority, the lowest first. Nearly all arrive in growing order and leave from the front."""

    __slots__ = ("count", "fresh", "gone", "returned")

    def __init__(self) -> None:
        self.fresh = Fifo()
        self.returned: list[int] = []  # heap of those that came back to their place
        self.gone: set[int] | None = None  # discarded from the middle, still in one of the two
        self.count = 0

    def add(self, sequence: int) -> None:
        if self.gone and sequence in self.gone:
            self.gone.discard(sequence)  # its old place is still there
        elif sequence < self.fresh.last and self.fresh:
            heappush(self.returned, sequence)
        else:
            self.fresh.append(sequence)
        self.count += 1

    def first(self, count: int) -> list[int]:
        """Up to `count` sequences, the lowest first, without taking them."""
        if not self.returned and not self.gone:
            return self.fresh.first(count)
        return list(islice(self, count))

    def take(self, sequence: int) -> None:
        """Remove one that is here; from the middle it only leaves a mark."""
        self._shed()
        if self.fresh.peek() == sequence:
            self.fresh.drop(1)
        elif self.returned and self.returned[0] == sequence:
            heappop(self.returned)
        else:
            if self.gone is None:
                self.gone = set()
            self.gone.add(sequence)
            if len(self.gone) > self.count + _MARKS_MIN:
                self._sweep(self.gone)
        self.count -= 1

    def _shed(self) -> None:
        """Drop discarded ones from the front."""
        gone = self.gone
        if not gone:
            return
        while (front := self.fresh.peek()) in gone:
            gone.discard(front)
            self.fresh.drop(1)
        while self.returned and self.returned[0] in gone:
            gone.discard(heappop(self.returned))

    def _sweep(self, gone: set[int]) -> None:
        """Marks are the majority: drop them all, so that neither memory nor the look at the front suffers."""
        self.fresh = Fifo(sequence for sequence in self.fresh if sequence not in gone)
        self.returned = [sequence for sequence in self.returned if sequence not in gone]
        heapify(self.returned)
        self.gone = None

    def runs(self) -> list[Iterator[int]]:
        """What is here as one run or two, each the lowest first; nothing is sorted that nobody asks for."""
        gone = self.gone
        runs: list[Iterator[int]] = [iter(self.fresh)] if self.fresh else []
        if self.returned:
            runs.append(_ascending(self.returned))
        if not gone:
            return runs
        return [(sequence for sequence in run if sequence not in gone) for run in runs]

    def __iter__(self) -> Iterator[int]:
        runs = self.runs()
        return runs[0] if len(runs) == 1 else merge(*runs)


def _ascending(heap: Sequence[int]) -> Iterator[int]:
    """The items of a heap that is not empty, the lowest first, at O(log k) for the k-th: a few of very many cost
    little."""
    fronts = [(heap[0], 0)]
    while fronts:
        item, index = heappop(fronts)
        yield item
        for child in range(2 * index + 1, min(2 * index + 3, len(heap))):
            heappush(fronts, (heap[child], child))


def _ranked(run: Iterator[int], priority: int, band_of: BandOf) -> Iterator[tuple[int, int]]:
    return ((-band_of(sequence, priority), sequence) for sequence in run)


class Backlog:
    """The ready messages of one subscription, by priority (9 first), then by sequence."""

    __slots__ = ("_bands", "count")

    def __init__(self) -> None:
        self._bands: dict[int, _Band] = {}
        self.count = 0

    def add(self, sequence: int, priority: int) -> None:
        """It is ready. A sequence is here at most once."""
        band = self._bands.get(priority)
        if band is None:
            band = self._bands[priority] = _Band()
        band.add(sequence)
        self.count += 1

    def extend(self, sequences: range) -> None:
        """All of them are ready, at priority 0, and newer than everything here."""
        band = self._bands.get(0)
        if band is None:
            band = self._bands[0] = _Band()
        band.fresh.extend(sequences)
        band.count += len(sequences)
        self.count += len(sequences)

    def first(self, count: int) -> list[int]:
        """Up to `count` sequences in the order of delivery, without taking them."""
        bands = self._bands
        if len(bands) == 1:
            (band,) = bands.values()
            return band.first(count)
        sequences: list[int] = []
        for priority in sorted(bands, reverse=True):
            sequences += bands[priority].first(count - len(sequences))
            if len(sequences) == count:
                break
        return sequences

    def first_aged(self, count: int, band_of: BandOf) -> list[int]:
        """As `first`, each message in the band `band_of(sequence, priority)`, which must not fall with its age.

        A message that was delayed may hold back older ones of its own band until it is delivered: ages are compared at
        the fronts only, two for each priority.
        """
        runs = [_ranked(run, priority, band_of) for priority, band in self._bands.items() for run in band.runs()]
        return [sequence for _, sequence in islice(merge(*runs), count)]

    def take(self, sequence: int, priority: int) -> None:
        """It is not ready any more: leased, expired or purged."""
        band = self._bands[priority]
        band.take(sequence)
        self.count -= 1
        if not band.count:
            del self._bands[priority]

    def take_first(self, sequences: Sequence[int]) -> bool:
        """Take exactly these if they are the front of the only band: the common case, at the speed of arrays."""
        if len(self._bands) != 1:
            return False
        ((priority, band),) = self._bands.items()
        fresh = band.fresh
        if band.returned or band.gone or fresh.first(len(sequences)) != sequences:
            return False
        fresh.drop(len(sequences))
        band.count -= len(sequences)
        self.count -= len(sequences)
        if not band.count:
            del self._bands[priority]
        return True

    def packed(self) -> dict[int, bytes]:
        """What is ready, by priority: for a checkpoint."""
        return {priority: pack(band) for priority, band in self._bands.items()}

    def restore(self, ready: Mapping[int, Sequence[int]]) -> None:
        """Take up what is ready, by priority; nothing was here."""
        for priority, sequences in ready.items():
            band = self._bands[priority] = _Band()
            band.fresh.extend(sequences)
            band.count = len(sequences)
            self.count += band.count

    def counts(self) -> dict[int, int]:
        """How many are ready, by priority."""
        return {priority: band.count for priority, band in sorted(self._bands.items(), reverse=True)}

    def fronts(self) -> list[int]:
        """The oldest of each band."""
        return [sequence for band in self._bands.values() for sequence in band.first(1)]

    def __iter__(self) -> Iterator[int]:
        for priority in sorted(self._bands, reverse=True):
            yield from self._bands[priority]
