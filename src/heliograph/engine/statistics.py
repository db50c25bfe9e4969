"""What a subscription counts."""

from __future__ import annotations

import msgspec


class Totals(msgspec.Struct, gc=False):
    """Counters of one subscription since it was created. They only grow.

    Args:
        published: messages that came to the subscription, the dropped ones among them.
        delivered: hand-outs, redeliveries among them.
        redelivered: hand-outs of messages that were handed out before.
        acknowledged, nacked, expired: how leases ended.
        dead_lettered: given up, whatever the reason.
        dead_letters_dropped: dead letters that went because the subscription kept its maximum.
        dropped: newcomers refused at capacity.
        wait_ns: from publication to first hand-out, summed over `first_deliveries`.
        first_deliveries: messages handed out for the first time.
    """

    published: int = 0
    delivered: int = 0
    redelivered: int = 0
    acknowledged: int = 0
    nacked: int = 0
    expired: int = 0
    dead_lettered: int = 0
    dead_letters_dropped: int = 0
    dropped: int = 0
    wait_ns: int = 0
    first_deliveries: int = 0

    def copy(self) -> Totals:
        """The totals as they are now."""
        return msgspec.structs.replace(self)


class Statistics(msgspec.Struct, frozen=True, gc=False):
    """A subscription's gauges and totals at one instant.

    Args:
        ready: may be delivered now, or wait for their ordering key's turn.
        delayed: wait for their time (delay or backoff).
        outstanding: leased.
        outstanding_bytes: of those, as `engine.message.size_bytes` counts.
        dead_letters: kept in the subscription.
        consumers: named consumers that hold a lease.
        depth_by_priority: ready messages per priority 0-9, as published; only for prioritised subscriptions.
        oldest_waiting_ns: publish time of the oldest message not yet delivered or waiting again; 0 = none.
        oldest_unacknowledged_ns: publish time of the oldest message not acknowledged; 0 = none.
        totals: see `Totals`.
    """

    ready: int
    delayed: int
    outstanding: int
    outstanding_bytes: int
    dead_letters: int
    consumers: int
    depth_by_priority: dict[int, int]
    oldest_waiting_ns: int
    oldest_unacknowledged_ns: int
    totals: Totals

    @property
    def average_wait_ns(self) -> int:
        """Mean time from publication to first hand-out."""
        return self.totals.wait_ns // self.totals.first_deliveries if self.totals.first_deliveries else 0
