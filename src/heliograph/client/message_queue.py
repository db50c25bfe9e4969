"""The queue of spec 000: every operation of the broker in one synchronous class, for use from any thread.

It translates between the specs' words and the broker's; it decides nothing. No event loop is needed: leases end by the
broker's own timer.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal, overload

from heliograph.broker.broker import LocalBroker
from heliograph.broker.protocol import Broker, SubscriptionInfo, TopicInfo
from heliograph.broker.reply import Reply
from heliograph.client.arguments import BYTES_MAX, count_of, name_of, nanoseconds, seconds_of
from heliograph.client.internal_message import InternalMessage, SubscriptionMetadata, TopicMetadata, draft_of
from heliograph.client.options import SubscriptionOptions, options_of, settings_of, stream_ack_deadline
from heliograph.client.timestamp import DatetimeWithNanoseconds
from heliograph.engine.limits import ACK_DEADLINE_SECONDS_MAX
from heliograph.engine.statistics import Statistics
from heliograph.errors import InvalidAckId, InvalidArgument, NotFound, SubscriptionDetached


class MessageQueue:
    """All topics, subscriptions and messages of one broker (spec 000).

    Args:
        broker: None = one of its own, in memory.
    """

    _instance: ClassVar[MessageQueue | None] = None
    _instance_lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, broker: Broker | None = None) -> None:
        self._broker: Broker = LocalBroker() if broker is None else broker

    @classmethod
    def get_instance(cls) -> MessageQueue:
        """The one queue of this process, on which every plain `PubSub()` works (BR-001)."""
        with MessageQueue._instance_lock:
            if MessageQueue._instance is None:
                MessageQueue._instance = MessageQueue()
            return MessageQueue._instance

    @classmethod
    def reset_instance(cls) -> None:
        """Empty the one queue of this process, for tests: it stays the same object, and holds nothing any more."""
        with MessageQueue._instance_lock:
            queue = MessageQueue._instance
            if queue is not None:
                old, queue._broker = queue._broker, LocalBroker()
                old.close()

    @property
    def broker(self) -> Broker:
        """The broker behind it."""
        return self._broker

    # ── topics ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def register_topic(self, topic_name: str, metadata: TopicMetadata | None = None) -> None:
        """Create a topic (BR-002).

        Args:
            topic_name: any string with something in it.
            metadata: accepted as in the spec; the queue keeps its own (name and time of creation).

        Raises:
            InvalidArgument: no such name is possible.
            AlreadyExists: there is a topic of that name.
        """
        if metadata is not None and not isinstance(metadata, TopicMetadata | Mapping):
            raise InvalidArgument(f"TopicMetadata or a mapping is wanted, not {type(metadata).__name__}")
        self._broker.create_topic(name_of(topic_name, "Topic name")).result()

    def unregister_topic(self, topic_name: str) -> None:
        """Delete a topic. Its subscriptions stay, detached and empty; their leases are gone (BR-012, BR-021).

        Raises:
            TopicNotFound.
        """
        self._broker.delete_topic(name_of(topic_name, "Topic name"), clears_backlog=True).result()

    def topic_exists(self, topic_name: str) -> bool:
        """Whether there is a topic of that name."""
        return self.get_topic(topic_name) is not None

    def get_topic(self, topic_name: str) -> TopicMetadata | None:
        """What is known of a topic; None if there is none of that name."""
        try:
            return _topic_metadata(self._broker.get_topic(name_of(topic_name, "Topic name")))
        except NotFound:
            return None

    def get_all_topics(self) -> list[TopicMetadata]:
        """All topics, by name."""
        return [_topic_metadata(info) for info in self._broker.list_topics()]

    # ── subscriptions ───────────────────────────────────────────────────────────────────────────────────────────────

    def register_subscription(
        self,
        subscription_name: str,
        topic_name: str,
        options: SubscriptionOptions | Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:
        """Create a subscription; it receives what is published from now on.

        Args:
            subscription_name: any string with something in it.
            topic_name: an existing topic.
            options: `SubscriptionOptions`, or a mapping in either spelling. A `flow_control` here bounds all pulls of
                the subscription together (BR-013).
            more: the same, as keyword arguments.

        Raises:
            InvalidArgument: a name or an option is not possible; ack deadlines are 10 to 600 seconds.
            AlreadyExists, TopicNotFound.
        """
        name_of(subscription_name, "Subscription name")
        name_of(topic_name, "Topic name")
        chosen = SubscriptionOptions.build(options, more)
        if chosen.ack_deadline is not None:  # there is no stream here, so it can only mean the subscription's own
            chosen = SubscriptionOptions.build(chosen, {"ack_deadline_seconds": chosen.ack_deadline})
        settings = settings_of(chosen, with_flow_control=True)
        self._broker.create_subscription(subscription_name, topic_name, settings).result()

    def unregister_subscription(self, subscription_name: str) -> None:
        """Delete a subscription, its messages and leases (BR-011).

        Raises:
            SubscriptionNotFound.
        """
        self._broker.delete_subscription(name_of(subscription_name, "Subscription name")).result()

    def subscription_exists(self, subscription_name: str) -> bool:
        """Whether there is a subscription of that name."""
        return self.get_subscription(subscription_name) is not None

    def get_subscription(self, subscription_name: str) -> SubscriptionMetadata | None:
        """What is known of a subscription; None if there is none of that name."""
        try:
            return _subscription_metadata(
                self._broker.get_subscription(name_of(subscription_name, "Subscription name"))
            )
        except NotFound:
            return None

    def get_subscriptions_for_topic(self, topic_name: str) -> list[SubscriptionMetadata]:
        """The subscriptions of a topic, by name.

        Raises:
            TopicNotFound.
        """
        found = self._broker.list_subscriptions(name_of(topic_name, "Topic name"))
        return [_subscription_metadata(info) for info in found]

    def get_all_subscriptions(self) -> list[SubscriptionMetadata]:
        """All subscriptions, by name."""
        return [_subscription_metadata(info) for info in self._broker.list_subscriptions()]

    def statistics(self, subscription_name: str) -> Statistics:
        """Gauges and counters of a subscription: what is outstanding, in messages and bytes (BR-014), what waits, and
        among the totals `dropped`, what was refused at capacity (BR-022).

        Raises:
            SubscriptionNotFound.
        """
        return self._broker.statistics(name_of(subscription_name, "Subscription name"))

    # ── messages ────────────────────────────────────────────────────────────────────────────────────────────────────

    def publish(self, topic_name: str, messages: Iterable[InternalMessage | Mapping[str, Any]]) -> list[str]:
        """Publish messages, all of them or, if one is refused, none (BR-003, BR-004).

        A subscription that holds 10,000 messages or 100 MB already does not get them; a warning is logged and
        `statistics(…).totals.dropped` counts them (BR-022).

        Args:
            topic_name: an existing topic.
            messages: `InternalMessage`s, or mappings of the same names.

        Returns:
            Their ids, in order, unique across all topics.

        Raises:
            TopicNotFound.
            InvalidArgument, MessageTooLarge: a message breaks a limit (BR-017).
            Unavailable: the store cannot commit.
        """
        name_of(topic_name, "Topic name")
        if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Iterable):
            raise InvalidArgument(f"A list of messages is wanted, not {type(messages).__name__}")
        drafts = [draft_of(message) for message in messages]
        return self._broker.publish(topic_name, drafts).result()

    @overload
    def pull(
        self,
        subscription_name: str,
        max_messages: int,
        *,
        max_bytes: int | None = ...,
        oversized_first: bool = ...,
        ack_deadline: float | None = ...,
        wait: Literal[True] = ...,
    ) -> list[InternalMessage]: ...

    @overload
    def pull(
        self,
        subscription_name: str,
        max_messages: int,
        *,
        max_bytes: int | None = ...,
        oversized_first: bool = ...,
        ack_deadline: float | None = ...,
        wait: Literal[False],
    ) -> Reply[list[InternalMessage]]: ...

    def pull(
        self,
        subscription_name: str,
        max_messages: int,
        *,
        max_bytes: int | None = None,
        oversized_first: bool = True,
        ack_deadline: float | None = None,
        wait: bool = True,
    ) -> list[InternalMessage] | Reply[list[InternalMessage]]:
        """Lease messages, at once: none where none is ready, or flow control leaves no room (BR-005, BR-013).

        Args:
            subscription_name: an existing subscription.
            max_messages: at most so many, from 1.
            max_bytes: at most so many bytes; None = no bound.
            oversized_first: the first message may be larger than `max_bytes`, so that it is not stuck for ever.
            ack_deadline: seconds of the lease, 1 to 600; None = the subscription's own.
            wait: False = give the `Reply` instead of waiting until the lease is durable.

        Returns:
            The messages, oldest first; each `ack_id` is good for this delivery only (BR-018).

        Raises:
            SubscriptionNotFound.
            InvalidArgument: a number is out of its bounds.
        """
        name_of(subscription_name, "Subscription name")
        count_of(max_messages, "max_messages")
        if max_bytes is not None:
            count_of(max_bytes, "max_bytes", maximum=BYTES_MAX)
        if ack_deadline is not None:
            stream_ack_deadline(ack_deadline)
        try:
            reply = self._broker.pull(
                subscription_name,
                max_messages,
                max_bytes=max_bytes or 0,
                ack_deadline_ns=nanoseconds(ack_deadline or 0),
                oversized_first=oversized_first,
            )
        except SubscriptionDetached:  # it is registered still, and has nothing (BR-012)
            reply = Reply([])
        messages = [InternalMessage.of(delivery) for delivery in reply.provisional]
        return reply.with_value(messages).result() if wait else reply.with_value(messages)

    def ack(self, ack_id: str) -> None:
        """The message is done, and leaves the subscription (BR-006, BR-020).

        Raises:
            InvalidAckId: unknown, used or expired (BR-018): `Invalid ack ID: …`, code 3.
        """
        name = self._subscription_of(ack_id)
        try:
            stale = self._broker.acknowledge(name, [ack_id]).result()
        except NotFound:
            raise InvalidAckId([ack_id]) from None
        if stale:
            raise InvalidAckId([ack_id])

    def nack(self, ack_id: str) -> None:
        """The message goes back to its place in the queue, at once, or after its backoff (BR-007, BR-015).

        Raises:
            InvalidAckId: as `ack`.
        """
        self.modify_ack_deadline(ack_id, 0)

    def modify_ack_deadline(self, ack_id: str, seconds: float) -> None:
        """The lease now ends `seconds` from now, as often as is wanted (BR-009); 0 = nack.

        Args:
            ack_id: of a current delivery.
            seconds: 0 to 600.

        Raises:
            InvalidArgument: `Ack deadline must be between 0 and 600 seconds`.
            InvalidAckId: as `ack`.
        """
        seconds_of(seconds, "Ack deadline", 0, ACK_DEADLINE_SECONDS_MAX)
        name = self._subscription_of(ack_id)
        try:
            stale = self._broker.modify_ack_deadline(name, [ack_id], nanoseconds(seconds)).result()
        except NotFound:
            raise InvalidAckId([ack_id]) from None
        if stale:
            raise InvalidAckId([ack_id])

    def _subscription_of(self, ack_id: str) -> str:
        if not isinstance(ack_id, str):
            raise InvalidArgument(f"Ack ID must be a string, not {type(ack_id).__name__}")
        return self._broker.subscription_of(ack_id)


def _topic_metadata(info: TopicInfo) -> TopicMetadata:
    return TopicMetadata(info.name, DatetimeWithNanoseconds.from_ns(info.created_ns))


def _subscription_metadata(info: SubscriptionInfo) -> SubscriptionMetadata:
    created = DatetimeWithNanoseconds.from_ns(info.created_ns)
    return SubscriptionMetadata(info.name, info.topic, created, options_of(info.settings), info.detached)


__all__ = ["MessageQueue"]
