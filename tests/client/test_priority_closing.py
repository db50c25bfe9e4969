"""The priority API: join, close, and what outlives them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.broker.clock import SimulatedClock
from heliograph.client.priority import PriorityMessage, PriorityPubSub
from heliograph.errors import (
    FailedPrecondition,
)
from tests.client.extensions import Extensions
from tests.client.priority_world import AT_ONCE, SECONDS, Inbox, World, drained, opened, settled


@pytest.fixture
def world() -> Iterator[World]:
    yield from opened()


@pytest.fixture
def pubsub(world: World) -> PriorityPubSub:
    return world.open()


# ── the end ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_close_waits_for_the_callbacks_that_run_and_hands_out_no_more(world: World) -> None:
    pubsub = world.open()
    running, go_on = threading.Event(), threading.Event()
    inbox = Inbox(then=lambda _message: (running.set(), go_on.wait(SECONDS)))
    pubsub.subscribe("orders", inbox)
    pubsub.publish_many("orders", ["runs", "waits"])
    running.wait(SECONDS)
    closing = threading.Thread(target=pubsub.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    go_on.set()
    closing.join(SECONDS)
    assert not closing.is_alive()
    assert drained(world.open(), "orders") == ["waits"]
    assert inbox.values == ["runs"]


def test_a_closed_one_refuses_everything_with_a_clear_error(pubsub: PriorityPubSub) -> None:
    pubsub.publish("orders", 1)
    message = pubsub.broker.dequeue("orders")
    assert message is not None
    pubsub.close()
    calls: list[Callable[[], object]] = [
        lambda: pubsub.publish("orders", 1),
        lambda: pubsub.subscribe("orders", print),
        lambda: pubsub.unsubscribe("orders"),
        lambda: pubsub.acknowledge("1"),
        lambda: pubsub.dead_letters("orders"),
        lambda: pubsub.retry_dead_letters("orders"),
        lambda: pubsub.purge_dead_letters("orders"),
        lambda: pubsub.broker.dequeue("orders"),
        pubsub.join,
        message.acknowledge,
    ]
    for call in calls:
        with pytest.raises(FailedPrecondition, match="closed") as caught:
            call()
        assert caught.value.code == 9
    pubsub.close()


def test_close_gives_back_what_is_not_acknowledged_at_once_and_as_no_failure(world: World) -> None:
    first, second = world.open(), world.open()
    inbox = Inbox()
    first.subscribe("orders", inbox, auto_acknowledge=False)
    first.publish("orders", 1)
    inbox.wait(1)
    first.close()
    message = second.broker.dequeue("orders")
    assert message is not None
    assert message.retries == 0


def test_close_from_a_callback_ends_everything_when_the_callback_has_returned(world: World) -> None:
    pubsub = world.open()
    pubsub.subscribe("orders", lambda _message: pubsub.close())
    pubsub.publish_many("orders", [1, 2])
    for thread in threading.enumerate():
        if thread.name in ("heliograph-orders-1", "heliograph-close"):
            thread.join(SECONDS)
    assert drained(world.open(), "orders") == [2]


def test_join_from_a_callback_is_refused(pubsub: PriorityPubSub) -> None:
    errors = []

    def callback(_message: PriorityMessage) -> None:
        with pytest.raises(FailedPrecondition) as caught:
            pubsub.join()
        errors.append(caught.value)

    pubsub.subscribe("orders", callback)
    pubsub.publish("orders", 1)
    assert pubsub.join(SECONDS)
    assert len(errors) == 1


def test_join_waits_for_retries_and_tells_when_the_time_ran_out(pubsub: PriorityPubSub, world: World) -> None:
    inbox = Inbox(failures=1)
    pubsub.subscribe("orders", inbox)
    pubsub.publish("orders", 1)
    inbox.wait(1)
    assert not pubsub.join(0.01)
    settled(pubsub, "orders")
    world.clock.advance(10)
    assert pubsub.join(SECONDS)


def test_join_has_nothing_to_wait_for_without_subscribers(pubsub: PriorityPubSub) -> None:
    pubsub.publish("orders", 1)
    assert pubsub.join(0)


def test_a_callback_that_takes_longer_than_the_ack_deadline_keeps_its_message() -> None:
    clock = SimulatedClock()
    broker = LocalBroker(clock=clock)
    extensions = Extensions(broker, clock, 0.1)
    with PriorityPubSub(broker=broker, ack_deadline_seconds=0.1) as pubsub:
        inbox = Inbox(then=lambda _message: extensions.wait())
        pubsub.subscribe("orders", inbox)
        pubsub.publish("orders", 1)
        assert pubsub.join(SECONDS)
        assert [message.retries for message in inbox.messages] == [0]
    broker.close()


def test_a_broker_that_cannot_answer_for_a_while_does_not_end_a_subscriber(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    from heliograph.client import priority_subscription
    from heliograph.errors import Unavailable

    monkeypatch.setattr(priority_subscription, "_RETRY_SECONDS", 0.001)
    pubsub, inbox, fails = world.open(), Inbox(), [True] * 3
    pull = world.broker.pull

    def failing(*arguments: Any, **more: Any) -> Any:
        if fails:
            fails.pop()
            raise Unavailable("The store cannot commit: no space left")
        return pull(*arguments, **more)

    monkeypatch.setattr(world.broker, "pull", failing)
    pubsub.subscribe("orders", inbox)
    pubsub.publish("orders", 1)
    assert inbox.wait(1) == [1]


# ── what lasts ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_with_a_data_dir_messages_and_dead_letters_outlive_the_process(tmp_path: Any) -> None:
    with PriorityPubSub(0, data_dir=tmp_path) as pubsub:
        pubsub.subscribe("bad", Inbox(failures=None))
        pubsub.publish("bad", "dead", priority=2)
        assert pubsub.join(SECONDS)
        pubsub.publish("orders", {"low": 1}, priority=3)
        pubsub.publish("orders", b"high", priority=1)
    with PriorityPubSub(0, data_dir=tmp_path) as pubsub:
        assert drained(pubsub, "orders") == [b"high", {"low": 1}]
        assert [(letter.message, letter.priority) for letter in pubsub.dead_letters("bad")] == [("dead", 2)]


def test_after_a_restart_those_who_subscribed_miss_nothing_before_they_subscribe_again(world: World) -> None:
    first = world.open()
    first.subscribe("orders.new", Inbox()).close()
    first.subscribe("orders.#", Inbox()).close()
    first.close()
    world.restart()
    second = world.open()
    second.publish("orders.new", 1)
    literal, pattern = Inbox(), Inbox()
    second.subscribe("orders.new", literal)
    second.subscribe("orders.#", pattern)
    assert (literal.wait(1), pattern.wait(1)) == ([1], [1])
    assert second.join(SECONDS)


def test_the_number_of_retries_is_the_publishers_also_where_the_topic_exists_with_another(world: World) -> None:
    world.open(max_retries=5, retry_policy=AT_ONCE).publish("orders", "often")
    pubsub = world.open(max_retries=1, retry_policy=AT_ONCE)
    inbox = Inbox(failures=None)
    pubsub.publish("orders", "once")
    pubsub.subscribe("orders", inbox)
    assert pubsub.join(SECONDS)
    assert (inbox.values.count("often"), inbox.values.count("once")) == (6, 2)


def test_two_on_one_broker_share_topics_and_subscribers(world: World) -> None:
    one, other, inbox = world.open(), world.open(), Inbox()
    other.subscribe("orders.*", inbox)
    one.publish("orders.new", 1)
    assert inbox.wait(1) == [1]
    assert other.join(SECONDS)
