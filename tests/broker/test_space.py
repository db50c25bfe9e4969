"""Space comes back: the file stays near what it is needed for, in a day's load and after it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from heliograph.broker import housekeeping
from heliograph.broker.broker import LocalBroker
from heliograph.broker.clock import SimulatedClock
from heliograph.engine.dead_letter import DeadLetterPolicy
from heliograph.engine.message import Draft, Extras
from heliograph.engine.settings import SECOND_NS, SubscriptionSettings, TopicSettings
from heliograph.store.inspection import stats
from heliograph.store.sqlite import SqliteStore
from heliograph.store.verification import check

MINUTE = 60
HOUR = 60 * MINUTE
MIB = 1024 * 1024


@pytest.fixture(autouse=True)
def _no_wait_between_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are a share of the machine's time, of which a simulated clock needs none. A trim comes with one."""
    monkeypatch.setattr(housekeeping, "CHECKPOINT_SHARE", 1e9)


def load(broker: LocalBroker, topic: str, subscription: str, count: int, size_bytes: int) -> None:
    """Publish `count` messages and acknowledge as many."""
    for _ in range(0, count, 100):
        broker.publish(topic, [Draft(b"x" * size_bytes)] * 100)
        deliveries = broker.pull(subscription, 100).result()
        broker.acknowledge(subscription, [delivery.ack_id for delivery in deliveries])


def until(condition: Callable[[], bool]) -> None:
    """Wait for what the writer thread does by itself."""
    pause = threading.Event()
    for _ in range(3_000):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it never happened")


def test_the_file_stays_within_twice_its_live_data_through_a_day_of_load(tmp_path: Path) -> None:
    """One topic keeps six hours, the other nothing that is acknowledged; together 250 MB go through in a day."""
    clock = SimulatedClock()
    store = SqliteStore(tmp_path, durability="none", trim_delay_seconds=0.01)
    broker = LocalBroker(store, clock, memory_budget_bytes=8 * MIB)
    broker.create_topic("kept", TopicSettings(message_retention_ns=6 * HOUR * SECOND_NS))
    broker.create_topic("passing")
    broker.create_subscription("kept-reader", "kept")
    broker.create_subscription("passing-reader", "passing")
    ratios = []
    for minute in range(0, 24 * 60, 10):
        load(broker, "kept", "kept-reader", 300, 4_000)
        load(broker, "passing", "passing-reader", 300, 2_000)
        clock.advance(10 * MINUTE)
        if minute % 120 == 110 and minute > 6 * 60:
            store.append(()).wait()
            found = stats(tmp_path)
            ratios.append((found.file_bytes + found.log_bytes) / found.message_bytes)
    assert len(ratios) == 9
    assert max(ratios) <= 2, ratios
    broker.close()
    report = check(tmp_path)
    assert (report.is_sound, report.messages <= 6 * 1_800 + 300) == (True, True)


@pytest.mark.slow
def test_the_file_stays_within_twice_its_live_data_though_a_dead_letter_an_hour_is_kept(tmp_path: Path) -> None:
    """And one message that waits for three days, and one that a consumer keeps: each was published before nearly all
    that leaves. Live is what six hours brought, and what is held."""
    clock = SimulatedClock()
    store = SqliteStore(tmp_path, durability="none", trim_delay_seconds=0.01)
    broker = LocalBroker(store, clock, memory_budget_bytes=8 * MIB)
    broker.create_topic("jobs", TopicSettings(message_retention_ns=6 * HOUR * SECOND_NS))
    policy = DeadLetterPolicy(None, 1)
    broker.create_subscription("queue", "jobs", SubscriptionSettings(prioritised=True, dead_letter_policy=policy))
    in_three_days = Extras(available_at_ns=clock.now_ns() + 72 * HOUR * SECOND_NS)
    broker.publish("jobs", [Draft(b"x" * 4_000, extras=in_three_days), Draft(b"kept")])
    (kept,) = broker.pull("queue", 1).result()
    ratios = []
    for minute in range(0, 24 * 60, 10):
        load(broker, "jobs", "queue", 300, 4_000)
        if minute % 60 == 0:
            broker.publish("jobs", [Draft(b"x" * 4_000)])
            (failed,) = broker.pull("queue", 1).result()
            broker.nack("queue", [failed.ack_id]).result()
        for _ in range(2):
            broker.modify_ack_deadline("queue", [kept.ack_id], 600 * SECOND_NS).result()
            clock.advance(5 * MINUTE)
        if minute % 120 == 110 and minute > 6 * 60:
            store.append(()).wait()
            found = stats(tmp_path)
            live_bytes = 4_000 * (6 * 1_806 + minute // 60)
            ratios.append((found.file_bytes + found.log_bytes) / live_bytes)
    assert broker.statistics("queue").dead_letters == 24
    assert len(ratios) == 9
    assert max(ratios) <= 2, ratios
    broker.close()
    again = LocalBroker(SqliteStore(tmp_path), clock, memory_budget_bytes=0)
    assert [message.data for _, message in again.dead_letters("queue")] == [b"x" * 4_000] * 24
    assert again.pull("queue", 10).result() == []
    clock.advance(49 * HOUR)
    assert [delivery.message.data for delivery in again.pull("queue", 10).result()] == [b"x" * 4_000]
    assert again.dead_letters("queue")[-1][1].data == b"kept"  # its consumer is silent
    again.close()
    report = check(tmp_path)
    assert (report.is_sound, report.findings) == (True, [])


def test_what_is_past_its_retention_leaves_the_file_while_nobody_calls(tmp_path: Path) -> None:
    clock = SimulatedClock()
    store = SqliteStore(tmp_path, durability="none", trim_delay_seconds=0.01)
    broker = LocalBroker(store, clock, memory_budget_bytes=8 * MIB)
    broker.create_topic("t", TopicSettings(message_retention_ns=HOUR * SECOND_NS))
    broker.create_subscription("s", "t")
    load(broker, "t", "s", 10_000, 4_000)
    store.append(()).wait()
    clock.advance(59 * MINUTE)
    assert stats(tmp_path).message_bytes > 40_000_000
    clock.advance(2 * MINUTE)
    until(lambda: (tmp_path / "heliograph.db").stat().st_size < 6 * MIB)
    assert broker.log_bounds("t") == (10_001, 10_000)
    broker.close()


def test_traffic_goes_on_while_much_is_trimmed(tmp_path: Path) -> None:
    """Trimming shares its commits with publishing, in small pieces."""
    clock = SimulatedClock()
    store = SqliteStore(tmp_path, durability="none", trim_delay_seconds=0.01)
    broker = LocalBroker(store, clock, memory_budget_bytes=8 * MIB)
    broker.create_topic("old")
    broker.create_subscription("s", "old")
    for _ in range(2_000):
        broker.publish("old", [Draft(b"x" * 100)] * 100)
    broker.delete_subscription("s").result()
    broker.create_topic("new")
    broker.create_subscription("fresh", "new")
    clock.advance(MINUTE + 1)
    for _ in range(200):
        load(broker, "new", "fresh", 100, 100)
    assert broker.statistics("fresh").totals.acknowledged == 20_000
    until(lambda: [topic.messages for topic in stats(tmp_path).topics] == [0, 20_000])
    broker.close()
    assert check(tmp_path).is_sound
