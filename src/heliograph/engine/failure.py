"""What becomes of leased messages that come back: they wait again, wait for their backoff, or are given up."""

from __future__ import annotations

from typing import NamedTuple

from heliograph.engine.dead_letter import DeadLetterReason
from heliograph.engine.facts import Fact, MessagesDeadLettered, MessagesPurged, MessagesReturned, ReturnCause
from heliograph.engine.subscription import Subscription


class Settled(NamedTuple):
    """What became of deliveries that were given back as failed.

    Args:
        stale: the ack ids that were not current any more; nothing became of them.
        dead_lettered: the ids of the messages that were given up.
    """

    stale: list[str]
    dead_lettered: list[str]


def facts_of_failure(subscription: Subscription, sequences: list[int], cause: ReturnCause, now_ns: int) -> list[Fact]:
    """The facts to record when leased messages come back for `cause`. Nothing changes here."""
    returned: list[int] = []
    available_at_ns: list[int] = []
    spent: list[int] = []
    expired: list[int] = []
    for sequence in sequences:
        if 0 < subscription.expires_at_ns(sequence) <= now_ns:
            expired.append(sequence)
        elif cause is not ReturnCause.RELEASED and _is_spent(subscription, sequence):
            spent.append(sequence)
        else:
            returned.append(sequence)
            available_at_ns.append(_available_at_ns(subscription, sequence, cause, now_ns))
    keeps_dead_letters = subscription.settings.dead_letter_policy is not None
    if expired and not keeps_dead_letters:
        returned += expired  # they come back before they go, as any that waits
        available_at_ns += [0] * len(expired)
    name, facts = subscription.name, list[Fact]()
    if returned:
        facts.append(MessagesReturned(name, returned, available_at_ns if any(available_at_ns) else [], cause))
    if spent:
        facts.append(MessagesDeadLettered(name, spent, DeadLetterReason.MAX_RETRIES_EXCEEDED, now_ns, cause))
    if expired and keeps_dead_letters:
        facts.append(MessagesDeadLettered(name, expired, DeadLetterReason.TTL_EXPIRED, now_ns, cause))
    elif expired:
        facts.append(MessagesPurged(name, expired))
    return facts


def _is_spent(subscription: Subscription, sequence: int) -> bool:
    """Whether this failure is the last one that the message may have."""
    policy = subscription.settings.dead_letter_policy
    if policy is None:
        return False
    extras = subscription.topic.log[sequence].extras
    limit = extras.max_delivery_attempts if extras is not None else 0
    return subscription.attempt(sequence) >= (limit or policy.max_delivery_attempts)


def _available_at_ns(subscription: Subscription, sequence: int, cause: ReturnCause, now_ns: int) -> int:
    policy = subscription.settings.retry_policy
    if policy is None or cause is ReturnCause.RELEASED:
        return 0
    backoff_ns = policy.backoff_ns(subscription.attempt(sequence))
    return now_ns + backoff_ns if backoff_ns else 0
