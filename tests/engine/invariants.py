"""What must be true of an engine at any moment, recounted from its inside; and what makes two engines equal.

The only place of the tests that looks into the engine's private parts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec

from heliograph.engine.engine import Engine
from heliograph.engine.facts import Fact
from heliograph.engine.message import total_bytes
from heliograph.engine.subscription import Subscription
from heliograph.engine.topic import Topic

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Fact)


def topics_of(engine: Engine) -> list[Topic]:
    """Every topic that is left, deleted ones with subscriptions among them, and what stands for some."""
    topics = [*engine.all_topics(), *(subscription.topic for subscription in engine.subscriptions.values())]
    return list({id(topic): topic for topic in topics}.values())


def places(subscription: Subscription) -> dict[str, list[int]]:
    """Which messages are in which state."""
    log = subscription.topic.log
    return {
        "ready": list(subscription.backlog),
        "waiting for key": list(subscription._keys or ()),
        "delayed": list(subscription._delayed or ()),
        "leased": list(subscription.leases.by_sequence),
        "dead": list(subscription.dead),
        "not loaded": list(subscription.unloaded_sequences(log.next_sequence - 1)),
    }


def check_engine(engine: Engine) -> None:
    """Raises AssertionError for the first thing that is not as it must be."""
    for subscription in engine.subscriptions.values():
        _check_subscription(subscription)
        due_ns = subscription.next_deadline_ns()
        if due_ns is not None:
            entry = (subscription.scheduled_ns, subscription.number)
            assert 0 < subscription.scheduled_ns <= due_ns, f"{subscription.name} is due at {due_ns}, no timer"
            assert entry in engine._timers
    for topic in topics_of(engine):
        _check_log(topic)


def _check_subscription(subscription: Subscription) -> None:
    where = places(subscription)
    counts = Counter(sequence for sequences in where.values() for sequence in sequences)
    twice = {sequence: count for sequence, count in counts.items() if count > 1}
    assert not twice, f"{subscription.name} has messages in two places: {twice}, {where}"
    log, leased = subscription.topic.log, subscription.leases.by_sequence
    ready = [log[sequence] for sequence in where["ready"]]
    bands = Counter(subscription.priority_of(message) for message in ready)
    assert subscription.backlog.counts() == dict(bands)
    assert subscription.backlog.count == len(ready)
    assert subscription.delayed == len(where["delayed"])
    expected = len(ready) + len(where["waiting for key"]) + len(where["not loaded"])
    assert subscription.unloaded == len(where["not loaded"])
    assert subscription.waiting == expected, f"{subscription.name}: {subscription.waiting} wait, not {expected}"
    outstanding_bytes = total_bytes([log[sequence] for sequence in leased])
    assert subscription.outstanding_bytes == outstanding_bytes, f"{subscription.name}: outstanding bytes drifted"
    if subscription.settings.capacity is not None:
        # what is not loaded yet is not counted yet; live there is no such thing
        held = [*where["ready"], *where["waiting for key"], *where["delayed"], *where["leased"]]
        assert subscription.held_bytes == total_bytes([log[sequence] for sequence in held]), "held bytes drifted"
    holding = Counter(lease.consumer for lease in leased.values() if lease.consumer)
    assert (subscription.leases.by_consumer or {}) == dict(holding), f"{subscription.name}: consumers drifted"
    alive = {sequence for place, sequences in where.items() if place != "dead" for sequence in sequences}
    assert set(subscription.failures) <= alive, "failures of messages that are gone"
    assert set(subscription._expires or ()) <= alive, "expiries of messages that are gone"
    _check_keys(subscription, where)


def _check_keys(subscription: Subscription, where: dict[str, list[int]]) -> None:
    if subscription._keys is None:
        return
    log, keys = subscription.topic.log, subscription._keys
    turn = [log[sequence].ordering_key for place in ("ready", "delayed", "leased") for sequence in where[place]]
    turns = Counter(key for key in turn if key)
    assert dict(turns) == dict.fromkeys(keys._keys, 1), f"{subscription.name}: turns {turns}"
    assert keys.waiting == len(where["waiting for key"])


def _check_log(topic: Topic) -> None:
    holders = Counter(
        sequence for subscription in topic.subscriptions.values() for sequence in subscription.unacknowledged()
    )
    log = topic.log
    for sequence in range(1, log.next_sequence):
        assert (log.get(sequence) is not None) == (sequence in holders), f"{topic.name}: {sequence}, held {holders}"
        if sequence in holders:
            assert log.holders_of(sequence) == holders[sequence]
    assert all(sequence < log.next_sequence for sequence in holders)
    assert log.floor() <= min(holders, default=log.next_sequence)


# ── equality ────────────────────────────────────────────────────────────────────────────────────────────────────────


def state(engine: Engine) -> dict[str, Any]:
    """What must be the same after a replay: everything that facts decide, nothing that is only loaded."""
    return {
        "number": engine._number,
        "topics": {name: (topic.number, topic.log.next_sequence) for name, topic in engine.topics.items()},
        "dedup ids": {name: topic.dedup_ids.noted() for name, topic in engine.topics.items() if topic.dedup_ids},
        "snapshots": {name: msgspec.to_builtins(s.capture()) for name, s in engine.snapshots.items()},
        "subscriptions": {name: _state(subscription) for name, subscription in engine.subscriptions.items()},
    }


def _state(subscription: Subscription) -> dict[str, Any]:
    return {
        "number": subscription.number,
        "topic": subscription.topic.number,
        "detached": subscription.detached,
        "settings": subscription.settings,
        "first sequence": subscription.first_sequence,
        "used": subscription.used_ns,
        "unacknowledged": subscription.unacknowledged(),
        "leases": dict(subscription.leases.by_sequence),
        "failures": dict(subscription.failures),
        "dead": list(subscription.dead.values()),
        "totals": msgspec.structs.asdict(subscription.totals),
        "lease number": subscription.lease_number,
        "outstanding bytes": subscription.outstanding_bytes,
    }


def full_state(engine: Engine, now_ns: int) -> dict[str, Any]:
    """`state`, and what would be delivered next, and when: for a live engine and one that has recovered. Loads all."""
    engine.tick(now_ns)
    for name in engine.subscriptions:
        engine.peek(name, 1_000_000, now_ns)
    return state(engine) | {
        name: (
            list(subscription.backlog),
            {sequence: subscription._delayed.instant_ns(sequence) for sequence in subscription._delayed or ()},
            {sequence: subscription._expires.instant_ns(sequence) for sequence in subscription._expires or ()},
            sorted(subscription._keys or ()),
            subscription.held_bytes,
        )
        for name, subscription in engine.subscriptions.items()
    }


def stored(facts: Iterable[Fact]) -> list[Fact]:
    """Facts as they come back from a file."""
    return [_decoder.decode(_encoder.encode(fact)) for fact in facts]


def recovered(facts: Iterable[Fact], now_ns: int, engine: Engine) -> Engine:
    """A new engine in the state that the facts tell of."""
    for fact in facts:
        engine.replay(fact)
    engine.recovered(now_ns)
    return engine


def differences(ours: Any, theirs: Any, path: str = "") -> list[str]:
    """Where two states differ, one line each."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return [
            line
            for key in dict.fromkeys([*ours, *theirs])
            for line in differences(ours.get(key), theirs.get(key), f"{path}/{key}")
        ]
    return [] if ours == theirs else [f"{path}: {ours!r} is not {theirs!r}"]
