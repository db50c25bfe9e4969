"""Every bound that holds for all doors, with its unit and its reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from heliograph.engine.message import Draft, Extras, size_bytes
from heliograph.engine.settings import SECOND_NS, SubscriptionSettings, TopicSettings
from heliograph.errors import InvalidArgument, InvalidPriority, MessageTooLarge

MIB = 1024 * 1024

MESSAGE_BYTES_MAX = 10 * MIB  # spec 000 BR-017, spec 002 BR-011: data, attributes and metadata
ATTRIBUTES_MAX = 100  # per message; Pub/Sub's resource limits
ATTRIBUTE_KEY_BYTES_MAX = 256  # spec 000 BR-017
ATTRIBUTE_VALUE_BYTES_MAX = 1024  # spec 000 BR-017
DEDUP_ID_BYTES_MAX = 1024  # as an ordering key
ORDERING_KEY_BYTES_MAX = 1024  # Pub/Sub's resource limits
RESERVED_KEY_PREFIX = "goog"  # spec 000 BR-017; it covers 'googclient_'
PRIORITY_MAX = 9  # spec 003: 0-9, 9 is the highest
ACK_DEADLINE_SECONDS_MAX = 600  # every spec; the doors have lower bounds of their own
FILTER_BYTES_MAX = 256  # Pub/Sub's resource limits
CLAIM_SECONDS_MAX = 7 * 86_400  # as long as messages are retained: a job that runs once a day finds its claims again
INSTANT_NS_MAX = 2**63 - 1  # what a store's column holds: the year 2262
SPAN_NS_MAX = 2**62  # 146 years; so that an instant of these days and a span can be stored, too


def check_drafts(drafts: Sequence[Draft]) -> bool:
    """`check_draft` for each; most cannot break any bound, and are passed over quickly. Returns whether all are plain:
    nothing but a payload."""
    plain = True
    for draft in drafts:
        if (
            draft.attributes
            or draft.ordering_key
            or draft.extras is not None
            or draft.publish_time_ns
            or draft.dedup_id
            or draft.service_attributes
            or len(draft.data) > MESSAGE_BYTES_MAX
        ):
            check_draft(draft)
            plain = False
    return plain


def check_draft(draft: Draft) -> None:
    """Refuse a message that no door may accept.

    Raises:
        MessageTooLarge: above 10 MB in all.
        InvalidPriority: it is not 0 to 9.
        InvalidArgument: its attributes, ordering key or times break a bound.
    """
    if draft.attributes:
        _check_attributes(draft.attributes)
    check_text(draft.ordering_key, "Ordering key")
    if size_bytes(draft) > MESSAGE_BYTES_MAX:
        raise MessageTooLarge("Message size exceeds maximum of 10MB")
    if len(draft.ordering_key.encode()) > ORDERING_KEY_BYTES_MAX:
        raise InvalidArgument(f"Ordering key exceeds {ORDERING_KEY_BYTES_MAX} bytes")
    check_instant(draft.publish_time_ns, "Publish time")
    if draft.dedup_id:
        check_text(draft.dedup_id, "Deduplication id")
        if len(draft.dedup_id.encode()) > DEDUP_ID_BYTES_MAX:
            raise InvalidArgument(f"A deduplication id exceeds {DEDUP_ID_BYTES_MAX} bytes")
    if draft.extras is not None:
        _check_extras(draft.extras)


def check_priority(priority: int) -> None:
    """Refuse a priority that there is no band for; nothing is clamped.

    Raises:
        InvalidPriority: not 0 to 9.
    """
    if not 0 <= priority <= PRIORITY_MAX:
        raise InvalidPriority(f"Priority must be 0 to {PRIORITY_MAX}, not {priority}")


def _check_extras(extras: Extras) -> None:
    check_priority(extras.priority)
    check_instant(extras.available_at_ns, "Delivery time")
    check_instant(extras.expires_at_ns, "Expiry time")
    check_text(extras.content_type, "Content type")
    if not 0 <= extras.max_delivery_attempts <= INSTANT_NS_MAX:
        raise InvalidArgument(f"Delivery attempts must not be negative, nor {extras.max_delivery_attempts}")


def check_instant(instant_ns: int, what: str) -> None:
    """Refuse what no store could keep. 0 = none.

    Raises:
        InvalidArgument: naming `what`.
    """
    if not 0 <= instant_ns <= INSTANT_NS_MAX:
        raise InvalidArgument(f"{what} is out of range: {instant_ns} ns since the epoch")


def check_ack_deadline(ack_deadline_ns: int) -> None:
    """Refuse a lease that is longer than any may be.

    Raises:
        InvalidArgument: not 0 to 600 seconds.
    """
    if not 0 <= ack_deadline_ns <= ACK_DEADLINE_SECONDS_MAX * SECOND_NS:
        raise InvalidArgument(f"Ack deadline must be between 0 and {ACK_DEADLINE_SECONDS_MAX} seconds")


def check_claim(consumer: str, ttl_ns: int) -> None:
    """Refuse a claim that nobody could find again, or that is longer than any may be.

    Raises:
        InvalidArgument: no consumer is named, or the span is not up to seven days.
    """
    if not consumer:
        raise InvalidArgument("A claim needs a consumer: the name under which it is found again")
    check_text(consumer, "Consumer")
    if not 0 < ttl_ns <= CLAIM_SECONDS_MAX * SECOND_NS:
        raise InvalidArgument(f"A claim ends after 1 to {CLAIM_SECONDS_MAX} seconds unless it is extended")


def check_settings(settings: TopicSettings | SubscriptionSettings) -> None:
    """Refuse what no store could keep, since a journal that cannot be written stops the broker.

    Raises:
        InvalidPriority: the default priority is not 0 to 9.
        InvalidArgument: a number is negative or too large, or a text is no text.
    """
    if isinstance(settings, SubscriptionSettings):
        check_ack_deadline(settings.ack_deadline_ns)
        check_priority(settings.default_priority)
    for value in _leaves(msgspec.to_builtins(settings)):
        if isinstance(value, str):
            check_text(value, "A setting")
        elif isinstance(value, int) and not 0 <= value <= SPAN_NS_MAX:
            raise InvalidArgument(f"A setting is out of range: {value}")


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    if isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    else:
        yield value


def check_text(text: str, what: str) -> None:
    """Refuse what is a `str` for Python, but no text that could be stored or sent: half a surrogate pair.

    Raises:
        InvalidArgument: naming `what`.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} {text[:40]!r} is not valid Unicode") from None


def _check_attributes(attributes: Mapping[Any, Any]) -> None:
    if len(attributes) > ATTRIBUTES_MAX:
        raise InvalidArgument(f"A message has at most {ATTRIBUTES_MAX} attributes, not {len(attributes)}")
    for key, value in attributes.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise InvalidArgument(f"Attribute {key!r} must be a string with a string value")
        check_text(key, "Attribute key")
        check_text(value, "Attribute value")
        if not key:
            raise InvalidArgument("Attribute keys must not be empty")
        if key.startswith(RESERVED_KEY_PREFIX):
            raise InvalidArgument(f"Attribute key {key!r} starts with the reserved prefix {RESERVED_KEY_PREFIX!r}")
        if len(key.encode()) > ATTRIBUTE_KEY_BYTES_MAX:
            raise InvalidArgument(f"Attribute key {key[:40]!r}… exceeds {ATTRIBUTE_KEY_BYTES_MAX} bytes")
        if len(value.encode()) > ATTRIBUTE_VALUE_BYTES_MAX:
            raise InvalidArgument(f"The value of attribute {key!r} exceeds {ATTRIBUTE_VALUE_BYTES_MAX} bytes")
