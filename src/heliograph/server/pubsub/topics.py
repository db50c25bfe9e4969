"""The resource Topic ⇄ the broker's `TopicSettings` (protocol 1.3).

What the broker understands goes into its settings; the whole normalised resource is kept beside it and given back, so
that a field that means nothing here is still there when the client asks for it.
"""

from __future__ import annotations

from typing import Any

from heliograph.broker.protocol import TopicInfo
from heliograph.engine.settings import TopicSettings
from heliograph.errors import InvalidArgument
from heliograph.server.pubsub import durations, proto
from heliograph.server.pubsub.limits import RETENTION_SECONDS, check_labels


def settings(topic: Any) -> TopicSettings:
    """What a requested Topic means, checked and normalised.

    Raises:
        InvalidArgument: a field breaks its rule.
    """
    check_labels(topic.labels)
    if topic.HasField("message_storage_policy") and not topic.message_storage_policy.allowed_persistence_regions:
        raise InvalidArgument("A message storage policy must allow at least one persistence region.")
    retention_ns = 0
    if topic.HasField("message_retention_duration"):
        retention_ns = durations.nanoseconds(topic.message_retention_duration)
        durations.check_between("message retention duration", retention_ns, RETENTION_SECONDS, "10m and 744h")
    kept = proto.Topic()
    kept.CopyFrom(topic)
    kept.state = proto.Topic.State.Value("ACTIVE")
    kept.satisfies_pzs = False  # the service's to say
    kept.ClearField("tags")  # input only
    return TopicSettings(retention_ns, dict(topic.labels), kept.SerializeToString(deterministic=True))


def resource(info: TopicInfo) -> Any:
    """The Topic that a client is shown."""
    topic = proto.Topic.FromString(info.settings.resource)
    topic.name = info.name
    topic.labels.clear()
    topic.labels.update(info.settings.labels)
    topic.ClearField("message_retention_duration")
    if info.settings.message_retention_ns:
        durations.put(topic.message_retention_duration, info.settings.message_retention_ns)
    topic.state = proto.Topic.State.Value("ACTIVE")
    return topic
