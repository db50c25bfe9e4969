"""What must be true of the state that a journal leads to, recounted: for checks of a store."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import chain

from heliograph.engine.engine import Engine
from heliograph.engine.message import total_bytes
from heliograph.engine.subscription import Subscription
from heliograph.engine.topic import Topic

_PAGE = 4096


class _Counts:
    """A small number for each sequence, in pages: ten million take twenty megabytes."""

    def __init__(self, typecode: str) -> None:
        self._empty = array(typecode, [0]) * _PAGE
        self._pages: dict[int, array[int]] = {}
        self.total = 0

    def add(self, sequence: int) -> int:
        """One more; returns how many it had."""
        number, place = divmod(sequence, _PAGE)
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = self._empty[:]
        before = page[place]
        page[place] = before + 1
        self.total += 1
        return before

    def get(self, sequence: int) -> int:
        number, place = divmod(sequence, _PAGE)
        page = self._pages.get(number)
        return 0 if page is None else page[place]


def violations(engine: Engine) -> Iterator[str]:
    """Each thing that is not as it must be, in one line."""
    for topic in engine.all_topics():
        holders = _Counts("I")
        for subscription in topic.subscriptions.values():
            yield from _of_subscription(subscription, holders)
        yield from _of_log(topic, holders)


def _of_subscription(subscription: Subscription, holders: _Counts) -> Iterator[str]:
    own = _Counts("H")
    twice: set[int] = set()
    for sequence in chain(subscription.waiting_sequences(), subscription.leases.by_sequence, subscription.dead):
        if own.add(sequence):
            twice.add(sequence)
        else:
            holders.add(sequence)
    name = subscription.name
    if twice:
        yield f"subscription {name} has {len(twice)} messages in two places at once, the first is {min(twice)}"
    expected = subscription.held + len(subscription.dead)
    if own.total != expected:
        yield f"subscription {name} counts {expected} messages and holds {own.total}"
    leased = list(subscription.leases.by_sequence)
    found = total_bytes([message for message in map(subscription.topic.log.get, leased) if message is not None])
    if found != subscription.outstanding_bytes:
        yield f"subscription {name} counts {subscription.outstanding_bytes} bytes outstanding, they are {found}"
    gone = [sequence for sequence in subscription.failures if not own.get(sequence)]
    if gone:
        yield f"subscription {name} counts failures of {len(gone)} messages that it does not hold"


def _of_log(topic: Topic, holders: _Counts) -> Iterator[str]:
    log = topic.log
    held, wrong, first_wrong = 0, 0, 0
    for sequence in log.held_sequences(1, log.next_sequence - 1):
        count = log.holders_of(sequence)
        held += count
        if count != holders.get(sequence):
            wrong, first_wrong = wrong + 1, first_wrong or sequence
    if wrong:
        yield f"topic {topic.name} has {wrong} messages with a wrong count of holders, the first is {first_wrong}"
    elif held != holders.total:
        yield f"subscriptions of topic {topic.name} hold {holders.total - held} messages that it does not have"
