"""What happens by itself: leases end, delays pass, messages expire or are too old.

One heap of timers, at most one current entry per subscription; `next_deadline_ns` tells the broker when to call `tick`.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from heapq import heapify, heappop, heappush

from heliograph.engine import facts as f
from heliograph.engine.dead_letter import DeadLetterReason
from heliograph.engine.facts import ReturnCause
from heliograph.engine.failure import facts_of_failure
from heliograph.engine.message import Message
from heliograph.engine.retention import (
    PURGED_PER_FACT_MAX,
    SWEEP_MESSAGES,
    SWEEP_NS,
    TrimPoint,
    past_retention,
    trim_point,
)
from heliograph.engine.state import State
from heliograph.engine.subscription import Subscription
from heliograph.errors import HeliographError

# How often facts tell that a subscription is used, at most, so that it survives a restart; and how many times at least
# within the span after which an unused one expires.
USED_GRAIN_NS = 3600 * 1_000_000_000
USED_PARTS = 24
# When a message that the store cannot read is due again.
READ_AGAIN_NS = 1_000_000_000


class Timekeeping(State):
    """`State`, and what time does to it.

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
        self._unused_ns = 0  # when unused subscriptions are looked for next
        self.watched: Container[str] = ()  # subscriptions that somebody waits for: kept by the caller
        # dead letters that are published to their topic, and not known to be durable there: kept by the caller
        self.on_their_way: Container[tuple[int, int]] = ()  # (subscription number, sequence)
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
        """Waiting messages past their retention go, snapshots expire, and the store learns what nobody needs any
        more."""
        self._sweep_ns, self._published = now_ns + SWEEP_NS, 0
        for snapshot in list(self.snapshots.values()):
            if snapshot.expires_ns <= now_ns:
                self._record(f.SnapshotDeleted(snapshot.name))
            else:
                self._sweep_by(snapshot.expires_ns)
        for subscription in list(self.subscriptions.values()):
            old = self._past_retention(subscription, now_ns)
            for start in range(0, len(old), PURGED_PER_FACT_MAX):
                self._record(f.MessagesPurged(subscription.name, old[start : start + PURGED_PER_FACT_MAX]))
            self._schedule(subscription)  # a key that goes on may bring a delay
        snapshots = self.snapshots_by_topic()
        self.trims = [trim_point(topic, now_ns, snapshots.get(topic.number, ())) for topic in self.all_topics()]

    def expire_unused(self, now_ns: int) -> None:
        """Subscriptions that nobody has used for as long as they are to be kept are deleted (pubsub-protocol.md 1.5.4).
        For the caller's timer, not within operations: what they work on must not go meanwhile."""
        if now_ns < self._unused_ns:
            return
        self._unused_ns = now_ns + SWEEP_NS
        for subscription in list(self.subscriptions.values()):
            name, limit_ns = subscription.name, subscription.settings.expires_after_ns
            if not limit_ns:
                continue
            if name in self.watched:
                subscription.touched_ns = now_ns
            used_ns = max(subscription.used_ns, subscription.touched_ns)
            if now_ns - used_ns >= limit_ns:
                self._full.discard(name)
                self._record(f.SubscriptionDeleted(name))
            elif used_ns - subscription.used_ns >= min(USED_GRAIN_NS, limit_ns // USED_PARTS):
                self._record(f.SubscriptionUsed(name, used_ns))

    def _sweep_by(self, instant_ns: int) -> None:
        """At the latest."""
        self._sweep_ns = min(self._sweep_ns, instant_ns) if self._sweep_ns else instant_ns

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

    # ── what comes back ─────────────────────────────────────────────────────────────────────────────────────────────

    def _schedule_following(self, subscription: Subscription) -> None:
        """Messages are done, and the next of their keys may have a delay of their own."""
        if subscription.settings.enable_message_ordering:
            self._schedule(subscription)

    def _fail(self, subscription: Subscription, sequences: list[int], cause: ReturnCause, now_ns: int) -> list[int]:
        """Leased messages come back: to wait again, after their backoff, or to be given up. Returns those given up."""
        dead: list[int] = []
        for fact in facts_of_failure(subscription, sequences, cause, now_ns):
            self._record(fact)
            if isinstance(fact, f.MessagesDeadLettered):
                dead += fact.sequences
        self._schedule(subscription)
        return dead
