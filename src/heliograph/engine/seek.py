"""Which messages a seek leaves unacknowledged (pubsub-protocol.md 1.11.2, 1.11.3). Nothing changes here.

Messages that nobody holds any more are looked for in the store, which may have millions of them: where publish times
grow with the sequences, as they do over Pub/Sub, one question finds the place; else, and for a filter, they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from heliograph.engine.message import Message
from heliograph.engine.ranges import Run, between, difference, from_runs, intersection, joined, to_runs, union
from heliograph.engine.snapshots import Snapshot
from heliograph.engine.subscription import Subscription
from heliograph.engine.topic import Topic

NEAR = 1_000
"""Reading so many messages that are not asked for costs no more than another question to the store."""


class DurableLog(Protocol):
    """A topic's log as the store has it; see `store.protocol.Store`, and what its methods raise."""

    def bounds(self) -> tuple[int, int]:
        """As `log_bounds`."""

    def offset(self, published_ns: int) -> int:
        """As `log_offset`."""

    def read(self, first: int, last: int) -> Iterator[list[Message]]:
        """As `read_log`, with those that are held."""


def unacknowledged_from(subscription: Subscription, instant_ns: int, now_ns: int, durable: DurableLog) -> list[Run]:
    """What is not acknowledged after a seek to `instant_ns`: published then or later, and not acknowledged now or still
    retained."""
    before = subscription.unacknowledged_runs()
    left = _published_from(subscription, before, instant_ns, durable)
    found = _retained_from(subscription, instant_ns, now_ns, durable)
    return _taken(subscription, before, union(left, found), durable)


def unacknowledged_in(subscription: Subscription, snapshot: Snapshot, durable: DurableLog) -> list[Run]:
    """What is not acknowledged after a seek to the snapshot: what it has, and everything published since."""
    log = subscription.topic.log
    _, last = durable.bounds()
    # what is not durable yet can come back only where somebody holds it
    there = union([(1, last + 1)], to_runs(log.held_sequences(last + 1, log.next_sequence - 1)))
    target = intersection(snapshot.needed(), there)
    return _taken(subscription, subscription.unacknowledged_runs(), target, durable)


def _taken(subscription: Subscription, before: Sequence[Run], target: Sequence[Run], durable: DurableLog) -> list[Run]:
    """Without dead letters, which have been given up, and without what the filter does not let pass."""
    target = difference(target, to_runs(sorted(subscription.dead)))
    if subscription.filter is None:
        return target
    passes = subscription.filter.matches
    found = _read(subscription.topic, difference(target, before), durable, lambda message: passes(message.attributes))
    return union(intersection(target, before), found)


def _retained_from(subscription: Subscription, instant_ns: int, now_ns: int, durable: DurableLog) -> list[Run]:
    """Messages published at `instant_ns` or later that may be delivered again though they are acknowledged."""
    first, last = durable.bounds()
    settings, topic_retention_ns = subscription.settings, subscription.topic.settings.message_retention_ns
    retained: list[Run] = []
    if topic_retention_ns:
        since_ns = max(instant_ns, now_ns - topic_retention_ns)
        retained = _published_from(subscription, [(first, last + 1)], since_ns, durable)
    if settings.retain_acked_messages:
        since_ns = max(instant_ns, now_ns - settings.message_retention_ns if settings.message_retention_ns else 0)
        own = [(max(first, subscription.first_sequence), last + 1)]
        retained = union(retained, _published_from(subscription, own, since_ns, durable))
    return retained


def _published_from(subscription: Subscription, runs: Sequence[Run], instant_ns: int, durable: DurableLog) -> list[Run]:
    """Which of the sequences were published at `instant_ns` or later. Those that are not in the durable log, since they
    are trimmed or not written yet, are held by the subscription."""
    first, last = durable.bounds()
    topic = subscription.topic
    if topic.in_time_order:
        if instant_ns > topic.newest_ns:
            return []
        offset = durable.offset(instant_ns)
        found = between(runs, offset, last + 1)
        apart = difference(runs, [(first if offset == first else 0, last + 1)])
    else:
        stored = between(runs, first, last + 1)
        found = _read(topic, stored, durable, lambda message: message.publish_time_ns >= instant_ns)
        apart = difference(runs, [(first, last + 1)])
    log = topic.log
    others = (sequence for sequence in from_runs(apart) if log[sequence].publish_time_ns >= instant_ns)
    return union(found, to_runs(others))


def _read(topic: Topic, runs: Sequence[Run], durable: DurableLog, wanted: Callable[[Message], bool]) -> list[Run]:
    """Those of the sequences whose message is wanted. What is not durable yet is in memory."""
    _, last = durable.bounds()

    def found() -> Iterator[int]:
        stored = between(runs, 0, last + 1)
        # a filter leaves many small runs: one read for all that are near each other
        for first, stop in joined(stored, NEAR):
            for messages in durable.read(first, stop - 1):
                yield from [message.sequence for message in messages if wanted(message)]
        for first, stop in between(runs, last + 1, topic.log.next_sequence):
            yield from [message.sequence for message in topic.log.held(first, stop - 1) if wanted(message)]

    return intersection(to_runs(found()), runs)
