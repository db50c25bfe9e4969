"""A page of a topic's log: which of its messages are held, by how many, and those of them that are in memory."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import zip_longest
from operator import or_

from heliograph.engine.message import Message
from heliograph.engine.ranges import Run

PAGE_MESSAGES = 512  # one read of the store; small enough that a page in memory for one message's sake is no matter
_ALL_HELD = b"\1" * PAGE_MESSAGES


class Page:
    """A run of `PAGE_MESSAGES` sequences.

    Args:
        messages: by place; None where nobody holds one (any more). Shorter than a page at the end of the log.
        live: how many are held.
        holders: how many subscriptions hold each; None = one.
        out: for each place 1 if the message there is held and out of memory; None = none is. `messages` has the others:
            of a page that grew on after it went out.
        size_bytes: of the held messages, overhead included, as counted when the page was filled; 0 = not known.
        sealed: how many places may go out once `facts_needed` facts are durable.
        growth_bytes: of what was added since.
    """

    __slots__ = ("facts_needed", "growth_bytes", "holders", "live", "messages", "out", "sealed", "size_bytes")

    def __init__(self) -> None:
        self.messages: list[Message | None] = []
        self.live = 0
        self.holders: array[int] | None = None
        self.out: bytes | bytearray | None = None
        self.size_bytes = self.sealed = self.facts_needed = self.growth_bytes = 0

    def go_out(self, count: int = PAGE_MESSAGES) -> None:
        """Keep of the first `count` places only which messages are held."""
        rest = self.messages[count:]
        held = bytes([message is not None for message in self.messages[:count]]).ljust(PAGE_MESSAGES, b"\0")
        if self.out is not None:
            held = bytes(map(or_, held, self.out))
        if rest or self.out is not None or count < PAGE_MESSAGES:
            self.size_bytes = 0
        self.out = _ALL_HELD if held == _ALL_HELD else held
        self.messages = [*[None] * count, *rest] if rest else []
        if self.holders is not None:
            self.holders.extend([0] * (PAGE_MESSAGES - len(self.holders)))

    def hold_outside(self, place: int, count: int) -> None:
        """One holder more for each of `count` places."""
        if count == PAGE_MESSAGES and not self.live:
            self.out, self.live = _ALL_HELD, count
        else:
            self.hold_places(range(place, place + count))

    def hold_places(self, places: Sequence[int]) -> None:
        """One holder more for each of these places."""
        assert self.out is not None
        if not isinstance(self.out, bytearray):
            self.out = bytearray(self.out)  # it may be the one that all fully held pages share
        out = self.out
        if self.holders is None and any(map(out.__getitem__, places)):
            self.holders = array("I", list(out))  # not the bytes: they would be taken as raw memory
        for place in places:
            self.live += not out[place]
            out[place] = 1
        if self.holders is not None:
            for place in places:
                self.holders[place] += 1

    def hold_again(self, places: Sequence[int]) -> None:
        """One holder more for each of these places: where none was, the message is out of memory."""
        held = list(self.held_places())
        held.extend([None] * (PAGE_MESSAGES - len(held)))
        if self.holders is None and any(map(held.__getitem__, places)):
            self.holders = array("I", [bool(one) for one in held])
        absent = [place for place in places if not held[place]]
        if absent:
            self.out = bytearray(PAGE_MESSAGES if self.out is None else self.out)
            for place in absent:
                self.out[place] = 1
            self.live += len(absent)
        if self.holders is not None:
            self.holders.extend([0] * (PAGE_MESSAGES - len(self.holders)) if self.out is not None else [])
            for place in places:  # what nobody held may have any count
                self.holders[place] = self.holders[place] + 1 if held[place] else 1

    def held_places(self) -> Sequence[object]:
        """For each place something true if a message is held."""
        if self.out is None or not self.messages:
            return self.messages if self.out is None else self.out
        return [out or message is not None for out, message in zip_longest(self.out, self.messages, fillvalue=None)]

    def runs(self, base: int) -> list[Run]:
        """What is held, as runs of sequences; `base` is that of the first place."""
        if self.live == PAGE_MESSAGES:
            return [(base, base + PAGE_MESSAGES)]
        places = self.held_places()
        held = places if isinstance(places, bytes | bytearray) else bytes(map(bool, places))
        runs: list[Run] = []
        first = held.find(1)
        while first >= 0:
            stop = held.find(0, first)
            stop = stop if stop >= 0 else len(held)
            runs.append((base + first, base + stop))
            first = held.find(1, stop)
        return runs

    def let_go_outside(self, place: int) -> None:
        """Nobody holds the message there any more, and it is out of memory."""
        assert self.out is not None
        if not isinstance(self.out, bytearray):
            self.out = bytearray(self.out)  # it may be the one that all fully held pages share
        self.out[place] = 0
