"""How many messages were open at the end of each window, and how old the oldest of them was: plain Python, no Spark."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Span(NamedTuple):
    """Messages of one subscription that were published in one window and settled in one.

    Args:
        published: number of the window; windows before the first of interest count as one.
        settled: number of the window; None = they are still open.
        messages: how many.
        oldest_ns: when the first of them was published.
    """

    published: int
    settled: int | None
    messages: int
    oldest_ns: int


class Gauge(NamedTuple):
    """At the end of a window: how many messages were open; when the oldest of them was published, None = none was."""

    window: int
    backlog: int
    oldest_ns: int | None


def gauges(spans: Iterable[Span], first: int, last: int) -> Iterator[Gauge]:
    """Of each window from `first` to `last`."""
    coming = sorted(spans, key=lambda span: span.published)
    place = backlog = 0
    going: dict[int, int] = {}
    heap: list[tuple[int, int, int]] = []  # oldest_ns, settled or beyond, count
    for window in range(first, last + 1):
        while place < len(coming) and coming[place].published <= window:
            span = coming[place]
            place += 1
            settled = last + 1 if span.settled is None else span.settled
            if settled <= window:
                continue
            backlog += span.messages
            going[settled] = going.get(settled, 0) + span.messages
            heapq.heappush(heap, (span.oldest_ns, settled, span.messages))
        backlog -= going.pop(window, 0)
        while heap and heap[0][1] <= window:
            heapq.heappop(heap)
        yield Gauge(window, backlog, heap[0][0] if heap else None)
