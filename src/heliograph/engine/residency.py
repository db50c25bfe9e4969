"""Which pages of all topics' logs are in memory, and which go first when there are too many.

A page goes when its messages are durable. The last that was filled goes first: it is farthest from being due, while
those at the consumers' end, and those that were brought in again, are due now.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from heliograph.engine.log import TopicLog


class Residency:
    """Pages in memory that are complete or have grown to some size, over all topics, and their bytes."""

    __slots__ = ("_candidates", "_sizes", "bytes", "fact_count")

    def __init__(self) -> None:
        self.bytes = 0
        self.fact_count = 0  # kept by the engine: facts recorded so far
        self._sizes: dict[tuple[int, int], int] = {}  # (id of the log, page) to bytes
        # oldest first; each with the number of facts that must be durable before the page may go
        self._candidates: deque[tuple[TopicLog, int, int]] = deque()

    def filled(self, log: TopicLog, page: int, size_bytes: int) -> None:
        """The page is complete, or has grown by much."""
        self._add(log, page, size_bytes)
        self._candidates.append((log, page, self.fact_count))
        self._prune()

    def brought_in(self, log: TopicLog, page: int, size_bytes: int) -> None:
        """The page was read from the store again: it is due now, so it goes last."""
        self._add(log, page, size_bytes)
        self._candidates.appendleft((log, page, 0))
        self._prune()

    def _add(self, log: TopicLog, page: int, size_bytes: int) -> None:
        # it may have been counted before: brought in as the end of the log, and filled now
        self.bytes += size_bytes - self._sizes.get((id(log), page), 0)
        self._sizes[id(log), page] = size_bytes

    def gone(self, log: TopicLog, page: int) -> None:
        """Nobody holds anything of the page any more."""
        self.bytes -= self._sizes.pop((id(log), page), 0)

    def shed(self, budget_bytes: int, durable_facts: int) -> None:
        """Send pages out until those in memory have at most `budget_bytes`, as far as they are durable."""
        waiting: list[tuple[TopicLog, int, int]] = []
        while self.bytes > budget_bytes and self._candidates:
            log, page, facts_needed = self._candidates.pop()
            if (id(log), page) not in self._sizes:
                continue
            if facts_needed > durable_facts:
                waiting.append((log, page, facts_needed))
            elif log.send_out(page, durable_facts):
                self.gone(log, page)
        self._candidates.extend(reversed(waiting))
        self._prune()

    def _prune(self) -> None:
        """Drop pages that are gone when they are the majority."""
        if len(self._candidates) > 2 * len(self._sizes) + 64:
            self._candidates = deque(entry for entry in self._candidates if (id(entry[0]), entry[1]) in self._sizes)
