"""How topics and subscriptions are configured. Plain values; the doors validate what is theirs to validate."""

from __future__ import annotations

import msgspec

from heliograph.engine.dead_letter import DeadLetterPolicy
from heliograph.engine.retry import RetryPolicy

MILLISECOND_NS = 1_000_000
SECOND_NS = 1_000 * MILLISECOND_NS
DAY_NS = 86_400 * SECOND_NS
NEVER_NS = 2**63 - 1  # after every instant that there is


class TopicSettings(msgspec.Struct, frozen=True, array_like=True):
    """Settings of a topic.

    Args:
        message_retention_ns: messages stay readable in the topic's log so long after publication, also when every
            subscription has acknowledged them; 0 = only while some subscription needs them.
        labels: string to string, kept for the caller.
        resource: what a door wants kept and given back as it was (its serialized resource).
    """

    message_retention_ns: int = 0
    labels: dict[str, str] = {}
    resource: bytes = b""


class Capacity(msgspec.Struct, frozen=True, array_like=True):
    """How much a subscription may hold.

    Args:
        messages: at most so many.
        bytes: at most so many; 0 = no bound, where it refuses.
        refuse: True = the publisher gets `QueueFull` and nothing is stored (work queues; waiting and delayed messages
            count, leased ones do not); False = the newcomer is dropped for this subscription alone and counted
            (spec 000, BR-022; everything held counts).
    """

    messages: int
    bytes: int
    refuse: bool = False


class SubscriptionSettings(msgspec.Struct, frozen=True, array_like=True):
    """Settings of a subscription; a work queue is a subscription of its own topic.

    Args:
        ack_deadline_ns: how long a delivery is leased.
        enable_message_ordering: one outstanding message per ordering key, in publish order.
        enable_exactly_once_delivery: stale ack ids are errors.
        retry_policy: None = redelivery at once.
        dead_letter_policy: None = retried for ever.
        capacity: None = bounded by disk and retention only.
        outstanding_messages_max, outstanding_bytes_max: a pull hands out nothing beyond them; 0 = unlimited (BR-013).
        message_retention_ns: an unacknowledged message is dropped so long after publication; 0 = never (work queues).
        retain_acked_messages: keep acknowledged ones so long too.
        ttl_ns: messages without their own expiry get this one; 0 = none.
        default_priority: of messages without `Extras`, when `prioritised`; those that have some name it there.
        prioritised: 0-9 decides what is delivered first, so everything waiting must be known; else first in, first out.
        prefetch: how many messages one consumer may hold; 0 = unlimited.
        priority_aging_ns: a waiting message rises one band per period, counted from when it could first be delivered,
            or was retried from the dead letters (design §5); 0 = strict priority. Counters keep its own band.
        filter: the Pub/Sub filter expression; "" = everything.
        labels, resource: as on the topic.
        expires_after_ns: the subscription is deleted when it was not used for so long; 0 = never.
    """

    ack_deadline_ns: int = 10 * SECOND_NS
    enable_message_ordering: bool = False
    enable_exactly_once_delivery: bool = False
    retry_policy: RetryPolicy | None = None
    dead_letter_policy: DeadLetterPolicy | None = None
    capacity: Capacity | None = None
    outstanding_messages_max: int = 0
    outstanding_bytes_max: int = 0
    message_retention_ns: int = 7 * DAY_NS
    retain_acked_messages: bool = False
    ttl_ns: int = 0
    default_priority: int = 0
    prioritised: bool = False
    prefetch: int = 0
    priority_aging_ns: int = 0
    filter: str = ""
    labels: dict[str, str] = {}
    resource: bytes = b""
    expires_after_ns: int = 0


TOPIC_DEFAULTS = TopicSettings()
SUBSCRIPTION_DEFAULTS = SubscriptionSettings()
