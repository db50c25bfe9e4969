"""A subscription: a position in its topic's log, and what it has loaded from there.

Every message of the log from the subscription's creation on is, for it, in exactly one state: not loaded yet (from
`next_sequence` on), ready, waiting for its ordering key's turn, delayed, leased, a dead letter, or gone. The methods
here are the moves between those states, one for each fact; `engine.py` decides which fact happens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from heliograph.engine.backlog import Backlog
from heliograph.engine.dead_letter import DeadLetter, DeadLetterReason
from heliograph.engine.facts import LeasesRestored, ReturnCause, SubscriptionRestored
from heliograph.engine.fifo import unpack
from heliograph.engine.leases import Lease, Leases
from heliograph.engine.limits import PRIORITY_MAX
from heliograph.engine.log import PAGE_MESSAGES
from heliograph.engine.message import Message, priority_of, size_bytes, total_bytes
from heliograph.engine.ordering import OrderingKeys
from heliograph.engine.ranges import from_runs, to_runs
from heliograph.engine.schedule import Schedule
from heliograph.engine.settings import SubscriptionSettings
from heliograph.engine.statistics import Statistics, Totals
from heliograph.engine.topic import Topic
from heliograph.errors import HeliographError


class Subscription:
    """State of one subscription.

    Args:
        name: opaque to the engine.
        number: never reused; ack ids begin with it.
        topic: whose log it reads; it keeps it when the topic is deleted.
        settings: see `SubscriptionSettings`.
        created_ns: nanoseconds since the epoch.
    """

    __slots__ = (
        "_delayed",
        "_expires",
        "_keys",
        "_revived_ns",
        "backlog",
        "created_ns",
        "dead",
        "detached",
        "failures",
        "held_bytes",
        "lease_number",
        "leases",
        "name",
        "next_sequence",
        "number",
        "outstanding_bytes",
        "scheduled_ns",
        "settings",
        "topic",
        "totals",
    )

    def __init__(self, name: str, number: int, topic: Topic, settings: SubscriptionSettings, created_ns: int) -> None:
        self.name = name
        self.number = number
        self.topic = topic
        self.settings = settings
        self.created_ns = created_ns
        self.detached = False
        self.next_sequence = topic.log.next_sequence
        self.backlog = Backlog()
        self.leases = Leases()
        self.lease_number = 0  # of the latest hand-out
        self.failures: dict[int, int] = {}  # of messages handed out before; a hand-out taken back counts no failure
        self.dead: dict[int, DeadLetter] = {}  # oldest first
        self.totals = Totals()
        self.outstanding_bytes = 0
        self.held_bytes = 0  # kept only where a capacity bounds it
        self.scheduled_ns = 0  # the engine's timer entry; 0 = none
        # what few subscriptions need is made when it is needed: ten thousand of them shall cost little
        self._keys: OrderingKeys | None = OrderingKeys() if settings.enable_message_ordering else None
        self._delayed: Schedule | None = None
        self._expires: Schedule | None = None
        self._revived_ns: dict[int, int] | None = None  # where priorities age: when dead letters came back

    # ── what it is ──────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def is_eager(self) -> bool:
        """Whether messages are loaded as they are published: where priorities, delays or a capacity must be known."""
        return self._would_be_eager(self.settings)

    def _would_be_eager(self, settings: SubscriptionSettings) -> bool:
        return not self.topic.plain or settings.prioritised or settings.capacity is not None or settings.ttl_ns > 0

    @property
    def waiting(self) -> int:
        """Messages that are ready, or wait for their key's turn, or are not loaded yet."""
        keys = self._keys.waiting if self._keys is not None else 0
        return self.backlog.count + keys + self.topic.log.next_sequence - self.next_sequence

    @property
    def delayed(self) -> int:
        """Messages that wait for their time."""
        return len(self._delayed) if self._delayed is not None else 0

    @property
    def held(self) -> int:
        """Messages waiting, delayed or leased."""
        return self.waiting + self.delayed + len(self.leases)

    def attempt(self, sequence: int) -> int:
        """Which delivery the next, or the current, one is: from 1."""
        return self.failures.get(sequence, 0) + 1

    def expires_at_ns(self, sequence: int) -> int:
        """When the message expires; 0 = never."""
        return self._expires.instant_ns(sequence) if self._expires is not None else 0

    def priority_of(self, message: Message) -> int:
        """Its band here."""
        if not self.settings.prioritised:
            return 0
        return priority_of(message, self.settings.default_priority)

    # ── loading from the log ────────────────────────────────────────────────────────────────────────────────────────

    def load(self, last: int) -> None:
        """Take in the messages up to sequence `last`. A pure function of the log, so it needs no fact."""
        last = min(last, self.topic.log.next_sequence - 1)
        if self.next_sequence > last:
            return
        if self.topic.plain and self._keys is None and not self.is_eager:
            self.backlog.extend(range(self.next_sequence, last + 1))
            self.next_sequence = last + 1
            return
        while self.next_sequence <= last:
            # in pages, each read before anything changes: the store may fail
            end = min(last, self.next_sequence + PAGE_MESSAGES - 1)
            messages = list(self.topic.log.held(self.next_sequence, end))
            self.next_sequence = end + 1
            self._take_in(messages)

    def _take_in(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if self.settings.capacity is not None:
                self.held_bytes += size_bytes(message)
            self._note_expiry(message)
            if (
                self._keys is None
                or not message.ordering_key
                or self._keys.admit(message.ordering_key, message.sequence)
            ):
                self._wait_for_time(message)

    def first_expiry_ns(self, message: Message) -> int:
        """When it expires, counted from its publication; 0 = never."""
        expires_at_ns = message.extras.expires_at_ns if message.extras is not None else 0
        if not expires_at_ns and self.settings.ttl_ns:
            return message.publish_time_ns + self.settings.ttl_ns
        return expires_at_ns

    def _note_expiry(self, message: Message) -> None:
        expires_at_ns = self.first_expiry_ns(message)
        if expires_at_ns:
            self._expire_at(message.sequence, expires_at_ns)

    def _expire_at(self, sequence: int, expires_at_ns: int) -> None:
        if self._expires is None:
            self._expires = Schedule()
        self._expires.add(sequence, expires_at_ns)

    def _wait_for_time(self, message: Message) -> None:
        """It has its key's turn, if it has a key; now it waits for its own time, if it has one."""
        if message.extras is not None and message.extras.available_at_ns:
            self._delay(message.sequence, message.extras.available_at_ns)
        else:
            self.backlog.add(message.sequence, self.priority_of(message))

    def _delay(self, sequence: int, available_at_ns: int) -> None:
        if self._delayed is None:
            self._delayed = Schedule()
        self._delayed.add(sequence, available_at_ns)

    def skip(self, sequences: Sequence[int]) -> None:
        """MessagesDropped: the newest in the log never reach this subscription."""
        self.load(sequences[0] - 1)
        self.next_sequence = sequences[-1] + 1
        self.topic.log.release(sequences)
        self.totals.dropped += len(sequences)

    # ── time ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def promote(self, now_ns: int) -> bool:
        """Delayed messages whose time has come are ready. True if there were any. No fact: time alone decides it."""
        if self._delayed is None:
            return False
        sequences = self._delayed.due(now_ns)
        try:
            messages = self.topic.log.select(sequences)
        except HeliographError:
            self._delayed.requeue(sequences)
            raise
        for message in messages:
            self._delayed.remove(message.sequence)
            self.backlog.add(message.sequence, self.priority_of(message))
        return bool(sequences)

    def expired(self, now_ns: int) -> list[int]:
        """Waiting messages past their expiry, wherever they stand; leased ones are looked at when they come back."""
        if self._expires is None:
            return []
        leased = self.leases.by_sequence
        return sorted([sequence for sequence in self._expires.due(now_ns) if sequence not in leased])

    def requeue_expired(self, sequences: Sequence[int]) -> None:
        """What `expired` gave could not be dealt with: it gives them again."""
        if self._expires is not None:
            self._expires.requeue(sequences)

    def next_deadline_ns(self) -> int | None:
        """The next instant at which something here may change by itself."""
        deadline_ns = self.leases.next_deadline_ns()
        for schedule in (self._delayed, self._expires):
            instant_ns = schedule.next_ns() if schedule is not None else None
            if instant_ns is not None and (deadline_ns is None or instant_ns < deadline_ns):
                deadline_ns = instant_ns
        return deadline_ns

    # ── what comes next ─────────────────────────────────────────────────────────────────────────────────────────────

    def first(self, count: int, now_ns: int) -> list[int]:
        """Up to `count` ready messages in the order of delivery: the highest priority first, then the oldest."""
        if not self.settings.priority_aging_ns or not self.settings.prioritised:
            return self.backlog.first(count)
        period_ns = self.settings.priority_aging_ns

        def band_of(sequence: int, priority: int) -> int:
            waited_ns = max(now_ns - self._waits_since_ns(sequence), 0)
            return min(priority + waited_ns // period_ns, PRIORITY_MAX)

        return self.backlog.first_aged(count, band_of)

    def _waits_since_ns(self, sequence: int) -> int:
        """When it could first be delivered; leases and backoffs do not begin its age anew, a retry from the dead
        letters does. A function of the log and of facts, so that recovery finds the same order."""
        if self._revived_ns is not None and sequence in self._revived_ns:
            return self._revived_ns[sequence]
        message = self.topic.log[sequence]
        available_at_ns = message.extras.available_at_ns if message.extras is not None else 0
        return max(message.publish_time_ns, available_at_ns)

    # ── the moves ───────────────────────────────────────────────────────────────────────────────────────────────────

    def lease(self, sequences: Sequence[int], lease: Lease, leased_ns: int) -> list[Message]:
        """MessagesLeased. Returns the messages."""
        if sequences[-1] >= self.next_sequence or max(sequences) >= self.next_sequence:
            self.load(max(sequences))
        messages = self.topic.log.select(sequences)
        if not self.backlog.take_first(sequences):
            for message in messages:
                self._take_waiting(message)
        self.lease_number = lease.number
        self.leases.grant(sequences, lease)
        self.outstanding_bytes += total_bytes(messages)
        self._count_hand_out(messages, leased_ns)
        return messages

    def _count_hand_out(self, messages: Sequence[Message], leased_ns: int) -> None:
        totals, failures = self.totals, self.failures
        totals.delivered += len(messages)
        if failures:
            first_time = [message for message in messages if message.sequence not in failures]
            totals.redelivered += len(messages) - len(first_time)
            messages = first_time
        published_ns = [message.publish_time_ns for message in messages]
        totals.first_deliveries += len(published_ns)
        totals.wait_ns += leased_ns * len(published_ns) - sum(published_ns)

    def _take_waiting(self, message: Message) -> None:
        if self._delayed is None or not self._delayed.remove(message.sequence):
            self.backlog.take(message.sequence, self.priority_of(message))

    def _end_leases(self, sequences: Sequence[int]) -> list[Message]:
        messages = self.topic.log.select(sequences)
        self.leases.end(sequences)
        self.outstanding_bytes -= total_bytes(messages)
        return messages

    def acknowledge(self, sequences: Sequence[int]) -> None:
        """MessagesAcknowledged."""
        messages = self._end_leases(sequences)
        self.totals.acknowledged += len(sequences)
        self._settle(messages)
        self._leave(messages)

    def put_back(self, sequences: Sequence[int], available_at_ns: Sequence[int], cause: ReturnCause) -> None:
        """MessagesReturned."""
        messages = self._end_leases(sequences)
        self._count_failures(sequences, cause)
        for index, message in enumerate(messages):
            if available_at_ns and available_at_ns[index]:
                self._delay(message.sequence, available_at_ns[index])
            else:
                self.backlog.add(message.sequence, self.priority_of(message))

    def _count_failures(self, sequences: Sequence[int], cause: ReturnCause | None) -> None:
        failures = self.failures
        if cause is ReturnCause.RELEASED or cause is None:
            for sequence in sequences:
                failures.setdefault(sequence, 0)
            return
        for sequence in sequences:
            failures[sequence] = failures.get(sequence, 0) + 1
        if cause is ReturnCause.NACKED:
            self.totals.nacked += len(sequences)
        else:
            self.totals.expired += len(sequences)

    def give_up(
        self, sequences: Sequence[int], reason: DeadLetterReason, now_ns: int, cause: ReturnCause | None
    ) -> None:
        """MessagesDeadLettered."""
        if cause is None:
            messages = self._withdraw(sequences)
        else:
            messages = self._end_leases(sequences)
            self._count_failures(sequences, cause)
        self.totals.dead_lettered += len(sequences)
        for message in messages:
            sequence = message.sequence
            self.dead[sequence] = DeadLetter(sequence, reason, self.failures.get(sequence, 0), now_ns)
        self._settle(messages, left_already=cause is None)
        policy = self.settings.dead_letter_policy
        if policy is not None and policy.topic is None and len(self.dead) > policy.kept_max:
            oldest = list(islice(self.dead, len(self.dead) - policy.kept_max))
            self.totals.dead_letters_dropped += len(oldest)
            self.drop_dead(oldest)

    def drop_dead(self, sequences: Sequence[int]) -> None:
        """DeadLettersForwarded, DeadLettersPurged, and the oldest beyond the bound."""
        for sequence in sequences:
            del self.dead[sequence]
        self.topic.log.release(sequences)

    def revive(self, sequences: Sequence[int], expires_at_ns: Sequence[int], retried_ns: int) -> None:
        """DeadLettersRetried. They go to their place; a key of theirs has moved on, so they wait for its turn."""
        if self.settings.priority_aging_ns:
            self._revived_ns = (self._revived_ns or {}) | dict.fromkeys(sequences, retried_ns)
        # whose turn it is must not depend on how much happened to be loaded: facts alone decide
        self.load(self.topic.log.next_sequence - 1)
        for sequence, expiry in zip(sequences, expires_at_ns, strict=True):
            if self.dead.pop(sequence).failures:
                self.failures[sequence] = 0  # it was handed out before
            message = self.topic.log[sequence]
            if self.settings.capacity is not None:
                self.held_bytes += size_bytes(message)
            if expiry:
                self._expire_at(sequence, expiry)
            if self._keys is None or not message.ordering_key or self._keys.admit(message.ordering_key, sequence):
                self._wait_for_time(message)  # it may have died before its delay was over

    def purge(self, sequences: Sequence[int]) -> None:
        """MessagesPurged: waiting messages that are gone."""
        messages = self._withdraw(sequences)
        self._settle(messages, left_already=True)
        self._leave(messages)

    def _withdraw(self, sequences: Sequence[int]) -> list[Message]:
        """Take waiting messages out of wherever they wait, and let their keys go on."""
        self.load(max(sequences))
        messages = self.topic.log.select(sequences)
        for message in messages:
            key = message.ordering_key
            if self._keys is None or not key:
                self._take_waiting(message)
            elif not self._keys.leave(key, message.sequence):
                self._take_waiting(message)
                self._pass_on(key)
        return messages

    def _settle(self, messages: Sequence[Message], *, left_already: bool = False) -> None:
        """They are done here: forget what was kept about them, and let their keys go on."""
        if self.failures:
            for message in messages:
                self.failures.pop(message.sequence, None)
        if self._expires is not None:
            for message in messages:
                self._expires.remove(message.sequence)
        if self._revived_ns:
            for message in messages:
                self._revived_ns.pop(message.sequence, None)
        if self.settings.capacity is not None:
            self.held_bytes -= total_bytes(messages)
        if self._keys is not None and not left_already:
            for message in messages:
                if message.ordering_key:
                    self._pass_on(message.ordering_key)

    def _pass_on(self, key: str) -> None:
        assert self._keys is not None
        following = self._keys.pass_on(key)
        if following is not None:
            self._wait_for_time(self.topic.log[following])

    def _leave(self, messages: Sequence[Message]) -> None:
        self.topic.log.release([message.sequence for message in messages])

    # ── changes ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def prepare_update(self, settings: SubscriptionSettings) -> None:
        """What waits is taken in under the settings so far, and what `update` will look at is in memory.

        Raises:
            Unavailable, Internal: the store cannot be read, or is damaged there.
        """
        if self.is_eager or self._would_be_eager(settings):
            self.load(self.topic.log.next_sequence - 1)
        if settings.prioritised and settings.default_priority != self.settings.default_priority:
            self.topic.log.fetch(list(self.backlog))
        if settings.capacity is not None and self.settings.capacity is None:
            self.topic.log.fetch([*self.waiting_sequences(), *self.leases.by_sequence])

    def update(self, settings: SubscriptionSettings) -> None:
        """SubscriptionUpdated."""
        self.prepare_update(settings)
        old, self.settings = self.settings, settings
        log = self.topic.log
        if settings.capacity is None:
            self.held_bytes = 0
        elif old.capacity is None:
            self.held_bytes = total_bytes([log[n] for n in (*self.waiting_sequences(), *self.leases.by_sequence)])
        if settings.prioritised and settings.default_priority != old.default_priority:
            waiting, self.backlog = self.backlog, Backlog()
            for message in log.select(sorted(waiting)):
                self.backlog.add(message.sequence, self.priority_of(message))

    def detach(self) -> None:
        """SubscriptionDetached, or its topic is deleted with its backlog."""
        self.clear()
        self.topic.subscriptions.pop(self.name, None)
        self.topic = self.topic.stand_in()
        self.next_sequence = self.topic.log.next_sequence
        self.detached = True

    # ── checkpoints ─────────────────────────────────────────────────────────────────────────────────────────────────

    def capture(self) -> SubscriptionRestored:
        """The fact that recreates it as it is."""
        groups: dict[int, tuple[Lease, list[int]]] = {}
        for sequence, lease in self.leases.by_sequence.items():
            groups.setdefault(id(lease), (lease, []))[1].append(sequence)
        return SubscriptionRestored(
            name=self.name,
            number=self.number,
            topic_number=self.topic.number,
            settings=self.settings,
            created_ns=self.created_ns,
            detached=self.detached,
            next_sequence=self.next_sequence,
            lease_number=self.lease_number,
            ready=self.backlog.packed(),
            behind=list(self._keys) if self._keys is not None else [],
            delayed=self._delayed.instants() if self._delayed is not None else {},
            expires=self._expires.instants() if self._expires is not None else {},
            leases=[
                LeasesRestored(lease.number, lease.deadline_ns, lease.consumer, to_runs(sorted(sequences)))
                for lease, sequences in groups.values()
            ],
            failures=dict(self.failures),
            dead=list(self.dead.values()),
            totals=self.totals.copy(),
            outstanding_bytes=self.outstanding_bytes,
            held_bytes=self.held_bytes,
            revived_ns=dict(self._revived_ns or {}),
        )

    def restore(self, state: SubscriptionRestored) -> None:
        """SubscriptionRestored: take up the state that `capture` gave. Bodies stay in the store, save of messages with
        an ordering key."""
        self.detached = state.detached
        self.next_sequence = state.next_sequence
        self.lease_number = state.lease_number
        self.failures = dict(state.failures)
        self.dead = {letter.sequence: letter for letter in state.dead}
        self.totals = state.totals.copy()
        self.outstanding_bytes, self.held_bytes = state.outstanding_bytes, state.held_bytes
        self._revived_ns = dict(state.revived_ns) or None
        log = self.topic.log
        ready = {priority: unpack(packed) for priority, packed in state.ready.items()}
        for sequences in ready.values():
            log.hold_all(sequences)
        for group in state.leases:
            for first, stop in group.held:
                log.hold(first, stop)
        for sequence in (*state.behind, *state.delayed, *self.dead):
            log.hold(sequence, sequence + 1)
        log.hold(self.next_sequence, log.next_sequence)
        self.backlog.restore(ready)
        for sequence, instant_ns in state.delayed.items():
            self._delay(sequence, instant_ns)
        for sequence, instant_ns in state.expires.items():
            self._expire_at(sequence, instant_ns)
        for group in state.leases:
            lease = Lease(group.number, group.deadline_ns, group.consumer)
            self.leases.grant(list(from_runs(group.held)), lease)
        if self._keys is not None:
            self._restore_keys(self._keys, state)

    def _restore_keys(self, keys: OrderingKeys, state: SubscriptionRestored) -> None:
        for sequence in (*self.backlog, *state.delayed, *self.leases.by_sequence):
            key = self.topic.log[sequence].ordering_key
            if key:
                keys.restore_turn(key)
        for sequence in state.behind:
            keys.admit(self.topic.log[sequence].ordering_key, sequence)

    # ── what it holds ───────────────────────────────────────────────────────────────────────────────────────────────

    def waiting_sequences(self, unloaded_up_to: int | None = None) -> Iterator[int]:
        """Every message that is neither leased nor a dead letter; not in the order of delivery. Of those that are not
        loaded only the ones up to `unloaded_up_to`, if it is given."""
        yield from self.backlog
        yield from self._delayed or ()
        if self._keys is not None:
            yield from self._keys
        last = self.topic.log.next_sequence - 1 if unloaded_up_to is None else unloaded_up_to
        yield from self.topic.log.held_sequences(self.next_sequence, last)

    def unacknowledged(self) -> list[int]:
        """Every message it holds in any state, dead letters among them, by sequence."""
        return sorted([*self.waiting_sequences(), *self.leases.by_sequence, *self.dead])

    def clear(self) -> None:
        """Everything it holds goes: it is deleted, or its topic's backlog is cleared."""
        self.topic.log.release(self.unacknowledged())
        self.next_sequence = self.topic.log.next_sequence
        self.backlog = Backlog()
        self.leases = Leases()
        self.failures, self.dead = {}, {}
        self.outstanding_bytes = self.held_bytes = 0
        self._keys = OrderingKeys() if self._keys is not None else None
        self._delayed = self._expires = self._revived_ns = None

    def oldest_waiting(self) -> int:
        """The lowest sequence that waits; 0 = none. Looks at the front of each place only."""
        fronts = self.backlog.fronts()
        fronts += [min(places) for places in (self._delayed, self._keys.fronts() if self._keys else ()) if places]
        unloaded = next(
            (message.sequence for message in self.topic.log.held(self.next_sequence, self.topic.log.next_sequence - 1)),
            0,
        )
        return min([*fronts, unloaded] if unloaded else fronts, default=0)

    def statistics(self) -> Statistics:
        """Gauges and totals now."""
        waiting = self.oldest_waiting()
        leased = min(self.leases.by_sequence, default=0)
        oldest = min((sequence for sequence in (waiting, leased) if sequence), default=0)
        log = self.topic.log
        return Statistics(
            ready=self.waiting,
            delayed=self.delayed,
            outstanding=len(self.leases),
            outstanding_bytes=self.outstanding_bytes,
            dead_letters=len(self.dead),
            consumers=len(self.leases.by_consumer or ()),
            depth_by_priority=self.backlog.counts() if self.settings.prioritised else {},
            oldest_waiting_ns=log[waiting].publish_time_ns if waiting else 0,
            oldest_unacknowledged_ns=log[oldest].publish_time_ns if oldest else 0,
            totals=self.totals.copy(),
        )
