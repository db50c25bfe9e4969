"""The priority API (spec 004) as its users know it. No test sleeps: it waits for what must happen, or moves a clock."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from heliograph.client.priority import Priority, PriorityMessage, PriorityPubSub
from heliograph.errors import (
    AckDeadlineExceeded,
    MessageNotFound,
)
from tests.client.priority_world import AT_ONCE, SECONDS, Inbox, World, drained, opened


@pytest.fixture
def world() -> Iterator[World]:
    yield from opened()


@pytest.fixture
def pubsub(world: World) -> PriorityPubSub:
    return world.open()


# ── publish and subscribe ────────────────────────────────────────────────────────────────────────────────────────────


def test_five_lines_are_enough() -> None:
    got = []
    pubsub = PriorityPubSub()
    pubsub.subscribe("orders", lambda order: got.append(order.message))
    pubsub.publish("orders", {"id": 1}, priority=1)
    assert pubsub.join(SECONDS)
    pubsub.close()
    assert got == [{"id": 1}]


def test_subscribe_is_a_decorator_too(pubsub: PriorityPubSub) -> None:
    got = []

    @pubsub.subscribe("orders")
    def handle(message: PriorityMessage) -> None:
        got.append(message.message)

    pubsub.publish("orders", 1)
    assert pubsub.join(SECONDS)
    assert (got, handle.__name__) == ([1], "handle")


def test_a_message_comes_with_its_id_priority_retries_and_topic(pubsub: PriorityPubSub) -> None:
    inbox = Inbox()
    pubsub.subscribe("orders", inbox)
    message_id = pubsub.publish("orders", "hello", priority=2)
    inbox.wait(1)
    (message,) = inbox.messages
    assert (message.id, message.published_id) == (message_id, message_id)
    assert (message.message, message.priority, message.retries, message.topic) == ("hello", 2, 0, "orders")


def test_of_those_that_wait_the_higher_priority_goes_first_then_the_older(pubsub: PriorityPubSub) -> None:
    for name, priority in (("3a", 3), ("1a", 1), ("2a", 2), ("3b", 3), ("1b", 1), ("2b", 2)):
        pubsub.publish("orders", name, priority)
    inbox = Inbox()
    pubsub.subscribe("orders", inbox)
    assert pubsub.join(SECONDS)
    assert inbox.values == ["1a", "1b", "2a", "2b", "3a", "3b"]


def test_a_high_one_that_comes_later_overtakes_what_still_waits(pubsub: PriorityPubSub) -> None:
    running, go_on = threading.Event(), threading.Event()

    def hold(_message: PriorityMessage) -> None:
        running.set()
        go_on.wait(SECONDS)

    inbox = Inbox(then=hold)
    pubsub.subscribe("orders", inbox)
    pubsub.publish("orders", "first")
    running.wait(SECONDS)
    pubsub.publish_many("orders", ["low", "low too"], priority=3)
    pubsub.publish("orders", "high", priority=1)
    go_on.set()
    assert pubsub.join(SECONDS)
    assert inbox.values == ["first", "high", "low", "low too"]


def test_the_default_priority_is_three(pubsub: PriorityPubSub) -> None:
    pubsub.publish("orders", "default")
    assert getattr(pubsub.broker.dequeue("orders"), "priority", None) == 3


def test_the_levels_have_names(pubsub: PriorityPubSub) -> None:
    pubsub.publish("orders", "a", Priority.HIGH)
    assert getattr(pubsub.broker.dequeue("orders"), "priority", None) == 1


def test_what_is_published_before_anyone_subscribes_is_kept(pubsub: PriorityPubSub) -> None:
    pubsub.publish_many("orders", [1, 2, 3])
    inbox = Inbox()
    pubsub.subscribe("orders", inbox)
    assert inbox.wait(3) == [1, 2, 3]


def test_several_subscribers_of_one_topic_share_its_messages(pubsub: PriorityPubSub) -> None:
    both_run = threading.Barrier(2)
    inboxes = [Inbox(then=lambda message: both_run.wait(SECONDS) if message.message < 2 else None) for _ in range(2)]
    for inbox in inboxes:
        pubsub.subscribe("orders", inbox)
    pubsub.publish_many("orders", list(range(100)))
    assert pubsub.join(SECONDS)
    assert all(inbox.values for inbox in inboxes)
    assert sorted(inboxes[0].values + inboxes[1].values) == list(range(100))


def test_topics_are_apart(pubsub: PriorityPubSub) -> None:
    orders, bills = Inbox(), Inbox()
    pubsub.subscribe("orders", orders)
    pubsub.subscribe("bills", bills)
    pubsub.publish("orders", 1)
    pubsub.publish("bills", 2)
    assert pubsub.join(SECONDS)
    assert (orders.values, bills.values) == ([1], [2])


def test_workers_run_as_many_callbacks_at_the_same_time(pubsub: PriorityPubSub) -> None:
    together = threading.Barrier(3)
    pubsub.subscribe("orders", lambda _message: together.wait(SECONDS), workers=3)
    pubsub.publish_many("orders", [1, 2, 3])
    assert pubsub.join(SECONDS)
    assert not together.broken


def test_a_closed_subscriber_gets_no_more_and_its_messages_stay(pubsub: PriorityPubSub) -> None:
    first, second = Inbox(), Inbox()
    with pubsub.subscribe("orders", first):
        pubsub.publish("orders", 1)
        first.wait(1)
        assert pubsub.join(SECONDS)
    pubsub.publish("orders", 2)
    pubsub.subscribe("orders", second)
    assert (second.wait(1), first.values) == ([2], [1])


def test_a_callback_may_publish_and_close_its_own_subscription(pubsub: PriorityPubSub) -> None:
    done = threading.Event()

    def once(message: PriorityMessage) -> None:
        pubsub.publish("next", message.message + 1)
        subscription.close()
        done.set()

    subscription = pubsub.subscribe("orders", once)
    pubsub.publish("orders", 1)
    assert done.wait(SECONDS)
    assert drained(pubsub, "next") == [2]


@pytest.mark.parametrize(
    "value",
    [
        {"id": 1, "items": ["a", {"b": [None, True, 1.5, -0.0]}]},
        [],
        {},
        "",
        "ü → 🙂 \u2028 \x00",
        0,
        2**200,
        1e-300,
        False,
        None,
        b"",
        b"\x00\xff{}",
        b'"text"',
    ],
)
def test_any_json_value_or_bytes_comes_back_as_it_was_published(pubsub: PriorityPubSub, value: object) -> None:
    pubsub.publish("orders", value)
    message = pubsub.broker.dequeue("orders")
    assert message is not None
    assert (message.message, type(message.message)) == (value, type(value))


def test_what_changes_after_its_publication_is_not_changed_in_the_message(pubsub: PriorityPubSub) -> None:
    order = {"items": [1]}
    pubsub.publish("orders", order)
    order["items"].append(2)
    assert drained(pubsub, "orders") == [{"items": [1]}]


# ── acknowledgement ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_callback_that_returns_has_acknowledged(pubsub: PriorityPubSub, world: World) -> None:
    inbox = Inbox()
    pubsub.subscribe("orders", inbox)
    pubsub.publish("orders", 1)
    assert pubsub.join(SECONDS)
    world.clock.advance(10_000)
    assert pubsub.join(SECONDS)
    assert inbox.values == [1]


def test_without_auto_acknowledge_a_message_is_held_until_its_id_is_acknowledged(
    pubsub: PriorityPubSub, world: World
) -> None:
    inbox = Inbox()
    pubsub.subscribe("orders", inbox, auto_acknowledge=False)
    message_id = pubsub.publish("orders", 1)
    inbox.wait(1)
    assert not pubsub.join(0)
    pubsub.acknowledge(message_id)
    assert pubsub.join(SECONDS)
    world.clock.advance(10_000)
    assert inbox.values == [1]


def test_a_message_acknowledges_itself_and_a_second_time_does_nothing(pubsub: PriorityPubSub) -> None:
    pubsub.publish("orders", 1)
    message = pubsub.broker.dequeue("orders")
    assert message is not None
    message.acknowledge()
    message.acknowledge()
    message.retry()
    assert (pubsub.broker.dequeue("orders"), pubsub.dead_letters("orders")) == (None, [])


def test_what_is_not_acknowledged_before_its_deadline_comes_again(world: World) -> None:
    pubsub = world.open(retry_policy=AT_ONCE, ack_deadline_seconds=20)
    inbox = Inbox()
    pubsub.subscribe("orders", inbox, auto_acknowledge=False)
    pubsub.publish("orders", 1)
    inbox.wait(1)
    world.clock.advance(20)
    inbox.wait(2)
    assert [message.retries for message in inbox.messages] == [0, 1]
    with pytest.raises(AckDeadlineExceeded):
        inbox.messages[0].acknowledge()
    inbox.messages[1].acknowledge()


def test_a_message_acknowledged_in_its_callback_does_not_come_again_though_the_callback_raises(
    pubsub: PriorityPubSub, world: World
) -> None:
    inbox = Inbox(failures=None, then=lambda message: message.acknowledge())
    pubsub.subscribe("orders", inbox)
    pubsub.publish("orders", 1)
    assert pubsub.join(SECONDS)
    world.clock.advance(10_000)
    assert (inbox.values, pubsub.dead_letters("orders")) == ([1], [])


def test_an_id_acknowledged_in_its_callback_is_not_acknowledged_twice(
    pubsub: PriorityPubSub, caplog: pytest.LogCaptureFixture
) -> None:
    pubsub.subscribe("orders", lambda message: pubsub.acknowledge(message.id))
    pubsub.publish("orders", 1)
    assert pubsub.join(SECONDS)
    assert not caplog.records


@pytest.mark.parametrize("message_id", ["", "x", "17", "1000000000099", "999000000000001"])
def test_acknowledging_what_nobody_holds_is_an_error(pubsub: PriorityPubSub, message_id: str) -> None:
    pubsub.publish("orders", 1)
    with pytest.raises(MessageNotFound) as caught:
        pubsub.acknowledge(message_id)
    assert caught.value.code == 5


def test_acknowledging_a_message_that_waits_or_is_gone_is_an_error(pubsub: PriorityPubSub) -> None:
    message_id = pubsub.publish("orders", 1)
    with pytest.raises(MessageNotFound):
        pubsub.acknowledge(message_id)
    drained(pubsub, "orders")
    with pytest.raises(MessageNotFound):
        pubsub.acknowledge(message_id)


# ── from many threads ────────────────────────────────────────────────────────────────────────────────────────────────


def test_many_publishers_and_subscribers_lose_nothing_and_double_nothing(world: World) -> None:
    pubsub = world.open(max_retries=100, retry_policy=AT_ONCE)
    inboxes = [Inbox() for _ in range(4)]
    for inbox in inboxes:
        pubsub.subscribe("orders", inbox, workers=2)
    flaky = Inbox(failures=20)
    pubsub.subscribe("orders", flaky)
    with ThreadPoolExecutor(4) as publishers:
        jobs = [
            publishers.submit(lambda start=start: [pubsub.publish("orders", start + i, 1 + i % 3) for i in range(100)])
            for start in range(0, 800, 100)
        ]
        ids = {message_id for job in jobs for message_id in job.result()}
    assert pubsub.join(SECONDS)
    handled = [value for inbox in inboxes for value in inbox.values]
    handled += flaky.values[20:]
    assert (len(ids), sorted(handled)) == (800, list(range(800)))
