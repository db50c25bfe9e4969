"""The official message classes, as raw protobuf: proto-plus wrappers are several times slower."""

from __future__ import annotations

from typing import Any

from google.protobuf.empty_pb2 import Empty as Empty
from google.pubsub_v1 import types as _types

Topic: Any = _types.Topic.pb()
GetTopicRequest: Any = _types.GetTopicRequest.pb()
ListTopicsRequest: Any = _types.ListTopicsRequest.pb()
ListTopicsResponse: Any = _types.ListTopicsResponse.pb()
ListTopicSubscriptionsRequest: Any = _types.ListTopicSubscriptionsRequest.pb()
ListTopicSubscriptionsResponse: Any = _types.ListTopicSubscriptionsResponse.pb()
DeleteTopicRequest: Any = _types.DeleteTopicRequest.pb()
UpdateTopicRequest: Any = _types.UpdateTopicRequest.pb()
DetachSubscriptionRequest: Any = _types.DetachSubscriptionRequest.pb()
DetachSubscriptionResponse: Any = _types.DetachSubscriptionResponse.pb()
ListTopicSnapshotsRequest: Any = _types.ListTopicSnapshotsRequest.pb()
ListTopicSnapshotsResponse: Any = _types.ListTopicSnapshotsResponse.pb()
PublishRequest: Any = _types.PublishRequest.pb()
PublishResponse: Any = _types.PublishResponse.pb()

Subscription: Any = _types.Subscription.pb()
GetSubscriptionRequest: Any = _types.GetSubscriptionRequest.pb()
ListSubscriptionsRequest: Any = _types.ListSubscriptionsRequest.pb()
ListSubscriptionsResponse: Any = _types.ListSubscriptionsResponse.pb()
DeleteSubscriptionRequest: Any = _types.DeleteSubscriptionRequest.pb()
UpdateSubscriptionRequest: Any = _types.UpdateSubscriptionRequest.pb()
ModifyPushConfigRequest: Any = _types.ModifyPushConfigRequest.pb()
PullRequest: Any = _types.PullRequest.pb()
PullResponse: Any = _types.PullResponse.pb()
StreamingPullRequest: Any = _types.StreamingPullRequest.pb()
StreamingPullResponse: Any = _types.StreamingPullResponse.pb()
AcknowledgeRequest: Any = _types.AcknowledgeRequest.pb()
ModifyAckDeadlineRequest: Any = _types.ModifyAckDeadlineRequest.pb()

Schema: Any = _types.Schema.pb()
CreateSchemaRequest: Any = _types.CreateSchemaRequest.pb()
GetSchemaRequest: Any = _types.GetSchemaRequest.pb()
ListSchemasRequest: Any = _types.ListSchemasRequest.pb()
ListSchemasResponse: Any = _types.ListSchemasResponse.pb()
ListSchemaRevisionsRequest: Any = _types.ListSchemaRevisionsRequest.pb()
ListSchemaRevisionsResponse: Any = _types.ListSchemaRevisionsResponse.pb()
CommitSchemaRequest: Any = _types.CommitSchemaRequest.pb()
RollbackSchemaRequest: Any = _types.RollbackSchemaRequest.pb()
DeleteSchemaRevisionRequest: Any = _types.DeleteSchemaRevisionRequest.pb()
DeleteSchemaRequest: Any = _types.DeleteSchemaRequest.pb()
ValidateSchemaRequest: Any = _types.ValidateSchemaRequest.pb()
ValidateSchemaResponse: Any = _types.ValidateSchemaResponse.pb()
ValidateMessageRequest: Any = _types.ValidateMessageRequest.pb()
ValidateMessageResponse: Any = _types.ValidateMessageResponse.pb()
Encoding: Any = _types.Encoding  # a Python IntEnum
SchemaView: Any = _types.SchemaView
Snapshot: Any = _types.Snapshot.pb()
CreateSnapshotRequest: Any = _types.CreateSnapshotRequest.pb()
GetSnapshotRequest: Any = _types.GetSnapshotRequest.pb()
ListSnapshotsRequest: Any = _types.ListSnapshotsRequest.pb()
ListSnapshotsResponse: Any = _types.ListSnapshotsResponse.pb()
UpdateSnapshotRequest: Any = _types.UpdateSnapshotRequest.pb()
DeleteSnapshotRequest: Any = _types.DeleteSnapshotRequest.pb()
SeekRequest: Any = _types.SeekRequest.pb()
SeekResponse: Any = _types.SeekResponse.pb()


def serialized(message: Any) -> bytes:
    """The bytes of a protobuf message."""
    encoded: bytes = message.SerializeToString()
    return encoded
