"""Ordering keys of one subscription: of each key one message has its turn, the others wait behind it.

The turn is held from the moment a message is loaded until it is acknowledged or given up; so while it is leased, or
waits for its backoff, nothing of its key overtakes (design §5), whatever the priorities.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator

_SPENT_MAX = 1024  # places in front of a queue that were left and are not given back yet


class _Queue:
    """Sequences of one key, the lowest first: eight bytes each, and little where a key has few."""

    __slots__ = ("_places", "_start")

    def __init__(self, sequence: int) -> None:
        self._places = array("Q", [sequence])
        self._start = 0  # those before are gone

    def add(self, sequence: int) -> None:
        if self and sequence < self._places[-1]:  # a dead letter comes back
            self._places.insert(bisect_left(self._places, sequence, self._start), sequence)
        else:
            self._places.append(sequence)

    def front(self) -> int:
        return self._places[self._start]

    def pop(self) -> int:
        sequence = self._places[self._start]
        self._start += 1
        # moving the rest costs its length, so it happens once in that many times
        if self._start > _SPENT_MAX and self._start * 2 > len(self._places):
            del self._places[: self._start]
            self._start = 0
        return sequence

    def remove(self, sequence: int) -> bool:
        """False if it is not here."""
        if not self or sequence < self.front():
            return False
        if sequence == self.front():
            self.pop()
            return True
        place = bisect_left(self._places, sequence, self._start)
        if place == len(self._places) or self._places[place] != sequence:
            return False
        del self._places[place]
        return True

    def __bool__(self) -> bool:
        return self._start < len(self._places)

    def __iter__(self) -> Iterator[int]:
        return iter(self._places[self._start :])


class OrderingKeys:
    """Who has the turn, and who waits, by key."""

    __slots__ = ("_keys", "waiting")

    def __init__(self) -> None:
        self._keys: dict[str, _Queue | None] = {}  # None = one has the turn, nobody waits
        self.waiting = 0

    def admit(self, key: str, sequence: int) -> bool:
        """True if the message has its key's turn; else it waits for it."""
        if key not in self._keys:
            self._keys[key] = None
            return True
        queue = self._keys[key]
        if queue is None:
            self._keys[key] = _Queue(sequence)
        else:
            queue.add(sequence)
        self.waiting += 1
        return False

    def pass_on(self, key: str) -> int | None:
        """The message with the turn is done. The one that has it now; None if nobody waited."""
        queue = self._keys[key]
        if queue is None:
            del self._keys[key]
            return None
        sequence = queue.pop()
        self.waiting -= 1
        if not queue:
            self._keys[key] = None
        return sequence

    def leave(self, key: str, sequence: int) -> bool:
        """One that waits goes away (expired or purged). False if it does not wait. O(1) for the one with the turn and
        the next, who are what mostly goes; else linear in the key's own queue."""
        queue = self._keys.get(key)
        if queue is None or not queue.remove(sequence):
            return False
        self.waiting -= 1
        if not queue:
            self._keys[key] = None
        return True

    def restore_turn(self, key: str) -> None:
        """A message of the key, somewhere else, has its turn: recovery from a checkpoint."""
        self._keys[key] = None

    def fronts(self) -> list[int]:
        """The next in turn of each key that has somebody waiting."""
        return [queue.front() for queue in self._keys.values() if queue is not None]

    def __iter__(self) -> Iterator[int]:
        """Everyone that waits."""
        for queue in self._keys.values():
            if queue is not None:
                yield from queue
