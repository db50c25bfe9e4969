"""A subscription: a position in its topic's log, and what it has loaded from there.

Every message of the log from the subscription's creation on is, for it, in exactly one state: not loaded yet (from
`next_sequence` on), ready, waiting for its ordering key's turn, delayed, leased, a dead letter, or gone. The methods
here are the moves between those states, one for each fact; `engine.py` decides which fact happens.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from heliograph.engine.backlog import Backlog
from heliograph.engine.dead_letter import DeadLetter, DeadLetterReason
from heliograph.engine.facts import LeasesRestored, ReturnCause, SubscriptionRestored
from heliograph.engine.fifo import unpack
from heliograph.engine.leases import Lease, Leases
from heliograph.engine.loading import Loading
from heliograph.engine.message import Message, size_bytes, total_bytes
from heliograph.engine.ordering import OrderingKeys
from heliograph.engine.ranges import Run, Runs, difference, from_runs, pack_runs, to_runs, union, unpack_runs
from heliograph.engine.settings import SubscriptionSettings
from heliograph.engine.statistics import Statistics
from heliograph.engine.topic import Topic


class Subscription(Loading):
    """State of one subscription: the moves of its messages. Arguments as of `Loading`."""

    __slots__ = ()

    # ── the moves ───────────────────────────────────────────────────────────────────────────────────────────────────

    def lease(self, sequences: Sequence[int], lease: Lease, leased_ns: int) -> list[Message]:
        """MessagesLeased. Returns the messages."""
        if self._earlier is not None or sequences[-1] >= self.next_sequence or max(sequences) >= self.next_sequence:
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
        if self.is_eager or self._looks_inside(settings):
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
        self.topic.detach(self)
        self.detached = True
        self.stand_apart(self.topic)

    def stand_apart(self, topic: Topic) -> None:
        """It is detached from the topic, and keeps what that is called."""
        self.topic = topic.stand_in()
        self.next_sequence = self.topic.log.next_sequence

    # ── checkpoints ─────────────────────────────────────────────────────────────────────────────────────────────────

    def capture(self) -> SubscriptionRestored:
        """The fact that recreates it as it is."""
        groups: dict[int, tuple[Lease, list[int]]] = {}
        for sequence, lease in self.leases.by_sequence.items():
            groups.setdefault(id(lease), (lease, []))[1].append(sequence)
        behind = sorted(self._keys) if self._keys is not None else []
        if self.is_eager:
            earlier = list(self._earlier or ())
        else:  # who waits for its key's turn is as if it were not loaded, and will be again, in order
            earlier, behind = union(self._earlier or (), to_runs(behind)), []
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
            behind=behind,
            delayed=self._delayed.instants() if self._delayed is not None else {},
            expires=self._expires.instants() if self._expires is not None else {},
            leases=[
                LeasesRestored(
                    lease.number, lease.deadline_ns, lease.consumer, to_runs(sorted(sequences)), lease.leased_ns
                )
                for lease, sequences in groups.values()
            ],
            failures=dict(self.failures),
            dead=list(self.dead.values()),
            totals=self.totals.copy(),
            outstanding_bytes=self.outstanding_bytes,
            held_bytes=self.held_bytes,
            revived_ns=dict(self._revived_ns or {}),
            first_sequence=self.first_sequence,
            used_ns=self.used_ns,
            earlier=pack_runs(earlier) if earlier else b"",
        )

    def restore(self, state: SubscriptionRestored) -> None:
        """SubscriptionRestored: take up the state that `capture` gave. Bodies stay in the store, save of messages with
        an ordering key."""
        self.detached = state.detached
        self.next_sequence = state.next_sequence if not state.detached else self.topic.log.next_sequence
        self.first_sequence = state.first_sequence
        self.used_ns = max(state.used_ns, state.created_ns)
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
        earlier = unpack_runs(state.earlier)
        for first, stop in earlier:
            log.hold(first, stop)
        self._earlier = Runs(earlier) if earlier else None
        self.backlog.restore(ready)
        for sequence, instant_ns in state.delayed.items():
            self._delay(sequence, instant_ns)
        for sequence, instant_ns in state.expires.items():
            self._expire_at(sequence, instant_ns)
        for group in state.leases:
            lease = Lease(group.number, group.deadline_ns, group.consumer, group.leased_ns)
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

    def clear(self) -> None:
        """Everything it holds goes: it is deleted, or its topic's backlog is cleared."""
        self.topic.log.release_runs(union(self.unacknowledged_runs(), to_runs(sorted(self.dead))))
        self.dead = {}
        self._begin_anew([])

    def seek(self, target: list[Run]) -> None:
        """SubscriptionSought: exactly these are not acknowledged, dead letters apart. What it holds already and will
        hold is not touched, since it may be in memory only."""
        before = self.unacknowledged_runs()
        self.topic.log.take_back(difference(target, before))
        self.topic.log.release_runs(difference(before, target))
        self._begin_anew(target)

    def _begin_anew(self, unloaded: list[Run]) -> None:
        """Nothing is loaded, and nothing known of these messages, which it holds."""
        self.next_sequence = self.topic.log.next_sequence
        if unloaded and unloaded[-1][1] == self.next_sequence and self.filter is None:
            self.next_sequence = unloaded[-1][0]
            unloaded = unloaded[:-1]
        self._earlier = Runs(unloaded) if unloaded else None
        self.backlog = Backlog()
        self.leases = Leases()
        self.failures = {}
        self.outstanding_bytes = self.held_bytes = 0
        self._keys = OrderingKeys() if self._keys is not None else None
        self._delayed = self._expires = self._revived_ns = None

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
