"""A store that keeps everything in memory: for tests and for brokers that may forget."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import msgspec

from heliograph.engine.facts import Fact, MessagesPublished
from heliograph.engine.message import Message
from heliograph.engine.ranges import Run, from_runs, to_runs
from heliograph.engine.settings import NEVER_NS
from heliograph.errors import Unavailable
from heliograph.store.event_memory import EventMemory
from heliograph.store.protocol import COMMITTED, EVERYTHING, Commit, Durability

_READ_MESSAGES_MAX = 1_000  # per batch of read_log: the lock is held for one of them at a time


class _Log:
    """A topic's messages with sequences in [first, last]. They are consecutive, so a place is a subtraction away.

    Args:
        first: the lowest sequence.
        held: messages below it that a trim left, by sequence.
    """

    __slots__ = ("_free", "_places", "first", "held")

    def __init__(self, first: int) -> None:
        self.first = first
        self._places: list[Message | None] = []
        self._free = 0  # places at the front that are empty
        self.held: dict[int, Message] = {}

    @property
    def last(self) -> int:
        return self.first + len(self._places) - self._free - 1

    def extend(self, messages: list[Message]) -> None:
        self._places.extend(messages)

    def read(self, first: int, last: int) -> list[Message]:
        start = self.first - self._free
        return self._places[first - start : last - start + 1]  # type: ignore[return-value]  # none empty from `first` on

    def first_from(self, up_to: int, published_before_ns: int) -> int:
        """The oldest that is not below `up_to`, or was not published before that instant; `up_to` if there is none."""
        if published_before_ns == NEVER_NS:
            return up_to
        for sequence in range(self.first, min(up_to, self.last + 1)):
            (message,) = self.read(sequence, sequence)
            if message.publish_time_ns >= published_before_ns:
                return sequence
        return up_to

    def trim(self, up_to: int, held: Sequence[Run]) -> None:
        """Forget those below `up_to` but for `held`. The list is cut when half of it is free: O(1) a message."""
        left = {sequence: message for sequence, message in self.held.items() if sequence >= up_to}
        for sequence in from_runs([(first, min(stop, up_to)) for first, stop in held if first < up_to]):
            if sequence < self.first:
                left[sequence] = self.held[sequence]
            elif sequence <= self.last:
                (left[sequence],) = self.read(sequence, sequence)
        self.held = dict(sorted(left.items()))
        count = min(up_to, self.last + 1) - self.first
        if count <= 0:
            return
        self._places[self._free : self._free + count] = [None] * count
        self._free += count
        self.first += count
        if self._free * 2 >= len(self._places):
            del self._places[: self._free]
            self._free = 0


class MemoryStore:
    """A `Store` without a file. Whatever is appended counts as committed at once.

    Args:
        keep_facts: remember every fact, so that `recover()` gives them and a test can restart a broker on the store,
            also after `close()`. Otherwise `recover()` gives nothing.
        events_max: how many messages the kept part of the event log tells of, about; 0 = none is kept.
    """

    def __init__(self, *, keep_facts: bool = False, events_max: int = 0) -> None:
        self._lock = threading.Lock()
        self._logs: dict[int, _Log] = {}
        self._facts: list[Fact] | None = [] if keep_facts else None
        self._facts_written = 0
        self._events = EventMemory(events_max)
        self._closed = False

    @property
    def kind(self) -> str:
        """See `Store.kind`."""
        return "memory"

    @property
    def durability(self) -> Durability:
        """Nothing survives the process."""
        return "none"

    @property
    def failing(self) -> Exception | None:
        """Memory does not fail."""
        return None

    @property
    def keeps_facts(self) -> bool:
        """See `Store.keeps_facts`."""
        return self._facts is not None

    @property
    def facts_written(self) -> int:
        """See `Store.facts_written`."""
        return self._facts_written

    @property
    def checkpoint_due(self) -> bool:
        """Only where facts are kept do they become many; a test says when it wants a checkpoint."""
        return False

    def recover(self) -> Iterator[Fact]:
        """The facts that were appended, if they are kept; see `Store.recover`. Opens a closed store again."""
        with self._lock:
            self._closed = False
            facts = list(self._facts or ())
        for fact in facts:
            yield _referred(fact) if type(fact) is MessagesPublished else fact

    def append(self, facts: Sequence[Fact]) -> Commit:
        """See `Store.append`."""
        with self._lock:
            self._check_open()
            self._facts_written += len(facts)
            if self._facts is not None:
                self._facts.extend(facts)
            self._events.append(facts)
            for fact in facts:
                if type(fact) is MessagesPublished and fact.messages:
                    log = self._logs.get(fact.topic_number)
                    if log is None:
                        log = self._logs[fact.topic_number] = _Log(fact.messages[0].sequence)
                    log.extend(fact.messages)
        return COMMITTED

    def checkpoint(self, facts: Sequence[Fact]) -> Commit:
        """See `Store.checkpoint`."""
        with self._lock:
            self._check_open()
            if self._facts is not None:
                self._facts = list(facts)
        return COMMITTED

    def read_log(self, topic_number: int, first: int, last: int, *, held: bool = False) -> Iterator[list[Message]]:
        """See `Store.read_log`."""
        if held:
            with self._lock:
                self._check_open()
                log = self._logs.get(topic_number)
                left = [] if log is None else [m for s, m in log.held.items() if first <= s <= last]
            if left:
                yield left
        while True:
            with self._lock:
                self._check_open()
                log = self._logs.get(topic_number)
                if log is None or max(first, log.first) > min(last, log.last):
                    return
                first = max(first, log.first)
                messages = log.read(first, min(last, first + _READ_MESSAGES_MAX - 1))
            yield messages
            first += len(messages)

    def log_bounds(self, topic_number: int) -> tuple[int, int]:
        """See `Store.log_bounds`."""
        with self._lock:
            self._check_open()
            log = self._logs.get(topic_number)
            return (log.first, log.last) if log is not None else (1, 0)

    def held_below(self, topic_number: int) -> list[Run]:
        """See `Store.held_below`."""
        with self._lock:
            self._check_open()
            log = self._logs.get(topic_number)
            return to_runs(log.held) if log is not None else []

    def log_offset(self, topic_number: int, published_ns: int) -> int:
        """See `Store.log_offset`."""
        with self._lock:
            self._check_open()
            log = self._logs.get(topic_number)
            return log.first_from(log.last + 1, published_ns) if log is not None else 1

    def log_extent(self, topic_number: int, first: int, bytes_max: int) -> int:
        """See `Store.log_extent`."""
        reached, size_bytes = first, 0
        for messages in self.read_log(topic_number, first, EVERYTHING):
            for message in messages:
                size_bytes += len(message.data)
                if size_bytes > bytes_max:
                    return reached
                reached = max(reached, message.sequence)
        return reached

    def event_bounds(self) -> tuple[int, int]:
        """See `Store.event_bounds`."""
        with self._lock:
            self._check_open()
            return self._events.first, self._events.last

    def read_events(self, first: int, last: int) -> Iterator[tuple[int, list[Fact]]]:
        """See `Store.read_events`."""
        with self._lock:
            self._check_open()
            rows = self._events.between(first, last)
        yield from rows

    def event_offset(self, at_ns: int) -> int:
        """See `Store.event_offset`."""
        with self._lock:
            self._check_open()
            return self._events.offset(at_ns)

    def forget_events(self, before: int) -> None:
        """See `Store.forget_events`."""
        with self._lock:
            self._events.forget(before)

    def topic_numbers(self) -> set[int]:
        """See `Store.topic_numbers`."""
        with self._lock:
            return {number for number, log in self._logs.items() if log.first <= log.last or log.held}

    def trim(
        self, topic_number: int, up_to: int, published_before_ns: int = NEVER_NS, held: Sequence[Run] = ()
    ) -> None:
        """See `Store.trim`."""
        with self._lock:
            self._check_open()
            log = self._logs.get(topic_number)
            if log is not None:
                up_to = log.first_from(up_to, published_before_ns)
                log.trim(up_to, held)

    def close(self) -> None:
        """Refuse further appends. Idempotent."""
        with self._lock:
            self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise Unavailable("The store is closed")


def _referred(fact: MessagesPublished) -> MessagesPublished:
    """The fact as a file would give it back: with the sequences it had."""
    if not fact.messages:
        return fact
    first, last = fact.messages[0].sequence, fact.messages[-1].sequence
    return msgspec.structs.replace(fact, first_sequence=first, last_sequence=last)
