"""Ordering keys of one subscription: of each key one message has its turn, the others wait behind it.

The turn is held from the moment a message is loaded until it is acknowledged or given up; so while it is leased, or
waits for its backoff, nothing of its key overtakes (design §5), whatever the priorities.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator


class OrderingKeys:
    """Who has the turn, and who waits, by key."""

    __slots__ = ("_keys", "waiting")

    def __init__(self) -> None:
        self._keys: dict[str, deque[int] | None] = {}  # ascending; None = one has the turn, nobody waits
        self.waiting = 0

    def admit(self, key: str, sequence: int) -> bool:
        """True if the message has its key's turn; else it waits for it."""
        if key not in self._keys:
            self._keys[key] = None
            return True
        queue = self._keys[key]
        if queue is None:
            queue = self._keys[key] = deque()
        if queue and sequence < queue[-1]:
            insort(queue, sequence)  # a dead letter comes back
        else:
            queue.append(sequence)
        self.waiting += 1
        return False

    def pass_on(self, key: str) -> int | None:
        """The message with the turn is done. The one that has it now; None if nobody waited."""
        queue = self._keys[key]
        if queue is None:
            del self._keys[key]
            return None
        sequence = queue.popleft()
        self.waiting -= 1
        if not queue:
            self._keys[key] = None
        return sequence

    def leave(self, key: str, sequence: int) -> bool:
        """One that waits goes away (expired or purged). False if it does not wait. O(1) for the one with the turn and
        the next, who are what mostly goes; else linear in the key's own queue."""
        queue = self._keys.get(key)
        if queue is None or sequence < queue[0]:
            return False
        place = bisect_left(queue, sequence) if queue[0] != sequence else 0
        if place == len(queue) or queue[place] != sequence:
            return False
        del queue[place]
        self.waiting -= 1
        if not queue:
            self._keys[key] = None
        return True

    def restore_turn(self, key: str) -> None:
        """A message of the key, somewhere else, has its turn: recovery from a checkpoint."""
        self._keys[key] = None

    def fronts(self) -> list[int]:
        """The next in turn of each key that has somebody waiting."""
        return [queue[0] for queue in self._keys.values() if queue is not None]

    def __iter__(self) -> Iterator[int]:
        """Everyone that waits."""
        for queue in self._keys.values():
            if queue is not None:
                yield from queue
