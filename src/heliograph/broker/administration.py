"""The operations on what a broker has: topics, subscriptions, work queues, snapshots, documents. Messages are in
`broker.py`."""

from __future__ import annotations

from collections.abc import Iterator

from heliograph.broker.operations import Operations
from heliograph.broker.protocol import SnapshotInfo, SubscriptionInfo, TopicInfo
from heliograph.broker.queues import QUEUE_PREFIX
from heliograph.broker.reply import Reply
from heliograph.broker.watches import wake
from heliograph.engine.limits import check_settings
from heliograph.engine.message import Message
from heliograph.engine.seek import DurableLog
from heliograph.engine.settings import (
    SUBSCRIPTION_DEFAULTS,
    TOPIC_DEFAULTS,
    SubscriptionSettings,
    TopicSettings,
)
from heliograph.engine.snapshots import Snapshot
from heliograph.engine.subscription import Subscription
from heliograph.engine.topic import Topic
from heliograph.errors import QueueExists, QueueNotFound
from heliograph.store.protocol import Store

NO_LABELS: dict[str, str] = {}


class Administration(Operations):
    """A part of `LocalBroker`."""

    # ── topics ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def create_topic(self, name: str, settings: TopicSettings = TOPIC_DEFAULTS) -> Reply[TopicInfo]:
        def operation(now_ns: int) -> TopicInfo:
            info = topic_info(self._engine.create_topic(name, settings, now_ns))
            self._topic_exists_now(name)
            return info

        return self._change(operation)

    def get_topic(self, name: str) -> TopicInfo:
        with self._lock:
            return topic_info(self._engine.topic(name))

    def list_topics(self) -> list[TopicInfo]:
        with self._lock:
            return [topic_info(topic) for _, topic in sorted(self._engine.topics.items())]

    def update_topic(self, name: str, settings: TopicSettings) -> Reply[TopicInfo]:
        return self._change(lambda now_ns: topic_info(self._engine.update_topic(name, settings, now_ns)))

    def delete_topic(self, name: str, *, clears_backlog: bool = False) -> Reply[None]:
        return self._change(
            lambda now_ns: self._engine.delete_topic(name, clears_backlog=clears_backlog, now_ns=now_ns)
        )

    # ── subscriptions ───────────────────────────────────────────────────────────────────────────────────────────────

    def create_subscription(
        self, name: str, topic: str, settings: SubscriptionSettings = SUBSCRIPTION_DEFAULTS
    ) -> Reply[SubscriptionInfo]:
        return self._change(
            lambda now_ns: subscription_info(self._engine.create_subscription(name, topic, settings, now_ns))
        )

    def get_subscription(self, name: str) -> SubscriptionInfo:
        with self._lock:
            return subscription_info(self._engine.subscription(name))

    def list_subscriptions(self, topic: str | None = None) -> list[SubscriptionInfo]:
        with self._lock:
            subscriptions = self._engine.subscriptions if topic is None else self._engine.topic(topic).subscriptions
            return [subscription_info(subscription) for _, subscription in sorted(subscriptions.items())]

    def update_subscription(self, name: str, settings: SubscriptionSettings) -> Reply[SubscriptionInfo]:
        return self._change(lambda now_ns: subscription_info(self._engine.update_subscription(name, settings, now_ns)))

    def detach_subscription(self, name: str) -> Reply[None]:
        return self._change(lambda now_ns: self._engine.detach_subscription(name, now_ns))

    def delete_subscription(self, name: str) -> Reply[None]:
        return self._change(lambda _: self._engine.delete_subscription(name))

    # ── work queues: a topic and a subscription of one name ─────────────────────────────────────────────────────────

    def create_queue(self, name: str, settings: SubscriptionSettings) -> Reply[SubscriptionInfo]:
        resource = QUEUE_PREFIX + name
        with self._lock:
            now_ns = self._now_ns()
            existing = self._engine.subscriptions.get(resource)
            if existing is not None:
                if existing.settings != settings:
                    raise QueueExists(f"Queue already exists with other settings: {name}")
                commit, woken = self._finish_operation()
                return Reply(subscription_info(existing), commit)
            check_settings(settings)  # before the topic is there: all or nothing
            self._engine.create_topic(resource, TopicSettings(), now_ns)
            info = subscription_info(self._engine.create_subscription(resource, resource, settings, now_ns))
            self._topic_exists_now(resource)
            commit, woken = self._finish_operation()
        wake(woken)
        return Reply(info, commit)

    def delete_queue(self, name: str) -> Reply[None]:
        resource = QUEUE_PREFIX + name
        with self._lock:
            now_ns = self._now_ns()
            if resource not in self._engine.subscriptions:
                raise QueueNotFound(name)
            self._engine.delete_subscription(resource)
            if resource in self._engine.topics:
                self._engine.delete_topic(resource, clears_backlog=True, now_ns=now_ns)
            commit, woken = self._finish_operation()
        wake(woken)
        return Reply(None, commit)

    # ── seeking and snapshots ───────────────────────────────────────────────────────────────────────────────────────

    def seek_to_time(self, subscription: str, instant_ns: int) -> Reply[None]:
        return self._change(
            lambda now_ns: self._engine.seek_to_time(subscription, instant_ns, self._durable(subscription), now_ns)
        )

    def seek_to_snapshot(self, subscription: str, snapshot: str) -> Reply[None]:
        return self._change(
            lambda now_ns: self._engine.seek_to_snapshot(subscription, snapshot, self._durable(subscription), now_ns)
        )

    def _durable(self, subscription: str) -> DurableLog:
        return StoredLog(self._store, self._engine.subscription(subscription).topic.number)

    def create_snapshot(
        self,
        name: str,
        subscription: str,
        *,
        expires_ns: int = 0,
        labels: dict[str, str] = NO_LABELS,
        resource: bytes = b"",
    ) -> Reply[SnapshotInfo]:
        return self._change(
            lambda now_ns: snapshot_info(
                self._engine.create_snapshot(
                    name, subscription, now_ns, expires_ns=expires_ns, labels=labels, resource=resource
                )
            )
        )

    def get_snapshot(self, name: str) -> SnapshotInfo:
        return self._ask(lambda now_ns: snapshot_info(self._engine.snapshot(name, now_ns)))

    def list_snapshots(self, topic: str | None = None) -> list[SnapshotInfo]:
        def question(now_ns: int) -> list[SnapshotInfo]:
            self._engine.tick(now_ns)
            of_topic = None if topic is None else self._engine.topic(topic)
            return [
                snapshot_info(snapshot)
                for _, snapshot in sorted(self._engine.snapshots.items())
                if of_topic is None or snapshot.topic is of_topic
            ]

        return self._ask(question)

    def update_snapshot(
        self, name: str, *, expires_ns: int, labels: dict[str, str], resource: bytes
    ) -> Reply[SnapshotInfo]:
        return self._change(
            lambda now_ns: snapshot_info(
                self._engine.update_snapshot(name, now_ns, expires_ns=expires_ns, labels=labels, resource=resource)
            )
        )

    def delete_snapshot(self, name: str) -> Reply[None]:
        return self._change(lambda now_ns: self._engine.delete_snapshot(name, now_ns))

    # ── documents ───────────────────────────────────────────────────────────────────────────────────────────────────

    def put_document(self, collection: str, name: str, value: bytes) -> Reply[None]:
        return self._change(lambda _: self._engine.put_document(collection, name, value))

    def get_document(self, collection: str, name: str) -> bytes | None:
        with self._lock:
            return self._engine.documents.get(collection, name)

    def list_documents(self, collection: str) -> list[tuple[str, bytes]]:
        with self._lock:
            return self._engine.documents.listed(collection)

    def delete_document(self, collection: str, name: str) -> Reply[None]:
        return self._change(lambda _: self._engine.delete_document(collection, name))


def topic_info(topic: Topic) -> TopicInfo:
    """What a door is told of a topic."""
    head, ordered = topic.log.next_sequence, topic.in_time_order
    return TopicInfo(topic.name, topic.number, topic.settings, topic.created_ns, head, ordered)


def subscription_info(subscription: Subscription) -> SubscriptionInfo:
    """What a door is told of a subscription."""
    return SubscriptionInfo(
        subscription.name,
        subscription.number,
        subscription.topic.name,
        subscription.settings,
        subscription.created_ns,
        subscription.detached,
        subscription.topic.deleted,
        subscription.topic.number,
    )


def snapshot_info(snapshot: Snapshot) -> SnapshotInfo:
    """What a door is told of a snapshot."""
    return SnapshotInfo(
        name=snapshot.name,
        topic=snapshot.topic.name,
        created_ns=snapshot.created_ns,
        expires_ns=snapshot.expires_ns,
        labels=dict(snapshot.labels),
        resource=snapshot.resource,
        topic_deleted=snapshot.topic.deleted,
    )


class StoredLog:
    """A topic's log in the store, for the engine to look into; see `engine.seek.DurableLog`.

    Args:
        store: where it is.
        topic_number: whose.
    """

    def __init__(self, store: Store, topic_number: int) -> None:
        self._store = store
        self._number = topic_number

    def bounds(self) -> tuple[int, int]:
        """As `Store.log_bounds`."""
        return self._store.log_bounds(self._number)

    def offset(self, published_ns: int) -> int:
        """As `Store.log_offset`."""
        return self._store.log_offset(self._number, published_ns)

    def read(self, first: int, last: int) -> Iterator[list[Message]]:
        """As `Store.read_log`, with those that are held."""
        return self._store.read_log(self._number, first, last, held=True)
