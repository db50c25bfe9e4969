"""How long messages are kept: which waiting ones are past their subscription's retention, and up to where a topic's log
may be trimmed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import NamedTuple

from heliograph.engine.ranges import Run, between, union, unpack_runs
from heliograph.engine.settings import NEVER_NS
from heliograph.engine.snapshots import Snapshot
from heliograph.engine.subscription import Subscription
from heliograph.engine.topic import Topic

# How often the engine looks for messages past retention: retention is counted in days, and ten minutes at least.
SWEEP_NS = 60 * 1_000_000_000
# And after so many were published, so that a store in memory does not keep what is done for so long.
SWEEP_MESSAGES = 100_000
# How many runs of held messages a topic's log is trimmed behind, at most: they are looked through at each sweep.
STRAGGLER_RUNS_MAX = 20_000
# So that a long stand-still does not become one huge fact.
PURGED_PER_FACT_MAX = 10_000


class TrimPoint(NamedTuple):
    """Messages of a topic that the store need not keep: those below `up_to` that are older than the retention, save the
    stragglers that some subscription still holds.

    Args:
        topic_number: whose.
        up_to: no subscription needs a message with a lower sequence, those in `held` apart.
        published_before_ns: and nobody may read one that is older; `NEVER_NS` where nothing is kept for its age.
        held: runs of sequences that stay, in order.
    """

    topic_number: int
    up_to: int
    published_before_ns: int
    held: list[Run] = []


def past_retention(subscription: Subscription, now_ns: int) -> list[int]:
    """Waiting messages published longer ago than the subscription, or its topic, keeps them (pubsub-protocol.md 1.3.8).
    What is leased is looked at when it has come back."""
    if not subscription.settings.message_retention_ns:
        return []
    kept_ns = max(subscription.settings.message_retention_ns, subscription.topic.settings.message_retention_ns)
    cutoff_ns = now_ns - kept_ns
    oldest = subscription.oldest_waiting()
    if not oldest or subscription.topic.log[oldest].publish_time_ns >= cutoff_ns:
        return []
    log = subscription.topic.log
    old = takewhile(lambda message: message.publish_time_ns < cutoff_ns, log.held(oldest, log.next_sequence - 1))
    last = max(message.sequence for message in old)
    return sorted(sequence for sequence in subscription.waiting_sequences(last) if sequence <= last)


def trim_point(topic: Topic, now_ns: int, snapshots: Sequence[Snapshot] = ()) -> TrimPoint:
    """Up to where the store may forget the topic's log; its snapshots need messages that nobody holds any more."""
    kept_ns = topic.settings.message_retention_ns
    for subscription in topic.subscriptions.values():
        if subscription.settings.retain_acked_messages:
            kept_ns = max(kept_ns, subscription.settings.message_retention_ns)
    up_to, held = topic.log.settled(STRAGGLER_RUNS_MAX)
    if snapshots:
        up_to = min(up_to, *[snapshot.next_sequence for snapshot in snapshots])
        held = between(union(held, *[unpack_runs(snapshot.held) for snapshot in snapshots]), 0, up_to)
    return TrimPoint(topic.number, up_to, now_ns - kept_ns if kept_ns else NEVER_NS, held)
