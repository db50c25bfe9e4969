"""How every operation of a broker begins and ends: the one place where engine, store and clock meet.

An operation runs on the engine under one lock; its facts go to the store; the reply comes true when they are durable.
The engine's deadlines set a timer, so that what time decides happens also when nobody calls.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from heliograph.broker.clock import Clock, Timer
from heliograph.broker.forwarding import dead_letter_draft
from heliograph.broker.housekeeping import Housekeeping
from heliograph.broker.protocol import Health
from heliograph.broker.reply import Reply
from heliograph.broker.watches import SubscriptionWatch, Watches, wake
from heliograph.engine.subscription import Subscription
from heliograph.errors import HeliographError, InvalidAckId, SubscriptionNotFound, Unavailable
from heliograph.store.protocol import COMMITTED, Commit, Store

_log = logging.getLogger("heliograph")

FORWARDING_SECONDS_MAX = 5.0
"""How long closing waits for dead letters on their way to their topics."""

T = TypeVar("T")


class Operations:
    """What `LocalBroker` and its parts stand on.

    Args: see `LocalBroker`.

    Raises:
        StoreRefused: the store cannot be opened; it is left untouched.
    """

    def __init__(self, store: Store, clock: Clock, *, memory_budget_bytes: int | None, event_retention_ns: int) -> None:
        self._event_retention_ns = event_retention_ns
        self._store = store
        self._clock = clock
        self._lock = threading.RLock()
        self._committing = threading.Lock()  # what is staged; before `_lock`
        self._housekeeping = Housekeeping(self._store, memory_budget_bytes, event_retention_ns)
        self._engine = self._housekeeping.engine
        self._watches = self._engine.watched = Watches()
        self._commit: Commit = COMMITTED  # of the latest facts
        self._homeless: set[str] = set()  # topics that dead letters wait for, and that do not exist (yet)
        self._unread: list[tuple[str, int]] = []  # dead letters that could not be read; the timer tries again
        self._forwarding = 0  # commits of published dead letters that are not over
        self._on_their_way = self._engine.on_their_way = set[tuple[int, int]]()
        self._forwarded = threading.Condition(self._lock)
        self._in_forward = False
        self._closed = False
        self._settled: deque[tuple[str, str]] = deque()  # of `acknowledge_later`: (subscription, ack id)
        self._settled_ns = 0  # when the first of them was
        self._released = False  # the store is closed or closing
        try:
            self._housekeeping.recover(self._clock.now_ns())
        except BaseException:
            with contextlib.suppress(HeliographError):
                self._store.close()  # another may open it then
            raise
        self._timer = self._clock.timer(self._tick)
        self._finish_operation()

    # ── how an operation begins and ends ────────────────────────────────────────────────────────────────────────────

    def _change(self, operation: Callable[[int], T]) -> Reply[T]:
        """The usual form of an operation that changes something: `operation(now_ns)` under the lock, then its end."""
        with self._lock:
            value = operation(self._now_ns())
            commit, woken = self._finish_operation()
        wake(woken)
        return Reply(value, commit)

    def _ask(self, question: Callable[[int], T]) -> T:
        """A question may find something due, and it may be the first to load a message that has a deadline."""
        with self._lock:
            answer = question(self._now_ns())
            _, woken = self._finish_operation()
        wake(woken)
        return answer

    def _now_ns(self) -> int:
        """Under the lock: the time of an operation.

        Raises:
            Unavailable: the broker is closed, or its store cannot commit: then nothing may change.
        """
        if self._closed:
            raise Unavailable("The broker is closed")
        trouble = self._trouble()
        if trouble:
            raise Unavailable(trouble)
        if self._settled:
            self._acknowledge_settled()
        return self._clock.now_ns()

    def _finish_operation(self) -> tuple[Commit, list[SubscriptionWatch]]:
        """Under the lock: hand the facts to the store, dead letters to their topics, and see who is to be woken."""
        engine = self._engine
        facts = engine.take_facts()
        if facts:
            self._commit = self._store.append(facts)
        elif self._commit.error is not None:
            self._commit = self._store.append(())  # what failed then may be durable by now
        commit = self._commit
        if engine.forwards:
            self._forward()
        self._housekeeping.keep_house()
        if engine.filled:
            self._warn()
        deadline_ns = engine.next_deadline_ns()
        if deadline_ns is not None:
            self._timer.set(deadline_ns)
        if not engine.woken:
            return commit, []
        woken, engine.woken = engine.woken, set()
        return commit, self._watches.of(woken)

    def _warn(self) -> None:
        """Under the lock: tell, once each time, which subscriptions begin to drop what is published (BR-022)."""
        filled, self._engine.filled = self._engine.filled, []
        for name in filled:
            capacity = self._engine.subscriptions[name].settings.capacity
            assert capacity is not None
            _log.warning(
                "Subscription %s is at its capacity (%d messages or %d bytes): new messages are dropped for it",
                name,
                capacity.messages,
                capacity.bytes,
            )

    def _tick(self) -> None:
        """The timer's call: what is due happens."""
        with self._lock:
            if self._closed or self._engine.broken is not None:
                return
            self._engine.forwards += self._unread
            self._unread.clear()
            if self._settled and self._store.failing is None:
                self._acknowledge_settled()
            self._engine.tick(self._clock.now_ns())
            self._engine.expire_unused(self._clock.now_ns())
            _, woken = self._finish_operation()
        wake(woken)

    def _acknowledge_settled(self) -> None:
        """Under the lock: `acknowledge_later` happens now, as of the time of its call."""
        pending, by_subscription = self._settled, dict[str, list[str]]()
        while pending:
            name, ack_id = pending.popleft()
            by_subscription.setdefault(name, []).append(ack_id)
        for name, ack_ids in by_subscription.items():
            try:
                self._engine.acknowledge(name, ack_ids, self._settled_ns)
            except InvalidAckId as error:
                valid = [ack_id for ack_id in ack_ids if ack_id not in error.ack_ids]
                self._engine.acknowledge(name, valid, self._settled_ns)
            except SubscriptionNotFound:
                continue

    # ── dead letters to their topics ────────────────────────────────────────────────────────────────────────────────

    def _forward(self) -> None:
        """Under the lock: publish dead letters, each to its topic; they leave their subscription when that is durable.
        One whose topic does not exist (yet) stays where it is until there is one."""
        engine = self._engine
        forwards, engine.forwards = engine.forwards, []
        published: dict[Subscription, list[int]] = {}
        for name, sequence in dict.fromkeys(forwards):
            subscription = engine.subscriptions.get(name)
            if subscription is None or sequence not in subscription.dead:
                continue
            if (subscription.number, sequence) in self._on_their_way:
                continue  # the policy was changed since
            policy = subscription.settings.dead_letter_policy
            if policy is None or policy.topic is None:
                continue  # it was updated meanwhile, and keeps them
            if policy.topic not in engine.topics:
                if policy.topic not in self._homeless:
                    self._homeless.add(policy.topic)
                    _log.warning("dead letters of %s are kept until their topic %s exists", name, policy.topic)
                continue
            try:
                draft = dead_letter_draft(subscription, sequence)
            except HeliographError as error:
                _log.error("a dead letter of %s cannot be read, and is not forwarded yet: %s", name, error)
                self._unread.append((name, sequence))
                continue
            engine.publish_dead_letters(policy.topic, [draft], self._clock.now_ns())
            published.setdefault(subscription, []).append(sequence)
            self._on_their_way.add((subscription.number, sequence))
        facts = engine.take_facts()
        if facts:
            self._commit = self._store.append(facts)
            self._forwarding += 1
            self._in_forward = True
            self._commit.add_done_callback(functools.partial(self._on_forwarded, published))
            self._in_forward = False

    def _on_forwarded(self, published: dict[Subscription, list[int]]) -> None:
        """The commit of published dead letters is over. If it failed, the store still has it, and writes it before
        anything newer: publishing them again would double them."""
        engine = self._engine
        woken: list[SubscriptionWatch] = []
        with self._lock:
            self._forwarding -= 1
            self._forwarded.notify_all()
            if self._released or engine.broken is not None:
                return
            for subscription, sequences in published.items():
                self._on_their_way.difference_update([(subscription.number, sequence) for sequence in sequences])
                if engine.subscriptions.get(subscription.name) is subscription:
                    engine.forwarded(subscription.name, sequences)
            if self._in_forward:  # it was over at once, and the operation that we are in is not finished
                self._commit = self._store.append(engine.take_facts())
            else:
                _, woken = self._finish_operation()
        wake(woken)

    def _topic_exists_now(self, name: str) -> None:
        """Dead letters that waited for it are on their way."""
        if name not in self._homeless:
            return
        self._homeless.discard(name)
        for subscription in self._engine.subscriptions.values():
            policy = subscription.settings.dead_letter_policy
            if policy is not None and policy.topic == name:
                self._engine.forwards += [(subscription.name, sequence) for sequence in subscription.dead]

    # ── the broker as a whole ───────────────────────────────────────────────────────────────────────────────────────

    def health(self) -> Health:
        store = self._store
        return Health(store.kind, store.durability, "The broker is closed" if self._closed else self._trouble())

    def _trouble(self) -> str:
        """Why nothing may change at present; "" = it may."""
        if self._engine.broken is not None:
            return f"The broker must be started again, nothing answered is lost: {self._engine.broken}"
        failing = self._store.failing
        return "" if failing is None else f"The store cannot commit: {failing}"

    def now_ns(self) -> int:
        return self._clock.now_ns()

    def timer(self, callback: Callable[[], None]) -> Timer:
        return self._clock.timer(callback)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            if self._settled and self._store.failing is None:
                self._acknowledge_settled()
            self._finish_operation()  # also what an operation that was refused found due, and nobody stored yet
            self._closed = True
            woken = self._watches.of(self._engine.subscriptions)
            # a dead letter that is durable in its topic, and not known to be so here, would be published again
            self._forwarded.wait_for(lambda: not self._forwarding, FORWARDING_SECONDS_MAX)
            self._released = True
        self._timer.close()
        wake(woken)
        self._store.close()
