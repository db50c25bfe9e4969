"""A broker in this process, and what it does with messages. What else it does is in the modules of its base classes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Self, TypeVar, get_args

from heliograph.broker.claims import Claims
from heliograph.broker.clock import Clock, SystemClock
from heliograph.broker.housekeeping import MEMORY_BUDGET_BYTES
from heliograph.broker.protocol import Watch
from heliograph.broker.reading import Reading
from heliograph.broker.reply import Reply
from heliograph.broker.staging import Staging
from heliograph.broker.watches import wake
from heliograph.engine.dead_letter import DeadLetter
from heliograph.engine.failure import Settled
from heliograph.engine.message import Delivery, Draft, Message
from heliograph.engine.statistics import Statistics
from heliograph.errors import InvalidArgument
from heliograph.store.memory import MemoryStore
from heliograph.store.protocol import COMMITTED, Durability, Store
from heliograph.store.sqlite import SqliteStore

EVENTS_BYTES_MAX = 256 * 1024 * 1024
"""How much a file keeps of its event log; the oldest part goes first."""

EVENTS_IN_MEMORY_MAX = 200_000
"""How many events a broker in memory keeps, about."""

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
        super().__init__(
            open_store(event_retention_ns=event_retention_ns) if store is None else store,
            SystemClock() if clock is None else clock,
            memory_budget_bytes=memory_budget_bytes,
            event_retention_ns=event_retention_ns,
        )

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
        return self._change(lambda now_ns: self._engine.purge(subscription, now_ns))

    def dead_letters(
        self, subscription: str, *, offset: int = 0, limit: int | None = None
    ) -> list[tuple[DeadLetter, Message]]:
        return self._ask(lambda now_ns: self._engine.dead_letters(subscription, now_ns, offset=offset, limit=limit))

    def retry_dead_letters(self, subscription: str, message_ids: Sequence[str] | None = None) -> Reply[int]:
        return self._change(lambda now_ns: self._engine.retry_dead_letters(subscription, message_ids, now_ns))

    def purge_dead_letters(self, subscription: str) -> Reply[int]:
        return self._change(lambda _: self._engine.purge_dead_letters(subscription))

    def last_number(self) -> int:
        with self._lock:
            return self._engine.last_number


def _check_path(data_dir: object) -> None:
    if not isinstance(data_dir, str | os.PathLike) or not os.fspath(data_dir):
        raise InvalidArgument(f"data_dir must be the path of a directory, not {data_dir!r}")
