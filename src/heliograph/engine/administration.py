"""Topics, subscriptions and documents: made, changed, deleted."""

from __future__ import annotations

from heliograph.engine import facts as f
from heliograph.engine.dead_lettering import DeadLettering
from heliograph.engine.filters import parse_filter
from heliograph.engine.limits import check_settings, check_text
from heliograph.engine.retention import SWEEP_NS
from heliograph.engine.settings import SubscriptionSettings, TopicSettings
from heliograph.engine.subscription import Subscription
from heliograph.engine.topic import Topic
from heliograph.errors import AlreadyExists, InvalidArgument

IMMUTABLE = ("enable_message_ordering", "filter", "prioritised")
"""Settings of a subscription that stay as they were created (pubsub-protocol.md 1.5.12; what waits stands in order)."""


class Administration(DeadLettering):
    """`DeadLettering`, and the operations on what there is."""

    # ── topics ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def create_topic(self, name: str, settings: TopicSettings, now_ns: int) -> Topic:
        """Raises: AlreadyExists."""
        if name in self.topics:
            raise AlreadyExists(f"Topic already exists: {name}")
        check_text(name, "Topic name")
        check_settings(settings)
        self._record(f.TopicCreated(name, self._number + 1, settings, now_ns))
        return self.topics[name]

    def update_topic(self, name: str, settings: TopicSettings, now_ns: int) -> Topic:
        """All its settings are these from now on. Raises: TopicNotFound, InvalidArgument."""
        topic = self.topic(name)
        check_settings(settings)
        self.tick(now_ns)
        if settings != topic.settings:
            self._record(f.TopicUpdated(name, settings))
        return topic

    def delete_topic(self, name: str, *, clears_backlog: bool, now_ns: int) -> None:
        """Raises: TopicNotFound."""
        self.topic(name)
        self.tick(now_ns)
        self._record(f.TopicDeleted(name, clears_backlog))

    # ── subscriptions ───────────────────────────────────────────────────────────────────────────────────────────────

    def create_subscription(self, name: str, topic: str, settings: SubscriptionSettings, now_ns: int) -> Subscription:
        """Raises: AlreadyExists, TopicNotFound, InvalidArgument (its filter cannot be read, among others)."""
        self.topic(topic)
        if name in self.subscriptions:
            raise AlreadyExists(f"Subscription already exists: {name}")
        check_text(name, "Subscription name")
        check_settings(settings)
        if settings.filter:
            parse_filter(settings.filter)
        self._record(f.SubscriptionCreated(name, self._number + 1, topic, settings, now_ns))
        self._look_for_unused(settings, now_ns)
        return self.subscriptions[name]

    def _look_for_unused(self, settings: SubscriptionSettings, now_ns: int) -> None:
        """From now on, also when nothing is ever published."""
        if settings.expires_after_ns and not self._sweep_ns:
            self._sweep_by(now_ns + SWEEP_NS)

    def update_subscription(self, name: str, settings: SubscriptionSettings, now_ns: int) -> Subscription:
        """All its settings are these for what happens from now on: new leases get the new deadline, the next failures
        the new backoff. Where there is no dead letter policy any more, those that wait for its topic wait here again.

        Raises:
            SubscriptionNotFound.
            InvalidArgument: a setting is wrong, or one that cannot change differs.
        """
        subscription = self.subscription(name)
        check_settings(settings)
        old = subscription.settings
        for field in IMMUTABLE:
            if getattr(settings, field) != getattr(old, field):
                raise InvalidArgument(f"The setting {field} of a subscription cannot be changed: {name}")
        self.tick(now_ns)
        if settings == old:
            return subscription
        subscription.prepare_update(settings)
        policy = old.dead_letter_policy
        forwards = policy is not None and policy.topic is not None
        if forwards and settings.dead_letter_policy is None and (staying := self._staying(subscription)):
            self._retry(subscription, staying, now_ns)
        self._full.discard(name)
        self._record(f.SubscriptionUpdated(name, settings, now_ns))
        self._schedule(subscription)
        self._look_for_unused(settings, now_ns)
        return subscription

    def detach_subscription(self, name: str, now_ns: int) -> None:
        """It gets nothing more of its topic, and what it held is gone (pubsub-protocol.md 1.5.15). Again: no change.
        Raises: SubscriptionNotFound."""
        subscription = self.subscription(name)
        self.tick(now_ns)
        if not subscription.detached:
            self._full.discard(name)
            self._record(f.SubscriptionDetached(name))

    def delete_subscription(self, name: str) -> None:
        """Raises: SubscriptionNotFound."""
        self.subscription(name)
        self._full.discard(name)
        self._record(f.SubscriptionDeleted(name))

    # ── documents ───────────────────────────────────────────────────────────────────────────────────────────────────

    def put_document(self, collection: str, name: str, value: bytes) -> None:
        """Keep what a door wants kept, in place of an earlier one of the name. Raises: InvalidArgument."""
        check_text(collection, "Collection")
        check_text(name, "Document name")
        if self.documents.get(collection, name) != value:
            self._record(f.DocumentPut(collection, name, value))

    def delete_document(self, collection: str, name: str) -> None:
        """One that is not there is no error."""
        if self.documents.get(collection, name) is not None:
            self._record(f.DocumentDeleted(collection, name))
