"""The resource Subscription ⇄ the broker's `SubscriptionSettings` (protocol 1.5).

As with topics: what the broker understands goes into its settings, and the whole normalised resource is kept beside
it. A client that compares what it created with what it lists gets the same both times (1.5.5).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from heliograph.broker.protocol import SubscriptionInfo
from heliograph.engine.dead_letter import DeadLetterPolicy
from heliograph.engine.filters import parse_filter
from heliograph.engine.retry import RetryPolicy
from heliograph.engine.settings import SECOND_NS, SUBSCRIPTION_DEFAULTS, SubscriptionSettings
from heliograph.errors import InvalidArgument
from heliograph.server.pubsub import durations, exports, names, proto, push_config, transforms
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
    subscription: Any, profile: Profile = STRICT, base: SubscriptionSettings | None = None
) -> SubscriptionSettings:
    """What a requested Subscription means, checked and normalised. Its names are the caller's to check.

    What an update leaves as it was is not held against this door's bounds, and stays what it is to the broker: other
    doors have bounds of their own, and finer ones than a Subscription can tell.

    Args:
        subscription: as a client wants it; normalised in the result, not in place.
        profile: how strictly.
        base: of the subscription to be updated, with what this door does not know (priorities, capacity …); None = it
            is new.

    Raises:
        InvalidArgument: a field breaks its rule.
        Unimplemented: what this broker does not do yet.
    """
    kept = proto.Subscription()
    kept.CopyFrom(subscription)
    before = None if base is None else _shown(base)
    base = SUBSCRIPTION_DEFAULTS if base is None else base
    _normalise_destination(kept)
    times = _times(kept, profile, before, base)
    check_labels(kept.labels)
    transforms.check(kept.message_transforms)
    if kept.filter and kept.filter != base.filter:
        parse_filter(kept.filter)
    retry_policy, dead_letter_policy = base.retry_policy, base.dead_letter_policy
    if not _is_kept("retry_policy", kept, before):
        retry_policy = _retry_policy(kept)
    if not _is_kept("dead_letter_policy", kept, before):
        dead_letter_policy = _dead_letter_policy(kept, profile)
    for field in NOT_KEPT:
        kept.ClearField(field)
    kept.state = _ACTIVE
    return msgspec.structs.replace(
        base,
        ack_deadline_ns=times.ack_deadline_ns,
        enable_message_ordering=kept.enable_message_ordering,
        enable_exactly_once_delivery=kept.enable_exactly_once_delivery,
        retry_policy=retry_policy,
        dead_letter_policy=dead_letter_policy,
        message_retention_ns=times.message_retention_ns,
        retain_acked_messages=kept.retain_acked_messages,
        filter=kept.filter,
        expires_after_ns=times.expires_after_ns,
        labels=dict(kept.labels),
        resource=kept.SerializeToString(deterministic=True),
    )


def resource(info: SubscriptionInfo, topic_retention_ns: int = 0) -> Any:
    """The Subscription that a client is shown.

    Args:
        info: what the broker says.
        topic_retention_ns: of its topic; 0 = none, or the topic is gone (1.3.8).
    """
    subscription = _shown(info.settings)
    subscription.name = info.name
    subscription.topic = names.DELETED_TOPIC if info.topic_deleted else info.topic
    subscription.detached = info.detached
    if topic_retention_ns:
        durations.put(subscription.topic_message_retention_duration, topic_retention_ns)
    return subscription


def _shown(settings: SubscriptionSettings) -> Any:
    """What a client is shown of the settings."""
    return proto.Subscription.FromString(settings.resource) if settings.resource else _made_elsewhere(settings)


def _is_kept(field: str, wanted: Any, before: Any) -> bool:
    """Whether an update leaves a field as it was."""
    if before is None:
        return False
    has_presence = wanted.DESCRIPTOR.fields_by_name[field].has_presence
    if has_presence and wanted.HasField(field) != before.HasField(field):
        return False
    return bool(getattr(wanted, field) == getattr(before, field))


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


class _Times(NamedTuple):
    ack_deadline_ns: int
    message_retention_ns: int
    expires_after_ns: int


def _times(kept: Any, profile: Profile, before: Any, base: SubscriptionSettings) -> _Times:
    """Ack deadline, retention and expiration get their defaults and are held against their bounds (1.5.2-1.5.4)."""
    ack_deadline_ns, retention_ns, ttl_ns = base.ack_deadline_ns, base.message_retention_ns, base.expires_after_ns
    if not _is_kept("ack_deadline_seconds", kept, before):
        kept.ack_deadline_seconds = kept.ack_deadline_seconds or ACK_DEADLINE_SECONDS_DEFAULT
        profile.check_ack_deadline(kept.ack_deadline_seconds)
        ack_deadline_ns = kept.ack_deadline_seconds * SECOND_NS
    expiration_is_kept = _is_kept("expiration_policy", kept, before)
    if not expiration_is_kept:
        ttl_ns = _expiration_ns(kept)
    retention_is_kept = _is_kept("message_retention_duration", kept, before)
    if not retention_is_kept:
        retention_ns = _retention_ns(kept, ttl_ns)
    if ttl_ns and ttl_ns < retention_ns and not (expiration_is_kept and retention_is_kept):
        raise InvalidArgument("The expiration policy ttl must not be shorter than the message retention duration.")
    return _Times(ack_deadline_ns, retention_ns, ttl_ns)


def _expiration_ns(kept: Any) -> int:
    """0 = never."""
    if not kept.HasField("expiration_policy"):
        kept.expiration_policy.ttl.seconds = EXPIRATION_SECONDS_DEFAULT
    if not kept.expiration_policy.HasField("ttl"):
        return 0
    ttl_ns = durations.nanoseconds(kept.expiration_policy.ttl)
    if ttl_ns < EXPIRATION_SECONDS_MIN * SECOND_NS:
        raise InvalidArgument(
            f"The value for expiration policy ttl is too small. You passed {ttl_ns / SECOND_NS:.15g}s in the request, "
            "but the minimum value is 24h."
        )
    return ttl_ns


def _retention_ns(kept: Any, ttl_ns: int) -> int:
    if not kept.HasField("message_retention_duration"):
        retention_ns = RETENTION_SECONDS_DEFAULT * SECOND_NS
        durations.put(kept.message_retention_duration, min(ttl_ns or retention_ns, retention_ns))
    retention_ns = durations.nanoseconds(kept.message_retention_duration)
    durations.check_between("message retention duration", retention_ns, RETENTION_SECONDS, "10m and 744h")
    return retention_ns


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
