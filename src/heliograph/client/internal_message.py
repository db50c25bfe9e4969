"""What a `MessageQueue` takes in and hands out, and what it tells of topics and subscriptions (spec 000)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from heliograph.client.arguments import attributes_of, data_of, named, ordering_key_of
from heliograph.client.options import SubscriptionOptions
from heliograph.client.timestamp import DatetimeWithNanoseconds
from heliograph.engine.limits import check_drafts
from heliograph.engine.message import NO_ATTRIBUTES, Delivery, Draft, size_bytes
from heliograph.errors import InvalidArgument

_FIELDS = frozenset(
    {"id", "data", "attributes", "publish_time", "ordering_key", "delivery_attempt", "length", "ack_id"}
)


class InternalMessage:
    """A message as the queue knows it.

    For publishing only `data`, `attributes` and `ordering_key` count: the queue gives the id, the publish time and the
    rest (spec 000, BR-003). What `MessageQueue.pull` returns has all of them.

    Args:
        id: unique across all topics, decimal digits.
        data: payload, bytes.
        attributes: string to string.
        publish_time: when it was published.
        ordering_key: None = none.
        delivery_attempt: 1 for the first delivery.
        ack_id: names the delivery, for `MessageQueue.ack` and its like; "" before there is one.
    """

    __slots__ = (
        "_attributes",
        "_publish_time",
        "ack_id",
        "data",
        "deadline_ns",
        "delivery_attempt",
        "id",
        "ordering_key",
        "size_bytes",
    )

    def __init__(
        self,
        *,
        id: str = "",
        data: bytes = b"",
        attributes: Mapping[str, str] | None = None,
        publish_time: datetime | None = None,
        ordering_key: str | None = None,
        delivery_attempt: int = 1,
        ack_id: str = "",
    ) -> None:
        self.id = id
        self.data = data
        self._attributes: Mapping[str, str] = NO_ATTRIBUTES if attributes is None else attributes
        self._publish_time: datetime | int | None = publish_time
        self.ordering_key = ordering_key
        self.delivery_attempt = delivery_attempt
        self.ack_id = ack_id
        self.deadline_ns = 0  # when the lease ends, nanoseconds since the epoch; 0 = it has none
        self.size_bytes = 0  # what it counts for in flow control; known once it was delivered

    @classmethod
    def of(cls, delivery: Delivery) -> InternalMessage:
        """What the engine delivered. Once for every message: nothing here that can wait until it is asked for."""
        message = delivery.message
        this = _new(cls)
        this.id = delivery.message_id
        this.data = data = message.data
        this._attributes = attributes = message.attributes
        this._publish_time = message.publish_time_ns
        key = message.ordering_key
        this.ordering_key = key or None
        this.delivery_attempt = delivery.attempt
        this.ack_id = delivery.ack_id
        this.deadline_ns = delivery.deadline_ns
        this.size_bytes = size_bytes(message) if attributes or key else len(data)
        return this

    @property
    def attributes(self) -> dict[str, str]:
        """A copy: changing it changes no message."""
        return dict(self._attributes)

    @property
    def publish_time(self) -> datetime | None:
        """When it was published; of a delivered message a `DatetimeWithNanoseconds`."""
        if type(self._publish_time) is int:
            self._publish_time = DatetimeWithNanoseconds.from_ns(self._publish_time)
        return self._publish_time  # type: ignore[return-value]  # no int any more

    @property
    def length(self) -> int:
        """Bytes of data."""
        return len(self.data)

    def __repr__(self) -> str:
        return (
            f"InternalMessage(id={self.id!r}, data={self.data!r:.60}, attributes={self._attributes!r}, "
            f"ordering_key={self.ordering_key!r}, delivery_attempt={self.delivery_attempt}, ack_id={self.ack_id!r})"
        )


_new = object.__new__


def draft_of(message: object) -> Draft:
    """What the engine publishes for an `InternalMessage` or a mapping of the same names; limits are the engine's.

    Raises:
        InvalidArgument: it is no message.
    """
    if isinstance(message, InternalMessage):
        return _draft(message.data, message._attributes, message.ordering_key)
    if not isinstance(message, Mapping):
        raise InvalidArgument(f"InternalMessage or a mapping is wanted, not {type(message).__name__}")
    fields: dict[str, Any] = named(message, _FIELDS, "InternalMessage", {})
    if "data" not in fields:
        raise InvalidArgument("A message must have data")
    return _draft(fields["data"], fields.get("attributes"), fields.get("ordering_key"))


def checked_draft(data: object, attributes: object, ordering_key: object) -> Draft:
    """A message to publish, whose limits are checked: it will share a batch with others, which it must not spoil.

    Raises:
        InvalidArgument: it breaks a limit, or is no message at all.
        MessageTooLarge: above 10 MB (spec 000, BR-017).
    """
    draft = _draft(data, attributes, ordering_key)
    check_drafts((draft,))
    return draft


def _draft(data: object, attributes: object, ordering_key: object) -> Draft:
    """A message to publish, in memory that nobody else can change."""
    if type(data) is bytes and attributes is None and ordering_key is None:
        return Draft(data)  # most messages
    return Draft(data_of(data), attributes_of(attributes), ordering_key_of(ordering_key))


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    """What a queue knows of a topic."""

    name: str
    created: datetime


@dataclass(frozen=True, slots=True)
class SubscriptionMetadata:
    """What a queue knows of a subscription.

    Args:
        name: its name.
        topic: the name of its topic, also when that is deleted (spec 000, AC-012).
        created: when.
        options: what it was registered with.
        detached: its topic is gone; nothing is delivered any more (BR-021).
    """

    name: str
    topic: str
    created: datetime
    options: SubscriptionOptions
    detached: bool = False


__all__ = [
    "InternalMessage",
    "SubscriptionMetadata",
    "TopicMetadata",
    "checked_draft",
    "draft_of",
]
