"""The one place where engine, store and clock meet.

An operation runs on the engine under one lock; its facts go to the store; the reply comes true when they are durable.
The engine's deadlines set a timer, so that what time decides happens also when nobody calls.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Self, TypeVar, get_args

from heliograph.broker.claims import Claims
from heliograph.broker.clock import Clock, SystemClock, Timer
from heliograph.broker.forwarding import dead_letter_draft
from heliograph.broker.housekeeping import MEMORY_BUDGET_BYTES, Housekeeping
from heliograph.broker.protocol import Health, Watch
from heliograph.broker.reading import Reading
from heliograph.broker.reply import Reply
from heliograph.broker.staging import Staging
from heliograph.broker.watches import SubscriptionWatch, Watches, wake
from heliograph.engine.dead_letter import DeadLetter
from heliograph.engine.failure import Settled
from heliograph.engine.message import Delivery, Draft, Message
from heliograph.engine.statistics import Statistics
from heliograph.engine.subscription import Subscription
from heliograph.errors import (
    HeliographError,
    InvalidAckId,
    InvalidArgument,
    SubscriptionNotFound,
    Unavailable,
)
from heliograph.store.memory import MemoryStore
from heliograph.store.protocol import COMMITTED, Commit, Durability, Store
from heliograph.store.sqlite import SqliteStore

_log = logging.getLogger("heliograph")

EVENTS_BYTES_MAX = 256 * 1024 * 1024
"""How much a file keeps of its event log; the oldest part goes first."""

EVENTS_IN_MEMORY_MAX = 200_000
"""How many events a broker in memory keeps, about."""

FORWARDING_SECONDS_MAX = 5.0
"""How long closing waits for dead letters on their way to their topics."""

T = TypeVar("T")


def open_store(
    data_dir: str | os.PathLike[str] | None = None, *, durability: Durability = "full", event_retention_ns: int = 0
) -> Store:
    """The store of a broker, with room for its event log.

    Args:
        data_dir: None = in memory.
        durability, event_retention_ns: see `LocalBroker.open`.

    Raises:
        InvalidArgument, StoreRefused: see `LocalBroker.open`.
    """
    if data_dir is None:
        return MemoryStore(events_max=EVENTS_IN_MEMORY_MAX if event_retention_ns else 0)
    if durability not in get_args(Durability):
        raise InvalidArgument(f"durability must be one of {', '.join(get_args(Durability))}, not {durability!r}")
    events_bytes_max = EVENTS_BYTES_MAX if event_retention_ns else 0
    return SqliteStore(data_dir, durability=durability, events_bytes_max=events_bytes_max)


class LocalBroker(Claims, Staging, Reading):
    """A broker in this process; see `heliograph.broker.protocol.Broker` for its operations.

    Args:
        store: where facts become durable; None = memory.
        clock: None = the machine's.
        memory_budget_bytes: how many bytes of messages may stay in memory when the store has them too; None = all stay.
        event_retention_ns: how long the event log is kept, as far as the store keeps one; 0 = there is none.

    Raises:
        StoreRefused: the store cannot be opened; it is left untouched.
    """

    def __init__(
        self,
        store: Store | None = None,
        clock: Clock | None = None,
        *,
        memory_budget_bytes: int | None = None,
        event_retention_ns: int = 0,
    ) -> None:
        self._event_retention_ns = event_retention_ns
        self._store: Store = open_store(event_retention_ns=event_retention_ns) if store is None else store
        self._clock: Clock = SystemClock() if clock is None else clock
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

    @classmethod
    def open(
        cls,
        data_dir: str | os.PathLike[str],
        *,
        clock: Clock | None = None,
        durability: Durability = "full",
        memory_budget_bytes: int | None = MEMORY_BUDGET_BYTES,
        event_retention_ns: int = 0,
    ) -> Self:
        """A broker that keeps everything in a directory, and goes on from what is there.

        Args:
            data_dir: the directory; made if missing, with its parents.
            clock: None = the machine's.
            durability: what an answer survives: "full" = a killed process and a power cut, "process" = a killed
                process, "none" = a killed process, but a power cut may destroy the file.
            memory_budget_bytes: how many bytes of messages may stay in memory; None = all stay.
            event_retention_ns: how long the event log is kept, within `EVENTS_BYTES_MAX`; 0 = there is none.

        Raises:
            InvalidArgument: `data_dir` is no path, or there is no such durability.
            StoreRefused: the directory cannot be used; it is left untouched.
        """
        _check_path(data_dir)
        store = open_store(data_dir, durability=durability, event_retention_ns=event_retention_ns)
        return cls(store, clock, memory_budget_bytes=memory_budget_bytes, event_retention_ns=event_retention_ns)

    # ── how every operation ends ────────────────────────────────────────────────────────────────────────────────────

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

    def _ask(self, question: Callable[[int], T]) -> T:
        """A question may find something due, and it may be the first to load a message that has a deadline."""
        with self._lock:
            answer = question(self._now_ns())
            _, woken = self._finish_operation()
        wake(woken)
        return answer

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

    # ── messages ────────────────────────────────────────────────────────────────────────────────────────────────────

    def publish(self, topic: str, drafts: Sequence[Draft]) -> Reply[list[str]]:
        with self._lock:
            ids = self._engine.publish(topic, drafts, self._now_ns())
            commit, woken = self._finish_operation()
        wake(woken)
        return Reply(ids, commit)

    def pull(
        self,
        subscription: str,
        max_messages: int,
        *,
        max_bytes: int = 0,
        ack_deadline_ns: int = 0,
        consumer: str = "",
        oversized_first: bool = True,
    ) -> Reply[list[Delivery]]:
        with self._lock:
            deliveries = self._engine.pull(
                subscription,
                max_messages,
                self._now_ns(),
                max_bytes=max_bytes,
                ack_deadline_ns=ack_deadline_ns,
                consumer=consumer,
                oversized_first=oversized_first,
            )
            commit, woken = self._finish_operation()
        wake(woken)
        # a message is handed out only when its publication, and its lease, cannot be undone by a crash: else its id
        # could name another message afterwards
        return Reply(deliveries, commit if deliveries else COMMITTED)

    def watch(self, subscription: str, callback: Callable[[], None]) -> Watch:
        with self._lock:
            state = self._engine.subscription(subscription)
            watch = self._watches.add(subscription, callback)
            has_some = state.waiting > 0
        if has_some:
            callback()
        return watch

    def acknowledge(self, subscription: str, ack_ids: Sequence[str]) -> Reply[list[str]]:
        return self._settle(subscription, lambda now_ns: self._engine.acknowledge(subscription, ack_ids, now_ns))

    def acknowledge_later(self, subscription: str, ack_id: str) -> None:
        if self._closed:
            return
        if not self._settled:
            self._settled_ns = self._clock.now_ns()
        self._settled.append((subscription, ack_id))

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

    def modify_ack_deadline(self, subscription: str, ack_ids: Sequence[str], ack_deadline_ns: int) -> Reply[list[str]]:
        return self._settle(
            subscription,
            lambda now_ns: self._engine.modify_ack_deadline(subscription, ack_ids, ack_deadline_ns, now_ns),
        )

    def nack(self, subscription: str, ack_ids: Sequence[str]) -> Reply[Settled]:
        return self._settle(subscription, lambda now_ns: self._engine.nack(subscription, ack_ids, now_ns))

    def release(self, subscription: str, ack_ids: Sequence[str]) -> Reply[list[str]]:
        return self._settle(subscription, lambda now_ns: self._engine.release(subscription, ack_ids, now_ns))

    def reject(self, subscription: str, ack_ids: Sequence[str]) -> Reply[list[str]]:
        return self._settle(subscription, lambda now_ns: self._engine.reject(subscription, ack_ids, now_ns))

    def _settle(self, name: str, operation: Callable[[int], T]) -> Reply[T]:
        with self._lock:
            settled = operation(self._now_ns())
            commit, woken = self._finish_operation()
            settings = self._engine.subscription(name).settings
        wake(woken)
        # losing the acknowledgement of a plain subscription in a crash means a redelivery, which at-least-once allows
        must_be_durable = settings.enable_exactly_once_delivery or settings.prioritised
        return Reply(settled, commit if must_be_durable else COMMITTED)

    def subscription_of(self, ack_id: str) -> str:
        with self._lock:
            return self._engine.subscription_of(ack_id)

    # ── questions ───────────────────────────────────────────────────────────────────────────────────────────────────

    def current_ack_id(self, subscription: str, message_id: str) -> str:
        return self._ask(lambda now_ns: self._engine.current_ack_id(subscription, message_id, now_ns))

    def outstanding(self, subscription: str, consumer: str) -> int:
        with self._lock:
            return self._engine.outstanding(self._engine.subscription(subscription), consumer)

    def position(self, subscription: str, priority: int) -> int:
        with self._lock:
            return self._engine.position(self._engine.subscription(subscription), priority)

    def statistics(self, subscription: str) -> Statistics:
        return self._ask(lambda now_ns: self._engine.statistics(subscription, now_ns))

    def peek(self, subscription: str, count: int) -> list[Message]:
        return self._ask(lambda now_ns: self._engine.peek(subscription, count, now_ns))

    def purge(self, subscription: str) -> Reply[tuple[int, int]]:
        with self._lock:
            purged = self._engine.purge(subscription, self._now_ns())
            commit, woken = self._finish_operation()
        wake(woken)
        return Reply(purged, commit)

    def dead_letters(
        self, subscription: str, *, offset: int = 0, limit: int | None = None
    ) -> list[tuple[DeadLetter, Message]]:
        return self._ask(lambda now_ns: self._engine.dead_letters(subscription, now_ns, offset=offset, limit=limit))

    def retry_dead_letters(self, subscription: str, message_ids: Sequence[str] | None = None) -> Reply[int]:
        with self._lock:
            count = self._engine.retry_dead_letters(subscription, message_ids, self._now_ns())
            commit, woken = self._finish_operation()
        wake(woken)
        return Reply(count, commit)

    def purge_dead_letters(self, subscription: str) -> Reply[int]:
        with self._lock:
            self._now_ns()
            count = self._engine.purge_dead_letters(subscription)
            commit, woken = self._finish_operation()
        wake(woken)
        return Reply(count, commit)

    def last_number(self) -> int:
        with self._lock:
            return self._engine.last_number

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


def _check_path(data_dir: object) -> None:
    if not isinstance(data_dir, str | os.PathLike) or not os.fspath(data_dir):
        raise InvalidArgument(f"data_dir must be the path of a directory, not {data_dir!r}")
