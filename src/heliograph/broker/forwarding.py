"""A dead letter on its way to its topic: a publish through the broker, since that topic may live elsewhere."""

from __future__ import annotations

from datetime import UTC, datetime

from heliograph.engine.dead_letter import DeadLetterReason
from heliograph.engine.message import Draft, Extras
from heliograph.engine.subscription import Subscription


def dead_letter_draft(subscription: Subscription, sequence: int) -> Draft:
    """The message to publish for a dead letter: everything preserved in process, with the four source attributes and a
    publish time of its own over Pub/Sub (pubsub-protocol.md §1.10.2)."""
    message = subscription.topic.log[sequence]
    policy = subscription.settings.dead_letter_policy
    assert policy is not None
    extras = None if message.extras is None else Extras(priority=message.extras.priority)
    if not policy.source_attributes:
        # what expired begins anew: with its old publish time it would expire on arrival, and chase round for ever
        # where its topic leads back to itself
        expired = subscription.dead[sequence].reason is DeadLetterReason.TTL_EXPIRED
        publish_time_ns = 0 if expired else message.publish_time_ns
        return Draft(message.data, message.attributes, message.ordering_key, extras, publish_time_ns)
    attributes = dict(message.attributes) | _source_attributes(subscription, sequence, message.publish_time_ns)
    return Draft(message.data, attributes, message.ordering_key, extras)


def _source_attributes(subscription: Subscription, sequence: int, publish_time_ns: int) -> dict[str, str]:
    parts = subscription.name.split("/")
    published = datetime.fromtimestamp(publish_time_ns // 1_000_000 / 1_000, UTC)
    return {
        "CloudPubSubDeadLetterSourceDeliveryCount": str(subscription.dead[sequence].failures),
        "CloudPubSubDeadLetterSourceSubscription": parts[-1],
        "CloudPubSubDeadLetterSourceSubscriptionProject": parts[1] if len(parts) > 1 else "",
        "CloudPubSubDeadLetterSourceTopicPublishTime": published.isoformat(timespec="milliseconds"),
    }
