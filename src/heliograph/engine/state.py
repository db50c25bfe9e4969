"""What the facts have made of the broker: topics and subscriptions, and one handler for each kind of fact.

State changes here and nowhere else. Nothing here decides: `engine.py` does, and records what it decided.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from heliograph.engine import facts as f
from heliograph.engine.deduplication import DedupIds
from heliograph.engine.details import with_details
from heliograph.engine.documents import Documents
from heliograph.engine.facts import Fact
from heliograph.engine.leases import Lease
from heliograph.engine.log import TopicLog
from heliograph.engine.message import Message
from heliograph.engine.ranges import unpack_runs
from heliograph.engine.residency import Residency
from heliograph.engine.settings import SubscriptionSettings
from heliograph.engine.snapshots import Snapshot
from heliograph.engine.subscription import Subscription
from heliograph.engine.topic import Topic
from heliograph.errors import SubscriptionNotFound, TopicNotFound


class State:
    """Topics, subscriptions and their messages; what `Engine` decides on.

    Args:
        read_log: (topic number, first, last sequence) to the durable messages there, so that messages may leave memory
            (`shed_memory`); None = they never do.
    """

    def __init__(self, read_log: Callable[[int, int, int], list[Message]] | None = None) -> None:
        self.topics: dict[str, Topic] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.snapshots: dict[str, Snapshot] = {}
        self.documents = Documents()
        self.woken: set[str] = set()  # subscriptions that may have something to deliver since the caller last looked
        self.forwards: list[tuple[str, int]] = []  # (subscription, sequence) of dead letters to publish to their topic
        self._by_number: dict[int, Subscription] = {}
        self._number = 0  # the last that a topic or subscription got
        self._facts: list[Fact] = []
        self._grown: Topic | None = None  # that a replayed fact was about, if it was a publication
        self.broken: Exception | None = None  # why no operation may follow; see `_record`
        self.tells_details = False  # whether facts carry `Details`, for an event log
        self.now_ns = 0  # of the latest `tick`
        self._read_log = read_log
        self._residency = Residency() if read_log is not None else None
        self._restored: dict[int, Topic] = {}  # while a checkpoint is replayed: also topics that were deleted
        self._handlers: dict[type, Callable[[Any], Any]] = {
            f.TopicCreated: self._on_topic_created,
            f.TopicUpdated: self._on_topic_updated,
            f.TopicDeleted: self._on_topic_deleted,
            f.SubscriptionCreated: self._on_subscription_created,
            f.SubscriptionUpdated: self._on_subscription_updated,
            f.SubscriptionUsed: self._on_subscription_used,
            f.SubscriptionDetached: self._on_subscription_detached,
            f.SubscriptionSought: self._on_subscription_sought,
            f.SubscriptionDeleted: self._on_subscription_deleted,
            f.SnapshotCreated: self._on_snapshot_created,
            f.SnapshotUpdated: self._on_snapshot_updated,
            f.SnapshotDeleted: self._on_snapshot_deleted,
            f.DocumentPut: self.documents.put,
            f.DocumentDeleted: self.documents.delete,
            f.MessagesPublished: self._on_messages_published,
            f.DedupIdsNoted: self._on_dedup_ids_noted,
            f.MessagesDropped: self._on_messages_dropped,
            f.MessagesLeased: self._on_messages_leased,
            f.LeasesExtended: self._on_leases_extended,
            f.MessagesAcknowledged: self._on_messages_acknowledged,
            f.MessagesReturned: self._on_messages_returned,
            f.MessagesDeadLettered: self._on_messages_dead_lettered,
            f.DeadLettersForwarded: self._on_dead_letters_dropped,
            f.DeadLettersRetried: self._on_dead_letters_retried,
            f.DeadLettersPurged: self._on_dead_letters_dropped,
            f.MessagesPurged: self._on_messages_purged,
            f.CheckpointBegun: self._on_checkpoint_begun,
            f.TopicRestored: self._on_topic_restored,
            f.SubscriptionRestored: self._on_subscription_restored,
            f.SnapshotRestored: self._on_snapshot_restored,
        }

    # ── facts ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _record(self, fact: Fact) -> Any:
        if self.tells_details:
            fact = with_details(fact, self.topics, self.subscriptions, self.now_ns)
        self._facts.append(fact)
        if self._residency is not None:
            self._residency.fact_count += 1
        try:
            return self._handlers[type(fact)](fact)
        except Exception as error:
            # half done: were it or anything later stored, the next recovery would lead elsewhere, or nowhere
            self._facts.clear()
            self.broken = error
            raise

    def replay(self, fact: Fact) -> None:
        """Apply a fact that happened before: recovery."""
        self._handlers[type(fact)](fact)
        if type(fact) is f.MessagesPublished:
            self._grown = self.topics[fact.topic]

    def load_replayed(self) -> None:
        """Messages that were replayed just now are loaded, as when they were new: before they leave memory. Not before
        it is known which of them were dropped, which is the next fact."""
        topic, self._grown = self._grown, None
        if topic is not None:
            for subscription in topic.subscriptions.values():
                if subscription.is_eager:
                    subscription.load(topic.log.next_sequence - 1)

    def take_facts(self) -> list[Fact]:
        """What happened since the last call, in order."""
        facts, self._facts = self._facts, []
        return facts

    # ── what there is ─────────────────────────────────────────────────────────────────────────────────────────────────

    def topic(self, name: str) -> Topic:
        """Raises: TopicNotFound."""
        topic = self.topics.get(name)
        if topic is None:
            raise TopicNotFound(name)
        return topic

    def subscription(self, name: str) -> Subscription:
        """Raises: SubscriptionNotFound."""
        subscription = self.subscriptions.get(name)
        if subscription is None:
            raise SubscriptionNotFound(name)
        return subscription

    @property
    def last_number(self) -> int:
        """Of the latest topic or subscription."""
        return self._number

    def all_topics(self) -> list[Topic]:
        """Those that exist, and those that are deleted and have subscriptions or snapshots left."""
        topics = {topic.number: topic for topic in self.topics.values()}
        topics |= {snapshot.topic.number: snapshot.topic for snapshot in self.snapshots.values()}
        # those of detached ones last: they only stand for a topic
        for subscription in sorted(self.subscriptions.values(), key=lambda subscription: subscription.detached):
            topics.setdefault(subscription.topic.number, subscription.topic)
        return list(topics.values())

    # ── topics and subscriptions ──────────────────────────────────────────────────────────────────────────────────────

    def _on_topic_created(self, fact: f.TopicCreated) -> None:
        self._number = fact.number
        log = self._new_log(fact.number)
        self.topics[fact.name] = Topic(fact.name, fact.number, fact.settings, fact.created_ns, log)

    def _on_topic_updated(self, fact: f.TopicUpdated) -> None:
        self.topics[fact.name].settings = fact.settings

    def _on_topic_deleted(self, fact: f.TopicDeleted) -> None:
        topic = self.topics.pop(fact.name)
        topic.deleted = True
        for subscription in list(topic.subscriptions.values()):
            if fact.clears_backlog:
                subscription.detach()
            self.woken.add(subscription.name)
        for subscription in self.subscriptions.values():
            if subscription.detached and subscription.topic.number == topic.number:
                subscription.stand_apart(topic)

    def _on_subscription_created(self, fact: f.SubscriptionCreated) -> None:
        self._number = fact.number
        self._add_subscription(fact.name, fact.number, self.topics[fact.topic], fact.settings, fact.created_ns)

    def _add_subscription(
        self, name: str, number: int, topic: Topic, settings: SubscriptionSettings, created_ns: int
    ) -> Subscription:
        subscription = Subscription(name, number, topic, settings, created_ns)
        self.subscriptions[name] = subscription
        topic.attach(subscription)
        self._by_number[number] = subscription
        return subscription

    def _on_subscription_updated(self, fact: f.SubscriptionUpdated) -> None:
        subscription = self.subscriptions[fact.name]
        subscription.update(fact.settings)
        subscription.used_ns = max(subscription.used_ns, fact.updated_ns)
        policy = fact.settings.dead_letter_policy
        if policy is not None and policy.topic is not None:
            self.forwards += [(fact.name, sequence) for sequence in subscription.dead]
        self.woken.add(fact.name)

    def _on_subscription_used(self, fact: f.SubscriptionUsed) -> None:
        self.subscriptions[fact.name].used_ns = fact.used_ns

    def _on_subscription_detached(self, fact: f.SubscriptionDetached) -> None:
        self.subscriptions[fact.name].detach()
        self.woken.add(fact.name)

    def _on_subscription_sought(self, fact: f.SubscriptionSought) -> None:
        subscription = self.subscriptions[fact.subscription]
        subscription.seek(unpack_runs(fact.held))
        subscription.used_ns = max(subscription.used_ns, fact.sought_ns)
        self.woken.add(fact.subscription)

    def _on_subscription_deleted(self, fact: f.SubscriptionDeleted) -> None:
        subscription = self.subscriptions.pop(fact.name)
        subscription.clear()
        del self._by_number[subscription.number]
        subscription.topic.detach(subscription)
        self.woken.add(fact.name)

    # ── snapshots ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def snapshots_by_topic(self) -> dict[int, list[Snapshot]]:
        """By their topic's number."""
        by_topic: dict[int, list[Snapshot]] = {}
        for snapshot in self.snapshots.values():
            by_topic.setdefault(snapshot.topic.number, []).append(snapshot)
        return by_topic

    def _on_snapshot_created(self, fact: f.SnapshotCreated) -> None:
        topic = self.subscriptions[fact.subscription].topic
        self._add_snapshot(fact, topic)

    def _on_snapshot_restored(self, fact: f.SnapshotRestored) -> None:
        self._add_snapshot(fact, self._restored[fact.topic_number])

    def _add_snapshot(self, fact: f.SnapshotCreated | f.SnapshotRestored, topic: Topic) -> None:
        self.snapshots[fact.name] = Snapshot(
            name=fact.name,
            topic=topic,
            held=fact.held,
            next_sequence=fact.next_sequence,
            created_ns=fact.created_ns,
            expires_ns=fact.expires_ns,
            labels=fact.labels,
            resource=fact.resource,
        )

    def _on_snapshot_updated(self, fact: f.SnapshotUpdated) -> None:
        snapshot = self.snapshots[fact.name]
        snapshot.expires_ns, snapshot.labels, snapshot.resource = fact.expires_ns, dict(fact.labels), fact.resource

    def _on_snapshot_deleted(self, fact: f.SnapshotDeleted) -> None:
        del self.snapshots[fact.name]

    def _new_log(self, topic_number: int) -> TopicLog:
        if self._read_log is None:
            return TopicLog()
        return TopicLog(functools.partial(self._read_log, topic_number), self._residency)

    # ── messages ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _on_messages_published(self, fact: f.MessagesPublished) -> None:
        topic, messages = self.topics[fact.topic], fact.messages
        topic.log.append(messages, len(topic.subscriptions))
        if messages[0].publish_time_ns < topic.newest_ns or fact.disordered:
            topic.in_time_order = False
        topic.newest_ns = messages[-1].publish_time_ns
        if topic.plain and any(message.extras is not None for message in messages):
            topic.plain = False
        if topic.filtered:
            self._pass_over(topic, fact, messages[0].sequence)
            return
        for subscription in topic.subscriptions.values():
            subscription.totals.published += len(messages)
        self.woken.update(topic.subscriptions)

    def _pass_over(self, topic: Topic, fact: f.MessagesPublished, first: int) -> None:
        """Some of the subscriptions have filters: they get what these let pass, and are not even woken for the rest."""
        stop = topic.log.next_sequence
        for subscription in topic.subscriptions.values():
            if subscription.filter is None:
                subscription.totals.published += stop - first
            else:
                matched = fact.matched.get(subscription.number, [])
                subscription.pass_over(first, stop, matched)
                if not matched:
                    continue
            self.woken.add(subscription.name)

    def _on_dedup_ids_noted(self, fact: f.DedupIdsNoted) -> None:
        topic = self.topics[fact.topic]
        if topic.dedup_ids is None:
            topic.dedup_ids = DedupIds()
        topic.dedup_ids.note(fact.dedup_ids, fact.sequences, fact.noted_ns)

    def _on_messages_dropped(self, fact: f.MessagesDropped) -> None:
        self.subscriptions[fact.subscription].skip(fact.sequences)

    def _on_messages_leased(self, fact: f.MessagesLeased) -> list[Message]:
        lease = Lease(fact.lease_number, fact.deadline_ns, fact.consumer, fact.leased_ns)
        return self.subscriptions[fact.subscription].lease(fact.sequences, lease, fact.leased_ns)

    def _on_leases_extended(self, fact: f.LeasesExtended) -> None:
        self.subscriptions[fact.subscription].leases.extend(fact.sequences, fact.deadline_ns)

    def _on_messages_acknowledged(self, fact: f.MessagesAcknowledged) -> None:
        subscription = self.subscriptions[fact.subscription]
        subscription.acknowledge(fact.sequences)
        self.woken.add(fact.subscription)  # a key's next message, or room under a flow control limit

    def _on_messages_returned(self, fact: f.MessagesReturned) -> None:
        self.subscriptions[fact.subscription].put_back(fact.sequences, fact.available_at_ns, fact.cause)
        self.woken.add(fact.subscription)

    def _on_messages_dead_lettered(self, fact: f.MessagesDeadLettered) -> None:
        subscription = self.subscriptions[fact.subscription]
        subscription.give_up(fact.sequences, fact.reason, fact.dead_lettered_ns, fact.cause)
        policy = subscription.settings.dead_letter_policy
        if policy is not None and policy.topic is not None:
            self.forwards += [(fact.subscription, sequence) for sequence in fact.sequences]
        self.woken.add(fact.subscription)

    def _on_messages_purged(self, fact: f.MessagesPurged) -> None:
        self.subscriptions[fact.subscription].purge(fact.sequences)
        self.woken.add(fact.subscription)

    def _on_dead_letters_retried(self, fact: f.DeadLettersRetried) -> None:
        self.subscriptions[fact.subscription].revive(fact.sequences, fact.expires_at_ns, fact.retried_ns)
        self.woken.add(fact.subscription)

    def _on_dead_letters_dropped(self, fact: f.DeadLettersForwarded | f.DeadLettersPurged) -> None:
        self.subscriptions[fact.subscription].drop_dead(fact.sequences)

    # ── checkpoints and memory ────────────────────────────────────────────────────────────────────────────────────────

    def checkpoint(self) -> list[Fact]:
        """Facts that recreate everything as it is, in place of all before. Not recorded: nothing happened."""
        facts: list[Fact] = [f.CheckpointBegun(self._number)]
        facts += [_restored(topic) for topic in self.all_topics()]
        facts += [subscription.capture() for subscription in self.subscriptions.values()]
        facts += [snapshot.capture() for snapshot in self.snapshots.values()]
        return facts + self.documents.capture()

    def _on_checkpoint_begun(self, fact: f.CheckpointBegun) -> None:
        self._number = fact.number
        self.topics.clear()
        self.subscriptions.clear()
        self._by_number.clear()
        self._restored.clear()
        self.snapshots.clear()
        self.documents.clear()

    def _on_topic_restored(self, fact: f.TopicRestored) -> None:
        topic = Topic(fact.name, fact.number, fact.settings, fact.created_ns, self._new_log(fact.number))
        topic.log.skip(fact.next_sequence - 1)
        topic.plain, topic.deleted = fact.plain, fact.deleted
        topic.in_time_order, topic.newest_ns = fact.in_time_order, fact.newest_ns
        if fact.dedup_ids:
            topic.dedup_ids = DedupIds(fact.dedup_ids)
        self._restored[fact.number] = topic
        if not fact.deleted:
            self.topics[fact.name] = topic

    def _on_subscription_restored(self, fact: f.SubscriptionRestored) -> None:
        topic = self._restored[fact.topic_number]
        if fact.detached:
            topic = topic.stand_in()
        subscription = self._add_subscription(fact.name, fact.number, topic, fact.settings, fact.created_ns)
        subscription.restore(fact)

    def shed_memory(self, budget_bytes: int, durable_facts: int) -> None:
        """Send messages out of memory until those in it have at most `budget_bytes`, as far as the first
        `durable_facts` facts that this engine recorded have made them durable."""
        if self._residency is not None and self._residency.bytes > budget_bytes:
            self._residency.shed(budget_bytes, durable_facts)


def _restored(topic: Topic) -> f.TopicRestored:
    return f.TopicRestored(
        name=topic.name,
        number=topic.number,
        settings=topic.settings,
        created_ns=topic.created_ns,
        deleted=topic.deleted,
        plain=topic.plain,
        next_sequence=topic.log.next_sequence,
        dedup_ids=topic.dedup_ids.noted() if topic.dedup_ids is not None else {},
        in_time_order=topic.in_time_order,
        newest_ns=topic.newest_ns,
    )
