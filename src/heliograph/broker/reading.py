"""Reading what is durable: topics' logs and the event log. From any thread, beside the broker's work."""

from __future__ import annotations

from collections.abc import Iterator

from heliograph.broker.operations import Operations
from heliograph.broker.protocol import Unacknowledged
from heliograph.broker.reply import Reply
from heliograph.engine.facts import Fact
from heliograph.engine.message import Message
from heliograph.errors import FailedPrecondition


class Reading(Operations):
    """A part of `LocalBroker`."""

    def log_bounds(self, topic: str) -> tuple[int, int]:
        return self._store.log_bounds(self._topic_number(topic))

    def read_log(self, topic: str, first: int, last: int) -> Iterator[list[Message]]:
        return self._store.read_log(self._topic_number(topic), first, last)

    def log_offset(self, topic: str, published_ns: int) -> int:
        return self._store.log_offset(self._topic_number(topic), published_ns)

    def snapshot_offset(self, topic: str, snapshot: str) -> int:
        with self._lock:
            log_topic = self._engine.topic(topic)
            found = self._engine.snapshot(snapshot, self._engine.now_ns)
            if found.topic is not log_topic:
                raise FailedPrecondition(f"The snapshot {snapshot} is of another topic than {topic}")
            needed = found.needed()
            return needed[0][0] if needed else found.next_sequence

    def log_extent(self, topic: str, first: int, bytes_max: int) -> int:
        return self._store.log_extent(self._topic_number(topic), first, bytes_max)

    def unacknowledged(self, subscription: str) -> Reply[Unacknowledged]:
        def look(now_ns: int) -> Unacknowledged:
            self._engine.tick(now_ns)
            found = self._engine.subscription(subscription)
            runs = [] if found.detached else found.unacknowledged_runs()
            return Unacknowledged(now_ns, found.topic.number, runs)

        return self._change(look)

    def event_bounds(self) -> tuple[int, int]:
        self._check_event_log()
        return self._store.event_bounds()

    def read_events(self, first: int, last: int) -> Iterator[tuple[int, list[Fact]]]:
        self._check_event_log()
        return self._store.read_events(first, last)

    def event_offset(self, at_ns: int) -> int:
        self._check_event_log()
        return self._store.event_offset(at_ns)

    def _topic_number(self, topic: str) -> int:
        with self._lock:
            return self._engine.topic(topic).number

    def _check_event_log(self) -> None:
        if not self._event_retention_ns:
            raise FailedPrecondition("This broker keeps no event log: start it with --event-retention 24h")
