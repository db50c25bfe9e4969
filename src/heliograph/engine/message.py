"""The message, as the engine holds it. Immutable; no encoding, no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import msgspec

# A message id is a decimal number: the topic's number, then twelve digits of sequence. So an id is unique across
# all topics, grows within one, costs no memory, and leads straight back to its message.
SEQUENCES_PER_TOPIC = 10**12


class Extras(msgspec.Struct, frozen=True, gc=False, array_like=True, omit_defaults=True):
    """What only some messages carry; absent (None on the message) for the others, so that they do not pay for it.

    Args:
        priority: 0-9, 9 is delivered first.
        available_at_ns: not delivered before this instant; 0 = at once.
        expires_at_ns: dead-lettered (or dropped) when still waiting at this instant; 0 = never.
        max_delivery_attempts: overrides the subscription's dead letter policy; 0 = does not.
        content_type: how a queue client gave the payload, echoed back in that form.
    """

    priority: int = 0
    available_at_ns: int = 0
    expires_at_ns: int = 0
    max_delivery_attempts: int = 0
    content_type: str = ""


def shared_extras(extras: Extras) -> Extras:
    """Equal ones as one object, where there are few of them: 56 bytes less a message that has only a priority."""
    return extras if extras.available_at_ns or extras.expires_at_ns else _shared(extras)


@lru_cache(maxsize=256)
def _shared(extras: Extras) -> Extras:
    return extras


NO_ATTRIBUTES: Mapping[str, str] = {}


def _no_attributes() -> Mapping[str, str]:
    # msgspec would give every message without attributes an empty dict of its own: 64 bytes
    return NO_ATTRIBUTES


class Draft(msgspec.Struct, frozen=True, gc=False):
    """A message that a caller wants published; the engine gives it its sequence and its publish time.

    Args:
        data: payload, bytes.
        attributes: string to string.
        ordering_key: "" = none.
        extras: see `Extras`.
        publish_time_ns: 0 = now; a dead letter keeps its first publish time in process.
        dedup_id: the topic takes one message of each id in ten minutes; "" = always (`engine/deduplication.py`).
        service_attributes: what the broker's own side adds to the attributes, under keys that publishers may not use.
    """

    data: bytes
    attributes: Mapping[str, str] = msgspec.field(default_factory=_no_attributes)
    ordering_key: str = ""
    extras: Extras | None = None
    publish_time_ns: int = 0
    dedup_id: str = ""
    service_attributes: Mapping[str, str] = msgspec.field(default_factory=_no_attributes)


class Message(msgspec.Struct, frozen=True, gc=False, array_like=True, omit_defaults=True):
    """A message in a topic's log.

    Args:
        sequence: its place in the topic's log, from 1.
        publish_time_ns: nanoseconds since the epoch.
        data: payload, bytes.
        attributes: string to string; must not be changed by anyone.
        ordering_key: "" = none.
        extras: what only some messages carry.
    """

    sequence: int
    publish_time_ns: int
    data: bytes
    attributes: Mapping[str, str] = msgspec.field(default_factory=_no_attributes)
    ordering_key: str = ""
    extras: Extras | None = None


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """One hand-out of a message to a consumer.

    Args:
        message: what was published.
        message_id: its id, decimal digits.
        ack_id: names this delivery; only the latest one of a message is valid.
        attempt: 1 for the first delivery, one more after each nack or expiry.
        deadline_ns: when the lease ends unless it is extended.
    """

    message: Message
    message_id: str
    ack_id: str
    attempt: int
    deadline_ns: int


def message_id(topic_number: int, sequence: int) -> str:
    """The id of a message: decimal digits, unique across all topics."""
    return str(topic_number * SEQUENCES_PER_TOPIC + sequence)


def split_message_id(message_id: str) -> tuple[int, int]:
    """(topic number, sequence) of an id that `message_id` made; (0, 0) if it did not."""
    if not (message_id.isascii() and message_id.isdigit()) or len(message_id) > 30:
        return 0, 0
    return divmod(int(message_id), SEQUENCES_PER_TOPIC)


def priority_of(message: Message, default: int) -> int:
    """Its priority, 0-9; without `Extras` it is the default of the subscription that asks."""
    return default if message.extras is None else message.extras.priority


def total_bytes(messages: Sequence[Message]) -> int:
    """The sum of `size_bytes` over `messages`."""
    return sum(
        [
            size_bytes(message) if message.attributes or message.ordering_key else len(message.data)
            for message in messages
        ]
    )


def size_bytes(message: Message | Draft) -> int:
    """What a message counts for in flow control, capacity and limits: data, attributes and ordering key, in bytes."""
    size = len(message.data)
    if message.ordering_key:
        size += len(message.ordering_key.encode())
    if message.attributes:
        size += sum(len(key.encode()) + len(value.encode()) for key, value in message.attributes.items())
    return size
