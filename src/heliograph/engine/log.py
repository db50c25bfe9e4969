"""A topic's messages in memory: what some subscription still needs, by sequence.

A message is here once, however many subscriptions hold it, and leaves with its last holder. What retention keeps longer
is the store's.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import islice

from heliograph.engine.message import Message

# The list is cut at its front only when that many places are free and make up half of it, so that cutting is O(1) a
# message.
_CUT_AT_LEAST = 1024


class TopicLog:
    """Messages by sequence, each with the number of subscriptions that hold it.

    They stand in a list from the oldest to the newest. Few old ones among very many that are gone (dead letters, low
    priorities) are moved to a dictionary, so that they do not keep the list long.
    """

    __slots__ = ("_first", "_free", "_here", "_holders", "_messages", "_old")

    def __init__(self) -> None:
        self._first = 1
        self._messages: list[Message | None] = []
        # None while the topic never had more than one subscription: then whoever is here has one holder
        self._holders: array[int] | None = None
        self._free = 0  # places at the list's front that are empty for certain
        self._here = 0  # messages in the list
        self._old: dict[int, tuple[Message, int]] | None = None  # message and holders, by growing sequence

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
        self._here += len(messages)

    def _skip(self, count: int) -> None:
        if not self._messages:
            self._first += count
            return
        self._messages.extend([None] * count)
        if self._holders is not None:
            self._holders.extend(array("I", [0]) * count)
        self._cut()

    def get(self, sequence: int) -> Message | None:
        """The message, or None if nobody holds it."""
        index = sequence - self._first
        if index >= 0:
            return self._messages[index] if index < len(self._messages) else None
        old = self._old.get(sequence) if self._old is not None else None
        return old[0] if old is not None else None

    def __getitem__(self, sequence: int) -> Message:
        """The message, which somebody holds."""
        message = self.get(sequence)
        assert message is not None, f"message {sequence} is held but gone"
        return message

    def select(self, sequences: Sequence[int]) -> list[Message]:
        """The messages, all of them held."""
        if self._old and min(sequences, default=self._first) < self._first:
            return [self[sequence] for sequence in sequences]
        first, messages = self._first, self._messages
        return [messages[sequence - first] for sequence in sequences]  # type: ignore[misc]  # held, so not None

    def held(self, first: int, last: int) -> Iterator[Message]:
        """Those in [first, last] that somebody holds, in order."""
        if self._old and first < self._first:
            yield from [message for sequence, (message, _) in self._old.items() if first <= sequence <= last]
        messages, start = self._messages, max(first - self._first, 0)
        for index in range(start, min(last - self._first + 1, len(messages))):
            message = messages[index]
            if message is not None:
                yield message

    def release(self, sequences: Sequence[int]) -> None:
        """One holder less for each; what nobody holds any more leaves."""
        if self._old and min(sequences, default=self._first) < self._first:
            sequences = self._release_old(sequences)
        first, messages, holders = self._first, self._messages, self._holders
        if holders is None:
            for sequence in sequences:
                messages[sequence - first] = None
            self._here -= len(sequences)
        else:
            for sequence in sequences:
                index = sequence - first
                holders[index] -= 1
                if holders[index] == 0:
                    messages[index] = None
                    self._here -= 1
        self._cut()

    def _release_old(self, sequences: Sequence[int]) -> list[int]:
        """Those that are in the list, and left to be released there."""
        old, left = self._old, []
        assert old is not None
        for sequence in sequences:
            if sequence >= self._first:
                left.append(sequence)
                continue
            message, holders = old[sequence]
            if holders > 1:
                old[sequence] = (message, holders - 1)
            else:
                del old[sequence]
        return left

    def _cut(self) -> None:
        messages, free = self._messages, self._free
        while free < len(messages) and messages[free] is None:
            free += 1
        self._free = free
        if free >= _CUT_AT_LEAST and free * 2 >= len(messages):
            self._drop(free)
        elif len(messages) > 4 * (self._here + _CUT_AT_LEAST):
            self._move_old(len(messages) // 2)

    def _move_old(self, count: int) -> None:
        """Of `count` places at the front nearly all are empty: the others' messages find a place apart."""
        if self._old is None:
            self._old = {}
        for index, message in enumerate(islice(self._messages, count)):
            if message is not None:
                self._old[self._first + index] = (message, 1 if self._holders is None else self._holders[index])
                self._here -= 1
        self._drop(count)

    def _drop(self, count: int) -> None:
        del self._messages[:count]
        if self._holders is not None:
            del self._holders[:count]
        self._first += count
        self._free = 0

    def floor(self) -> int:
        """The lowest sequence that somebody holds; `next_sequence` if nobody holds any."""
        if self._old:
            return next(iter(self._old))
        return self._first + self._free
