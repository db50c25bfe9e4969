"""Durations that were measured, and what is said about them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import msgspec


class Percentiles(msgspec.Struct, frozen=True):
    """What a set of durations looks like, in milliseconds; all zero for an empty one."""

    count: int
    p5_ms: float
    p25_ms: float
    p50_ms: float
    p75_ms: float
    p95_ms: float
    p99_ms: float


class Durations:
    """Durations as they come in; `add` may be called from several threads."""

    def __init__(self) -> None:
        self._ns = array("q")

    def add(self, duration_ns: int) -> None:
        """One more, in nanoseconds. A clock that was set back in between must not make it negative."""
        self._ns.append(max(duration_ns, 0))

    def percentiles(self) -> Percentiles:
        """Where they lie."""
        return percentiles(self._ns)


def percentiles(durations_ns: Iterable[int]) -> Percentiles:
    """Percentiles by the nearest rank: every one of them is a duration that did occur."""
    ranked = sorted(durations_ns)
    return Percentiles(len(ranked), *(_rank(ranked, percent) / 1e6 for percent in (5, 25, 50, 75, 95, 99)))


def _rank(ranked: Sequence[int], percent: int) -> int:
    if not ranked:
        return 0
    return ranked[max(-(-len(ranked) * percent // 100), 1) - 1]
