"""The broker as a deterministic machine: operations with an explicit `now_ns` in, facts out.

Three rules keep live, recovery and simulation the same:

1. State changes only inside the handler of a fact, reached through `_record` (live) or `replay` (recovery).
2. An operation validates everything before its first `_record`; after that nothing may raise.
3. Time comes in as `now_ns`; the next instant at which something happens by itself goes out as `next_deadline_ns`.

No I/O, clock, randomness, threads or logging here; the broker puts a lock around it and a store behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter

from heliograph.engine import facts as f
from heliograph.engine.capacity import fitting, has_room_again
from heliograph.engine.claims import Claims
from heliograph.engine.dead_letter import DeadLetterReason
from heliograph.engine.deduplication import place_once
from heliograph.engine.facts import ReturnCause
from heliograph.engine.failure import Settled
from heliograph.engine.leases import make_ack_ids, parse_ack_ids
from heliograph.engine.limits import check_ack_deadline, check_drafts, check_text
from heliograph.engine.matching import NO_MATCHES, matching
from heliograph.engine.message import (
    NO_ATTRIBUTES,
    SEQUENCES_PER_TOPIC,
    Delivery,
    Draft,
    Message,
    message_id,
    shared_extras,
    size_bytes,
    split_message_id,
)
from heliograph.engine.ranges import from_runs
from heliograph.engine.retention import SWEEP_NS
from heliograph.engine.seeking import Seeking
from heliograph.engine.statistics import Statistics
from heliograph.engine.subscription import Subscription
from heliograph.engine.topic import Topic
from heliograph.errors import InvalidAckId, MessageNotFound, QueueFull, SubscriptionDetached

_DEDUP_ID = attrgetter("dedup_id")
_PUBLISH_TIME_NS = attrgetter("publish_time_ns")


class Engine(Seeking, Claims):
    """Topics, subscriptions and their messages: here publishing, delivering and settling, what else there is in the
    modules of its base classes.

    After each call the caller takes the facts (`take_facts`) to make them durable, `woken` to tell who waits,
    `forwards` to publish dead letters to their topics, `filled` to warn of, and `trims` for the store.

    Args:
        read_log: see `State`.
    """

    # ── publishing ──────────────────────────────────────────────────────────────────────────────────────────────────

    def publish(self, topic_name: str, drafts: Sequence[Draft], now_ns: int) -> list[str]:
        """All or nothing; the message ids, in order.

        Raises:
            TopicNotFound, InvalidArgument, MessageTooLarge.
            QueueFull: a subscription whose capacity refuses has no room for all of them.
        """
        topic = self.topic(topic_name)
        plain = check_drafts(drafts)
        self.tick(now_ns)
        if not drafts:
            return []
        if not plain and any(map(_DEDUP_ID, drafts)):
            return self._publish_once(topic, drafts, now_ns)
        self._check_room(topic, drafts)
        return self._append(topic, drafts, now_ns, plain=plain)

    def _publish_once(self, topic: Topic, drafts: Sequence[Draft], now_ns: int) -> list[str]:
        """Those whose `dedup_id` is known are not published again, and answered with the first one's id."""
        base, first = topic.number * SEQUENCES_PER_TOPIC, topic.log.next_sequence
        fresh, sequences, noted = place_once(topic.dedup_ids, drafts, first, now_ns)
        if fresh:
            self._check_room(topic, fresh)
            self._append(topic, fresh, now_ns)
        if noted:
            self._record(f.DedupIdsNoted(topic.name, list(noted), list(noted.values()), now_ns))
        return [str(base + sequence) for sequence in sequences]

    def publish_dead_letters(self, topic_name: str, drafts: Sequence[Draft], now_ns: int) -> list[str]:
        """As `publish`, for messages that were accepted once: no limit, no full queue may hold them back now.

        Raises:
            TopicNotFound.
        """
        return self._append(self.topic(topic_name), drafts, now_ns)

    def _append(self, topic: Topic, drafts: Sequence[Draft], now_ns: int, *, plain: bool = False) -> list[str]:
        first = topic.log.next_sequence
        disordered = False
        if plain:
            messages = [Message(sequence, now_ns, d.data, NO_ATTRIBUTES) for sequence, d in enumerate(drafts, first)]
        else:
            messages = [
                Message(
                    sequence,
                    d.publish_time_ns or now_ns,
                    d.data,
                    {**d.attributes, **d.service_attributes} if d.service_attributes else d.attributes,
                    d.ordering_key,
                    None if d.extras is None else shared_extras(d.extras),
                )
                for sequence, d in enumerate(drafts, first)
            ]
            disordered = any(map(_PUBLISH_TIME_NS, drafts)) and not _in_time_order(messages)
        matched = matching(topic.filtered, messages) if topic.filtered else NO_MATCHES
        self._record(f.MessagesPublished(topic.name, topic.number, messages, matched=matched, disordered=disordered))
        self._published += len(messages)
        if not self._sweep_ns:
            self._sweep_by(now_ns + SWEEP_NS)
        for subscription in topic.subscriptions.values():
            if not subscription.is_eager:
                continue
            if subscription.filter is None:
                self._receive(subscription, messages)
            elif subscription.number in matched:
                runs = matched[subscription.number]
                self._receive(subscription, [messages[sequence - first] for sequence in from_runs(runs)])
        base = topic.number * SEQUENCES_PER_TOPIC
        return [str(base + sequence) for sequence in range(first, first + len(messages))]

    def _check_room(self, topic: Topic, offered: Sequence[Draft]) -> None:
        for subscription in topic.subscriptions.values():
            capacity = subscription.settings.capacity
            if capacity is None or not capacity.refuse:
                continue
            drafts = offered
            if subscription.filter is not None:
                drafts = [draft for draft in offered if subscription.filter.matches(draft.attributes)]
            if not drafts:
                continue
            if subscription.waiting + subscription.delayed + len(drafts) > capacity.messages:
                raise QueueFull(subscription.name, capacity.messages)
            if capacity.bytes:
                waiting_bytes = subscription.held_bytes - subscription.outstanding_bytes
                if waiting_bytes + sum([size_bytes(draft) for draft in drafts]) > capacity.bytes:
                    raise QueueFull(subscription.name, capacity.messages)

    def _receive(self, subscription: Subscription, messages: list[Message]) -> None:
        capacity = subscription.settings.capacity
        if capacity is not None and not capacity.refuse:
            kept = fitting(subscription, messages)
            if kept < len(messages):
                dropped = [message.sequence for message in messages[kept:]]
                self._record(f.MessagesDropped(subscription.name, dropped))
                if subscription.name not in self._full:
                    self._full.add(subscription.name)
                    self.filled.append(subscription.name)
            elif self._full and has_room_again(subscription):
                self._full.discard(subscription.name)
        subscription.load(messages[-1].sequence)
        self._schedule(subscription)

    # ── delivering ──────────────────────────────────────────────────────────────────────────────────────────────────

    def pull(
        self,
        subscription_name: str,
        max_messages: int,
        now_ns: int,
        *,
        max_bytes: int = 0,
        ack_deadline_ns: int = 0,
        consumer: str = "",
        oversized_first: bool = True,
    ) -> list[Delivery]:
        """Lease up to `max_messages` ready ones, in the order of delivery; see `Broker.pull` for the bounds.

        Raises:
            SubscriptionNotFound, SubscriptionDetached, InvalidArgument.
        """
        subscription = self.subscription(subscription_name)
        if subscription.detached:
            raise SubscriptionDetached(subscription_name)
        subscription.touched_ns = now_ns
        if ack_deadline_ns:
            check_ack_deadline(ack_deadline_ns)
        if consumer:
            check_text(consumer, "Consumer")
        self.tick(now_ns)
        sequences = self._select(subscription, max_messages, max_bytes, consumer, oversized_first, now_ns)
        if not sequences:
            return []
        deadline_ns = now_ns + (ack_deadline_ns or subscription.settings.ack_deadline_ns)
        lease_number = subscription.lease_number + 1
        fact = f.MessagesLeased(subscription.name, lease_number, sequences, now_ns, deadline_ns, consumer)
        messages: list[Message] = self._record(fact)
        self._schedule(subscription)
        base, number, failures = (
            subscription.topic.number * SEQUENCES_PER_TOPIC,
            subscription.number,
            subscription.failures,
        )
        return [
            Delivery(
                message,
                str(base + message.sequence),
                ack_id,
                failures.get(message.sequence, 0) + 1 if failures else 1,
                deadline_ns,
            )
            for message, ack_id in zip(messages, make_ack_ids(number, sequences, lease_number), strict=True)
        ]

    # ── settling ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _current(
        self, subscription_name: str, ack_ids: Sequence[str], now_ns: int
    ) -> tuple[Subscription, list[int], list[str]]:
        """The sequences whose current lease `ack_ids` name, and the ids that are not current any more.

        Raises:
            SubscriptionNotFound.
            InvalidAckId: some are malformed; nothing is settled then.
        """
        subscription = self.subscription(subscription_name)
        subscription.touched_ns = now_ns
        parsed = parse_ack_ids(ack_ids)
        self.tick(now_ns)
        by_sequence, own = subscription.leases.by_sequence, subscription.number
        current: dict[int, None] = {}
        stale: list[str] = []
        for ack_id, (number, sequence, lease_number) in zip(ack_ids, parsed, strict=True):
            lease = by_sequence.get(sequence)
            if lease is None or lease.number != lease_number or number != own or sequence in current:
                stale.append(ack_id)
            else:
                current[sequence] = None
        subscription.topic.log.fetch(sequences := list(current))
        return subscription, sequences, stale

    def subscription_of(self, ack_id: str) -> str:
        """The name of the subscription that an ack id belongs to.

        Raises:
            InvalidAckId: malformed, or the subscription is gone.
        """
        ((number, _, _),) = parse_ack_ids([ack_id])
        subscription = self._by_number.get(number)
        if subscription is None:
            raise InvalidAckId([ack_id])
        return subscription.name

    def acknowledge(self, subscription_name: str, ack_ids: Sequence[str], now_ns: int) -> list[str]:
        """The messages are done. Returns the ids that were not current; raises as `_current`."""
        subscription, sequences, stale = self._current(subscription_name, ack_ids, now_ns)
        if sequences:
            self._record(f.MessagesAcknowledged(subscription.name, sequences))
            self._schedule_following(subscription)
        return stale

    def modify_ack_deadline(
        self, subscription_name: str, ack_ids: Sequence[str], ack_deadline_ns: int, now_ns: int
    ) -> list[str]:
        """The leases now end at `now_ns + ack_deadline_ns`; 0 gives the messages back as failed. Returns and raises as
        `acknowledge`, and InvalidArgument."""
        check_ack_deadline(ack_deadline_ns)
        if ack_deadline_ns == 0:
            return self.nack(subscription_name, ack_ids, now_ns).stale
        subscription, sequences, stale = self._current(subscription_name, ack_ids, now_ns)
        if sequences:
            for lease_number, group in _by_lease_number(subscription, sequences).items():
                self._record(f.LeasesExtended(subscription.name, lease_number, group, now_ns + ack_deadline_ns))
        self._schedule(subscription)
        return stale

    def nack(self, subscription_name: str, ack_ids: Sequence[str], now_ns: int) -> Settled:
        """Given back as failed: to wait again, or to be given up. Raises as `acknowledge`."""
        subscription, sequences, stale = self._current(subscription_name, ack_ids, now_ns)
        dead = self._fail(subscription, sequences, ReturnCause.NACKED, now_ns) if sequences else []
        return Settled(stale, [message_id(subscription.topic.number, sequence) for sequence in dead])

    def release(self, subscription_name: str, ack_ids: Sequence[str], now_ns: int) -> list[str]:
        """Back to their place at once, not counted as a failure. Returns and raises as `acknowledge`."""
        subscription, sequences, stale = self._current(subscription_name, ack_ids, now_ns)
        if sequences:
            self._fail(subscription, sequences, ReturnCause.RELEASED, now_ns)
        return stale

    def reject(self, subscription_name: str, ack_ids: Sequence[str], now_ns: int) -> list[str]:
        """Given up at once; gone where there is no dead letter policy. Returns and raises as `acknowledge`."""
        subscription, sequences, stale = self._current(subscription_name, ack_ids, now_ns)
        if sequences and subscription.settings.dead_letter_policy is None:
            self._record(f.MessagesAcknowledged(subscription.name, sequences))
        elif sequences:
            reason = DeadLetterReason.EXPLICIT_NACK
            self._record(f.MessagesDeadLettered(subscription.name, sequences, reason, now_ns, ReturnCause.NACKED))
        self._schedule_following(subscription)
        return stale

    # ── by message id: queues ───────────────────────────────────────────────────────────────────────────────────────

    def current_ack_id(self, subscription_name: str, id_of_message: str, now_ns: int) -> str:
        """The ack id of the current lease on a message.

        Raises:
            SubscriptionNotFound, MessageNotFound: nobody holds it.
        """
        subscription = self.subscription(subscription_name)
        self.tick(now_ns)
        topic_number, sequence = split_message_id(id_of_message)
        lease = subscription.leases.by_sequence.get(sequence)
        if lease is None or topic_number != subscription.topic.number:
            raise MessageNotFound(id_of_message)
        (ack_id,) = make_ack_ids(subscription.number, [sequence], lease.number)
        return ack_id

    def position(self, subscription: Subscription, priority: int) -> int:
        """Ready messages of equal or higher priority."""
        counts = subscription.backlog.counts()
        return sum(count for band, count in counts.items() if band >= priority)

    def purge(self, subscription_name: str, now_ns: int) -> tuple[int, int]:
        """Ready and delayed messages go, leased ones stay. Returns (ready, delayed). Raises: SubscriptionNotFound."""
        subscription = self.subscription(subscription_name)
        self.tick(now_ns)
        delayed = subscription.delayed
        sequences = sorted(subscription.waiting_sequences())
        if sequences:
            self._record(f.MessagesPurged(subscription.name, sequences))
            self._schedule_following(subscription)
        return len(sequences) - delayed, delayed

    def peek(self, subscription_name: str, count: int, now_ns: int) -> list[Message]:
        """What would be delivered next, without a lease. Raises: SubscriptionNotFound."""
        subscription = self.subscription(subscription_name)
        self.tick(now_ns)
        self._load(subscription, count, now_ns)
        return subscription.topic.log.select(subscription.first(count, now_ns))

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def statistics(self, subscription_name: str, now_ns: int) -> Statistics:
        """Raises: SubscriptionNotFound."""
        subscription = self.subscription(subscription_name)
        self.tick(now_ns)
        return subscription.statistics()


def _in_time_order(messages: Sequence[Message]) -> bool:
    return all(earlier.publish_time_ns <= later.publish_time_ns for earlier, later in pairwise(messages))


def _by_lease_number(subscription: Subscription, sequences: Sequence[int]) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for sequence in sequences:
        groups.setdefault(subscription.leases.by_sequence[sequence].number, []).append(sequence)
    return groups
