"""How long messages are kept."""

from __future__ import annotations

from heliograph.engine.retention import SWEEP_MESSAGES
from heliograph.engine.settings import DAY_NS, NEVER_NS, SECOND_NS, SubscriptionSettings, TopicSettings
from tests.engine.bench import Bench

DAY_SECONDS = 86_400


def test_a_waiting_message_goes_when_it_is_older_than_the_retention_and_younger_ones_stay() -> None:
    bench = Bench(message_retention_ns=7 * DAY_NS)
    bench.publish("old")
    bench.seconds += 3 * DAY_SECONDS
    bench.publish("young")
    bench.seconds += 4 * DAY_SECONDS + 61
    bench.engine.tick(bench.now_ns)
    assert bench.payloads() == ["young"]


def test_a_leased_message_is_not_taken_away_but_goes_when_it_has_come_back() -> None:
    bench = Bench(message_retention_ns=DAY_NS)
    bench.publish("a")
    (delivery,) = bench.pull()
    for _ in range(300):
        bench.seconds += 300
        bench.engine.modify_ack_deadline("s", [delivery.ack_id], 600 * SECOND_NS, bench.now_ns)
    bench.nack(delivery)
    bench.seconds += 61
    bench.engine.tick(bench.now_ns)
    assert bench.payloads() == []


def test_zero_keeps_a_message_for_ever() -> None:
    bench = Bench(message_retention_ns=0)
    bench.publish("a")
    bench.seconds += 1_000 * DAY_SECONDS
    assert bench.payloads() == ["a"]


def test_a_key_goes_on_when_its_message_was_too_old() -> None:
    bench = Bench(message_retention_ns=DAY_NS, enable_message_ordering=True)
    bench.publish("k1", key="k")
    bench.seconds += DAY_SECONDS - 10
    bench.publish("k2", key="k")
    bench.seconds += 100
    bench.engine.tick(bench.now_ns)
    assert bench.payloads() == ["k2"]


def test_the_store_may_forget_what_is_acknowledged_unless_somebody_wants_it_kept() -> None:
    bench = Bench()
    bench.engine.create_topic("kept", TopicSettings(message_retention_ns=DAY_NS), bench.now_ns)
    bench.engine.create_topic("asked", TopicSettings(), bench.now_ns)
    keeps = SubscriptionSettings(retain_acked_messages=True, message_retention_ns=2 * DAY_NS)
    bench.engine.create_subscription("keeps", "asked", keeps, bench.now_ns)
    bench.publish("a", "b", "c")
    first, _ = bench.pull(2)
    bench.ack(first)
    bench.seconds += 61
    bench.engine.tick(bench.now_ns)
    assert bench.engine.trims is not None
    points = {point.topic_number: point for point in bench.engine.trims}
    numbers = {name: topic.number for name, topic in bench.engine.topics.items()}
    assert points[numbers["t"]].up_to == 2
    assert points[numbers["t"]].published_before_ns == NEVER_NS
    ages = {name: bench.now_ns - points[numbers[name]].published_before_ns for name in ("kept", "asked")}
    assert ages == {"kept": DAY_NS, "asked": 2 * DAY_NS}


def test_the_store_learns_what_is_done_also_after_many_messages_not_only_after_a_minute() -> None:
    bench = Bench()
    for _ in range(SWEEP_MESSAGES // 1_000 + 1):
        bench.publish(*["x"] * 1_000)
        bench.ack(*bench.pull(1_000))
    assert bench.engine.trims is not None
    assert bench.engine.trims[0].up_to > SWEEP_MESSAGES - 1_000


def test_a_key_that_goes_on_after_a_message_too_old_brings_its_delay() -> None:
    bench = Bench(message_retention_ns=DAY_NS, enable_message_ordering=True)
    bench.publish("old", key="k")
    bench.seconds += DAY_SECONDS - 10
    bench.publish("delayed", key="k", available_at_ns=bench.now_ns + 100 * SECOND_NS)
    bench.seconds += 75
    bench.engine.tick(bench.now_ns)
    assert (bench.engine.next_deadline_ns() or 0) <= bench.now_ns + 100 * SECOND_NS
    bench.seconds += 100
    assert bench.payloads() == ["delayed"]
