"""Subscriptions with a filter (pubsub-protocol.md 1.12.3): what does not pass is as if it had never been published."""

from __future__ import annotations

import pytest

from heliograph.engine.engine import Engine
from heliograph.engine.message import Draft
from heliograph.engine.retention import trim_point
from heliograph.engine.settings import Capacity
from heliograph.errors import InvalidArgument, QueueFull
from tests.engine.bench import Bench
from tests.engine.invariants import check_engine, full_state, recovered, stored

ONLY_A = 'attributes.kind = "a"'


def publish(bench: Bench, *kinds: str) -> None:
    drafts = [Draft(kind.encode(), {"kind": kind[0]}) for kind in kinds]
    bench.engine.publish("t", drafts, bench.now_ns)


def test_only_what_passes_is_delivered_and_counted() -> None:
    bench = Bench(filter=ONLY_A)
    bench.subscribe("all")
    publish(bench, "a1", "b1", "a2")
    publish(bench, "b2")
    statistics = bench.engine.statistics("s", bench.now_ns)
    assert (statistics.ready, statistics.totals.published) == (2, 2)
    assert bench.payloads() == ["a1", "a2"]
    assert bench.payloads(subscription="all") == ["a1", "b1", "a2", "b2"]
    check_engine(bench.engine)


def test_a_filter_that_cannot_be_read_makes_no_subscription() -> None:
    bench = Bench()
    with pytest.raises(InvalidArgument, match="position 1"):
        bench.subscribe("other", filter="data:x")
    assert "other" not in bench.engine.subscriptions


def test_a_filter_that_nothing_passes_holds_nothing_and_wakes_nobody() -> None:
    bench = Bench(filter="attributes:never")
    bench.engine.woken.clear()
    for _ in range(3):
        publish(bench, *["b"] * 600)
    assert bench.engine.woken == set()
    topic = bench.engine.topic("t")
    assert trim_point(topic, bench.now_ns).up_to == topic.log.next_sequence
    assert list(topic.log.held_sequences(1, topic.log.next_sequence)) == []


def test_what_does_not_pass_takes_no_room_and_is_not_dropped() -> None:
    bench = Bench(filter=ONLY_A, capacity=Capacity(2, 100))
    publish(bench, "b", "b", "b", "a1", "b", "a2", "b", "a3", "b")
    totals = bench.engine.statistics("s", bench.now_ns).totals
    assert (totals.published, totals.dropped) == (3, 1)
    assert bench.payloads() == ["a1", "a2"]
    check_engine(bench.engine)


def test_a_publisher_is_refused_for_what_would_come_to_the_full_subscription_only() -> None:
    bench = Bench(filter=ONLY_A, capacity=Capacity(2, 100, refuse=True))
    publish(bench, "a1", "a2", "b")
    publish(bench, "b")
    with pytest.raises(QueueFull):
        publish(bench, "b", "a3")


def test_ordering_keys_go_on_past_what_does_not_pass() -> None:
    bench = Bench(filter=ONLY_A, enable_message_ordering=True)
    drafts = [Draft(kind.encode(), {"kind": kind[0]}, "k") for kind in ("b1", "a1", "b2", "a2")]
    bench.engine.publish("t", drafts, bench.now_ns)
    (first,) = bench.pull()
    bench.ack(first)
    assert bench.payloads() == ["a2"]


def test_a_recovery_does_not_ask_the_filter_again() -> None:
    bench = Bench(filter=ONLY_A)
    publish(bench, "a1", "b1", "a2", "b2", "a3")
    bench.ack(*bench.pull(1))
    facts = stored(bench.engine.take_facts())
    again = recovered(facts, bench.now_ns, Engine())
    assert full_state(again, bench.now_ns) == full_state(bench.engine, bench.now_ns)
    check_engine(again)
