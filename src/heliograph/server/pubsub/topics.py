"""The resource Topic ⇄ the broker's `TopicSettings` (protocol 1.3).

What the broker understands goes into its settings; the whole normalised resource is kept beside it and given back, so
that a field that means nothing here is still there when the client asks for it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from heliograph.broker.protocol import TopicInfo
from heliograph.engine.settings import TOPIC_DEFAULTS, TopicSettings
from heliograph.errors import InvalidArgument
from heliograph.server.pubsub import durations, ingestion, proto, transforms
from heliograph.server.pubsub.limits import RETENTION_SECONDS, check_labels

NOT_KEPT = ("satisfies_pzs", "tags")
"""Fields that are input only, or the service's to say."""

IMMUTABLE = ("name", "state", *NOT_KEPT)
"""Fields that no update changes (1.3.4)."""

_ACTIVE = proto.Topic.State.Value("ACTIVE")


def settings(topic: Any, base: TopicSettings = TOPIC_DEFAULTS) -> TopicSettings:
    """What a requested Topic means, checked and normalised.

    Args:
        topic: as a client wants it; normalised in the result, not in place.
        base: what it has that this door does not know; of the topic to be updated.

    Raises:
        InvalidArgument: a field breaks its rule.
    """
    kept = proto.Topic()
    kept.CopyFrom(topic)
    check_labels(kept.labels)
    if kept.HasField("message_storage_policy") and not kept.message_storage_policy.allowed_persistence_regions:
        raise InvalidArgument("A message storage policy must allow at least one persistence region.")
    retention_ns = 0
    if kept.HasField("message_retention_duration"):
        retention_ns = durations.nanoseconds(kept.message_retention_duration)
        if retention_ns != base.message_retention_ns:  # other doors have bounds of their own
            durations.check_between("message retention duration", retention_ns, RETENTION_SECONDS, "10m and 744h")
    if kept.HasField("ingestion_data_source_settings"):
        ingestion.normalise(kept.ingestion_data_source_settings)
    transforms.check(kept.message_transforms)
    for field in NOT_KEPT:
        kept.ClearField(field)
    kept.state = _ACTIVE
    return msgspec.structs.replace(
        base,
        message_retention_ns=retention_ns,
        labels=dict(kept.labels),
        resource=kept.SerializeToString(deterministic=True),
    )


def resource(info: TopicInfo) -> Any:
    """The Topic that a client is shown."""
    kept = info.settings.resource
    topic = proto.Topic.FromString(kept) if kept else _made_elsewhere(info.settings)
    topic.name = info.name
    return topic


def _made_elsewhere(settings: TopicSettings) -> Any:
    """The resource of a topic that was made through another door."""
    topic = proto.Topic(labels=settings.labels, state=_ACTIVE)
    if settings.message_retention_ns:
        durations.put(topic.message_retention_duration, settings.message_retention_ns)
    return topic
