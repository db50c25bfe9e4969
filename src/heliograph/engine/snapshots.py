"""Snapshots: what a subscription had not acknowledged at one moment, to seek back to (pubsub-protocol.md 1.11)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from heliograph.engine.facts import SnapshotRestored
from heliograph.engine.ranges import Run, union, unpack_runs
from heliograph.engine.settings import DAY_NS, SECOND_NS

if TYPE_CHECKING:
    from heliograph.engine.topic import Topic

LIFE_NS = 7 * DAY_NS
"""A snapshot expires so long after its oldest message was published, unless it is told otherwise (1.11.4)."""

LIFE_NS_MIN = 3600 * SECOND_NS
"""One that would expire sooner is not made (1.11.4)."""


class Snapshot:
    """State of one snapshot. It needs no message in memory: the store keeps them for it.

    Args:
        name: opaque to the engine.
        topic: whose messages; it keeps it when the topic is deleted.
        held: what was not acknowledged, as `ranges.pack_runs` makes it.
        next_sequence: and everything from there on.
        created_ns, expires_ns: nanoseconds since the epoch.
        labels, resource: as of a subscription.
    """

    __slots__ = ("created_ns", "expires_ns", "held", "labels", "name", "next_sequence", "resource", "topic")

    def __init__(
        self,
        name: str,
        topic: Topic,
        held: bytes,
        next_sequence: int,
        created_ns: int,
        expires_ns: int,
        labels: Mapping[str, str],
        resource: bytes,
    ) -> None:
        self.name = name
        self.topic = topic
        self.held = held
        self.next_sequence = next_sequence
        self.created_ns = created_ns
        self.expires_ns = expires_ns
        self.labels = dict(labels)
        self.resource = resource

    def needed(self) -> list[Run]:
        """The runs of sequences that its topic's log must keep, as far as it goes by now."""
        return union(unpack_runs(self.held), [(self.next_sequence, self.topic.log.next_sequence)])

    def capture(self) -> SnapshotRestored:
        """The fact that recreates it."""
        return SnapshotRestored(
            name=self.name,
            topic_number=self.topic.number,
            held=self.held,
            next_sequence=self.next_sequence,
            created_ns=self.created_ns,
            expires_ns=self.expires_ns,
            labels=self.labels,
            resource=self.resource,
        )
