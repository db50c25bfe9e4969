"""Seeking to a time (pubsub-protocol.md 1.11.2, 1.11.6)."""

from __future__ import annotations

from pathlib import Path

import pytest

from heliograph.engine.dead_letter import DeadLetterPolicy
from heliograph.engine.message import Draft
from heliograph.engine.settings import SECOND_NS, Capacity, TopicSettings
from heliograph.errors import SubscriptionDetached, SubscriptionNotFound
from tests.broker.replay_bench import HOUR_NS, Bench

FORGETFUL = TopicSettings()
YEAR_3000_NS = 32_503_680_000 * SECOND_NS


@pytest.fixture(params=["memory", "sqlite"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("budget", [None, 0])
def test_what_was_published_before_is_done_and_what_came_from_then_on_comes_again(
    kind: str, tmp_path: Path, budget: int | None, checkpoint: bool
) -> None:
    bench = Bench(kind, tmp_path, budget=budget)
    bench.publish("a")
    then_ns = bench.publish("b1", "b2")
    bench.publish("c")
    assert bench.drain() == ["a", "b1", "b2", "c"]
    bench.broker.seek_to_time("s", then_ns).result(30)
    bench.publish("d")
    bench.restart(checkpoint=checkpoint)
    assert bench.broker.statistics("s").ready == 4
    assert bench.drain() == ["b1", "b2", "c", "d"]
    bench.broker.seek_to_time("s", then_ns + 1).result(30)
    assert bench.drain() == ["c", "d"]
    bench.broker.close()


def test_without_retention_acknowledged_messages_do_not_come_back(kind: str, tmp_path: Path) -> None:
    bench = Bench(kind, tmp_path, FORGETFUL)
    bench.publish("a", "b")
    bench.ack(bench.pull(count=1))
    then_ns = bench.publish("c")
    bench.broker.seek_to_time("s", 0).result(30)
    assert [one.message.data for one in bench.pull()] == [b"b", b"c"]
    bench.broker.seek_to_time("s", then_ns).result(30)
    assert bench.drain() == ["c"]
    bench.broker.close()


def test_what_the_topic_retains_also_comes_to_subscriptions_made_later(kind: str, tmp_path: Path) -> None:
    bench = Bench(kind, tmp_path)
    bench.publish("a", "b")
    bench.subscribe("late")
    assert bench.drain("late") == []
    bench.broker.seek_to_time("late", 0).result(30)
    assert bench.drain("late") == ["a", "b"]
    bench.broker.close()


def test_what_a_subscription_retains_is_what_was_published_to_it(kind: str, tmp_path: Path) -> None:
    bench = Bench(kind, tmp_path, FORGETFUL)
    bench.publish("a")
    bench.subscribe("late", retain_acked_messages=True)
    bench.publish("b")
    assert bench.drain("late") == ["b"]
    bench.broker.seek_to_time("late", 0).result(30)
    assert bench.drain("late") == ["b"]
    bench.broker.close()


def test_what_is_older_than_the_retention_does_not_come_back(kind: str, tmp_path: Path) -> None:
    bench = Bench(kind, tmp_path, FORGETFUL, retain_acked_messages=True, message_retention_ns=HOUR_NS)
    bench.subscribe("slow", message_retention_ns=0)  # so that the store has all of them
    bench.publish("a")
    bench.clock.advance(1800)
    bench.publish("b")
    bench.drain()
    bench.clock.advance(1801)
    bench.broker.seek_to_time("s", 0).result(30)
    assert bench.drain() == ["b"]
    bench.broker.close()


def test_messages_are_kept_as_long_as_the_longer_of_both_retentions(kind: str, tmp_path: Path) -> None:
    bench = Bench(kind, tmp_path, TopicSettings(message_retention_ns=2 * HOUR_NS), message_retention_ns=HOUR_NS)
    bench.publish("a")
    bench.drain()
    bench.clock.advance(5400)
    bench.broker.seek_to_time("s", 0).result(30)
    bench.sweep()
    assert bench.drain() == ["a"]
    bench.broker.close()


@pytest.mark.parametrize("instant_ns", [YEAR_3000_NS, 2**63 - 1])
def test_a_time_in_the_future_purges(kind: str, tmp_path: Path, instant_ns: int) -> None:
    bench = Bench(kind, tmp_path)
    bench.publish("a", "b")
    bench.pull(count=1)
    bench.broker.seek_to_time("s", instant_ns).result(30)
    statistics = bench.broker.statistics("s")
    assert (statistics.ready, statistics.outstanding, statistics.outstanding_bytes) == (0, 0, 0)
    bench.publish("c")
    assert bench.drain() == ["c"]
    bench.broker.close()


def test_a_time_before_everything_is_no_error(kind: str, tmp_path: Path) -> None:
    bench = Bench(kind, tmp_path)
    bench.broker.seek_to_time("s", -(10**30)).result(30)
    bench.publish("a")
    bench.broker.seek_to_time("s", -1).result(30)
    assert bench.drain() == ["a"]
    bench.broker.close()


def test_leases_are_void_and_their_ack_ids_harmless(kind: str, tmp_path: Path) -> None:
    bench = Bench(kind, tmp_path, ack_deadline_ns=30 * SECOND_NS, dead_letter_policy=DeadLetterPolicy(None, 3))
    then_ns = bench.publish("a", "b")
    held = bench.pull()
    bench.broker.nack("s", [held[1].ack_id]).result(30)
    bench.broker.seek_to_time("s", then_ns).result(30)
    again = bench.pull()
    assert [(one.message.data, one.attempt) for one in again] == [(b"a", 1), (b"b", 1)]
    assert bench.ack(held) == [one.ack_id for one in held]
    assert bench.broker.modify_ack_deadline("s", [held[0].ack_id], 0).result(30) == [held[0].ack_id]
    assert bench.pull() == []
    assert bench.ack(again) == []
    bench.broker.close()


def test_whoever_waits_is_told(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path)
    bench.publish("a")
    bench.drain()
    calls: list[int] = []
    bench.broker.watch("s", lambda: calls.append(1))
    bench.broker.seek_to_time("s", 0).result(30)
    assert calls == [1]
    bench.broker.close()


def test_keys_are_in_order_after_a_seek(kind: str, tmp_path: Path) -> None:
    bench = Bench(kind, tmp_path, enable_message_ordering=True)
    bench.publish("k1", key="k")
    bench.publish("l1", key="l")
    bench.publish("k2", key="k")
    bench.ack(bench.pull(count=1))
    bench.pull()
    bench.broker.seek_to_time("s", 0).result(30)
    bench.publish("k3", key="k")
    assert [one.message.data for one in bench.pull()] == [b"k1", b"l1"]
    bench.clock.advance(11)
    assert bench.drain() == ["k1", "l1", "k2", "k3"]
    bench.broker.close()


@pytest.mark.parametrize("settings", [{}, {"enable_message_ordering": True}, {"prioritised": True}])
def test_a_replay_may_be_larger_than_memory(kind: str, tmp_path: Path, settings: dict[str, object]) -> None:
    bench = Bench(kind, tmp_path, budget=0, **settings)
    numbers = [str(number) for number in range(3_000)]
    for start in range(0, 3_000, 500):
        bench.publish(*numbers[start : start + 500])
    then_ns = bench.now_ns
    assert bench.drain() == numbers
    bench.broker.seek_to_time("s", then_ns - 3 * SECOND_NS).result(30)
    assert bench.broker.statistics("s").ready == 2_000
    bench.restart(checkpoint=True)
    assert bench.drain() == numbers[1_000:]
    bench.broker.seek_to_time("s", 0).result(30)
    bench.restart(checkpoint=False)
    assert bench.drain() == numbers
    bench.broker.close()


def test_nothing_that_is_not_durable_yet_is_lost(tmp_path: Path) -> None:
    bench = Bench("sqlite", tmp_path)
    bench.subscribe("all")
    expected: list[str] = []
    for round_number in range(30):
        payloads = [f"{round_number}-{number}" for number in range(40)]
        bench.clock.advance(1)
        published = bench.broker.publish("t", [Draft(one.encode()) for one in payloads])
        bench.broker.seek_to_time("s", 0)
        expected += payloads
        assert sorted(bench.drain()) == sorted(expected)
        published.result(30)
    assert bench.drain("all") == expected
    bench.restart(checkpoint=False)
    bench.broker.close()


def test_a_filter_decides_what_comes_back(kind: str, tmp_path: Path) -> None:
    bench = Bench(kind, tmp_path)
    bench.publish("a1", "b1", "a2")
    bench.subscribe("late", filter='attributes.kind = "a"')
    bench.publish("b2", "a3")
    bench.pull("late")
    bench.broker.seek_to_time("late", 0).result(30)
    assert bench.broker.statistics("late").ready == 3
    bench.restart(checkpoint=True)
    assert bench.drain("late") == ["a1", "a2", "a3"]
    bench.broker.close()


def test_times_that_do_not_grow_are_looked_at_one_by_one(kind: str, tmp_path: Path) -> None:
    bench = Bench(kind, tmp_path)
    then_ns = bench.publish("new")
    old = Draft(b"old", publish_time_ns=then_ns - SECOND_NS)  # as a dead letter that keeps its time
    bench.broker.publish("t", [Draft(b"newer"), old, Draft(b"newest")]).result(30)
    bench.drain()
    bench.restart(checkpoint=True)
    bench.broker.seek_to_time("s", then_ns).result(30)
    assert bench.drain() == ["new", "newer", "newest"]
    bench.broker.close()


def test_dead_letters_stay_what_they_are(kind: str, tmp_path: Path) -> None:
    bench = Bench(kind, tmp_path, dead_letter_policy=DeadLetterPolicy(None, 1))
    bench.publish("a", "b")
    bench.broker.nack("s", [bench.pull(count=1)[0].ack_id]).result(30)
    bench.broker.seek_to_time("s", 0).result(30)
    assert [message.data for _, message in bench.broker.dead_letters("s")] == [b"a"]
    assert bench.drain() == ["b"]
    bench.broker.seek_to_time("s", YEAR_3000_NS).result(30)
    assert len(bench.broker.dead_letters("s")) == 1
    bench.broker.close()


def test_a_replay_is_not_dropped_for_a_full_subscription(kind: str, tmp_path: Path) -> None:
    bench = Bench(kind, tmp_path, capacity=Capacity(2, 100))
    for payload in ("a", "b", "c"):
        bench.publish(payload)
        bench.drain()
    bench.broker.seek_to_time("s", 0).result(30)
    bench.publish("d")
    bench.restart(checkpoint=True)
    assert bench.drain() == ["a", "b", "c"]
    bench.broker.close()


def test_what_came_back_is_not_trimmed(kind: str, tmp_path: Path) -> None:
    bench = Bench(kind, tmp_path, TopicSettings(message_retention_ns=HOUR_NS), message_retention_ns=0)
    bench.publish(*[str(number) for number in range(600)])
    bench.drain()
    bench.publish("last")
    bench.broker.seek_to_time("s", 0).result(30)
    bench.clock.advance(7200)
    bench.sweep()
    bench.restart(checkpoint=True)
    assert len(bench.drain()) == 601
    bench.broker.close()


def test_only_attached_subscriptions_seek(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path)
    with pytest.raises(SubscriptionNotFound):
        bench.broker.seek_to_time("none", 0)
    bench.broker.detach_subscription("s").result(30)
    with pytest.raises(SubscriptionDetached):
        bench.broker.seek_to_time("s", 0)
    bench.broker.close()


def test_a_subscription_of_a_deleted_topic_seeks_in_what_is_left(kind: str, tmp_path: Path) -> None:
    bench = Bench(kind, tmp_path)
    bench.publish("a", "b")
    bench.ack(bench.pull(count=1))
    bench.broker.delete_topic("t").result(30)
    bench.broker.seek_to_time("s", 0).result(30)
    bench.restart(checkpoint=True)
    assert bench.drain() == ["a", "b"]
    bench.broker.close()
