"""What the commands of the work-queue door take, as types: msgspec checks them while it decodes (queue-protocol.md)."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from heliograph.engine.message import Draft
from heliograph.engine.settings import SubscriptionSettings
from heliograph.errors import InvalidArgument
from heliograph.wire.queues import (
    ACK_DEADLINE_SECONDS_DEFAULT,
    BYTES_TYPE,
    PREFETCH_MAX,
    AckDeadline,
    MessageOptions,
    Prefetch,
    QueueConfig,
)

TIMEOUT_SECONDS_MAX = 3_600

Byte = Annotated[int, Meta(ge=0, le=255)]


class Queue(msgspec.Struct):
    """A command that takes the queue's name alone; what the others have in common."""

    queue: str


class Create(QueueConfig, kw_only=True):
    """`queue.create`: the configuration flat or under `config`."""

    name: str
    config: QueueConfig | None = None


class NewMessage(MessageOptions, kw_only=True):
    """A message to publish: any JSON as `message`, or an array of byte values as `payload`."""

    message: msgspec.Raw | UnsetType = UNSET
    payload: list[Byte] | UnsetType = UNSET

    def draft(self, settings: SubscriptionSettings, now_ns: int) -> Draft:
        """As the broker takes it.

        Raises:
            InvalidArgument.
        """
        if (self.message is UNSET) == (self.payload is UNSET):
            raise InvalidArgument("A message is given as either message (any JSON) or payload (an array of bytes)")
        if isinstance(self.payload, list):
            return self.draft_of(bytes(self.payload), BYTES_TYPE, settings, now_ns)
        data = bytes(self.message) if isinstance(self.message, msgspec.Raw) else b""
        return self.draft_of(data, "", settings, now_ns)


class Publish(NewMessage, kw_only=True):
    """`queue.publish`."""

    queue: str


class PublishBatch(Queue):
    """`queue.publish_batch`."""

    messages: list[NewMessage]


class Consume(Queue):
    """`queue.consume`."""

    consumer_id: str = ""
    timeout: Annotated[float, Meta(ge=0, le=TIMEOUT_SECONDS_MAX)] = 0.0
    ack_deadline: AckDeadline | None = None
    prefetch: Prefetch | None = None
    max_messages: Annotated[int, Meta(ge=1, le=PREFETCH_MAX)] = 1


class Subscribe(Queue):
    """`queue.subscribe`, over a WebSocket; with `max_messages` over 1 pushes have several messages."""

    consumer_id: str = ""
    prefetch: Prefetch | None = None
    ack_deadline: AckDeadline | None = None
    max_messages: Annotated[int, Meta(ge=1, le=PREFETCH_MAX)] = 1


class Settle(Queue):
    """`queue.ack`, and what `queue.nack` and `queue.extend` have in common: one message, or several."""

    message_id: str | None = None
    lease_id: str | None = None
    message_ids: list[str] | None = None
    lease_ids: list[str] | None = None

    def leases(self) -> list[tuple[str, str | None]]:
        """(message id, lease id if the caller has it) of each.

        Raises:
            InvalidArgument.
        """
        if (self.message_id is None) == (self.message_ids is None):
            raise InvalidArgument("Either message_id or message_ids must be given")
        if self.message_id is not None:
            return [(self.message_id, self.lease_id)]
        message_ids = self.message_ids or []
        if self.lease_ids is None:
            return [(message_id, None) for message_id in message_ids]
        if len(self.lease_ids) != len(message_ids):
            raise InvalidArgument("lease_ids must be as many as message_ids")
        return list(zip(message_ids, self.lease_ids, strict=True))


class Nack(Settle):
    """`queue.nack`."""

    requeue: bool = True


class Extend(Settle):
    """`queue.extend`: the new deadline counts from now."""

    ack_deadline: AckDeadline = ACK_DEADLINE_SECONDS_DEFAULT


class Peek(Queue):
    """`queue.peek`."""

    count: Annotated[int, Meta(ge=1, le=1_000)] = 1


class ListDeadLetters(Queue):
    """`dlq.list`."""

    limit: Annotated[int, Meta(ge=0, le=10_000)] = 100
    offset: Annotated[int, Meta(ge=0)] = 0


class RetryDeadLetters(Queue):
    """`dlq.retry`: all, or by id."""

    message_id: str | None = None
    message_ids: list[str] | None = None


class Nothing(msgspec.Struct):
    """A command that takes nothing."""
