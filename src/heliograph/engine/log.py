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
from heliograph.engine.page import PAGE_MESSAGES, Page
from heliograph.engine.ranges import Run, count_of, from_runs
from heliograph.engine.residency import Residency
from heliograph.errors import Internal

SEALED_BYTES = 64 * 1024  # by which a page grows before as much of it counts, and may leave memory
OVERHEAD_BYTES = 136  # what a message takes in memory beyond its content: objects, and its place in the page
_SHIFT = PAGE_MESSAGES.bit_length() - 1
_MASK = PAGE_MESSAGES - 1

# (first, last) sequence to the messages of the topic's durable log
ReadLog = Callable[[int, int], list[Message]]


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
            if self._residency is not None:
                self._count(self._residency, number, page, part)

    def _count(self, residency: Residency, number: int, page: Page, part: Sequence[Message]) -> None:
        """The page grew: when it is complete, or has grown by much, it may go out as far as it is now."""
        if len(page.messages) < PAGE_MESSAGES:
            page.growth_bytes += _size_bytes(part)
            if page.growth_bytes < SEALED_BYTES:
                return
        page.sealed, page.facts_needed, page.growth_bytes = len(page.messages), residency.fact_count, 0
        page.size_bytes = _size_bytes([message for message in page.messages if message is not None])
        residency.filled(self, number, page.size_bytes)

    def skip(self, count: int) -> None:
        """The next `count` sequences have no message that anybody holds."""
        self.next_sequence += count

    def _tail(self, number: int, place: int) -> Page:
        """The page that grows, with an entry for every place before `place`."""
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = Page()
        elif page.out is not None and page.holders is not None:
            del page.holders[place:]
        missing = place - len(page.messages)
        if missing:
            page.messages.extend([None] * missing)
            if page.holders is not None:
                page.holders.extend(array("I", [0]) * (place - len(page.holders)))
        return page

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def get(self, sequence: int) -> Message | None:
        """The message, or None if nobody holds it."""
        page = self._pages.get((sequence - 1) >> _SHIFT)
        if page is None:
            return None
        place = (sequence - 1) & _MASK
        if page.out is None or not page.out[place]:
            messages = page.messages
        else:
            messages = self._bring_in((sequence - 1) >> _SHIFT, page)
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
        known, page = -1, None
        for sequence in sequences:
            number = (sequence - 1) >> _SHIFT
            if number != known:
                known, page = number, self._pages.get(number)
            if page is not None and page.out is not None and page.out[(sequence - 1) & _MASK]:
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
                places = page.held_places()
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
            self._floor_page = min(self._floor_page, number)
        elif page.out is None or page.messages:
            self._outside += page.out is None
            page.go_out()  # a subscription that was restored before has looked into it
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

    # ── seeking ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def take_back(self, runs: Sequence[Run]) -> None:
        """One holder more for each: messages that somebody has in memory, or the store."""
        for number, pieces in _by_page(runs):
            page = self._pages.get(number)
            places = [(sequence - 1) & _MASK for sequence in from_runs(pieces)]
            if page is None:
                page = self._page_outside(number)
                if len(pieces) == 1:
                    page.hold_outside(places[0], len(places))
                    continue
            was_inside = page.out is None
            page.hold_again(places)
            self._outside += was_inside and page.out is not None

    def release_runs(self, runs: Sequence[Run]) -> None:
        """As `release`; whole pages that nobody else holds go at once."""
        for number, pieces in _by_page(runs):
            page = self._pages[number]
            if page.holders is None and page.live == count_of(pieces):
                self._drop(number, page)
            else:
                self.release(list(from_runs(pieces)))

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
        live, candidates = 0, dict[int, int]()  # by page: where the log may begin
        for number, following in zip(numbers, [*numbers[1:], end], strict=False):
            page = self._pages[number]
            live += page.live
            if 2 * live > end * PAGE_MESSAGES + 1 - floor:
                break
            behind = following * PAGE_MESSAGES + 1
            if (following > number + 1 or 2 * page.live < PAGE_MESSAGES) and 2 * live <= behind - floor:
                candidates[number] = behind
        up_to, below, runs, last = floor, 0, list[Run](), max(candidates, default=-1)
        for number in numbers:
            if number > last:
                break
            _join(runs, self._pages[number].runs(number * PAGE_MESSAGES + 1))
            if len(runs) > runs_max:
                break
            if number in candidates:
                up_to, below = candidates[number], len(runs)
        held = runs[:below]
        if held and held[-1][1] > up_to:
            held[-1] = (held[-1][0], up_to)
        return up_to, held

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
            if page.out is not None and page.out[place]:
                page.let_go_outside(place)
            else:
                page.messages[place] = None
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

    def send_out(self, number: int, durable_facts: int) -> bool:
        """Keep of what is sealed of a page only which messages are held. False if it has nothing that may go."""
        page = self._pages.get(number)
        if page is None or not page.messages or not page.sealed or page.facts_needed > durable_facts:
            return False
        self._outside += page.out is None
        page.go_out(page.sealed)
        return True

    def _bring_in(self, number: int, page: Page) -> list[Message | None]:
        assert self._read is not None
        assert page.out is not None
        first = number * PAGE_MESSAGES + 1
        messages: list[Message | None] = [*page.messages, *[None] * (PAGE_MESSAGES - len(page.messages))]
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
        if not page.messages:
            page.sealed, page.facts_needed = len(messages), 0  # it was read: it is durable
        if page.messages or not page.size_bytes:
            page.size_bytes = _size_bytes([message for message in messages if message is not None])
        page.messages, page.out = messages, None
        self._outside -= 1
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
        places = page.held_places()
        return int(place < len(places) and bool(places[place]))


def _join(runs: list[Run], following: list[Run]) -> None:
    """Add runs that lie behind all before."""
    if runs and following and runs[-1][1] == following[0][0]:
        following[0] = (runs.pop()[0], following[0][1])
    runs += following


def _size_bytes(messages: Sequence[Message]) -> int:
    """What they take in memory."""
    return total_bytes(messages) + OVERHEAD_BYTES * len(messages)


def _by_page(runs: Sequence[Run]) -> Iterator[tuple[int, list[Run]]]:
    """Runs cut at the pages' ends, with the number of the page that each group is in."""
    number, pieces = -1, list[Run]()
    for first, stop in runs:
        while first < stop:
            page = (first - 1) >> _SHIFT
            end = min(stop, (page + 1) * PAGE_MESSAGES + 1)
            if page != number:
                if pieces:
                    yield number, pieces
                number, pieces = page, []
            pieces.append((first, end))
            first = end
    if pieces:
        yield number, pieces
