"""Snapshots (pubsub-protocol.md 1.11.3-1.11.5)."""

from __future__ import annotations

from pathlib import Path

import pytest

from heliograph.engine.settings import DAY_NS, SECOND_NS, TopicSettings
from heliograph.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    SnapshotNotFound,
    SubscriptionDetached,
    SubscriptionNotFound,
    TopicNotFound,
)
from heliograph.store.verification import check
from tests.broker.replay_bench import HOUR_NS, Bench

FORGETFUL = TopicSettings()


@pytest.fixture(params=["memory", "sqlite"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def in_store(bench: Bench) -> int:
    """How many messages of topic `t` the store has."""
    number = bench.broker.get_topic("t").number
    return sum(len(batch) for batch in bench.broker._store.read_log(number, 1, 2**40, held=True))


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("budget", [None, 0])
def test_seeking_to_it_brings_back_exactly_what_it_has_and_what_came_since(
    kind: str, tmp_path: Path, budget: int | None, checkpoint: bool
) -> None:
    bench = Bench(kind, tmp_path, FORGETFUL, budget=budget)
    bench.publish("done", "leased", "waiting", "done too")
    first, leased, _, last = bench.pull()
    bench.ack([first, last])
    bench.broker.create_snapshot("snap", "s").result(30)
    bench.publish("since")
    bench.ack([leased])
    bench.clock.advance(11)
    bench.drain()
    bench.restart(checkpoint=checkpoint)
    bench.publish("now")
    bench.broker.seek_to_snapshot("s", "snap").result(30)
    assert bench.broker.statistics("s").ready == 4
    bench.restart(checkpoint=checkpoint)
    assert bench.drain() == ["leased", "waiting", "since", "now"]
    bench.broker.close()


def test_it_keeps_its_messages_past_every_retention_and_its_subscription(kind: str, tmp_path: Path) -> None:
    bench = Bench(kind, tmp_path, FORGETFUL, message_retention_ns=HOUR_NS)
    bench.publish("settled before")
    bench.drain()
    bench.publish("a1", "b1")
    bench.broker.create_snapshot("snap", "s").result(30)
    bench.publish("a2")
    bench.subscribe("other", filter='attributes.kind = "a"')
    bench.drain()
    bench.broker.delete_subscription("s").result(30)
    bench.clock.advance(2 * 3600)
    for _ in range(2):
        bench.sweep()
        bench.restart(checkpoint=True)
    bench.broker.seek_to_snapshot("other", "snap").result(30)
    assert bench.drain("other") == ["a1", "a2"]
    bench.subscribe("all")
    bench.broker.seek_to_snapshot("all", "snap").result(30)
    assert bench.drain("all") == ["a1", "b1", "a2"]
    bench.broker.close()


def test_stragglers_behind_a_trimmed_log_are_kept_for_it(kind: str, tmp_path: Path) -> None:
    bench = Bench(kind, tmp_path, FORGETFUL, message_retention_ns=0)
    bench.publish("straggler", *["x"] * 2_000)
    held = bench.pull()
    bench.ack(held[1:])
    bench.broker.modify_ack_deadline("s", [held[0].ack_id], 600 * SECOND_NS).result(30)
    bench.sweep()
    assert bench.broker.log_bounds("t")[0] > 1
    bench.broker.create_snapshot("snap", "s").result(30)
    bench.ack(held[:1])
    bench.publish("since")
    bench.drain()
    for _ in range(2):
        bench.sweep()
        bench.restart(checkpoint=True)
    bench.broker.seek_to_snapshot("s", "snap").result(30)
    assert bench.drain() == ["straggler", "since"]
    bench.broker.close()


def test_it_expires_by_itself_and_lets_its_messages_go(kind: str, tmp_path: Path) -> None:
    bench = Bench(kind, tmp_path, FORGETFUL)
    published_ns = bench.publish("a", "b")
    bench.clock.advance(100)
    info = bench.broker.create_snapshot("snap", "s").result(30)
    assert info.expires_ns == published_ns + 7 * DAY_NS
    bench.drain()
    bench.sweep()
    assert in_store(bench) == 2
    bench.clock.advance((info.expires_ns - bench.now_ns) / 1e9 - 1)
    assert bench.broker.get_snapshot("snap") == info
    bench.clock.advance(1)
    assert bench.broker._engine.snapshots == {}, "the timer did it"
    with pytest.raises(SnapshotNotFound):
        bench.broker.seek_to_snapshot("s", "snap")
    bench.restart(checkpoint=False)
    bench.sweep()
    bench.restart(checkpoint=True)
    assert bench.broker.log_bounds("t") == (3, 2)
    bench.broker.close()


def test_an_empty_one_expires_after_seven_days(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path)
    info = bench.broker.create_snapshot("snap", "s", labels={"a": "b"}, resource=b"kept").result(30)
    assert info.expires_ns == bench.now_ns + 7 * DAY_NS
    assert (info.topic, info.created_ns, info.labels, info.resource) == ("t", bench.now_ns, {"a": "b"}, b"kept")
    bench.broker.close()


def test_one_that_would_expire_within_the_hour_is_not_made(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path, message_retention_ns=30 * DAY_NS)
    bench.publish("old")
    bench.clock.advance(7 * 86_400 - 3_600)
    bench.broker.create_snapshot("just", "s").result(30)
    bench.clock.advance(1)
    with pytest.raises(FailedPrecondition, match="within the hour"):
        bench.broker.create_snapshot("late", "s")
    assert [info.name for info in bench.broker.list_snapshots()] == ["just"]
    bench.broker.close()


def test_it_is_of_one_topic_and_not_of_another_that_has_its_name(kind: str, tmp_path: Path) -> None:
    bench = Bench(kind, tmp_path)
    bench.publish("a")
    bench.broker.create_snapshot("snap", "s").result(30)
    bench.broker.create_topic("u").result(30)
    bench.subscribe("v", "u")
    with pytest.raises(FailedPrecondition):
        bench.broker.seek_to_snapshot("v", "snap")
    bench.broker.delete_topic("t").result(30)
    assert bench.broker.get_snapshot("snap").topic_deleted
    bench.broker.create_topic("t").result(30)
    bench.subscribe("again")
    bench.restart(checkpoint=True)
    with pytest.raises(FailedPrecondition):
        bench.broker.seek_to_snapshot("again", "snap")
    assert bench.drain() == ["a"]
    bench.broker.seek_to_snapshot("s", "snap").result(30)
    assert bench.drain() == ["a"], "what is left of the old topic has it still"
    assert bench.broker.list_snapshots("t") == []
    bench.broker.close()


def test_they_are_listed_changed_and_deleted(kind: str, tmp_path: Path) -> None:
    bench = Bench(kind, tmp_path)
    bench.broker.create_topic("u").result(30)
    bench.subscribe("v", "u")
    for name, subscription in (("b", "s"), ("a", "s"), ("c", "v")):
        bench.broker.create_snapshot(name, subscription).result(30)
    assert [info.name for info in bench.broker.list_snapshots()] == ["a", "b", "c"]
    assert [info.name for info in bench.broker.list_snapshots("t")] == ["a", "b"]
    with pytest.raises(TopicNotFound):
        bench.broker.list_snapshots("none")
    later_ns = bench.now_ns + 9 * DAY_NS
    bench.broker.update_snapshot("a", expires_ns=later_ns, labels={"x": "y"}, resource=b"r").result(30)
    bench.broker.delete_snapshot("b").result(30)
    bench.restart(checkpoint=False)
    info = bench.broker.get_snapshot("a")
    assert (info.expires_ns, info.labels, info.resource) == (later_ns, {"x": "y"}, b"r")
    for call in (bench.broker.get_snapshot, bench.broker.delete_snapshot):
        with pytest.raises(SnapshotNotFound):
            call("b")
    with pytest.raises(InvalidArgument):
        bench.broker.update_snapshot("a", expires_ns=bench.now_ns, labels={}, resource=b"")
    bench.broker.close()


def test_names_are_taken_once_and_the_subscription_must_be_there_and_attached(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path)
    bench.broker.create_snapshot("snap", "s").result(30)
    with pytest.raises(AlreadyExists):
        bench.broker.create_snapshot("snap", "s")
    with pytest.raises(SubscriptionNotFound):
        bench.broker.create_snapshot("other", "none")
    with pytest.raises(SnapshotNotFound):
        bench.broker.seek_to_snapshot("s", "none")
    bench.broker.detach_subscription("s").result(30)
    with pytest.raises(SubscriptionDetached):
        bench.broker.create_snapshot("other", "s")
    with pytest.raises(SubscriptionDetached):
        bench.broker.seek_to_snapshot("s", "snap")
    bench.broker.close()


def test_a_check_of_the_store_misses_what_only_a_snapshot_needs(tmp_path: Path) -> None:
    bench = Bench("sqlite", tmp_path, FORGETFUL)
    bench.publish("a", "b")
    bench.broker.create_snapshot("snap", "s").result(30)
    bench.drain()
    bench.sweep()
    bench.broker.close()
    assert check(tmp_path).is_sound
    bench._open()
    bench.broker._store.trim(bench.broker.get_topic("t").number, 3)
    bench.broker.close()
    (finding,) = check(tmp_path).findings
    assert "snapshots: snap" in finding.affects


def test_one_that_is_made_before_anything_is_published_does_not_put_off_retention(tmp_path: Path) -> None:
    """Found by the model: the look at what is due by itself was set to the snapshot's expiry, days later."""
    bench = Bench("memory", tmp_path, FORGETFUL, message_retention_ns=HOUR_NS)
    bench.broker.create_snapshot("snap", "s").result(30)
    bench.publish("a")
    bench.clock.advance(3_600 + 61)
    assert bench.broker.statistics("s").ready == 0
    bench.broker.close()
