"""What keeps a long-running broker small: messages out of memory, checkpoints in the store, old messages out of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence

from heliograph.engine.engine import Engine
from heliograph.engine.facts import MessagesDropped
from heliograph.engine.message import Message
from heliograph.engine.ranges import Run, first_outside, to_runs, union
from heliograph.engine.retention import TrimPoint
from heliograph.engine.snapshots import Snapshot
from heliograph.engine.topic import Topic
from heliograph.errors import HeliographError, Internal, StoreRefused
from heliograph.store.protocol import EVERYTHING, Commit, Store

_log = logging.getLogger("heliograph")

MEMORY_BUDGET_BYTES = 256 * 1024 * 1024
"""How many bytes of messages are kept in memory unless told otherwise."""

CHEAP_SECONDS = 0.01
"""A checkpoint that takes no longer may come at any time."""

CHECKPOINT_SHARE = 0.05
"""Others take no more of the time than this share: one of a very large work queue may take a second."""


class Housekeeping:
    """Called under the broker's lock, after operations.

    Args:
        store: where the facts are.
        memory_budget_bytes: how many bytes of messages may stay in memory when the store has them too; None = all stay.
        event_retention_ns: how long the event log is kept; 0 = there is none.
    """

    def __init__(self, store: Store, memory_budget_bytes: int | None, event_retention_ns: int = 0) -> None:
        self._store = store
        self._budget_bytes = memory_budget_bytes
        self._checkpoint_not_before = 0.0
        self._settled: dict[int, tuple[int, Sequence[Run]]] | None = None  # by topic, at the last trim
        self._event_retention_ns = event_retention_ns
        self.engine = Engine(self._read)
        self.engine.tells_details = event_retention_ns > 0

    def _read(self, topic_number: int, first: int, last: int) -> list[Message]:
        return [message for batch in self._store.read_log(topic_number, first, last, held=True) for message in batch]

    def recover(self, now_ns: int) -> None:
        """Bring the engine to where the store's facts lead.

        Raises:
            StoreRefused: the store is damaged, newer or not ours. It is closed then.
        """
        try:
            self._replay()
        except StoreRefused:
            raise
        except HeliographError as error:
            self._store.close()
            raise StoreRefused(f"The store cannot be recovered, and was left as it is: {error.message}") from error
        except BaseException:
            self._store.close()
            raise
        self.engine.recovered(now_ns)

    def _replay(self) -> None:
        for fact in self._store.recover():
            if type(fact) is not MessagesDropped:
                self.engine.load_replayed()
                if self._budget_bytes is not None:
                    self.engine.shed_memory(self._budget_bytes, 0)
            self.engine.replay(fact)
        snapshots = self.engine.snapshots_by_topic()
        for topic in self.engine.all_topics():
            gone = self._first_gone(topic) or self._first_gone_of(snapshots.get(topic.number, ()))
            if gone:
                raise Internal(f"messages from {gone} on of topic {topic.name} are needed, and gone")

    def _first_gone(self, topic: Topic) -> int:
        """The lowest sequence that somebody holds and the store does not have; 0 = none. Behind its beginning a log has
        no gap: a store that finds one refuses to recover."""
        log, (first, last) = topic.log, self._store.log_bounds(topic.number)
        floor = log.floor()
        if floor < first:
            held = to_runs(log.held_sequences(floor, first - 1))
            gone = first_outside(held, self._store.held_below(topic.number))
            if gone:
                return gone
        lowest = next(log.held_sequences(max(floor, first), log.next_sequence - 1), 0)
        return lowest if lowest > last else 0

    def _first_gone_of(self, snapshots: Iterable[Snapshot]) -> int:
        """The lowest sequence that one of a topic's snapshots needs and the store does not have; 0 = none."""
        for snapshot in snapshots:
            number = snapshot.topic.number
            first, last = self._store.log_bounds(number)
            gone = first_outside(snapshot.needed(), union(self._store.held_below(number), [(first, last + 1)]))
            if gone:
                return gone
        return 0

    def keep_house(self) -> None:
        """The facts of an operation were given to the store."""
        if self.engine.broken is not None:
            return  # a checkpoint would make half an operation durable
        if self._budget_bytes is not None:
            self.engine.shed_memory(self._budget_bytes, self._store.facts_written)
        if self._store.checkpoint_due:
            self._checkpoint()
        if self.engine.trims is not None:
            if self._event_retention_ns:
                self._forget_events()
            self._trim(self.engine.trims)
            self.engine.trims = None

    def _forget_events(self) -> None:
        try:
            self._store.forget_events(self._store.event_offset(self.engine.now_ns - self._event_retention_ns))
        except HeliographError as error:  # no business of the operation that happened to bring it
            _log.warning("the event log cannot be read, and is trimmed later: %s", error)

    def settle(self) -> Commit:
        """All at once, whether it is due or not: the facts of a recovery, a checkpoint, and what may be trimmed."""
        self._store.append(self.engine.take_facts())
        commit = self._store.checkpoint(self.engine.checkpoint())
        if self.engine.trims is not None:
            self._forget(self.engine.trims, self._deleted(self.engine.trims))
            self.engine.trims = None
        return commit

    def _checkpoint(self) -> bool:
        """False if it is not the time for one."""
        began = time.perf_counter()
        if began < self._checkpoint_not_before or self._store.failing is not None:
            return False
        self._store.checkpoint(self.engine.checkpoint())
        now = time.perf_counter()
        if now - began > CHEAP_SECONDS:
            self._checkpoint_not_before = now + (now - began) / CHECKPOINT_SHARE
        return True

    def _trim(self, points: Sequence[TrimPoint]) -> None:
        """Let old messages go. The journal must not tell of them any more: so a checkpoint comes first where any have
        been settled since the last time."""
        settled: dict[int, tuple[int, Sequence[Run]]] = {p.topic_number: (p.up_to, p.held) for p in points}
        deleted = self._deleted(points)
        settled |= dict.fromkeys(deleted, (EVERYTHING, ()))
        if settled != self._settled and self._store.keeps_facts and not self._checkpoint():
            return
        self._settled = settled
        self._forget(points, deleted)

    def _deleted(self, points: Sequence[TrimPoint]) -> set[int]:
        """Topics that have messages in the store, and none to be kept."""
        try:
            return self._store.topic_numbers() - {point.topic_number for point in points}
        except HeliographError as error:
            _log.warning("the store's topics cannot be read, and are looked at again later: %s", error)
            return set()

    def _forget(self, points: Sequence[TrimPoint], deleted: Iterable[int]) -> None:
        try:
            for point in points:
                self._store.trim(point.topic_number, point.up_to, point.published_before_ns, point.held)
            for topic_number in deleted:
                self._store.trim(topic_number, EVERYTHING)
        except HeliographError as error:  # no business of the operation that happened to bring it
            _log.warning("the store cannot be trimmed, and will be later: %s", error)
