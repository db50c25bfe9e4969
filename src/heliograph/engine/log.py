"""A topic's messages in memory: what some subscription still needs, by sequence.

A message is here once, however many subscriptions hold it, and leaves with its last holder. What retention keeps longer
is the store's.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from heliograph.engine.message import Message

# The list is cut at its front only when that many places are free and make up half of it, so that cutting is O(1) a
# message.
_CUT_AT_LEAST = 1024


class TopicLog:
    """Messages by sequence, each with the number of subscriptions that hold it."""

    __slots__ = ("_first", "_free", "_holders", "_messages")

    def __init__(self) -> None:
        self._first = 1
        self._messages: list[Message | None] = []
        # None while the topic never had more than one subscription: then whoever is here has one holder
        self._holders: array[int] | None = None
        self._free = 0

    @property
    def next_sequence(self) -> int:
        """What the next message will get."""
        return self._first + len(self._messages)

    def append(self, messages: Sequence[Message], holders: int) -> None:
        """Add messages with the sequences from `next_sequence` on, each held by `holders` subscriptions."""
        if holders == 0:
            self._skip(len(messages))
            return
        if self._holders is None and holders > 1:
            self._holders = array("I", [1]) * len(self._messages)
        if self._holders is not None:
            self._holders.extend(array("I", [holders]) * len(messages))
        self._messages.extend(messages)

    def _skip(self, count: int) -> None:
        if not self._messages:
            self._first += count
            return
        self._messages.extend([None] * count)
        if self._holders is not None:
            self._holders.extend(array("I", [0]) * count)

    def get(self, sequence: int) -> Message | None:
        """The message, or None if nobody holds it."""
        index = sequence - self._first
        return self._messages[index] if 0 <= index < len(self._messages) else None

    def __getitem__(self, sequence: int) -> Message:
        """The message, which somebody holds."""
        message = self._messages[sequence - self._first]
        assert message is not None, f"message {sequence} is held but gone"
        return message

    def select(self, sequences: Sequence[int]) -> list[Message]:
        """The messages, all of them held."""
        first, messages = self._first, self._messages
        return [messages[sequence - first] for sequence in sequences]  # type: ignore[misc]  # held, so not None

    def held(self, first: int, last: int) -> Iterator[Message]:
        """Those in [first, last] that somebody holds, in order."""
        messages, start = self._messages, max(first - self._first, 0)
        for index in range(start, min(last - self._first + 1, len(messages))):
            message = messages[index]
            if message is not None:
                yield message

    def release(self, sequences: Sequence[int]) -> None:
        """One holder less for each; what nobody holds any more leaves."""
        first, messages, holders = self._first, self._messages, self._holders
        if holders is None:
            for sequence in sequences:
                messages[sequence - first] = None
        else:
            for sequence in sequences:
                index = sequence - first
                holders[index] -= 1
                if holders[index] == 0:
                    messages[index] = None
        self._cut()

    def _cut(self) -> None:
        messages, free = self._messages, self._free
        while free < len(messages) and messages[free] is None:
            free += 1
        if free >= _CUT_AT_LEAST and free * 2 >= len(messages):
            del messages[:free]
            if self._holders is not None:
                del self._holders[:free]
            self._first += free
            free = 0
        self._free = free

    def floor(self) -> int:
        """The lowest sequence that somebody holds; `next_sequence` if nobody holds any."""
        return self._first + self._free
