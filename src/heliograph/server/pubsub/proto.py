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
PublishRequest: Any = _types.PublishRequest.pb()
PublishResponse: Any = _types.PublishResponse.pb()

Subscription: Any = _types.Subscription.pb()
GetSubscriptionRequest: Any = _types.GetSubscriptionRequest.pb()
ListSubscriptionsRequest: Any = _types.ListSubscriptionsRequest.pb()
ListSubscriptionsResponse: Any = _types.ListSubscriptionsResponse.pb()
DeleteSubscriptionRequest: Any = _types.DeleteSubscriptionRequest.pb()
PullRequest: Any = _types.PullRequest.pb()
PullResponse: Any = _types.PullResponse.pb()
StreamingPullRequest: Any = _types.StreamingPullRequest.pb()
StreamingPullResponse: Any = _types.StreamingPullResponse.pb()
AcknowledgeRequest: Any = _types.AcknowledgeRequest.pb()
ModifyAckDeadlineRequest: Any = _types.ModifyAckDeadlineRequest.pb()
