"""The table of methods that the Pub/Sub door has: the only place where they are named.

gRPC serves the table as it is; REST transcodes to the same handlers. A handler gets the request and a `Call`, and gives
the serialized response; what it raises are `heliograph.errors` or an `RpcError`, and `texts.translate` makes the status
of either.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from heliograph.broker.protocol import Broker
from heliograph.server.closing import Closing
from heliograph.server.feed import Feeds
from heliograph.server.grpc.call import Bidi, Method, Unary
from heliograph.server.pubsub import iam, proto
from heliograph.server.pubsub.iam import IamPolicy
from heliograph.server.pubsub.policies import Policy
from heliograph.server.pubsub.profile import STRICT, Profile
from heliograph.server.pubsub.publisher import Publisher
from heliograph.server.pubsub.schema_checks import SchemaChecks
from heliograph.server.pubsub.schema_store import SchemaStore
from heliograph.server.pubsub.schemas import Schemas
from heliograph.server.pubsub.snapshots import Snapshots
from heliograph.server.pubsub.streaming_pull import StreamingPull
from heliograph.server.pubsub.subscriber import Subscriber
from heliograph.wire.pubsub import DeliveryEncoder

PUBLISHER = "google.pubsub.v1.Publisher"
SUBSCRIBER = "google.pubsub.v1.Subscriber"
SCHEMA_SERVICE = "google.pubsub.v1.SchemaService"
IAM_POLICY = "google.iam.v1.IAMPolicy"


def pubsub_methods(
    broker: Broker,
    feeds: Feeds,
    closing: Closing,
    profile: Profile = STRICT,
    *,
    subscription_changed: Callable[[str], object] = str,
) -> dict[str, Method]:
    """All methods by full name, as in a gRPC path: ``/google.pubsub.v1.Publisher/Publish``.

    Args:
        broker: who does them.
        feeds: who waits on which subscription.
        closing: ends whatever waits.
        profile: how strictly.
        subscription_changed: told the name of each subscription that was created or updated.
    """
    encoder = DeliveryEncoder()
    snapshots = Snapshots(broker, feeds, profile)
    schemas = SchemaStore(broker)
    checks = SchemaChecks(broker, schemas, profile)
    services: dict[str, dict[str, Method]] = {
        PUBLISHER: _publisher_methods(Publisher(broker, checks, profile), snapshots),
        SUBSCRIBER: _subscriber_methods(Subscriber(broker, feeds, encoder, closing, profile, subscription_changed))
        | _snapshot_methods(snapshots)
        | _streaming_methods(StreamingPull(broker, feeds, encoder, closing, profile)),
        SCHEMA_SERVICE: _schema_methods(Schemas(schemas, checks, profile)),
        IAM_POLICY: _iam_methods(IamPolicy(broker, schemas, profile)),
    }
    return {f"/{service}/{name}": method for service, methods in services.items() for name, method in methods.items()}


def _publisher_methods(publisher: Publisher, snapshots: Snapshots) -> dict[str, Method]:
    return {
        "CreateTopic": Unary(proto.Topic, proto.Topic, publisher.create_topic),
        "UpdateTopic": Unary(proto.UpdateTopicRequest, proto.Topic, publisher.update_topic),
        "GetTopic": Unary(proto.GetTopicRequest, proto.Topic, publisher.get_topic),
        "ListTopics": Unary(proto.ListTopicsRequest, proto.ListTopicsResponse, publisher.list_topics),
        "ListTopicSubscriptions": Unary(
            proto.ListTopicSubscriptionsRequest,
            proto.ListTopicSubscriptionsResponse,
            publisher.list_topic_subscriptions,
        ),
        "ListTopicSnapshots": Unary(
            proto.ListTopicSnapshotsRequest, proto.ListTopicSnapshotsResponse, snapshots.list_topic_snapshots
        ),
        "DeleteTopic": Unary(proto.DeleteTopicRequest, proto.Empty, publisher.delete_topic),
        "DetachSubscription": Unary(
            proto.DetachSubscriptionRequest, proto.DetachSubscriptionResponse, publisher.detach_subscription
        ),
        "Publish": Unary(proto.PublishRequest, proto.PublishResponse, publisher.publish),
    }


def _subscriber_methods(subscriber: Subscriber) -> dict[str, Method]:
    return {
        "CreateSubscription": Unary(proto.Subscription, proto.Subscription, subscriber.create_subscription),
        "GetSubscription": Unary(proto.GetSubscriptionRequest, proto.Subscription, subscriber.get_subscription),
        "ListSubscriptions": Unary(
            proto.ListSubscriptionsRequest, proto.ListSubscriptionsResponse, subscriber.list_subscriptions
        ),
        "DeleteSubscription": Unary(proto.DeleteSubscriptionRequest, proto.Empty, subscriber.delete_subscription),
        "UpdateSubscription": Unary(
            proto.UpdateSubscriptionRequest, proto.Subscription, subscriber.update_subscription
        ),
        "ModifyPushConfig": Unary(proto.ModifyPushConfigRequest, proto.Empty, subscriber.modify_push_config),
        "Pull": Unary(proto.PullRequest, proto.PullResponse, subscriber.pull),
        "Acknowledge": Unary(proto.AcknowledgeRequest, proto.Empty, subscriber.acknowledge),
        "ModifyAckDeadline": Unary(proto.ModifyAckDeadlineRequest, proto.Empty, subscriber.modify_ack_deadline),
    }


def _schema_methods(schemas: Schemas) -> dict[str, Method]:
    return {
        "CreateSchema": Unary(proto.CreateSchemaRequest, proto.Schema, schemas.create_schema),
        "GetSchema": Unary(proto.GetSchemaRequest, proto.Schema, schemas.get_schema),
        "ListSchemas": Unary(proto.ListSchemasRequest, proto.ListSchemasResponse, schemas.list_schemas),
        "ListSchemaRevisions": Unary(
            proto.ListSchemaRevisionsRequest, proto.ListSchemaRevisionsResponse, schemas.list_schema_revisions
        ),
        "CommitSchema": Unary(proto.CommitSchemaRequest, proto.Schema, schemas.commit_schema),
        "RollbackSchema": Unary(proto.RollbackSchemaRequest, proto.Schema, schemas.rollback_schema),
        "DeleteSchemaRevision": Unary(proto.DeleteSchemaRevisionRequest, proto.Schema, schemas.delete_schema_revision),
        "DeleteSchema": Unary(proto.DeleteSchemaRequest, proto.Empty, schemas.delete_schema),
        "ValidateSchema": Unary(proto.ValidateSchemaRequest, proto.ValidateSchemaResponse, schemas.validate_schema),
        "ValidateMessage": Unary(proto.ValidateMessageRequest, proto.ValidateMessageResponse, schemas.validate_message),
    }


def _iam_methods(policies: IamPolicy) -> dict[str, Method]:
    return {
        "SetIamPolicy": Unary(iam.SetIamPolicyRequest, Policy, policies.set_iam_policy),
        "GetIamPolicy": Unary(iam.GetIamPolicyRequest, Policy, policies.get_iam_policy),
        "TestIamPermissions": Unary(
            iam.TestIamPermissionsRequest, iam.TestIamPermissionsResponse, policies.granted_permissions
        ),
    }


def _snapshot_methods(snapshots: Snapshots) -> dict[str, Method]:
    return {
        "CreateSnapshot": Unary(proto.CreateSnapshotRequest, proto.Snapshot, snapshots.create_snapshot),
        "GetSnapshot": Unary(proto.GetSnapshotRequest, proto.Snapshot, snapshots.get_snapshot),
        "ListSnapshots": Unary(proto.ListSnapshotsRequest, proto.ListSnapshotsResponse, snapshots.list_snapshots),
        "UpdateSnapshot": Unary(proto.UpdateSnapshotRequest, proto.Snapshot, snapshots.update_snapshot),
        "DeleteSnapshot": Unary(proto.DeleteSnapshotRequest, proto.Empty, snapshots.delete_snapshot),
        "Seek": Unary(proto.SeekRequest, proto.SeekResponse, snapshots.seek),
    }


def _streaming_methods(streaming_pull: Any) -> dict[str, Method]:
    return {"StreamingPull": Bidi(proto.StreamingPullRequest, proto.StreamingPullResponse, streaming_pull)}
