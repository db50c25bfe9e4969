"""What facts tell beyond what recovery needs, where a broker keeps an event log: when it happened, which attempt it
was, how long the messages had waited or been worked on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from heliograph.engine.facts import (
    DeadLettersRetried,
    Details,
    Fact,
    MessagesAcknowledged,
    MessagesDeadLettered,
    MessagesDropped,
    MessagesLeased,
    MessagesPublished,
    MessagesPurged,
    MessagesReturned,
    SubscriptionSought,
)
from heliograph.engine.subscription import Subscription
from heliograph.engine.topic import Topic

MICROSECOND_NS = 1_000


def with_details(
    fact: Fact, topics: Mapping[str, Topic], subscriptions: Mapping[str, Subscription], now_ns: int
) -> Fact:
    """The fact, which is about to be applied, with its `Details` if it is of a kind that has some.

    Args:
        fact: what happens.
        topics, subscriptions: the state before it.
        now_ns: when.
    """
    add = _ADD.get(type(fact))
    if add is not None:
        return add(fact, subscriptions[fact.subscription], now_ns)  # type: ignore[union-attr]  # each of these has one
    if type(fact) is MessagesPublished:
        return msgspec.structs.replace(fact, details=Details(now_ns, fact.topic_number))
    return fact


def _leased(fact: MessagesLeased, subscription: Subscription, now_ns: int) -> Fact:
    details = _details(subscription, fact.sequences, now_ns, _waited_us(subscription, fact.sequences, now_ns))
    number, leased_ns, deadline_ns = fact.lease_number, fact.leased_ns, fact.deadline_ns
    return MessagesLeased(fact.subscription, number, fact.sequences, leased_ns, deadline_ns, fact.consumer, details)


def _acknowledged(fact: MessagesAcknowledged, subscription: Subscription, now_ns: int) -> Fact:
    details = _details(subscription, fact.sequences, now_ns, _held_us(subscription, fact.sequences, now_ns))
    return MessagesAcknowledged(fact.subscription, fact.sequences, details)


def _returned(fact: MessagesReturned, subscription: Subscription, now_ns: int) -> Fact:
    details = _details(subscription, fact.sequences, now_ns, _held_us(subscription, fact.sequences, now_ns))
    return msgspec.structs.replace(fact, details=details)


def _dead_lettered(fact: MessagesDeadLettered, subscription: Subscription, now_ns: int) -> Fact:
    held_us = _held_us(subscription, fact.sequences, now_ns) if fact.cause is not None else []
    return msgspec.structs.replace(fact, details=_details(subscription, fact.sequences, now_ns, held_us))


def _moved(
    fact: MessagesDropped | MessagesPurged | DeadLettersRetried | SubscriptionSought,
    subscription: Subscription,
    now_ns: int,
) -> Fact:
    return msgspec.structs.replace(fact, details=Details(now_ns, subscription.topic.number))


# by type, since most facts are small and many: a chain of comparisons would cost more than all the rest
_ADD: dict[type, Callable[[Any, Subscription, int], Fact]] = {
    MessagesLeased: _leased,
    MessagesAcknowledged: _acknowledged,
    MessagesReturned: _returned,
    MessagesDeadLettered: _dead_lettered,
    MessagesDropped: _moved,
    MessagesPurged: _moved,
    DeadLettersRetried: _moved,
    SubscriptionSought: _moved,
}


def _details(subscription: Subscription, sequences: Sequence[int], now_ns: int, spans_us: list[int]) -> Details:
    failures, attempts = subscription.failures, list[int]()
    if failures:
        attempts = [failures.get(sequence, 0) + 1 for sequence in sequences]
        if max(attempts) == 1:
            attempts = []
    return Details(now_ns, subscription.topic.number, attempts, spans_us)


def _waited_us(subscription: Subscription, sequences: Sequence[int], now_ns: int) -> list[int]:
    messages = subscription.topic.log.select(sequences)
    return _shared([max(now_ns - message.publish_time_ns, 0) // MICROSECOND_NS for message in messages])


def _held_us(subscription: Subscription, sequences: Sequence[int], now_ns: int) -> list[int]:
    leases = subscription.leases.by_sequence
    return _shared([max(now_ns - leases[sequence].leased_ns, 0) // MICROSECOND_NS for sequence in sequences])


def _shared(spans_us: list[int]) -> list[int]:
    """One for all where they are equal, as those of one publish and of one pull are."""
    return spans_us[:1] if len(set(spans_us)) == 1 else spans_us
