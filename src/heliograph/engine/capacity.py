"""What fits: how much of what is offered a subscription's bounds allow."""

from __future__ import annotations

from heliograph.engine.message import Message, size_bytes, total_bytes
from heliograph.engine.subscription import Subscription

# A full subscription has room again when it holds no more than this part of its capacity: else one that hovers at its
# limit would be told of with every message.
_FULL_EPISODE_ENDS_AT = 0.9


def fitting(subscription: Subscription, messages: list[Message]) -> int:
    """How many of the newcomers the capacity has room for: a prefix of them."""
    capacity = subscription.settings.capacity
    assert capacity is not None
    # the newcomers are in the log already, and not loaded yet
    room = capacity.messages - (subscription.held - len(messages))
    room_bytes = capacity.bytes - subscription.held_bytes
    if room >= len(messages) and total_bytes(messages) <= room_bytes:
        return len(messages)
    kept = 0
    for message in messages[: max(room, 0)]:
        room_bytes -= total_bytes([message])
        if room_bytes < 0:
            break
        kept += 1
    return kept


def has_room_again(subscription: Subscription) -> bool:
    """Whether an episode of fullness is over."""
    capacity = subscription.settings.capacity
    assert capacity is not None
    return (
        subscription.held <= capacity.messages * _FULL_EPISODE_ENDS_AT
        and subscription.held_bytes <= capacity.bytes * _FULL_EPISODE_ENDS_AT
    )


def within(subscription: Subscription, sequences: list[int], max_bytes: int, *, alone_allowed: bool) -> list[int]:
    """The longest prefix of at most `max_bytes`; where allowed, a first message that is larger by itself."""
    log = subscription.topic.log
    for index, sequence in enumerate(sequences):
        message = log[sequence]
        max_bytes -= size_bytes(message) if message.attributes or message.ordering_key else len(message.data)
        if max_bytes < 0:
            return sequences[:index] if index or not alone_allowed else sequences[:1]
    return sequences
