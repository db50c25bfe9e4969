"""Settings that change, subscriptions that are detached, topics that go (pubsub-protocol.md 1.3.5, 1.5.11-1.5.15)."""

from __future__ import annotations

from pathlib import Path

import pytest

from heliograph.broker.protocol import SubscriptionInfo
from heliograph.engine.dead_letter import DeadLetterPolicy
from heliograph.engine.retry import RetryPolicy
from heliograph.engine.settings import SECOND_NS, Capacity, SubscriptionSettings, TopicSettings
from heliograph.errors import InvalidArgument, SubscriptionDetached, SubscriptionNotFound, TopicNotFound
from tests.broker.replay_bench import HOUR_NS, Bench


@pytest.fixture(params=["memory", "sqlite"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def update(bench: Bench, **settings: object) -> SubscriptionInfo:
    return bench.broker.update_subscription("s", SubscriptionSettings(**settings)).result(30)  # type: ignore[arg-type]  # tests pass what they like


def nack(bench: Bench) -> None:
    bench.broker.nack("s", [one.ack_id for one in bench.pull()]).result(30)


# ── settings ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("checkpoint", [False, True])
def test_new_settings_are_told_and_survive_a_restart(kind: str, tmp_path: Path, checkpoint: bool) -> None:
    bench = Bench(kind, tmp_path)
    info = update(bench, ack_deadline_ns=99 * SECOND_NS, labels={"a": "b"}, resource=b"r")
    topic = bench.broker.update_topic("t", TopicSettings(HOUR_NS, {"c": "d"}, b"t")).result(30)
    bench.restart(checkpoint=checkpoint)
    assert bench.broker.get_subscription("s") == info
    assert bench.broker.get_topic("t") == topic
    assert info.settings.ack_deadline_ns == 99 * SECOND_NS
    assert topic.settings == TopicSettings(HOUR_NS, {"c": "d"}, b"t")
    bench.broker.close()


@pytest.mark.parametrize(
    "field", [{"enable_message_ordering": True}, {"filter": "attributes:a"}, {"prioritised": True}]
)
def test_what_cannot_change_is_refused_and_nothing_else_changes_with_it(
    tmp_path: Path, field: dict[str, object]
) -> None:
    bench = Bench("memory", tmp_path, labels={"a": "b"})
    before = bench.broker.get_subscription("s")
    with pytest.raises(InvalidArgument, match=next(iter(field))):
        update(bench, labels={}, **field)
    assert bench.broker.get_subscription("s") == before
    bench.broker.close()


def test_only_what_is_there_can_be_updated(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path)
    with pytest.raises(TopicNotFound):
        bench.broker.update_topic("none", TopicSettings())
    with pytest.raises(SubscriptionNotFound):
        bench.broker.update_subscription("none", SubscriptionSettings())
    with pytest.raises(SubscriptionNotFound):
        bench.broker.detach_subscription("none")
    bench.broker.close()


def test_a_new_ack_deadline_is_for_new_leases(kind: str, tmp_path: Path) -> None:
    bench = Bench(kind, tmp_path, ack_deadline_ns=10 * SECOND_NS)
    bench.publish("a", "b")
    bench.pull(count=1)
    update(bench, ack_deadline_ns=60 * SECOND_NS)
    bench.pull(count=1)
    bench.clock.advance(11)
    assert [one.message.data for one in bench.pull()] == [b"a"]
    bench.clock.advance(50)
    assert [one.message.data for one in bench.pull()] == [b"b"]
    bench.broker.close()


def test_a_new_retry_policy_is_for_the_next_failures(kind: str, tmp_path: Path) -> None:
    bench = Bench(kind, tmp_path, retry_policy=RetryPolicy(100 * SECOND_NS, 100 * SECOND_NS))
    bench.publish("a")
    nack(bench)
    update(bench)
    assert bench.pull() == [], "it waits as it was told to"
    bench.clock.advance(100)
    nack(bench)
    assert [one.attempt for one in bench.pull()] == [3]
    bench.broker.close()


def test_a_new_retention_is_for_the_next_look(kind: str, tmp_path: Path) -> None:
    bench = Bench(kind, tmp_path, TopicSettings())
    bench.publish("a")
    bench.clock.advance(7_200)
    update(bench, message_retention_ns=HOUR_NS)
    bench.sweep()
    assert bench.drain() == []
    bench.broker.close()


def test_a_topic_keeps_what_comes_after_it_was_given_a_retention(kind: str, tmp_path: Path) -> None:
    bench = Bench(kind, tmp_path, TopicSettings())
    bench.broker.update_topic("t", TopicSettings(HOUR_NS)).result(30)
    bench.publish("a")
    bench.drain()
    bench.sweep()
    bench.broker.seek_to_time("s", 0).result(30)
    assert bench.drain() == ["a"]
    bench.broker.close()


def test_more_room_wakes_who_waits(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path, outstanding_messages_max=1)
    bench.publish("a", "b")
    bench.pull()
    calls: list[int] = []
    bench.broker.watch("s", lambda: calls.append(1))
    calls.clear()
    update(bench, outstanding_messages_max=2)
    assert calls == [1]
    assert len(bench.pull()) == 1
    bench.broker.close()


def test_a_capacity_counts_what_is_there_already(kind: str, tmp_path: Path) -> None:
    bench = Bench(kind, tmp_path)
    bench.publish("a", "b", "c")
    bench.pull(count=1)
    update(bench, capacity=Capacity(4, 100))
    bench.publish("d", "e")
    bench.restart(checkpoint=True)
    bench.clock.advance(11)
    assert bench.drain() == ["a", "b", "c", "d"]
    update(bench)
    bench.publish("f", "g", "h", "i", "j")
    assert len(bench.drain()) == 5
    bench.broker.close()


# ── dead letters ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_policy_that_comes_late_takes_messages_over_its_maximum_at_their_next_failure(
    kind: str, tmp_path: Path
) -> None:
    bench = Bench(kind, tmp_path)
    bench.publish("a")
    for _ in range(7):
        nack(bench)
    update(bench, dead_letter_policy=DeadLetterPolicy("graves", 5))
    (delivery,) = bench.pull()
    assert delivery.attempt == 8
    bench.broker.nack("s", [delivery.ack_id]).result(30)
    assert bench.pull() == []
    bench.broker.create_topic("graves").result(30)
    bench.broker.close()


def test_a_message_whose_dead_letter_topic_is_missing_waits_for_it(kind: str, tmp_path: Path) -> None:
    policy = DeadLetterPolicy("graves", 1, source_attributes=True)
    bench = Bench(kind, tmp_path, dead_letter_policy=policy)
    published_ns = bench.publish("a")
    nack(bench)
    bench.restart(checkpoint=True)
    bench.clock.advance(5)
    bench.broker.create_topic("graves", TopicSettings(HOUR_NS)).result(30)
    bench.subscribe("mourner", "graves")
    bench.broker.seek_to_time("mourner", 0).result(30)
    bench.broker._store.append(()).wait(30)
    (letter,) = bench.pull("mourner")
    assert letter.message.attributes == {
        "kind": "a",
        "CloudPubSubDeadLetterSourceDeliveryCount": "1",
        "CloudPubSubDeadLetterSourceSubscription": "s",
        "CloudPubSubDeadLetterSourceSubscriptionProject": "",
        "CloudPubSubDeadLetterSourceTopicPublishTime": "2001-09-09T01:46:41.000+00:00",
    }
    assert letter.message.publish_time_ns == published_ns + 5 * SECOND_NS
    bench.broker.close()


def test_dead_letters_go_to_the_topic_that_the_policy_names_by_then(kind: str, tmp_path: Path) -> None:
    bench = Bench(kind, tmp_path, dead_letter_policy=DeadLetterPolicy("missing", 1))
    bench.publish("a")
    nack(bench)
    bench.broker.create_topic("graves").result(30)
    bench.subscribe("mourner", "graves")
    update(bench, dead_letter_policy=DeadLetterPolicy("graves", 1))
    bench.broker._store.append(()).wait(30)
    assert bench.drain("mourner") == ["a"]
    bench.broker.close()


@pytest.mark.parametrize("checkpoint", [False, True])
def test_without_a_policy_messages_on_their_way_to_a_topic_wait_again(
    kind: str, tmp_path: Path, checkpoint: bool
) -> None:
    bench = Bench(kind, tmp_path, dead_letter_policy=DeadLetterPolicy("missing", 1), enable_message_ordering=True)
    bench.publish("a", "b", key="k")
    nack(bench)
    bench.restart(checkpoint=checkpoint)
    update(bench, enable_message_ordering=True)
    bench.broker.create_topic("missing").result(30)
    bench.restart(checkpoint=checkpoint)
    assert sorted(bench.drain()) == ["a", "b"]
    bench.broker.close()


def test_dead_letters_that_a_subscription_keeps_stay_there_without_a_policy(tmp_path: Path) -> None:
    bench = Bench("memory", tmp_path, dead_letter_policy=DeadLetterPolicy(None, 1))
    bench.publish("a")
    nack(bench)
    update(bench)
    assert bench.drain() == []
    assert bench.broker.retry_dead_letters("s").result(30) == 1
    assert bench.drain() == ["a"]
    bench.broker.close()


# ── detaching, and topics that go ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_detached_subscription_is_empty_refuses_pulls_and_leaves_its_topics_list(
    kind: str, tmp_path: Path, checkpoint: bool
) -> None:
    bench = Bench(kind, tmp_path)
    bench.subscribe("other")
    bench.publish("a", "b")
    (held, *_) = bench.pull(count=1)
    calls: list[int] = []
    bench.broker.watch("s", lambda: calls.append(1))
    calls.clear()
    bench.broker.detach_subscription("s").result(30)
    assert calls == [1], "whoever waits is told"
    bench.publish("c")
    bench.broker.detach_subscription("s").result(30)
    bench.restart(checkpoint=checkpoint)
    assert bench.ack([held]) == [held.ack_id]
    with pytest.raises(SubscriptionDetached):
        bench.pull()
    info = bench.broker.get_subscription("s")
    assert (info.topic, info.detached, info.topic_deleted) == ("t", True, False)
    assert bench.broker.statistics("s").ready == 0
    assert [one.name for one in bench.broker.list_subscriptions("t")] == ["other"]
    assert [one.name for one in bench.broker.list_subscriptions()] == ["other", "s"]
    bench.broker.delete_topic("t").result(30)
    bench.restart(checkpoint=checkpoint)
    assert bench.broker.get_subscription("s").topic_deleted
    with pytest.raises(SubscriptionDetached):
        bench.pull()
    assert bench.drain("other") == ["a", "b", "c"]
    bench.broker.delete_subscription("s").result(30)
    bench.restart(checkpoint=checkpoint)
    assert [one.name for one in bench.broker.list_subscriptions()] == ["other"]
    bench.broker.close()


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_deleted_topics_subscriptions_deliver_what_they_have_and_a_new_one_of_its_name_has_none(
    kind: str, tmp_path: Path, checkpoint: bool
) -> None:
    bench = Bench(kind, tmp_path, enable_message_ordering=True)
    bench.publish("a", "b", key="k")
    bench.broker.delete_topic("t").result(30)
    bench.broker.create_topic("t").result(30)
    bench.publish("new")
    bench.sweep()
    bench.restart(checkpoint=checkpoint)
    info = bench.broker.get_subscription("s")
    assert (info.topic, info.detached, info.topic_deleted) == ("t", False, True)
    assert bench.broker.list_subscriptions("t") == []
    nack(bench)
    assert bench.drain() == ["a", "b"]
    bench.broker.close()
