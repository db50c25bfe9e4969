"""What the commands of the work-queue door take, as types: msgspec checks them while it decodes (queue-protocol.md)."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from heliograph.engine.dead_letter import DeadLetterPolicy
from heliograph.engine.limits import ACK_DEADLINE_SECONDS_MAX
from heliograph.engine.message import NO_ATTRIBUTES, Draft, Extras
from heliograph.engine.retry import RetryPolicy as EngineRetryPolicy
from heliograph.engine.settings import Capacity, SubscriptionSettings
from heliograph.errors import InvalidArgument

SECOND_NS = 1_000_000_000

ACK_DEADLINE_SECONDS_DEFAULT = 30.0
MAX_RETRIES_DEFAULT = 3
PRIORITY_DEFAULT = 5
PREFETCH_DEFAULT = 10
PREFETCH_MAX = 1_000
DEPTH_MAX_DEFAULT = 100_000
DEAD_LETTERS_MAX_DEFAULT = 10_000
TIMEOUT_SECONDS_MAX = 3_600
NAME_CHARACTERS_MAX = 255

BYTES_TYPE = "application/octet-stream"
"""Content type of what was published as a byte array; everything else is JSON, and says nothing."""

Seconds = Annotated[float, Meta(gt=0, le=365 * 86_400)]
AckDeadline = Annotated[float, Meta(gt=0, le=ACK_DEADLINE_SECONDS_MAX)]
Count = Annotated[int, Meta(ge=1, le=10_000_000)]
Retries = Annotated[int, Meta(ge=0, le=1_000_000)]
Prefetch = Annotated[int, Meta(ge=1, le=PREFETCH_MAX)]
Byte = Annotated[int, Meta(ge=0, le=255)]

_NAME = re.compile(rf"[^\s/\x00-\x1f\x7f][^/\x00-\x1f\x7f]{{0,{NAME_CHARACTERS_MAX - 1}}}")


class Queue(msgspec.Struct):
    """A command that takes the queue's name alone; what the others have in common."""

    queue: str


class RetryPolicy(msgspec.Struct):
    """Backoff that doubles per attempt; seconds."""

    minimum_backoff: Annotated[float, Meta(ge=0, le=86_400)]
    maximum_backoff: Annotated[float, Meta(ge=0, le=86_400)] = 600.0


class QueueConfig(msgspec.Struct):
    """How a queue is configured."""

    max_depth: Count = DEPTH_MAX_DEFAULT
    ack_deadline_secs: AckDeadline = ACK_DEADLINE_SECONDS_DEFAULT
    default_max_retries: Retries = MAX_RETRIES_DEFAULT
    default_priority: int = PRIORITY_DEFAULT
    prefetch: Prefetch = PREFETCH_DEFAULT
    ttl: Seconds | None = None
    retry_policy: RetryPolicy | None = None
    retry_delays: list[Annotated[float, Meta(ge=0, le=86_400)]] | None = None
    dead_letter_max_size: Count = DEAD_LETTERS_MAX_DEFAULT
    priority_aging_seconds: Seconds | None = None

    def settings(self) -> SubscriptionSettings:
        """As the broker knows it. The prefetch of a queue is a default, so only its upper bound is the engine's; the
        default itself is kept in the resource.

        Raises:
            InvalidArgument.
        """
        return SubscriptionSettings(
            message_retention_ns=0,  # work is done, not outlived; a TTL is asked for
            ack_deadline_ns=nanoseconds(self.ack_deadline_secs),
            retry_policy=self._retry_policy(),
            dead_letter_policy=DeadLetterPolicy(None, self.default_max_retries + 1, self.dead_letter_max_size),
            capacity=Capacity(self.max_depth, 0, refuse=True),
            ttl_ns=nanoseconds(self.ttl or 0),
            default_priority=self.default_priority,
            prioritised=True,
            prefetch=PREFETCH_MAX,
            priority_aging_ns=nanoseconds(self.priority_aging_seconds or 0),
            resource=msgspec.json.encode(KeptConfig(self.prefetch)),
        )

    def _retry_policy(self) -> EngineRetryPolicy | None:
        if self.retry_policy is not None and self.retry_delays is not None:
            raise InvalidArgument("A queue has either a retry_policy or retry_delays")
        if self.retry_delays is not None:
            return EngineRetryPolicy(delays_ns=tuple(nanoseconds(delay) for delay in self.retry_delays))
        if self.retry_policy is None:
            return None
        policy = self.retry_policy
        if policy.maximum_backoff < policy.minimum_backoff:
            raise InvalidArgument("maximum_backoff must not be shorter than minimum_backoff")
        return EngineRetryPolicy(nanoseconds(policy.minimum_backoff), nanoseconds(policy.maximum_backoff))


class KeptConfig(msgspec.Struct, frozen=True):
    """What of a queue's configuration the engine has no place for."""

    prefetch: int = PREFETCH_DEFAULT


class Create(QueueConfig, kw_only=True):
    """`queue.create`: the configuration flat or under `config`."""

    name: str
    config: QueueConfig | None = None


class NewMessage(msgspec.Struct, kw_only=True):
    """A message to publish: any JSON as `message`, or an array of byte values as `payload`."""

    message: msgspec.Raw | UnsetType = UNSET
    payload: list[Byte] | UnsetType = UNSET
    priority: int | None = None
    ttl: Seconds | None = None
    delay: Annotated[float, Meta(ge=0, le=365 * 86_400)] | None = None
    headers: dict[str, str] | None = None
    max_retries: Retries | None = None
    dedup_id: Annotated[str, Meta(min_length=1)] | None = None

    def draft(self, settings: SubscriptionSettings, now_ns: int) -> Draft:
        """As the broker takes it. A plain message has no extras, which costs the broker least.

        Raises:
            InvalidArgument.
        """
        if (self.message is UNSET) == (self.payload is UNSET):
            raise InvalidArgument("A message is given as either message (any JSON) or payload (an array of bytes)")
        if isinstance(self.payload, list):
            data, content_type = bytes(self.payload), BYTES_TYPE
        else:
            data, content_type = bytes(self.message) if isinstance(self.message, msgspec.Raw) else b"", ""
        extras = Extras(
            priority=settings.default_priority if self.priority is None else self.priority,
            available_at_ns=now_ns + nanoseconds(self.delay) if self.delay else 0,
            expires_at_ns=now_ns + nanoseconds(self.ttl) if self.ttl else 0,
            max_delivery_attempts=0 if self.max_retries is None else self.max_retries + 1,
            content_type=content_type,
        )
        is_plain = extras == Extras(priority=settings.default_priority)
        return Draft(
            data, self.headers or NO_ATTRIBUTES, extras=None if is_plain else extras, dedup_id=self.dedup_id or ""
        )


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


def nanoseconds(seconds: float) -> int:
    """Seconds as a client gives them; what is more than nothing stays so, since 0 often has a meaning of its own."""
    return max(round(seconds * SECOND_NS), 1) if seconds else 0


def check_name(name: str) -> None:
    """Of a queue to be created.

    Raises:
        InvalidArgument.
    """
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"A queue's name has 1 to {NAME_CHARACTERS_MAX} characters, none of them a slash or a control character"
        )
