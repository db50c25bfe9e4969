"""The resource Subscription ⇄ the broker's `SubscriptionSettings` (protocol 1.5).

As with topics: what the broker understands goes into its settings, and the whole normalised resource is kept beside
it. A client that compares what it created with what it lists gets the same both times (1.5.5).
"""

from __future__ import annotations

from typing import Any

import msgspec

from heliograph.broker.protocol import SubscriptionInfo
from heliograph.engine.dead_letter import DeadLetterPolicy
from heliograph.engine.filters import parse_filter
from heliograph.engine.retry import RetryPolicy
from heliograph.engine.settings import SUBSCRIPTION_DEFAULTS, SubscriptionSettings
from heliograph.errors import InvalidArgument
from heliograph.server.pubsub import durations, exports, names, proto, push_config, transforms
from heliograph.server.pubsub.durations import SECOND_NS
from heliograph.server.pubsub.limits import (
    BACKOFF_SECONDS,
    DAY_SECONDS,
    EXPIRATION_SECONDS_MIN,
    MAX_DELIVERY_ATTEMPTS,
    RETENTION_SECONDS,
    check_between,
    check_labels,
)
from heliograph.server.pubsub.profile import STRICT, Profile

ACK_DEADLINE_SECONDS_DEFAULT = 10
RETENTION_SECONDS_DEFAULT = 7 * DAY_SECONDS
EXPIRATION_SECONDS_DEFAULT = 31 * DAY_SECONDS
DELIVERY_ATTEMPTS_DEFAULT = 5
MINIMUM_BACKOFF_SECONDS_DEFAULT = 10
MAXIMUM_BACKOFF_SECONDS_DEFAULT = 600

NOT_KEPT = ("tags", "detached", "topic_message_retention_duration", "analytics_hub_subscription_info")
"""Fields that are input only, or the service's to say."""

IMMUTABLE = ("name", "topic", "state", "enable_message_ordering", "filter", *NOT_KEPT)
"""Fields that no update changes (1.5.12)."""

_ACTIVE = proto.Subscription.State.Value("ACTIVE")


def settings(
    subscription: Any, profile: Profile = STRICT, base: SubscriptionSettings = SUBSCRIPTION_DEFAULTS
) -> SubscriptionSettings:
    """What a requested Subscription means, checked and normalised. Its names are the caller's to check.

    Args:
        subscription: as a client wants it; normalised in the result, not in place.
        profile: how strictly.
        base: what it has that this door does not know (priorities, capacity …); of the subscription to be updated.

    Raises:
        InvalidArgument: a field breaks its rule.
        Unimplemented: what this broker does not do yet.
    """
    kept = proto.Subscription()
    kept.CopyFrom(subscription)
    _normalise_destination(kept)
    _normalise_times(kept, profile)
    check_labels(kept.labels)
    transforms.check(kept.message_transforms)
    if kept.filter and kept.filter != base.filter:
        parse_filter(kept.filter)
    for field in NOT_KEPT:
        kept.ClearField(field)
    kept.state = _ACTIVE
    return msgspec.structs.replace(
        base,
        ack_deadline_ns=kept.ack_deadline_seconds * SECOND_NS,
        enable_message_ordering=kept.enable_message_ordering,
        enable_exactly_once_delivery=kept.enable_exactly_once_delivery,
        retry_policy=_retry_policy(kept),
        dead_letter_policy=_dead_letter_policy(kept, profile),
        message_retention_ns=durations.nanoseconds(kept.message_retention_duration),
        retain_acked_messages=kept.retain_acked_messages,
        filter=kept.filter,
        expires_after_ns=durations.nanoseconds(kept.expiration_policy.ttl),
        labels=dict(kept.labels),
        resource=kept.SerializeToString(deterministic=True),
    )


def resource(info: SubscriptionInfo, topic_retention_ns: int = 0) -> Any:
    """The Subscription that a client is shown.

    Args:
        info: what the broker says.
        topic_retention_ns: of its topic; 0 = none, or the topic is gone (1.3.8).
    """
    kept = info.settings.resource
    subscription = proto.Subscription.FromString(kept) if kept else _made_elsewhere(info.settings)
    subscription.name = info.name
    subscription.topic = names.DELETED_TOPIC if info.topic_deleted else info.topic
    subscription.detached = info.detached
    if topic_retention_ns:
        durations.put(subscription.topic_message_retention_duration, topic_retention_ns)
    return subscription


def _made_elsewhere(settings: SubscriptionSettings) -> Any:
    """The resource of a subscription that was made through another door."""
    subscription = proto.Subscription(
        ack_deadline_seconds=settings.ack_deadline_ns // SECOND_NS,
        retain_acked_messages=settings.retain_acked_messages,
        enable_message_ordering=settings.enable_message_ordering,
        enable_exactly_once_delivery=settings.enable_exactly_once_delivery,
        filter=settings.filter,
        labels=settings.labels,
        state=_ACTIVE,
    )
    subscription.push_config.SetInParent()
    subscription.expiration_policy.SetInParent()
    if settings.expires_after_ns:
        durations.put(subscription.expiration_policy.ttl, settings.expires_after_ns)
    if settings.message_retention_ns:
        durations.put(subscription.message_retention_duration, settings.message_retention_ns)
    if settings.retry_policy is not None:
        durations.put(subscription.retry_policy.minimum_backoff, settings.retry_policy.minimum_backoff_ns)
        durations.put(subscription.retry_policy.maximum_backoff, settings.retry_policy.maximum_backoff_ns)
    policy = settings.dead_letter_policy
    if policy is not None and policy.topic is not None:
        subscription.dead_letter_policy.dead_letter_topic = policy.topic
        subscription.dead_letter_policy.max_delivery_attempts = policy.max_delivery_attempts
    return subscription


def _normalise_destination(kept: Any) -> None:
    """Where messages go: pulled, pushed or exported (1.5.6, 1.5.7)."""
    exported = exports.destination(kept)
    pushed = push_config.is_push(kept.push_config)
    if exported and pushed:
        raise InvalidArgument(
            "At most one of push_config, bigquery_config, cloud_storage_config and bigtable_config may be set."
        )
    if kept.enable_exactly_once_delivery and (exported or pushed):
        raise InvalidArgument("Exactly-once delivery is supported for pull subscriptions only.")
    push_config.check(kept.push_config)
    kept.push_config.SetInParent()
    if exported:
        exports.normalise(kept, exported)


def _normalise_times(kept: Any, profile: Profile) -> None:
    """Ack deadline, retention and expiration get their defaults and are held against their bounds (1.5.2-1.5.4)."""
    kept.ack_deadline_seconds = kept.ack_deadline_seconds or ACK_DEADLINE_SECONDS_DEFAULT
    profile.check_ack_deadline(kept.ack_deadline_seconds)
    if not kept.HasField("expiration_policy"):
        kept.expiration_policy.ttl.seconds = EXPIRATION_SECONDS_DEFAULT
    expires = kept.expiration_policy.HasField("ttl")
    ttl_ns = durations.nanoseconds(kept.expiration_policy.ttl) if expires else 0
    if expires and ttl_ns < EXPIRATION_SECONDS_MIN * SECOND_NS:
        raise InvalidArgument(
            f"The value for expiration policy ttl is too small. You passed {ttl_ns / SECOND_NS:g}s in the request, "
            "but the minimum value is 24h."
        )
    if not kept.HasField("message_retention_duration"):
        retention_ns = RETENTION_SECONDS_DEFAULT * SECOND_NS
        durations.put(kept.message_retention_duration, min(ttl_ns, retention_ns) if expires else retention_ns)
    retention_ns = durations.nanoseconds(kept.message_retention_duration)
    durations.check_between("message retention duration", retention_ns, RETENTION_SECONDS, "10m and 744h")
    if expires and ttl_ns < retention_ns:
        raise InvalidArgument("The expiration policy ttl must not be shorter than the message retention duration.")


def _retry_policy(kept: Any) -> RetryPolicy | None:
    """Unset: redelivery at once; set: 10 s to 600 s where it does not say (1.5.9)."""
    if not kept.HasField("retry_policy"):
        return None
    policy = kept.retry_policy
    if not policy.HasField("minimum_backoff"):
        policy.minimum_backoff.seconds = MINIMUM_BACKOFF_SECONDS_DEFAULT
    if not policy.HasField("maximum_backoff"):
        policy.maximum_backoff.seconds = MAXIMUM_BACKOFF_SECONDS_DEFAULT
    minimum_ns = durations.nanoseconds(policy.minimum_backoff)
    maximum_ns = durations.nanoseconds(policy.maximum_backoff)
    durations.check_between("minimum_backoff", minimum_ns, BACKOFF_SECONDS, "0s and 600s")
    durations.check_between("maximum_backoff", maximum_ns, BACKOFF_SECONDS, "0s and 600s")
    if maximum_ns < minimum_ns:
        raise InvalidArgument("The maximum_backoff must not be shorter than the minimum_backoff.")
    return RetryPolicy(minimum_ns, maximum_ns)


def _dead_letter_policy(kept: Any, profile: Profile) -> DeadLetterPolicy | None:
    """0 attempts mean 5 (1.5.8). That the topic exists is the caller's to check."""
    if not kept.HasField("dead_letter_policy"):
        return None
    policy = kept.dead_letter_policy
    if not policy.dead_letter_topic:
        raise InvalidArgument("A dead letter policy must name its dead_letter_topic.")
    profile.check_name(policy.dead_letter_topic, "topics")
    policy.max_delivery_attempts = policy.max_delivery_attempts or DELIVERY_ATTEMPTS_DEFAULT
    check_between("max_delivery_attempts", policy.max_delivery_attempts, MAX_DELIVERY_ATTEMPTS)
    return DeadLetterPolicy(policy.dead_letter_topic, policy.max_delivery_attempts, source_attributes=True)
