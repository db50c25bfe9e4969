"""The table of gRPC methods that this door has. Whoever adds a method adds a line."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from heliograph.broker.protocol import Broker
from heliograph.server.closing import Closing
from heliograph.server.feed import Feeds
from heliograph.server.grpc.call import Bidi, Method, Unary, UnaryCall
from heliograph.server.pubsub import proto
from heliograph.server.pubsub.publisher import Publisher
from heliograph.server.pubsub.streaming_pull import StreamingPull
from heliograph.server.pubsub.subscriber import Subscriber
from heliograph.wire.pubsub import DeliveryEncoder

_PUBLISHER = "/google.pubsub.v1.Publisher/"
_SUBSCRIBER = "/google.pubsub.v1.Subscriber/"

_Handler = Callable[[Any, UnaryCall], Awaitable[bytes]]


def pubsub_methods(broker: Broker, feeds: Feeds, closing: Closing) -> dict[str, Method]:
    """The methods of Publisher and Subscriber, by full name.

    Args:
        broker: who does them.
        feeds: who waits on which subscription.
        closing: ends whatever waits.
    """
    encoder = DeliveryEncoder()
    publisher = Publisher(broker)
    subscriber = Subscriber(broker, feeds, encoder, closing)
    streaming_pull = StreamingPull(broker, feeds, encoder, closing)
    unary: dict[str, tuple[Any, Any, _Handler]] = {
        f"{_PUBLISHER}CreateTopic": (proto.Topic, proto.Topic, publisher.create_topic),
        f"{_PUBLISHER}GetTopic": (proto.GetTopicRequest, proto.Topic, publisher.get_topic),
        f"{_PUBLISHER}ListTopics": (proto.ListTopicsRequest, proto.ListTopicsResponse, publisher.list_topics),
        f"{_PUBLISHER}ListTopicSubscriptions": (
            proto.ListTopicSubscriptionsRequest,
            proto.ListTopicSubscriptionsResponse,
            publisher.list_topic_subscriptions,
        ),
        f"{_PUBLISHER}DeleteTopic": (proto.DeleteTopicRequest, proto.Empty, publisher.delete_topic),
        f"{_PUBLISHER}Publish": (proto.PublishRequest, proto.PublishResponse, publisher.publish),
        f"{_SUBSCRIBER}CreateSubscription": (proto.Subscription, proto.Subscription, subscriber.create_subscription),
        f"{_SUBSCRIBER}GetSubscription": (
            proto.GetSubscriptionRequest,
            proto.Subscription,
            subscriber.get_subscription,
        ),
        f"{_SUBSCRIBER}ListSubscriptions": (
            proto.ListSubscriptionsRequest,
            proto.ListSubscriptionsResponse,
            subscriber.list_subscriptions,
        ),
        f"{_SUBSCRIBER}DeleteSubscription": (
            proto.DeleteSubscriptionRequest,
            proto.Empty,
            subscriber.delete_subscription,
        ),
        f"{_SUBSCRIBER}Pull": (proto.PullRequest, proto.PullResponse, subscriber.pull),
        f"{_SUBSCRIBER}Acknowledge": (proto.AcknowledgeRequest, proto.Empty, subscriber.acknowledge),
        f"{_SUBSCRIBER}ModifyAckDeadline": (
            proto.ModifyAckDeadlineRequest,
            proto.Empty,
            subscriber.modify_ack_deadline,
        ),
    }
    methods: dict[str, Method] = {name: Unary(*row) for name, row in unary.items()}
    methods[f"{_SUBSCRIBER}StreamingPull"] = Bidi(
        proto.StreamingPullRequest, proto.StreamingPullResponse, streaming_pull
    )
    return methods
