"""Work queues in their clients' words ⇄ the engine's types: how a queue is configured, what a message is published
with, what is told of a queue (queue-protocol.md). Types that msgspec checks while it decodes."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Annotated

import msgspec
from msgspec import Meta

from heliograph.engine.dead_letter import DeadLetterPolicy
from heliograph.engine.limits import ACK_DEADLINE_SECONDS_MAX
from heliograph.engine.message import NO_ATTRIBUTES, Draft, Extras, Message
from heliograph.engine.retry import RetryPolicy as EngineRetryPolicy
from heliograph.engine.settings import SECOND_NS, Capacity, SubscriptionSettings
from heliograph.engine.statistics import Statistics
from heliograph.errors import InvalidArgument

ACK_DEADLINE_SECONDS_DEFAULT = 30.0
MAX_RETRIES_DEFAULT = 3
PRIORITY_DEFAULT = 5
PREFETCH_DEFAULT = 10
PREFETCH_MAX = 1_000
DEPTH_MAX_DEFAULT = 100_000
DEAD_LETTERS_MAX_DEFAULT = 10_000
NAME_CHARACTERS_MAX = 255

BYTES_TYPE = "application/octet-stream"
"""Content type of what was published as a byte array; everything else is JSON, and says nothing."""

Seconds = Annotated[float, Meta(gt=0, le=365 * 86_400)]
AckDeadline = Annotated[float, Meta(gt=0, le=ACK_DEADLINE_SECONDS_MAX)]
Count = Annotated[int, Meta(ge=1, le=10_000_000)]
Retries = Annotated[int, Meta(ge=0, le=1_000_000)]
Prefetch = Annotated[int, Meta(ge=1, le=PREFETCH_MAX)]

_NAME = re.compile(rf"[^\s/\x00-\x1f\x7f][^/\x00-\x1f\x7f]{{0,{NAME_CHARACTERS_MAX - 1}}}")


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


class MessageOptions(msgspec.Struct, kw_only=True):
    """What a message may be published with; times in seconds."""

    priority: int | None = None
    ttl: Seconds | None = None
    delay: Annotated[float, Meta(ge=0, le=365 * 86_400)] | None = None
    headers: dict[str, str] | None = None
    max_retries: Retries | None = None
    dedup_id: Annotated[str, Meta(min_length=1)] | None = None

    def draft_of(self, data: bytes, content_type: str, settings: SubscriptionSettings, now_ns: int) -> Draft:
        """As the broker takes it. A plain message has no extras, which costs the broker least.

        Args:
            data: the payload.
            content_type: `BYTES_TYPE`, or "" for JSON.
            settings: of the queue.
            now_ns: the broker's time.
        """
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


class Stats(msgspec.Struct):
    """`queue.stats`: gauges and counters of one queue."""

    queue: str
    depth: int
    consumers: int
    published_total: int
    consumed_total: int
    acked_total: int
    nacked_total: int
    dead_lettered_total: int
    avg_wait_time_ms: float
    oldest_message_age_secs: float
    outstanding: int
    delayed: int
    dead_letters: int
    dead_letters_dropped_total: int
    redelivered_total: int
    expired_total: int
    depth_by_priority: dict[str, int]
    oldest_unacked_age_secs: float


def stats_of(queue: str, statistics: Statistics, now_ns: int, *, waiting_consumers: int = 0) -> Stats:
    """A subscription's statistics in the words of queues.

    Args:
        queue: its name.
        statistics: the engine's.
        now_ns: the broker's time.
        waiting_consumers: subscribed connections that hold no message, and that the engine does not know.
    """
    totals = statistics.totals
    return Stats(
        queue=queue,
        depth=statistics.ready + statistics.delayed,
        consumers=statistics.consumers + waiting_consumers,
        published_total=totals.published,
        consumed_total=totals.delivered,
        acked_total=totals.acknowledged,
        nacked_total=totals.nacked,
        dead_lettered_total=totals.dead_lettered,
        avg_wait_time_ms=statistics.average_wait_ns / 1e6,
        oldest_message_age_secs=_age_seconds(statistics.oldest_waiting_ns, now_ns),
        outstanding=statistics.outstanding,
        delayed=statistics.delayed,
        dead_letters=statistics.dead_letters,
        dead_letters_dropped_total=totals.dead_letters_dropped,
        redelivered_total=totals.redelivered,
        expired_total=totals.expired,
        depth_by_priority={str(band): count for band, count in statistics.depth_by_priority.items() if count},
        oldest_unacked_age_secs=_age_seconds(statistics.oldest_unacknowledged_ns, now_ns),
    )


def _age_seconds(instant_ns: int, now_ns: int) -> float:
    return max(now_ns - instant_ns, 0) / 1e9 if instant_ns else 0.0


def priority_in(message: Message | Draft, settings: SubscriptionSettings) -> int:
    """A message's priority in a queue of these settings."""
    return settings.default_priority if message.extras is None else message.extras.priority


def max_retries_of(message: Message, settings: SubscriptionSettings) -> int:
    """How often it is tried again after its first delivery."""
    own = message.extras.max_delivery_attempts if message.extras is not None else 0
    policy = settings.dead_letter_policy
    return (own or (policy.max_delivery_attempts if policy is not None else 1)) - 1


def is_bytes(message: Message) -> bool:
    """Whether it was published as bytes, not as JSON."""
    return message.extras is not None and message.extras.content_type == BYTES_TYPE


def prefetch_of(settings: SubscriptionSettings) -> int:
    """The queue's default prefetch."""
    return _kept_config(settings.resource).prefetch


@lru_cache(maxsize=1024)
def _kept_config(resource: bytes) -> KeptConfig:
    return msgspec.json.decode(resource, type=KeptConfig) if resource else KeptConfig()


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
