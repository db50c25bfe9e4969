"""The broker as a deterministic machine: operations with an explicit `now_ns` in, facts out.

Three rules keep live, recovery and simulation the same:

1. State changes only inside the handler of a fact, reached through `_record` (live) or `replay` (recovery).
2. An operation validates everything before its first `_record`; after that nothing may raise.
3. Time comes in as `now_ns`; the next instant at which something happens by itself goes out as `next_deadline_ns`.

No I/O, clock, randomness, threads or logging here; the broker puts a lock around it and a store behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from itertools import islice

from heliograph.engine import facts as f
from heliograph.engine.capacity import fitting, has_room_again, within
from heliograph.engine.dead_letter import DeadLetter, DeadLetterReason
from heliograph.engine.deduplication import place_once
from heliograph.engine.facts import ReturnCause
from heliograph.engine.failure import Settled, facts_of_failure
from heliograph.engine.leases import make_ack_ids, parse_ack_ids
from heliograph.engine.limits import check_ack_deadline, check_drafts, check_settings, check_text
from heliograph.engine.message import (
    SEQUENCES_PER_TOPIC,
    Delivery,
    Draft,
    Message,
    message_id,
    shared_extras,
    size_bytes,
    split_message_id,
)
from heliograph.engine.retention import (
    PURGED_PER_FACT_MAX,
    SWEEP_MESSAGES,
    SWEEP_NS,
    TrimPoint,
    past_retention,
    trim_point,
)
from heliograph.engine.settings import SubscriptionSettings, TopicSettings
from heliograph.engine.state import State
from heliograph.engine.statistics import Statistics
from heliograph.engine.subscription import Subscription
from heliograph.engine.topic import Topic
from heliograph.errors import (
    AlreadyExists,
    HeliographError,
    InvalidAckId,
    MessageNotFound,
    QueueFull,
)

# When a message that the store cannot read is due again.
READ_AGAIN_NS = 1_000_000_000


class Engine(State):
    """Topics, subscriptions and their messages.

    After each call the caller takes the facts (`take_facts`) to make them durable, `woken` to tell who waits,
    `forwards` to publish dead letters to their topics, `filled` to warn of, and `trims` for the store.

    Args:
        read_log: see `State`.
    """

    def __init__(self, read_log: Callable[[int, int, int], list[Message]] | None = None) -> None:
        super().__init__(read_log)
        self.filled: list[str] = []  # subscriptions that began to drop newcomers since the caller last looked
        self.trims: list[TrimPoint] | None = None  # what the store need not keep any more; None = not looked at since
        self._timers: list[tuple[int, int]] = []  # (instant, subscription number), at most one current per subscription
        self._sweep_ns = 0  # when retention is looked at next; 0 = nothing was ever published
        self._published = 0  # messages since then
        self._full: set[str] = set()  # subscriptions of which `filled` has told; see `capacity.has_room_again`

    def recovered(self, now_ns: int) -> None:
        """All facts are replayed: take up the work that time and dead letters left."""
        self._restored.clear()
        self.forwards.clear()  # the replayed facts tell of every dead letter that ever was
        for subscription in self.subscriptions.values():
            if subscription.is_eager:
                subscription.load(subscription.topic.log.next_sequence)
            self._schedule(subscription)
            policy = subscription.settings.dead_letter_policy
            if policy is not None and policy.topic is not None:
                self.forwards += [(subscription.name, sequence) for sequence in subscription.dead]
        self._sweep_ns = now_ns if self._number else 0
        self.tick(now_ns)

    # ── time ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def next_deadline_ns(self) -> int | None:
        """Call `tick` then, at the latest."""
        if not self._timers:
            return self._sweep_ns or None
        return min(self._timers[0][0], self._sweep_ns) if self._sweep_ns else self._timers[0][0]

    def tick(self, now_ns: int) -> None:
        """Let happen what is due: leases end, delays pass, messages expire. Every operation does it first."""
        self.now_ns = now_ns
        timers = self._timers
        while timers and timers[0][0] <= now_ns:
            instant, number = heappop(timers)
            subscription = self._by_number.get(number)
            if subscription is not None and subscription.scheduled_ns == instant:
                subscription.scheduled_ns = 0
                if self._tick_subscription(subscription, now_ns):
                    self._schedule(subscription)
                else:
                    subscription.scheduled_ns = now_ns + READ_AGAIN_NS
                    heappush(timers, (subscription.scheduled_ns, number))
        if 0 < self._sweep_ns <= now_ns or self._published >= SWEEP_MESSAGES:
            self._sweep(now_ns)

    def _sweep(self, now_ns: int) -> None:
        """Waiting messages past their retention go, and the store learns what nobody needs any more."""
        self._sweep_ns, self._published = now_ns + SWEEP_NS, 0
        for subscription in list(self.subscriptions.values()):
            old = self._past_retention(subscription, now_ns)
            for start in range(0, len(old), PURGED_PER_FACT_MAX):
                self._record(f.MessagesPurged(subscription.name, old[start : start + PURGED_PER_FACT_MAX]))
            self._schedule(subscription)  # a key that goes on may bring a delay
        self.trims = [trim_point(topic, now_ns) for topic in self.all_topics()]

    def _past_retention(self, subscription: Subscription, now_ns: int) -> list[int]:
        """None of messages that cannot be read: whoever pulls them is told, others are not held up."""
        try:
            sequences = past_retention(subscription, now_ns)
            subscription.topic.log.fetch(sequences)
        except HeliographError:
            return []
        return sequences

    def _tick_subscription(self, subscription: Subscription, now_ns: int) -> bool:
        """False if a message cannot be read now: others are not held up by it, and it is tried again later."""
        ended, expired = subscription.leases.due(now_ns), list[int]()
        try:
            if ended:
                self._fail(subscription, ended, ReturnCause.EXPIRED, now_ns)
                ended = []
            expired = subscription.expired(now_ns)
            if expired:
                subscription.topic.log.fetch(expired)
                self._expire(subscription, expired, now_ns)
                expired = []
            if subscription.promote(now_ns):
                self.woken.add(subscription.name)
        except HeliographError:
            if self.broken is not None:
                raise
            subscription.leases.requeue(ended)
            subscription.requeue_expired(expired)
            return False
        return True

    def _expire(self, subscription: Subscription, sequences: list[int], now_ns: int) -> None:
        if subscription.settings.dead_letter_policy is None:
            self._record(f.MessagesPurged(subscription.name, sequences))
        else:
            reason = DeadLetterReason.TTL_EXPIRED
            self._record(f.MessagesDeadLettered(subscription.name, sequences, reason, now_ns, None))

    def _schedule(self, subscription: Subscription) -> None:
        deadline = subscription.next_deadline_ns()
        if deadline is not None and (not subscription.scheduled_ns or deadline < subscription.scheduled_ns):
            subscription.scheduled_ns = deadline
            heappush(self._timers, (deadline, subscription.number))
            if len(self._timers) > 2 * len(self._by_number) + 64:
                # those of deadlines that moved are the majority
                self._timers[:] = [(s.scheduled_ns, s.number) for s in self._by_number.values() if s.scheduled_ns]
                heapify(self._timers)

    # ── topics and subscriptions ────────────────────────────────────────────────────────────────────────────────────

    def create_topic(self, name: str, settings: TopicSettings, now_ns: int) -> Topic:
        """Raises: AlreadyExists."""
        if name in self.topics:
            raise AlreadyExists(f"Topic already exists: {name}")
        check_text(name, "Topic name")
        check_settings(settings)
        self._record(f.TopicCreated(name, self._number + 1, settings, now_ns))
        return self.topics[name]

    def delete_topic(self, name: str, *, clears_backlog: bool, now_ns: int) -> None:
        """Raises: TopicNotFound."""
        self.topic(name)
        self.tick(now_ns)
        self._record(f.TopicDeleted(name, clears_backlog))

    def create_subscription(self, name: str, topic: str, settings: SubscriptionSettings, now_ns: int) -> Subscription:
        """Raises: AlreadyExists, TopicNotFound."""
        self.topic(topic)
        if name in self.subscriptions:
            raise AlreadyExists(f"Subscription already exists: {name}")
        check_text(name, "Subscription name")
        check_settings(settings)
        self._record(f.SubscriptionCreated(name, self._number + 1, topic, settings, now_ns))
        return self.subscriptions[name]

    def delete_subscription(self, name: str) -> None:
        """Raises: SubscriptionNotFound."""
        self.subscription(name)
        self._full.discard(name)
        self._record(f.SubscriptionDeleted(name))

    # ── publishing ──────────────────────────────────────────────────────────────────────────────────────────────────

    def publish(self, topic_name: str, drafts: Sequence[Draft], now_ns: int) -> list[str]:
        """All or nothing; the message ids, in order.

        Raises:
            TopicNotFound, InvalidArgument, MessageTooLarge.
            QueueFull: a subscription whose capacity refuses has no room for all of them.
        """
        topic = self.topic(topic_name)
        check_drafts(drafts)
        self.tick(now_ns)
        if not drafts:
            return []
        if any(draft.dedup_id for draft in drafts):
            return self._publish_once(topic, drafts, now_ns)
        self._check_room(topic, drafts)
        return self._append(topic, drafts, now_ns)

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

    def _append(self, topic: Topic, drafts: Sequence[Draft], now_ns: int) -> list[str]:
        first = topic.log.next_sequence
        messages = [
            Message(
                sequence,
                d.publish_time_ns or now_ns,
                d.data,
                d.attributes,
                d.ordering_key,
                None if d.extras is None else shared_extras(d.extras),
            )
            for sequence, d in enumerate(drafts, first)
        ]
        self._record(f.MessagesPublished(topic.name, topic.number, messages))
        self._published += len(messages)
        if not self._sweep_ns:
            self._sweep_ns = now_ns + SWEEP_NS
        for subscription in topic.subscriptions.values():
            if subscription.is_eager:
                self._receive(subscription, messages)
        base = topic.number * SEQUENCES_PER_TOPIC
        return [str(base + sequence) for sequence in range(first, first + len(messages))]

    def _check_room(self, topic: Topic, drafts: Sequence[Draft]) -> None:
        for subscription in topic.subscriptions.values():
            capacity = subscription.settings.capacity
            if capacity is None or not capacity.refuse:
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
            SubscriptionNotFound, InvalidArgument.
        """
        subscription = self.subscription(subscription_name)
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

    def _select(
        self,
        subscription: Subscription,
        max_messages: int,
        max_bytes: int,
        consumer: str,
        oversized_first: bool,
        now_ns: int,
    ) -> list[int]:
        """What a pull may take now, within every bound there is."""
        settings = subscription.settings
        if settings.outstanding_messages_max:
            max_messages = min(max_messages, settings.outstanding_messages_max - len(subscription.leases))
        if settings.prefetch and consumer:
            max_messages = min(max_messages, settings.prefetch - self.outstanding(subscription, consumer))
        room = settings.outstanding_bytes_max - subscription.outstanding_bytes
        if max_messages <= 0 or (settings.outstanding_bytes_max and room <= 0):
            return []
        self._load(subscription, max_messages, now_ns)
        sequences = subscription.first(max_messages, now_ns)
        if max_bytes:
            sequences = within(subscription, sequences, max_bytes, alone_allowed=oversized_first)
        if settings.outstanding_bytes_max:
            # a large message never blocks for ever: where nothing is outstanding, the first goes alone
            sequences = within(subscription, sequences, room, alone_allowed=not len(subscription.leases))
        subscription.topic.log.fetch(sequences)
        return sequences

    def _load(self, subscription: Subscription, count: int, now_ns: int) -> None:
        """Have `count` ready messages, if there are so many. Eager subscriptions have all of theirs already."""
        head = subscription.topic.log.next_sequence
        while subscription.backlog.count < count and subscription.next_sequence < head:
            subscription.load(subscription.next_sequence + count - subscription.backlog.count - 1)
            expired = subscription.expired(now_ns)
            if expired:
                self._expire(subscription, expired, now_ns)
            subscription.promote(now_ns)
            self._schedule(subscription)

    def outstanding(self, subscription: Subscription, consumer: str) -> int:
        """How many messages a named consumer holds."""
        return (subscription.leases.by_consumer or {}).get(consumer, 0)

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

    def _schedule_following(self, subscription: Subscription) -> None:
        """Messages are done, and the next of their keys may have a delay of their own."""
        if subscription.settings.enable_message_ordering:
            self._schedule(subscription)

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

    def _fail(self, subscription: Subscription, sequences: list[int], cause: ReturnCause, now_ns: int) -> list[int]:
        """Leased messages come back: to wait again, after their backoff, or to be given up. Returns those given up."""
        dead: list[int] = []
        for fact in facts_of_failure(subscription, sequences, cause, now_ns):
            self._record(fact)
            if isinstance(fact, f.MessagesDeadLettered):
                dead += fact.sequences
        self._schedule(subscription)
        return dead

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

    # ── dead letters ────────────────────────────────────────────────────────────────────────────────────────────────

    def dead_letters(
        self, subscription_name: str, now_ns: int, *, offset: int = 0, limit: int | None = None
    ) -> list[tuple[DeadLetter, Message]]:
        """Those that the subscription keeps, oldest first: after the first `offset`, up to `limit`; None = all.
        Raises: SubscriptionNotFound."""
        subscription = self.subscription(subscription_name)
        self.tick(now_ns)
        letters = list(islice(subscription.dead.values(), offset, None if limit is None else offset + limit))
        messages = subscription.topic.log.select([letter.sequence for letter in letters])
        return list(zip(letters, messages, strict=True))

    def forwarded(self, subscription_name: str, sequences: Sequence[int]) -> None:
        """These are durable in their dead letter topic."""
        subscription = self.subscriptions.get(subscription_name)
        left = [sequence for sequence in sequences if subscription is not None and sequence in subscription.dead]
        if left:
            self._record(f.DeadLettersForwarded(subscription_name, left))

    def retry_dead_letters(self, subscription_name: str, message_ids: Sequence[str] | None, now_ns: int) -> int:
        """Back to the waiting. Returns how many. Raises: SubscriptionNotFound, MessageNotFound."""
        subscription = self.subscription(subscription_name)
        self.tick(now_ns)
        sequences = list(subscription.dead) if message_ids is None else self._dead_by_id(subscription, message_ids)
        if sequences:
            expiries = [_fresh_expiry_ns(subscription, sequence, now_ns) for sequence in sequences]
            self._record(f.DeadLettersRetried(subscription.name, sequences, expiries, now_ns))
            self._schedule(subscription)
        return len(sequences)

    def _dead_by_id(self, subscription: Subscription, message_ids: Sequence[str]) -> list[int]:
        sequences: dict[int, None] = {}
        for id_of_message in message_ids:
            topic_number, sequence = split_message_id(id_of_message)
            if topic_number != subscription.topic.number or sequence not in subscription.dead:
                raise MessageNotFound(id_of_message)
            sequences[sequence] = None
        return list(sequences)

    def purge_dead_letters(self, subscription_name: str) -> int:
        """Returns how many. Raises: SubscriptionNotFound."""
        subscription = self.subscription(subscription_name)
        sequences = list(subscription.dead)
        if sequences:
            self._record(f.DeadLettersPurged(subscription.name, sequences))
        return len(sequences)

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def statistics(self, subscription_name: str, now_ns: int) -> Statistics:
        """Raises: SubscriptionNotFound."""
        subscription = self.subscription(subscription_name)
        self.tick(now_ns)
        return subscription.statistics()


def _by_lease_number(subscription: Subscription, sequences: Sequence[int]) -> dict[int, list[int]]:
    groups: dict[int, list[int]] = {}
    for sequence in sequences:
        groups.setdefault(subscription.leases.by_sequence[sequence].number, []).append(sequence)
    return groups


def _fresh_expiry_ns(subscription: Subscription, sequence: int, now_ns: int) -> int:
    """A dead letter keeps its expiry (TTL counts from the first publish); one that died of it, or would do so at once,
    gets the same span again (queue-protocol.md)."""
    message = subscription.topic.log[sequence]
    expires_at_ns = subscription.first_expiry_ns(message)
    if not expires_at_ns:
        return 0
    if subscription.dead[sequence].reason is not DeadLetterReason.TTL_EXPIRED and expires_at_ns > now_ns:
        return expires_at_ns
    return now_ns + expires_at_ns - message.publish_time_ns
