"""Seeking, and snapshots to seek to (pubsub-protocol.md 1.11)."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from heliograph.engine import facts as f
from heliograph.engine.administration import Administration
from heliograph.engine.limits import INSTANT_NS_MAX, check_instant, check_text
from heliograph.engine.ranges import Run, pack_runs
from heliograph.engine.retention import SWEEP_NS
from heliograph.engine.seek import DurableLog, unacknowledged_from, unacknowledged_in
from heliograph.engine.snapshots import LIFE_NS, LIFE_NS_MIN, Snapshot
from heliograph.engine.subscription import Subscription
from heliograph.errors import (
    AlreadyExists,
    FailedPrecondition,
    HeliographError,
    InvalidArgument,
    SnapshotNotFound,
    SubscriptionDetached,
)


class Seeking(Administration):
    """`Administration`, and the operations that move a subscription in its topic's log."""

    # ── seeking ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def seek_to_time(self, name: str, instant_ns: int, durable: DurableLog, now_ns: int) -> None:
        """See `Broker.seek_to_time`. `durable` is the topic's log in the store.

        Raises:
            SubscriptionNotFound, SubscriptionDetached.
            Unavailable, Internal: the store cannot be read, or is damaged there.
        """
        subscription = self._attached(name)
        self.tick(now_ns)
        instant_ns = min(max(instant_ns, 0), INSTANT_NS_MAX)  # later ones are in no message either
        target = unacknowledged_from(subscription, instant_ns, now_ns, durable)
        self._seek(subscription, target, f"time {instant_ns}", now_ns)

    def seek_to_snapshot(self, name: str, snapshot_name: str, durable: DurableLog, now_ns: int) -> None:
        """See `Broker.seek_to_snapshot`. Raises as `seek_to_time`, and SnapshotNotFound, FailedPrecondition."""
        subscription = self._attached(name)
        snapshot = self.snapshot(snapshot_name, now_ns)
        if snapshot.topic is not subscription.topic:
            raise FailedPrecondition(f"The snapshot {snapshot_name} is of another topic than the subscription {name}.")
        target = unacknowledged_in(subscription, snapshot, durable)
        self._seek(subscription, target, f"snapshot {snapshot_name}", now_ns)

    def _seek(self, subscription: Subscription, target: list[Run], where: str, now_ns: int) -> None:
        self._record(f.SubscriptionSought(subscription.name, pack_runs(target), now_ns, where))
        if subscription.is_eager:
            with suppress(HeliographError):  # whoever pulls what cannot be read is told
                subscription.load(subscription.topic.log.next_sequence)
        self._schedule(subscription)

    def _attached(self, name: str) -> Subscription:
        subscription = self.subscription(name)
        if subscription.detached:
            raise SubscriptionDetached(name)
        return subscription

    # ── snapshots ───────────────────────────────────────────────────────────────────────────────────────────────────

    def snapshot(self, name: str, now_ns: int) -> Snapshot:
        """Raises: SnapshotNotFound."""
        self.tick(now_ns)
        snapshot = self.snapshots.get(name)
        if snapshot is None:
            raise SnapshotNotFound(name)
        return snapshot

    def create_snapshot(
        self,
        name: str,
        subscription_name: str,
        now_ns: int,
        *,
        expires_ns: int,
        labels: Mapping[str, str],
        resource: bytes,
    ) -> Snapshot:
        """See `Broker.create_snapshot`.

        Raises:
            AlreadyExists, SubscriptionNotFound, SubscriptionDetached, InvalidArgument.
            FailedPrecondition: it would expire within the hour.
            Unavailable, Internal: the oldest message cannot be read.
        """
        self.tick(now_ns)
        if name in self.snapshots:
            raise AlreadyExists(f"Snapshot already exists: {name}")
        subscription = self._attached(subscription_name)
        check_text(name, "Snapshot name")
        _check(expires_ns, labels)
        oldest_ns = subscription.statistics().oldest_unacknowledged_ns
        expires_ns = expires_ns or (oldest_ns or now_ns) + LIFE_NS
        if expires_ns - now_ns < LIFE_NS_MIN:
            raise FailedPrecondition(
                f"The snapshot {name} would expire within the hour: the oldest unacknowledged message of "
                f"{subscription_name} is too old."
            )
        held, head = subscription.unacknowledged_runs(), subscription.topic.log.next_sequence
        self._record(
            f.SnapshotCreated(
                name, subscription_name, pack_runs(held), head, now_ns, expires_ns, dict(labels), resource
            )
        )
        self._sweep_by(min(expires_ns, now_ns + SWEEP_NS))
        return self.snapshots[name]

    def update_snapshot(
        self, name: str, now_ns: int, *, expires_ns: int, labels: Mapping[str, str], resource: bytes
    ) -> Snapshot:
        """Raises: SnapshotNotFound, InvalidArgument (it would have expired already)."""
        snapshot = self.snapshot(name, now_ns)
        _check(expires_ns, labels)
        if expires_ns <= now_ns:
            raise InvalidArgument(f"The snapshot {name} cannot have expired already.")
        self._record(f.SnapshotUpdated(name, expires_ns, dict(labels), resource))
        self._sweep_by(min(expires_ns, now_ns + SWEEP_NS))
        return snapshot

    def delete_snapshot(self, name: str, now_ns: int) -> None:
        """Raises: SnapshotNotFound."""
        self.snapshot(name, now_ns)
        self._record(f.SnapshotDeleted(name))


def _check(expires_ns: int, labels: Mapping[str, str]) -> None:
    check_instant(expires_ns, "Expiry time")
    for text in (*labels, *labels.values()):
        check_text(text, "A label")
