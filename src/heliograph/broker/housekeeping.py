"""What keeps a long-running broker small: messages out of memory, checkpoints in the store, old messages out of it."""

from __future__ import annotations

import logging
import time

from heliograph.engine.engine import Engine
from heliograph.engine.facts import SubscriptionRestored, TopicRestored
from heliograph.engine.message import Message
from heliograph.engine.retention import TrimPoint
from heliograph.errors import HeliographError, Internal, StoreRefused
from heliograph.store.protocol import NEVER_NS, Commit, Store

_log = logging.getLogger(__name__)

MEMORY_BUDGET_BYTES = 256 * 1024 * 1024
"""How many bytes of messages are kept in memory unless told otherwise."""

CHECKPOINT_SHARE = 0.05
"""Checkpoints take no more of the time than this share: one of a very large work queue may take a second."""

LATEST_SEQUENCE = 2**62
"""Above every sequence."""


class Housekeeping:
    """Called under the broker's lock, after operations.

    Args:
        store: where the facts are.
        memory_budget_bytes: how many bytes of messages may stay in memory when the store has them too; None = all stay.
    """

    def __init__(self, store: Store, memory_budget_bytes: int | None) -> None:
        self._store = store
        self._budget_bytes = memory_budget_bytes
        self._checkpoint_not_before = 0.0
        self._recovering = False
        self._trims: dict[int, TrimPoint] = {}  # what the store need not keep, by topic
        self._needed: dict[int, int] = {}  # where a topic held something at the last checkpoint: the lowest sequence
        # also where nothing leaves memory: what a checkpoint tells of is in the store alone until it is asked for
        self.engine = Engine(self._read)

    def _read(self, topic_number: int, first: int, last: int) -> list[Message]:
        messages = [message for batch in self._store.read_log(topic_number, first, last) for message in batch]
        if self._recovering and len(messages) <= last - first:
            # trimmed ones are still spoken of by facts: empty ones stand in their places, as in `MessagesPublished`
            left = messages[0].sequence if messages else last + 1
            messages[:0] = [Message(sequence, 0, b"") for sequence in range(first, left)]
        return messages

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
        self._recovering, in_checkpoint = True, False
        for fact in self._store.recover():
            if in_checkpoint and not isinstance(fact, TopicRestored | SubscriptionRestored):
                self._note_needed()
            in_checkpoint = isinstance(fact, TopicRestored | SubscriptionRestored)
            self.engine.replay(fact)
            if self._budget_bytes is not None:
                self.engine.shed_memory(self._budget_bytes, 0)
        if in_checkpoint:
            self._note_needed()
        for topic in self.engine.all_topics():
            first, last = self._store.log_bounds(topic.number)
            needed = topic.log.floor()
            if needed < topic.log.next_sequence and not first <= needed <= last:
                raise Internal(f"messages from {needed} on of topic {topic.name} are needed, and gone")
        self._recovering = False

    def keep_house(self) -> None:
        """The facts of an operation were given to the store."""
        if self._budget_bytes is not None:
            self.engine.shed_memory(self._budget_bytes, self._store.facts_written)
        if self.engine.trims:
            self._take_trims()
        if self._store.checkpoint_due:
            self._checkpoint()

    def settle(self) -> Commit:
        """All at once, whether it is due or not: the facts of a recovery, what may be trimmed, and a checkpoint."""
        self._store.append(self.engine.take_facts())
        commit = self._store.checkpoint(self.engine.checkpoint())
        self._note_needed()
        self._take_trims()
        return commit

    def _checkpoint(self) -> None:
        began = time.perf_counter()
        if began < self._checkpoint_not_before or self._store.failing is not None:
            return
        self._store.checkpoint(self.engine.checkpoint())
        self._note_needed()
        self._trim()
        now = time.perf_counter()
        self._checkpoint_not_before = now + (now - began) / CHECKPOINT_SHARE

    def _note_needed(self) -> None:
        """A checkpoint is what recovery begins with: the facts after it speak of messages that were held then, and
        those must be there until the next one. Later ones come with facts of their own."""
        floors = {topic.number: (topic.log.floor(), topic.log.next_sequence) for topic in self.engine.all_topics()}
        self._needed = {number: floor for number, (floor, end) in floors.items() if floor < end}

    def _take_trims(self) -> None:
        points, self.engine.trims = self.engine.trims, []
        self._trims = {point.topic_number: point for point in points}
        try:
            left = self._store.topic_numbers() - self._trims.keys()
        except HeliographError as error:
            _log.warning("the store's topics cannot be read, and are looked at again later: %s", error)
            return
        self._trims |= {number: TrimPoint(number, LATEST_SEQUENCE, NEVER_NS) for number in left}
        self._trim()

    def _trim(self) -> None:
        """Not an operation's own business: it does not fail when this does, and the next sweep tries again."""
        try:
            for number, point in self._trims.items():
                up_to = min(point.up_to, self._needed.get(number, LATEST_SEQUENCE))
                self._store.trim(number, up_to, point.published_before_ns)
        except HeliographError as error:
            _log.warning("the store cannot be trimmed, and will be later: %s", error)
