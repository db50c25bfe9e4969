"""Heliograph, a message broker: one engine, many doors."""

from heliograph.broker.broker import LocalBroker
from heliograph.broker.clock import SimulatedClock, SystemClock
from heliograph.client.async_queue import AsyncQueue, AsyncQueueMessage
from heliograph.client.internal_message import InternalMessage, SubscriptionMetadata, TopicMetadata
from heliograph.client.message import AckResponse, Message
from heliograph.client.message_queue import MessageQueue
from heliograph.client.message_stream import MessageStream
from heliograph.client.options import (
    DeadLetterPolicy,
    FlowControlOptions,
    PublishOptions,
    RetryPolicy,
    StreamingOptions,
    SubscriberOptions,
    SubscriptionOptions,
)
from heliograph.client.priority import (
    Priority,
    PriorityDeadLetter,
    PriorityMessage,
    PriorityPubSub,
    PrioritySubscription,
    connect,
)
from heliograph.client.pubsub import PubSub
from heliograph.client.queue import Outgoing, Queue, QueueDeadLetter, QueueMessage
from heliograph.client.queue_names import queues
from heliograph.client.subscription import Subscription
from heliograph.client.timestamp import DatetimeWithNanoseconds
from heliograph.client.topic import Topic
from heliograph.engine.statistics import Statistics
from heliograph.errors import (
    AckDeadlineExceeded,
    AlreadyExists,
    ConsumerNotFound,
    FailedPrecondition,
    FlowControlExceeded,
    HeliographError,
    Internal,
    InvalidAckId,
    InvalidArgument,
    InvalidPriority,
    MessageNotFound,
    MessageTooLarge,
    NotFound,
    QueueExists,
    QueueFull,
    QueueNotFound,
    ResourceExhausted,
    SnapshotNotFound,
    StoreRefused,
    SubscriptionDetached,
    SubscriptionNotFound,
    TopicNotFound,
    Unavailable,
    Unimplemented,
)

__version__ = "0.1.0"

__all__ = [
    "AckDeadlineExceeded",
    "AckResponse",
    "AlreadyExists",
    "AsyncQueue",
    "AsyncQueueMessage",
    "ConsumerNotFound",
    "DatetimeWithNanoseconds",
    "DeadLetterPolicy",
    "FailedPrecondition",
    "FlowControlExceeded",
    "FlowControlOptions",
    "HeliographError",
    "Internal",
    "InternalMessage",
    "InvalidAckId",
    "InvalidArgument",
    "InvalidPriority",
    "LocalBroker",
    "Message",
    "MessageNotFound",
    "MessageQueue",
    "MessageStream",
    "MessageTooLarge",
    "NotFound",
    "Outgoing",
    "Priority",
    "PriorityDeadLetter",
    "PriorityMessage",
    "PriorityPubSub",
    "PrioritySubscription",
    "PubSub",
    "PublishOptions",
    "Queue",
    "QueueDeadLetter",
    "QueueExists",
    "QueueFull",
    "QueueMessage",
    "QueueNotFound",
    "ResourceExhausted",
    "RetryPolicy",
    "SimulatedClock",
    "SnapshotNotFound",
    "Statistics",
    "StoreRefused",
    "StreamingOptions",
    "SubscriberOptions",
    "Subscription",
    "SubscriptionDetached",
    "SubscriptionMetadata",
    "SubscriptionNotFound",
    "SubscriptionOptions",
    "SystemClock",
    "Topic",
    "TopicMetadata",
    "TopicNotFound",
    "Unavailable",
    "Unimplemented",
    "__version__",
    "connect",
    "queues",
]
