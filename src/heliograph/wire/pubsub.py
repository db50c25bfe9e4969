"""`google.pubsub.v1.PubsubMessage` and `ReceivedMessage` on the wire ⇄ the engine's messages.

Deliveries are encoded by hand: a response with a thousand messages is a thousand short byte strings joined, with no
protobuf object for any of them. `tests/wire/` holds every encoder against the official classes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from heliograph.engine.message import NO_ATTRIBUTES, Delivery, Draft, Message
from heliograph.engine.settings import SECOND_NS
from heliograph.wire.varint import SMALL, varint

# field number << 3 | 2 (length-delimited), or | 0 (varint)
_DATA = b"\x0a"
_ATTRIBUTE = b"\x12"
_MESSAGE_ID = b"\x1a"
_PUBLISH_TIME = b"\x22"
_ORDERING_KEY = b"\x2a"
_ACK_ID = b"\x0a"
_MESSAGE = b"\x12"
_DELIVERY_ATTEMPT = b"\x18"
_RECEIVED_MESSAGE = b"\x0a"


def draft(message: Any) -> Draft:
    """What a publisher's `PubsubMessage` asks for; its id and publish time are the server's to set, and are ignored."""
    attributes: Mapping[str, str] = message.attributes
    return Draft(message.data, dict(attributes) if attributes else NO_ATTRIBUTES, message.ordering_key)


def encode_message(message: Message, message_id: str) -> bytes:
    """A `PubsubMessage`."""
    encoded_id = message_id.encode()
    tail = (_MESSAGE_ID, SMALL[len(encoded_id)], encoded_id, _publish_time(message.publish_time_ns))
    if message.data and not message.attributes and not message.ordering_key:
        return b"".join((_DATA, varint(len(message.data)), message.data, *tail))
    parts: list[bytes] = []
    if message.data:
        parts += (_DATA, varint(len(message.data)), message.data)
    for attribute in message.attributes.items():
        parts.append(_attribute(attribute))
    parts += tail
    if message.ordering_key:
        key = message.ordering_key.encode()
        parts += (_ORDERING_KEY, varint(len(key)), key)
    return b"".join(parts)


def received_message(ack_id: str, message: bytes, delivery_attempt: int) -> bytes:
    """An entry of the field `received_messages` (number 1 in `PullResponse` and `StreamingPullResponse` alike), with
    its tag; joined, such entries are a response.

    Args:
        ack_id: of the delivery.
        message: from `encode_message`.
        delivery_attempt: 0 = not told.
    """
    encoded_id = ack_id.encode()
    id_length, message_length = varint(len(encoded_id)), varint(len(message))
    tail = _DELIVERY_ATTEMPT + varint(delivery_attempt) if delivery_attempt else b""
    length = 2 + len(id_length) + len(encoded_id) + len(message_length) + len(message) + len(tail)
    return b"".join(
        (_RECEIVED_MESSAGE, varint(length), _ACK_ID, id_length, encoded_id, _MESSAGE, message_length, message, tail)
    )


class DeliveryEncoder:
    """Encodes deliveries, each message once however often it is delivered.

    The encoded messages are kept in two generations: when the young one is full it becomes the old one, and the old one
    is forgotten. So memory is bounded, and keeping one costs a dictionary entry.

    Args:
        bytes_max: of encoded messages that are kept; 0 keeps none.
    """

    def __init__(self, bytes_max: int = 16 * 1024 * 1024) -> None:
        self._generation_bytes_max = bytes_max // 2
        self._young: dict[str, bytes] = {}
        self._young_bytes = 0
        self._old: dict[str, bytes] = {}

    def encode(self, deliveries: Sequence[Delivery], *, tell_attempt: bool) -> list[bytes]:
        """See `received_message`, for each; `tell_attempt` only with a dead letter policy (protocol 1.6.6)."""
        entries: list[bytes] = []
        known = self._young.get
        for delivery in deliveries:
            encoded = known(delivery.message_id)
            if encoded is None:
                encoded = self._old.get(delivery.message_id) or encode_message(delivery.message, delivery.message_id)
                self._keep(delivery.message_id, encoded)
                known = self._young.get
            entries.append(received_message(delivery.ack_id, encoded, delivery.attempt if tell_attempt else 0))
        return entries

    def _keep(self, message_id: str, encoded: bytes) -> None:
        self._young_bytes += len(encoded)
        if self._young_bytes > self._generation_bytes_max:
            self._old, self._young, self._young_bytes = self._young, {}, len(encoded)
        if len(encoded) <= self._generation_bytes_max:
            self._young[message_id] = encoded


def publish_response(message_ids: Sequence[str]) -> bytes:
    """A `PublishResponse`: field 1, strings."""
    return b"".join([b"\x0a%b%b" % (SMALL[len(message_id)], message_id.encode()) for message_id in message_ids])


@lru_cache(maxsize=4096)
def _attribute(attribute: tuple[str, str]) -> bytes:
    """One entry of the map `attributes`. Few different ones make up most traffic, so they are remembered."""
    key, value = attribute[0].encode(), attribute[1].encode()
    entry = b"\x0a%b%b\x12%b%b" % (varint(len(key)), key, varint(len(value)), value)
    return b"".join((_ATTRIBUTE, varint(len(entry)), entry))


@lru_cache(maxsize=256)
def _publish_time(publish_time_ns: int) -> bytes:
    """The field `publish_time`; the messages of one publish share it."""
    seconds, nanos = divmod(publish_time_ns, SECOND_NS)
    timestamp = b"\x08%b\x10%b" % (varint(seconds), varint(nanos))
    return b"".join((_PUBLISH_TIME, SMALL[len(timestamp)], timestamp))
