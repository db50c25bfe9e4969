"""A topic's messages in memory: what some subscription still needs, by sequence, in pages.

A message is here once, however many subscriptions hold it, and leaves with its last holder; what retention keeps longer
is the store's. A page whose messages are durable may be sent out of memory (`residency.py` decides which), and comes
back when one of its messages is due: reading it again is a pure function of the log, so it needs no fact.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence

from heliograph.engine.message import Message, total_bytes
from heliograph.engine.ranges import Run, to_runs
from heliograph.engine.residency import Residency
from heliograph.errors import Internal

PAGE_MESSAGES = 512  # one read of the store; small enough that a page in memory for one message's sake is no matter
OVERHEAD_BYTES = 136  # what a message takes in memory beyond its content: objects, and its place in the page
_SHIFT = PAGE_MESSAGES.bit_length() - 1
_MASK = PAGE_MESSAGES - 1
_ALL_HELD = b"\1" * PAGE_MESSAGES

# (first, last) sequence to the messages of the topic's durable log
ReadLog = Callable[[int, int], list[Message]]


class Page:
    """A run of `PAGE_MESSAGES` sequences.

    Args:
        messages: by place; None where nobody holds one (any more). Shorter than a page at the end of the log.
        live: how many are held.
        holders: how many subscriptions hold each; None = one.
        out: while the page is out of memory: for each place 1 if a message is held; `messages` is empty then.
        size_bytes: of the held messages, overhead included, as counted when the page was filled.
    """

    __slots__ = ("holders", "live", "messages", "out", "size_bytes")

    def __init__(self) -> None:
        self.messages: list[Message | None] = []
        self.live = 0
        self.holders: array[int] | None = None
        self.out: bytes | bytearray | None = None
        self.size_bytes = 0

    def go_out(self) -> None:
        """Keep only which messages are held."""
        held = bytes([message is not None for message in self.messages]).ljust(PAGE_MESSAGES, b"\0")
        self.out = _ALL_HELD if held == _ALL_HELD else held
        self.messages = []
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

    def let_go_outside(self, place: int) -> None:
        """Nobody holds the message there any more, and the page is out of memory."""
        assert self.out is not None
        if not isinstance(self.out, bytearray):
            self.out = bytearray(self.out)  # it may be the one that all fully held pages share
        self.out[place] = 0


class TopicLog:
    """Messages by sequence, each with the number of subscriptions that hold it.

    Args:
        read: gives back what is durable, for pages that were sent out; None = nothing ever is.
        residency: which pages of all topics are in memory; None = all.
    """

    __slots__ = ("_floor_page", "_outside", "_pages", "_read", "_residency", "next_sequence")

    def __init__(self, read: ReadLog | None = None, residency: Residency | None = None) -> None:
        self.next_sequence = 1  # what the next message will get
        self._pages: dict[int, Page] = {}
        self._floor_page = 0  # no page is below it
        self._outside = 0  # how many pages are out of memory
        self._read = read
        self._residency = residency

    # ── growing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def append(self, messages: Sequence[Message], holders: int) -> None:
        """Add messages with the sequences from `next_sequence` on, each held by `holders` subscriptions."""
        if holders == 0:
            self.skip(len(messages))
            return
        start = 0
        while start < len(messages):
            number, place = divmod(self.next_sequence - 1, PAGE_MESSAGES)
            page = self._tail(number, place)
            part = messages[start : start + PAGE_MESSAGES - place]
            page.messages.extend(part)
            page.live += len(part)
            if page.holders is None and holders > 1:
                page.holders = array("I", [1]) * place
            if page.holders is not None:
                page.holders.extend(array("I", [holders]) * len(part))
            start += len(part)
            self.next_sequence += len(part)
            if self._residency is not None and len(page.messages) == PAGE_MESSAGES:
                page.size_bytes = _size_bytes([message for message in page.messages if message is not None])
                self._residency.filled(self, number, page.size_bytes)

    def skip(self, count: int) -> None:
        """The next `count` sequences have no message that anybody holds."""
        self.next_sequence += count

    def _tail(self, number: int, place: int) -> Page:
        """The page that grows, with an entry for every place before `place`."""
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = Page()
        elif page.out is not None:
            self._bring_in(number, page)
        missing = place - len(page.messages)
        if missing:
            page.messages.extend([None] * missing)
            if page.holders is not None:
                page.holders.extend(array("I", [0]) * missing)
        return page

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def get(self, sequence: int) -> Message | None:
        """The message, or None if nobody holds it."""
        page = self._pages.get((sequence - 1) >> _SHIFT)
        if page is None:
            return None
        messages = page.messages if page.out is None else self._bring_in((sequence - 1) >> _SHIFT, page)
        place = (sequence - 1) & _MASK
        return messages[place] if place < len(messages) else None

    def __getitem__(self, sequence: int) -> Message:
        """The message, which somebody holds."""
        message = self.get(sequence)
        assert message is not None, f"message {sequence} is held but gone"
        return message

    def select(self, sequences: Sequence[int]) -> list[Message]:
        """The messages, all of them held."""
        if not sequences:
            return []
        first, last = sequences[0], sequences[-1]
        if len(sequences) == 1:
            return [self[first]]
        if last - first + 1 != len(sequences) or sequences != list(range(first, last + 1)):
            return [self[sequence] for sequence in sequences]
        # one run: what pulls and acknowledgements of a plain subscription are
        selected: list[Message | None] = []
        while first <= last:
            number, place = (first - 1) >> _SHIFT, (first - 1) & _MASK
            page = self._pages[number]
            messages = page.messages if page.out is None else self._bring_in(number, page)
            part = messages[place : place + last - first + 1]
            selected = selected + part if selected else part
            first += len(part)
        return selected  # type: ignore[return-value]  # held, so none is None

    def fetch(self, sequences: Sequence[int]) -> None:
        """Have the pages of these in memory. What reads the store may fail: better here than when a fact is half done.

        Raises:
            Unavailable, Internal: the store cannot be read, or is damaged there.
        """
        if not self._outside:
            return
        known = -1
        for sequence in sequences:
            number = (sequence - 1) >> _SHIFT
            if number != known:
                known, page = number, self._pages.get(number)
                if page is not None and page.out is not None:
                    self._bring_in(number, page)

    def held(self, first: int, last: int) -> Iterator[Message]:
        """Those in [first, last] that somebody holds, in order."""
        sequence, last = max(first, self._first_page() * PAGE_MESSAGES + 1), min(last, self.next_sequence - 1)
        while sequence <= last:
            number = (sequence - 1) >> _SHIFT
            end = (number + 1) * PAGE_MESSAGES
            page = self._pages.get(number)
            if page is not None:
                messages = page.messages if page.out is None else self._bring_in(number, page)
                for message in messages[(sequence - 1) & _MASK : min(last, end) - number * PAGE_MESSAGES]:
                    if message is not None:
                        yield message
            sequence = end + 1

    def held_sequences(self, first: int, last: int) -> Iterator[int]:
        """Those in [first, last] that somebody holds, in order; pages stay where they are."""
        sequence, last = max(first, self._first_page() * PAGE_MESSAGES + 1), min(last, self.next_sequence - 1)
        while sequence <= last:
            number = (sequence - 1) >> _SHIFT
            base = number * PAGE_MESSAGES + 1
            page = self._pages.get(number)
            if page is not None:
                places: Sequence[object] = page.messages if page.out is None else page.out
                for place in range(sequence - base, min(last - base + 1, len(places))):
                    if places[place]:
                        yield base + place
            sequence = base + PAGE_MESSAGES

    def hold(self, first: int, stop: int) -> None:
        """One holder more for each in [first, stop): recovery from a checkpoint. Their pages begin out of memory."""
        while first < stop:
            number, place = divmod(first - 1, PAGE_MESSAGES)
            count = min(stop - first, PAGE_MESSAGES - place)
            self._page_outside(number).hold_outside(place, count)
            first += count

    def _page_outside(self, number: int) -> Page:
        """The page, out of memory."""
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = Page()
            page.out = bytearray(PAGE_MESSAGES)
            self._outside += 1
        elif page.out is None:
            page.go_out()  # a subscription that was restored before has looked into it
            self._outside += 1
            if self._residency is not None:
                self._residency.gone(self, number)
        return page

    def hold_all(self, sequences: Sequence[int]) -> None:
        """As `hold`, for growing sequences that need not be neighbours."""
        index = 0
        while index < len(sequences):
            first = sequences[index]
            number = (first - 1) >> _SHIFT
            end = min(index + PAGE_MESSAGES, len(sequences))
            stop = bisect_left(sequences, (number + 1) * PAGE_MESSAGES + 1, index, end)
            if sequences[stop - 1] - first + 1 == stop - index:
                self.hold(first, first + stop - index)
            else:
                self._page_outside(number).hold_places([(sequence - 1) & _MASK for sequence in sequences[index:stop]])
            index = stop

    def floor(self) -> int:
        """The lowest sequence that somebody holds; `next_sequence` if nobody holds any."""
        first = self._first_page() * PAGE_MESSAGES + 1
        return next(self.held_sequences(first, first + PAGE_MESSAGES - 1), self.next_sequence)

    def settled(self, runs_max: int) -> tuple[int, list[Run]]:
        """Up to where most messages are held by nobody, and the runs of those below that are held, `runs_max` at most.
        What is held densely, as a backlog that waits is, is not below unless far more that nobody holds lies behind
        it: the log of a topic ends for its readers where this begins."""
        floor = self.floor()
        end = (self.next_sequence - 1) >> _SHIFT  # the page that grows, or will: never below
        numbers = sorted(number for number in self._pages if number < end)
        up_to, below, live, runs = floor, 0, 0, list[Run]()
        for number, following in zip(numbers, [*numbers[1:], end], strict=False):
            page = self._pages[number]
            live += page.live
            if 2 * live > end * PAGE_MESSAGES + 1 - floor:
                break
            self._add_runs(number, page, runs)
            if len(runs) > runs_max:
                break
            behind = following * PAGE_MESSAGES + 1
            if (following > number + 1 or 2 * page.live < PAGE_MESSAGES) and 2 * live <= behind - floor:
                up_to, below = behind, len(runs)
        held = runs[:below]
        if held and held[-1][1] > up_to:
            held[-1] = (held[-1][0], up_to)
        return up_to, held

    def _add_runs(self, number: int, page: Page, runs: list[Run]) -> None:
        """Join what is held of a page to the runs before it."""
        base = number * PAGE_MESSAGES + 1
        full = page.live == PAGE_MESSAGES
        held = [(base, base + PAGE_MESSAGES)] if full else to_runs(self.held_sequences(base, base + PAGE_MESSAGES - 1))
        if runs and held and runs[-1][1] == held[0][0]:
            held[0] = (runs.pop()[0], held[0][1])
        runs += held

    def _first_page(self) -> int:
        """The lowest page that there is; beyond the end if there is none."""
        pages, number = self._pages, self._floor_page
        end = (self.next_sequence - 1) >> _SHIFT
        while number <= end and number not in pages:
            number += 1
        self._floor_page = min(number, end)
        return number

    # ── letting go ──────────────────────────────────────────────────────────────────────────────────────────────────

    def release(self, sequences: Sequence[int]) -> None:
        """One holder less for each; what nobody holds any more leaves."""
        pages = self._pages
        number, page = -1, None
        for sequence in sequences:
            wanted = (sequence - 1) >> _SHIFT
            if wanted != number or page is None:
                if page is not None and page.live == 0:
                    self._drop(number, page)
                number, page = wanted, pages[wanted]
            place = (sequence - 1) & _MASK
            if page.holders is not None:
                page.holders[place] -= 1
                if page.holders[place]:
                    continue
            if page.out is None:
                page.messages[place] = None
            else:
                page.let_go_outside(place)
            page.live -= 1
        if page is not None and page.live == 0:
            self._drop(number, page)

    def _drop(self, number: int, page: Page) -> None:
        """Nobody holds anything of it: it goes, also from the end of the log, where a new one will be begun."""
        del self._pages[number]
        self._outside -= page.out is not None
        if self._residency is not None:
            self._residency.gone(self, number)

    # ── pages out of memory ─────────────────────────────────────────────────────────────────────────────────────────

    def send_out(self, number: int) -> bool:
        """Keep of a complete page only which messages are held. False if there is no such page in memory."""
        page = self._pages.get(number)
        if page is None or page.out is not None or len(page.messages) < PAGE_MESSAGES:
            return False
        page.go_out()
        self._outside += 1
        return True

    def _bring_in(self, number: int, page: Page) -> list[Message | None]:
        assert self._read is not None
        assert page.out is not None
        first = number * PAGE_MESSAGES + 1
        messages: list[Message | None] = [None] * PAGE_MESSAGES
        missing = page.out.count(1)
        for message in self._read(first, first + PAGE_MESSAGES - 1):
            place = message.sequence - first
            if page.out[place]:
                messages[place] = message
                missing -= 1
        if missing:
            raise Internal(f"{missing} messages from {first} on that are still needed are missing in the store")
        if self.next_sequence - first < PAGE_MESSAGES:
            del messages[self.next_sequence - first :]  # the end of the log, where the page goes on growing
            if page.holders is not None:
                del page.holders[self.next_sequence - first :]
        page.messages, page.out = messages, None
        self._outside -= 1
        page.size_bytes = page.size_bytes or _size_bytes([message for message in messages if message is not None])
        if self._residency is not None:
            self._residency.brought_in(self, number, page.size_bytes)
        return messages

    def holders_of(self, sequence: int) -> int:
        """How many subscriptions hold it: for checks."""
        page = self._pages.get((sequence - 1) >> _SHIFT)
        place = (sequence - 1) & _MASK
        if page is None:
            return 0
        if page.holders is not None:
            return page.holders[place] if place < len(page.holders) else 0
        return int(page.out[place]) if page.out is not None else int(self.get(sequence) is not None)


def _size_bytes(messages: Sequence[Message]) -> int:
    """What they take in memory."""
    return total_bytes(messages) + OVERHEAD_BYTES * len(messages)
