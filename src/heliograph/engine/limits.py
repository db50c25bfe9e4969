"""Every bound that holds for all doors, with its unit and its reason."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from heliograph.engine.message import Draft, size_bytes
from heliograph.errors import InvalidArgument, MessageTooLarge

MIB = 1024 * 1024

MESSAGE_BYTES_MAX = 10 * MIB  # spec 000 BR-017, spec 002 BR-011: data, attributes and metadata
ATTRIBUTES_MAX = 100  # per message; Pub/Sub's resource limits
ATTRIBUTE_KEY_BYTES_MAX = 256  # spec 000 BR-017
ATTRIBUTE_VALUE_BYTES_MAX = 1024  # spec 000 BR-017
ORDERING_KEY_BYTES_MAX = 1024  # Pub/Sub's resource limits
RESERVED_KEY_PREFIX = "goog"  # spec 000 BR-017; it covers 'googclient_'
PRIORITY_MAX = 9  # spec 003: 0-9, 9 is the highest
ACK_DEADLINE_SECONDS_MAX = 600  # every spec; the doors have lower bounds of their own


def check_draft(draft: Draft) -> None:
    """Refuse a message that no door may accept.

    Raises:
        MessageTooLarge: above 10 MB in all.
        InvalidArgument: its attributes, ordering key or priority break a bound.
    """
    if draft.attributes:
        _check_attributes(draft.attributes)
    check_text(draft.ordering_key, "Ordering key")
    if size_bytes(draft) > MESSAGE_BYTES_MAX:
        raise MessageTooLarge("Message size exceeds maximum of 10MB")
    if len(draft.ordering_key.encode()) > ORDERING_KEY_BYTES_MAX:
        raise InvalidArgument(f"Ordering key exceeds {ORDERING_KEY_BYTES_MAX} bytes")
    if draft.extras is not None and not 0 <= draft.extras.priority <= PRIORITY_MAX:
        raise InvalidArgument(f"Priority must be 0 to {PRIORITY_MAX}, not {draft.extras.priority}")


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
