"""The engine's rules once more, as naively as they can be said: lists, scans, one object per message and subscription.

Nothing here is fast, clever, shared with the engine or restartable. Where the engine and this disagree, read both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from heliograph.engine.dead_letter import DeadLetterReason
from heliograph.engine.message import SEQUENCES_PER_TOPIC, Draft, Extras, size_bytes
from heliograph.engine.settings import SubscriptionSettings
from heliograph.engine.statistics import Statistics, Totals
from heliograph.errors import (
    AlreadyExists,
    FailedPrecondition,
    MessageNotFound,
    QueueFull,
    SnapshotNotFound,
    SubscriptionDetached,
    SubscriptionNotFound,
    TopicNotFound,
)


class Delivered(NamedTuple):
    """What a delivery must look like."""

    message_id: str
    ack_id: str
    attempt: int
    deadline_ns: int
    data: bytes


@dataclass(eq=False)
class Entry:
    """One message in one subscription."""

    sequence: int
    draft: Draft
    published_ns: int
    expires_ns: int
    available_ns: int
    turn: bool = True  # False: another message of its ordering key goes first
    failures: int = 0
    came_back: bool = False
    lease: tuple[int, int, str] | None = None  # number, deadline, consumer
    reason: DeadLetterReason | None = None
    dead_ns: int = 0

    @property
    def extras(self) -> Extras:
        return self.draft.extras or Extras()


@dataclass(eq=False)
class Subscription:
    name: str
    number: int
    topic: Topic
    settings: SubscriptionSettings
    detached: bool = False
    held: list[Entry] = field(default_factory=list)  # waiting and leased, by sequence
    dead: list[Entry] = field(default_factory=list)  # oldest death first
    lease_number: int = 0
    totals: Totals = field(default_factory=Totals)
    first_sequence: int = 1

    def takes(self, draft: Draft) -> bool:
        return FILTERS[self.settings.filter](draft)

    def first_expiry_ns(self, entry: Entry) -> int:
        own_ns, ttl_ns = entry.extras.expires_at_ns, self.settings.ttl_ns
        return own_ns or (entry.published_ns + ttl_ns if ttl_ns else 0)

    def waiting(self) -> list[Entry]:
        return [entry for entry in self.held if entry.lease is None]

    def leased(self) -> list[Entry]:
        return [entry for entry in self.held if entry.lease is not None]

    def ack_id(self, entry: Entry) -> str:
        return f"{self.number}-{entry.sequence}-{entry.lease[0] if entry.lease is not None else 0}"

    def delayed(self, now_ns: int) -> list[Entry]:
        return [entry for entry in self.waiting() if entry.turn and entry.available_ns > now_ns]

    def priority(self, entry: Entry) -> int:
        if not self.settings.prioritised:
            return 0
        return self.settings.default_priority if entry.draft.extras is None else entry.extras.priority

    def ready(self, now_ns: int) -> list[Entry]:
        entries = [entry for entry in self.waiting() if entry.turn and entry.available_ns <= now_ns]
        return sorted(entries, key=lambda entry: (-self.priority(entry), entry.sequence))

    def keyed(self, entry: Entry) -> bool:
        return self.settings.enable_message_ordering and bool(entry.draft.ordering_key)

    def take_in(self, sequence: int, draft: Draft, published_ns: int) -> None:
        entry = Entry(sequence, draft, published_ns, 0, (draft.extras or Extras()).available_at_ns)
        entry.expires_ns = self.first_expiry_ns(entry)
        self.admit(entry)

    def admit(self, entry: Entry) -> None:
        same_key = [other for other in self.held if other.draft.ordering_key == entry.draft.ordering_key]
        entry.turn = not (self.keyed(entry) and any(other.turn for other in same_key))
        self.held.append(entry)
        self.held.sort(key=lambda other: other.sequence)

    def leave(self, entry: Entry) -> None:
        self.held.remove(entry)
        if self.keyed(entry) and entry.turn:
            for other in self.held:
                if other.draft.ordering_key == entry.draft.ordering_key:
                    other.turn = True
                    break

    def next_event_ns(self, now_ns: int) -> list[int]:
        """Instants later than now at which something happens by itself."""
        instants = [entry.lease[1] for entry in self.held if entry.lease is not None]
        instants += [entry.expires_ns for entry in self.waiting() if entry.expires_ns]
        return instants + [entry.available_ns for entry in self.delayed(now_ns)]


# what the filters of the tests let pass
FILTERS: dict[str, Callable[[Draft], bool]] = {
    "": lambda draft: True,
    'attributes.kind = "a"': lambda draft: draft.attributes.get("kind") == "a",
    "NOT attributes:kind": lambda draft: "kind" not in draft.attributes,
}


@dataclass(eq=False)
class Topic:
    name: str
    number: int
    retention_ns: int = 0
    next_sequence: int = 1
    subscriptions: list[Subscription] = field(default_factory=list)
    log: list[tuple[int, Draft, int]] = field(default_factory=list)  # sequence, what was published, when

    def message_id(self, entry: Entry) -> str:
        return str(self.number * SEQUENCES_PER_TOPIC + entry.sequence)


class Model:
    """The same operations as `Engine`, for arguments that are in order."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.snapshots: dict[str, tuple[Topic, set[int], int]] = {}  # what it has, and the next sequence
        self.number = 0

    # ── time ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def tick(self, now_ns: int) -> None:
        for subscription in self.subscriptions.values():
            ended = [entry for entry in subscription.held if entry.lease is not None and entry.lease[1] <= now_ns]
            self._fail(subscription, ended, "expired", now_ns)
            for entry in subscription.waiting():
                if 0 < entry.expires_ns <= now_ns:
                    self._give_up(subscription, entry, DeadLetterReason.TTL_EXPIRED, now_ns)

    # ── topics and subscriptions ────────────────────────────────────────────────────────────────────────────────────

    def create_topic(self, name: str, retention_ns: int = 0) -> None:
        self.number += 1
        self.topics[name] = Topic(name, self.number, retention_ns)

    def delete_topic(self, name: str, clears_backlog: bool, now_ns: int) -> None:
        self.tick(now_ns)
        for subscription in self._topic(name).subscriptions if clears_backlog else []:
            subscription.detached = True
            subscription.held, subscription.dead = [], []
        del self.topics[name]

    def create_subscription(self, name: str, topic: str, settings: SubscriptionSettings) -> None:
        self.number += 1
        subscription = Subscription(name, self.number, self._topic(topic), settings)
        subscription.first_sequence = subscription.topic.next_sequence
        self.subscriptions[name] = subscription
        subscription.topic.subscriptions.append(subscription)

    def update_subscription(self, name: str, settings: SubscriptionSettings, now_ns: int) -> None:
        subscription = self._subscription(name)
        self.tick(now_ns)
        policy = subscription.settings.dead_letter_policy
        if policy is not None and policy.topic is not None and settings.dead_letter_policy is None:
            for entry in list(subscription.dead):
                self._revive(subscription, entry, now_ns)
        subscription.settings = settings

    def detach_subscription(self, name: str, now_ns: int) -> None:
        subscription = self._subscription(name)
        self.tick(now_ns)
        subscription.detached = True
        subscription.held, subscription.dead = [], []
        if subscription in subscription.topic.subscriptions:
            subscription.topic.subscriptions.remove(subscription)

    def delete_subscription(self, name: str) -> None:
        subscription = self.subscriptions.pop(name)
        if subscription in subscription.topic.subscriptions:
            subscription.topic.subscriptions.remove(subscription)

    def _topic(self, name: str) -> Topic:
        if name not in self.topics:
            raise TopicNotFound(name)
        return self.topics[name]

    def _subscription(self, name: str) -> Subscription:
        if name not in self.subscriptions:
            raise SubscriptionNotFound(name)
        return self.subscriptions[name]

    # ── publishing ──────────────────────────────────────────────────────────────────────────────────────────────────

    def publish(self, name: str, drafts: list[Draft], now_ns: int, *, limited: bool = True) -> list[str]:
        topic = self._topic(name)
        if limited:
            self.tick(now_ns)
            for subscription in topic.subscriptions:
                capacity = subscription.settings.capacity
                coming = [draft for draft in drafts if subscription.takes(draft)]
                if capacity is None or not capacity.refuse or not coming:
                    continue
                waiting_bytes = sum(size_bytes(one) for one in [*(e.draft for e in subscription.waiting()), *coming])
                if len(subscription.waiting()) + len(coming) > capacity.messages or 0 < capacity.bytes < waiting_bytes:
                    raise QueueFull(name, capacity.messages)
        first = topic.next_sequence
        topic.next_sequence += len(drafts)
        topic.log += [(n, draft, draft.publish_time_ns or now_ns) for n, draft in enumerate(drafts, first)]
        for subscription in topic.subscriptions:
            taken = [(sequence, draft) for sequence, draft in enumerate(drafts, first) if subscription.takes(draft)]
            self._receive(subscription, taken, now_ns)
        return [str(topic.number * SEQUENCES_PER_TOPIC + sequence) for sequence in range(first, topic.next_sequence)]

    def _receive(self, subscription: Subscription, taken: list[tuple[int, Draft]], now_ns: int) -> None:
        subscription.totals.published += len(taken)
        capacity = subscription.settings.capacity
        for index, (sequence, draft) in enumerate(taken):
            held_bytes = sum(size_bytes(entry.draft) for entry in subscription.held)
            drops = capacity is not None and not capacity.refuse
            if drops and (
                len(subscription.held) >= capacity.messages or held_bytes + size_bytes(draft) > capacity.bytes
            ):
                subscription.totals.dropped += len(taken) - index
                return
            subscription.take_in(sequence, draft, draft.publish_time_ns or now_ns)

    # ── delivering and settling ─────────────────────────────────────────────────────────────────────────────────────

    def pullable(
        self,
        subscription: Subscription,
        count: int,
        now_ns: int,
        *,
        max_bytes: int = 0,
        consumer: str = "",
        oversized_first: bool = True,
    ) -> list[Entry]:
        settings, leased = subscription.settings, subscription.leased()
        if settings.outstanding_messages_max:
            count = min(count, settings.outstanding_messages_max - len(leased))
        if settings.prefetch and consumer:
            own = [entry for entry in leased if entry.lease is not None and entry.lease[2] == consumer]
            count = min(count, settings.prefetch - len(own))
        room = settings.outstanding_bytes_max - sum(size_bytes(entry.draft) for entry in leased)
        if settings.outstanding_bytes_max and room <= 0:
            return []
        taken: list[Entry] = []
        for entry in subscription.ready(now_ns)[: max(count, 0)]:
            total = sum(size_bytes(other.draft) for other in [*taken, entry])
            if max_bytes and total > max_bytes and (taken or not oversized_first):
                break
            if settings.outstanding_bytes_max and total > room and (taken or leased):
                break
            taken.append(entry)
        return taken

    def pull(
        self, name: str, count: int, now_ns: int, *, ack_deadline_ns: int, consumer: str, **bounds: Any
    ) -> list[Delivered]:
        subscription = self._subscription(name)
        if subscription.detached:
            raise SubscriptionDetached(name)
        self.tick(now_ns)
        entries = self.pullable(subscription, count, now_ns, consumer=consumer, **bounds)
        if entries:
            subscription.lease_number += 1
        deadline_ns = now_ns + (ack_deadline_ns or subscription.settings.ack_deadline_ns)
        totals = subscription.totals
        for entry in entries:
            entry.lease = (subscription.lease_number, deadline_ns, consumer)
            totals.delivered += 1
            if entry.came_back:
                totals.redelivered += 1
            else:
                totals.first_deliveries += 1
                totals.wait_ns += now_ns - entry.published_ns
        return [
            Delivered(
                subscription.topic.message_id(entry),
                subscription.ack_id(entry),
                entry.failures + 1,
                deadline_ns,
                entry.draft.data,
            )
            for entry in entries
        ]

    def settle(self, action: str, name: str, ack_ids: list[str], now_ns: int, ack_deadline_ns: int = 0) -> list[str]:
        subscription = self._subscription(name)
        self.tick(now_ns)
        current = {subscription.ack_id(entry): entry for entry in subscription.leased()}
        entries: list[Entry] = []
        stale: list[str] = []
        for ack_id in ack_ids:
            if ack_id in current:
                entries.append(current.pop(ack_id))
            else:
                stale.append(ack_id)
        if action == "acknowledge" or (action == "reject" and subscription.settings.dead_letter_policy is None):
            for entry in entries:
                subscription.totals.acknowledged += 1
                subscription.leave(entry)
        elif action == "reject":
            for entry in entries:
                subscription.totals.nacked += 1
                entry.failures += 1
                self._give_up(subscription, entry, DeadLetterReason.EXPLICIT_NACK, now_ns)
        elif action == "modify" and ack_deadline_ns:
            for entry in entries:
                assert entry.lease is not None
                entry.lease = (entry.lease[0], now_ns + ack_deadline_ns, entry.lease[2])
        else:
            self._fail(subscription, entries, "released" if action == "release" else "nacked", now_ns)
        return stale

    def _fail(self, subscription: Subscription, entries: list[Entry], cause: str, now_ns: int) -> None:
        settings, expired = subscription.settings, []
        policy = settings.dead_letter_policy
        for entry in entries:
            entry.lease, entry.came_back = None, True
            if cause != "released":
                entry.failures += 1
            subscription.totals.nacked += cause == "nacked"
            subscription.totals.expired += cause == "expired"
            entry.available_ns = 0
            if 0 < entry.expires_ns <= now_ns:
                expired.append(entry)
            elif (
                policy is not None
                and cause != "released"
                and entry.failures >= (entry.extras.max_delivery_attempts or policy.max_delivery_attempts)
            ):
                self._give_up(subscription, entry, DeadLetterReason.MAX_RETRIES_EXCEEDED, now_ns)
            elif settings.retry_policy is not None and cause != "released":
                entry.available_ns = now_ns + settings.retry_policy.backoff_ns(entry.failures)
        for entry in expired:  # after the others, so that these are the younger dead letters
            self._give_up(subscription, entry, DeadLetterReason.TTL_EXPIRED, now_ns)

    def _give_up(self, subscription: Subscription, entry: Entry, reason: DeadLetterReason, now_ns: int) -> None:
        subscription.leave(entry)
        policy = subscription.settings.dead_letter_policy
        if policy is None:
            return
        entry.lease, entry.reason, entry.dead_ns = None, reason, now_ns
        subscription.dead.append(entry)
        subscription.totals.dead_lettered += 1
        if policy.topic is None and len(subscription.dead) > policy.kept_max:
            subscription.dead.pop(0)
            subscription.totals.dead_letters_dropped += 1

    # ── purging and dead letters ────────────────────────────────────────────────────────────────────────────────────

    def purge(self, name: str, now_ns: int) -> tuple[int, int]:
        subscription = self._subscription(name)
        self.tick(now_ns)
        waiting, delayed = subscription.waiting(), len(subscription.delayed(now_ns))
        for entry in waiting:
            subscription.leave(entry)
        return len(waiting) - delayed, delayed

    def retry_dead_letters(self, name: str, message_ids: list[str] | None, now_ns: int) -> int:
        subscription = self._subscription(name)
        self.tick(now_ns)
        by_id = {subscription.topic.message_id(entry): entry for entry in subscription.dead}
        chosen = list(dict.fromkeys(by_id if message_ids is None else message_ids))
        for message_id in chosen:
            if message_id not in by_id:
                raise MessageNotFound(message_id)
        for entry in [by_id[message_id] for message_id in chosen]:
            self._revive(subscription, entry, now_ns)
        return len(chosen)

    def _revive(self, subscription: Subscription, entry: Entry, now_ns: int) -> None:
        subscription.dead.remove(entry)
        entry.expires_ns = subscription.first_expiry_ns(entry)
        over = entry.reason is DeadLetterReason.TTL_EXPIRED or entry.expires_ns <= now_ns
        if entry.expires_ns and over:
            entry.expires_ns += now_ns - entry.published_ns
        entry.came_back = entry.failures > 0
        entry.failures, entry.available_ns, entry.reason = 0, entry.extras.available_at_ns, None
        subscription.admit(entry)

    def drop_dead_letters(self, name: str, sequences: list[int] | None = None) -> int:
        subscription = self._subscription(name)
        gone = [entry for entry in subscription.dead if sequences is None or entry.sequence in sequences]
        for entry in gone:
            subscription.dead.remove(entry)
        return len(gone)

    # ── seeking ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def seek_to_time(self, name: str, instant_ns: int, now_ns: int, durable: int) -> None:
        """`durable`: the last sequence that the store has; only what it has, or somebody holds, can come back."""
        subscription = self._attached(name)
        self.tick(now_ns)
        topic, settings = subscription.topic, subscription.settings
        wanted = {entry.sequence for entry in subscription.held}
        for sequence, _, published_ns in topic.log:
            if sequence > durable:
                continue
            if topic.retention_ns and published_ns >= now_ns - topic.retention_ns:
                wanted.add(sequence)
            own = settings.retain_acked_messages and sequence >= subscription.first_sequence
            if own and published_ns >= now_ns - settings.message_retention_ns:
                wanted.add(sequence)
        self._seek(subscription, wanted & {sequence for sequence, _, when in topic.log if when >= instant_ns})

    def seek_to_snapshot(self, name: str, snapshot: str, now_ns: int, durable: int) -> None:
        subscription = self._attached(name)
        self.tick(now_ns)
        if snapshot not in self.snapshots:
            raise SnapshotNotFound(snapshot)
        topic, held, next_sequence = self.snapshots[snapshot]
        if topic is not subscription.topic:
            raise FailedPrecondition(name)
        others = [one for one in self.subscriptions.values() if one.topic is topic]
        there = {entry.sequence for other in others for entry in (*other.held, *other.dead)}
        since = {sequence for sequence, _, _ in topic.log if sequence >= next_sequence}
        self._seek(subscription, {n for n in held | since if n <= durable or n in there})

    def _attached(self, name: str) -> Subscription:
        subscription = self._subscription(name)
        if subscription.detached:
            raise SubscriptionDetached(name)
        return subscription

    def _seek(self, subscription: Subscription, wanted: set[int]) -> None:
        wanted -= {entry.sequence for entry in subscription.dead}
        subscription.held = []
        for sequence, draft, published_ns in subscription.topic.log:
            if sequence in wanted and subscription.takes(draft):
                subscription.take_in(sequence, draft, published_ns)

    def create_snapshot(self, name: str, subscription_name: str, now_ns: int) -> None:
        self.tick(now_ns)
        if name in self.snapshots:
            raise AlreadyExists(name)
        subscription = self._attached(subscription_name)
        held = {entry.sequence for entry in subscription.held}
        self.snapshots[name] = (subscription.topic, held, subscription.topic.next_sequence)

    # ── questions ───────────────────────────────────────────────────────────────────────────────────────────────────

    def statistics(self, name: str, now_ns: int) -> Statistics:
        subscription = self._subscription(name)
        self.tick(now_ns)
        waiting, leased, ready = subscription.waiting(), subscription.leased(), subscription.ready(now_ns)
        delayed = len(subscription.delayed(now_ns))
        bands = sorted({subscription.priority(entry) for entry in ready}, reverse=True)
        depth = {band: sum(subscription.priority(entry) == band for entry in ready) for band in bands}
        return Statistics(
            ready=len(waiting) - delayed,
            delayed=delayed,
            outstanding=len(leased),
            outstanding_bytes=sum(size_bytes(entry.draft) for entry in leased),
            dead_letters=len(subscription.dead),
            consumers=len({entry.lease[2] for entry in leased if entry.lease is not None and entry.lease[2]}),
            depth_by_priority=depth if subscription.settings.prioritised else {},
            oldest_waiting_ns=waiting[0].published_ns if waiting else 0,
            oldest_unacknowledged_ns=subscription.held[0].published_ns if subscription.held else 0,
            totals=subscription.totals,
        )
