"""The event log of a store in memory: the latest of what was appended, without messages."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from heliograph.engine.facts import Fact, MessagesPublished
from heliograph.store.rows import instant_of, without_messages


class EventMemory:
    """Facts by position; not thread-safe.

    Args:
        events_max: how many messages the kept facts tell of, about; 0 = nothing is kept.
    """

    def __init__(self, events_max: int) -> None:
        self._events_max = events_max
        self._rows: deque[tuple[int, list[Fact], int]] = deque()  # position, facts, how many messages they tell of
        self._events = 0
        self.last = 0

    @property
    def first(self) -> int:
        """The lowest position there is; one behind the last if there is none."""
        return self._rows[0][0] if self._rows else self.last + 1

    def append(self, facts: Sequence[Fact]) -> None:
        """These are durable, as far as memory is."""
        if not self._events_max or not facts:
            return
        self.last += 1
        kept = [without_messages(fact) if type(fact) is MessagesPublished and fact.messages else fact for fact in facts]
        events = sum(map(_size, kept))
        self._rows.append((self.last, kept, events))
        self._events += events
        while self._events > self._events_max and len(self._rows) > 1:
            self._forget_one()

    def between(self, first: int, last: int) -> list[tuple[int, list[Fact]]]:
        """Positions in [first, last] with their facts."""
        return [(position, facts) for position, facts, _ in self._rows if first <= position <= last]

    def offset(self, at_ns: int) -> int:
        """The first position at which something happened at that instant or later; one behind the last if none did."""
        for position, facts, _ in self._rows:
            instant_ns = instant_of(facts)
            if instant_ns is not None and instant_ns >= at_ns:
                return position
        return self.last + 1

    def forget(self, before: int) -> None:
        """Let positions below `before` go."""
        while self._rows and self._rows[0][0] < before:
            self._forget_one()

    def _forget_one(self) -> None:
        self._events -= self._rows.popleft()[2]


def _size(fact: Fact) -> int:
    if type(fact) is MessagesPublished:
        return 1
    return len(getattr(fact, "sequences", ())) + 1
