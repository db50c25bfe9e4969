"""The priority API: retries, dead letters, and the core methods of spec 004. Time is a simulated clock's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from heliograph.client.priority import PriorityMessage, PriorityPubSub
from heliograph.errors import (
    InvalidArgument,
    MessageNotFound,
)
from tests.client.priority_world import AT_ONCE, SECONDS, Inbox, World, drained, opened, settled


@pytest.fixture
def world() -> Iterator[World]:
    yield from opened()


@pytest.fixture
def pubsub(world: World) -> PriorityPubSub:
    return world.open()


# ── retries and dead letters ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_callback_that_raises_gets_the_message_again_after_a_backoff_that_doubles(world: World) -> None:
    pubsub, inbox = world.open(max_retries=4), Inbox(failures=None)
    pubsub.subscribe("orders", inbox)
    pubsub.publish("orders", 1)
    for retries, backoff in enumerate((10, 20, 40, 40)):
        inbox.wait(retries + 1)
        settled(pubsub, "orders")
        world.clock.advance(backoff - 0.001)
        assert len(inbox.messages) == retries + 1
        world.clock.advance(0.001)
    inbox.wait(5)
    assert pubsub.join(SECONDS)
    assert [message.retries for message in inbox.messages] == [0, 1, 2, 3, 4]


def test_after_its_last_retry_a_message_is_a_dead_letter_with_its_reason(world: World) -> None:
    pubsub, inbox = world.open(max_retries=2, retry_policy=AT_ONCE), Inbox(failures=None)
    pubsub.subscribe("orders", inbox)
    message_id = pubsub.publish("orders", {"id": 7}, priority=1)
    assert pubsub.join(SECONDS)
    assert len(inbox.messages) == 3
    (letter,) = pubsub.dead_letters("orders")
    assert (letter.id, letter.message, letter.priority, letter.topic) == (message_id, {"id": 7}, 1, "orders")
    assert (letter.retries, letter.reason) == (2, "MaxRetriesExceeded")
    assert letter.dead_lettered_at.timestamp() == world.clock.now_ns() / 1e9


def test_without_retries_the_first_failure_is_the_last(world: World) -> None:
    pubsub = world.open(max_retries=0)
    pubsub.subscribe("orders", Inbox(failures=None))
    pubsub.publish("orders", 1)
    assert pubsub.join(SECONDS)
    assert [letter.retries for letter in pubsub.dead_letters("orders")] == [0]


def test_one_failure_does_not_end_the_subscriber_whatever_was_raised(world: World) -> None:
    pubsub, got = world.open(max_retries=0), []

    def callback(message: PriorityMessage) -> None:
        if isinstance(message.message, int):
            raise (SystemExit, KeyboardInterrupt, Exception)[message.message]
        got.append(message.message)

    pubsub.subscribe("orders", callback)
    pubsub.publish_many("orders", [0, 1, 2, "last"])
    assert pubsub.join(SECONDS)
    assert (got, len(pubsub.dead_letters("orders"))) == (["last"], 3)


def test_a_failure_is_logged_with_its_cause(pubsub: PriorityPubSub, caplog: pytest.LogCaptureFixture) -> None:
    inbox = Inbox(failures=1)
    pubsub.subscribe("orders", inbox)
    pubsub.publish("orders", 1)
    inbox.wait(1)
    settled(pubsub, "orders")
    (record,) = caplog.records
    assert (record.levelname, "the callback fails" in record.getMessage()) == ("WARNING", True)
    assert record.exc_info is not None


def test_dead_letters_are_put_back_by_id_or_all_with_their_retries_afresh(world: World) -> None:
    pubsub = world.open(max_retries=0)
    subscription = pubsub.subscribe("orders", Inbox(failures=None))
    ids = pubsub.publish_many("orders", ["a", "b", "c"])
    assert pubsub.join(SECONDS)
    subscription.close()
    assert pubsub.retry_dead_letters("orders", [ids[1]]) == 1
    assert [letter.message for letter in pubsub.dead_letters("orders")] == ["a", "c"]
    assert pubsub.retry_dead_letters("orders") == 2
    inbox = Inbox()
    pubsub.subscribe("orders", inbox)
    assert pubsub.join(SECONDS)
    assert [(message.message, message.retries) for message in inbox.messages] == [("a", 0), ("b", 0), ("c", 0)]
    assert pubsub.dead_letters("orders") == []


def test_retrying_what_is_no_dead_letter_retries_none(world: World) -> None:
    pubsub = world.open(max_retries=0)
    pubsub.subscribe("orders", Inbox(failures=None))
    message_id = pubsub.publish("orders", 1)
    assert pubsub.join(SECONDS)
    with pytest.raises(MessageNotFound):
        pubsub.retry_dead_letters("orders", [message_id, "17"])
    assert len(pubsub.dead_letters("orders")) == 1


def test_dead_letters_are_purged(world: World) -> None:
    pubsub = world.open(max_retries=0)
    pubsub.subscribe("orders", Inbox(failures=None))
    pubsub.publish_many("orders", [1, 2])
    assert pubsub.join(SECONDS)
    assert (pubsub.purge_dead_letters("orders"), pubsub.dead_letters("orders")) == (2, [])


def test_a_callback_may_dead_letter_or_retry_its_message_without_raising(world: World) -> None:
    pubsub = world.open()
    inbox = Inbox(then=lambda message: message.dead_letter() if message.message == "bad" else message.retry())
    pubsub.subscribe("orders", inbox)
    pubsub.publish_many("orders", ["bad", "again"])
    inbox.wait(2)
    settled(pubsub, "orders")
    assert [(letter.message, letter.reason) for letter in pubsub.dead_letters("orders")] == [("bad", "ExplicitNack")]
    world.clock.advance(10)
    assert inbox.wait(3) == ["bad", "again", "again"]


# ── the core methods of spec 004, §4.2 ───────────────────────────────────────────────────────────────────────────────


def test_enqueue_and_dequeue_give_the_highest_priority_first(pubsub: PriorityPubSub) -> None:
    pubsub.broker.enqueue("orders", "low", 3)
    pubsub.broker.enqueue("orders", "high", 1)
    assert drained(pubsub, "orders") == ["high", "low"]
    assert pubsub.broker.dequeue("orders") is None


def test_retry_message_requeues_with_an_incremented_retry_count(pubsub: PriorityPubSub, world: World) -> None:
    pubsub.broker.enqueue("orders", 1, 2)
    message = pubsub.broker.dequeue("orders")
    assert message is not None
    pubsub.broker.retry_message("orders", message)
    assert pubsub.broker.dequeue("orders") is None
    world.clock.advance(10)
    again = pubsub.broker.dequeue("orders")
    assert again is not None
    assert (again.id, again.priority, again.retries) == (message.id, 2, 1)


def test_move_to_dlq_makes_it_a_dead_letter_at_once(pubsub: PriorityPubSub) -> None:
    pubsub.broker.enqueue("orders", 1, 2)
    message = pubsub.broker.dequeue("orders")
    assert message is not None
    pubsub.broker.move_to_dlq("orders", message)
    assert [letter.reason for letter in pubsub.dead_letters("orders")] == ["ExplicitNack"]


def test_a_dequeued_message_that_is_forgotten_comes_again(pubsub: PriorityPubSub, world: World) -> None:
    pubsub.broker.enqueue("orders", 1, 2)
    pubsub.broker.dequeue("orders")
    world.clock.advance(30 + 10)
    again = pubsub.broker.dequeue("orders")
    assert again is not None
    assert again.retries == 1


def test_a_message_of_another_topic_is_refused(pubsub: PriorityPubSub) -> None:
    pubsub.broker.enqueue("orders", 1)
    message = pubsub.broker.dequeue("orders")
    assert message is not None
    for method in (pubsub.broker.retry_message, pubsub.broker.move_to_dlq):
        with pytest.raises(InvalidArgument):
            method("bills", message)
        with pytest.raises(InvalidArgument):
            method("orders", {"message": 1})  # type: ignore[arg-type]  # on purpose
    message.acknowledge()
