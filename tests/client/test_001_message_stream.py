"""Spec 001, MessageStream and Subscription: every requirement and acceptance criterion, by number."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from typing import Any

import pytest

from heliograph import (
    FailedPrecondition,
    InvalidArgument,
    Message,
    MessageQueue,
    MessageStream,
    PubSub,
    SubscriptionDetached,
    SubscriptionNotFound,
    Unavailable,
)
from heliograph.broker.reply import Reply
from heliograph.client import message_stream
from heliograph.engine.retry import RetryPolicy
from heliograph.store.protocol import Commit
from tests.client.conftest import Bench, Inbox, idle, until

ERROR = RuntimeError("the callback's own")


# ── requirements ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_001_br_001_an_open_stream_delivers_what_waits_and_what_comes() -> None:
    bench, inbox = Bench(), Inbox(Message.ack)
    subscription = await bench.subscription()
    subscription.on("message", inbox)
    await bench.publish("before")
    subscription.open()
    await bench.publish("after")
    await until(lambda: inbox.data == ["before", "after"])
    await subscription.close()


async def test_001_br_001_the_default_options_are_the_specs() -> None:
    options = MessageStream(await Bench().subscription()).options
    assert options.ack_deadline == 60
    assert (options.flow_control.max_messages, options.flow_control.max_bytes) == (1000, 100 * 1024 * 1024)
    assert not options.flow_control.allow_excess_messages
    assert not options.message_ordering
    assert (options.streaming_options.max_streams, options.streaming_options.high_water_mark) == (5, 0)


async def test_001_br_001_a_stream_of_ones_own_delivers_to_the_subscriptions_listeners() -> None:
    bench, inbox = Bench(), Inbox(Message.ack)
    subscription = await bench.subscription()
    subscription.on("message", inbox)
    stream = MessageStream(subscription, {"flowControl": {"maxMessages": 1}}, ackDeadline=1)
    stream.start()
    stream.start()
    await bench.publish("a", "b")
    await until(lambda: inbox.data == ["a", "b"])
    await stream.stop()
    assert not stream.is_open


async def test_001_br_001_nothing_is_polled_while_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, inbox, calls = Bench(), Inbox(Message.ack), []
    original = MessageQueue.pull

    def counting(self: MessageQueue, *args: Any, **options: Any) -> Any:
        calls.append(args)
        return original(self, *args, **options)

    monkeypatch.setattr(MessageQueue, "pull", counting)
    subscription = await bench.subscription()
    subscription.on("message", inbox).open()
    await bench.publish("a")
    await until(lambda: len(inbox) == 1)
    await idle()
    before = len(calls)
    await idle()
    assert len(calls) == before <= 3


async def test_001_br_001_messages_stay_in_the_subscription_while_nobody_listens() -> None:
    bench, inbox = Bench(), Inbox(Message.ack)
    subscription = await bench.subscription()
    subscription.open()
    await bench.publish("a")
    await idle()
    assert subscription.queue.statistics("my-sub").ready == 1
    subscription.on("message", inbox)
    await until(lambda: inbox.data == ["a"])


async def test_001_br_001_opening_needs_a_subscription_that_is_there() -> None:
    subscription = Bench().pubsub.subscription("nope")
    with pytest.raises(SubscriptionNotFound, match="Subscription not found") as failure:
        subscription.open()
    assert failure.value.code == 5


def test_001_br_001_opening_needs_an_event_loop() -> None:
    bench = Bench()
    subscription = asyncio.run(bench.subscription())
    with pytest.raises(FailedPrecondition):
        subscription.open()


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_001_br_002_no_more_than_max_messages_are_in_flight(asynchronous: bool) -> None:
    bench, most = Bench(), 0
    outstanding: list[Message] = []

    def count(message: Message) -> None:
        nonlocal most
        outstanding.append(message)
        most = max(most, len(outstanding))

    async def count_async(message: Message) -> None:
        count(message)

    subscription = await bench.subscription(flow_control={"max_messages": 7})
    subscription.on("message", count_async if asynchronous else count)
    subscription.open()
    await bench.publish(*["x"] * 50)
    settled = 0
    while settled < 50:
        await until(lambda: outstanding)
        outstanding.pop().ack()
        settled += 1
    assert most == 7


@pytest.mark.parametrize("how", ["ack", "nack", "expiry", "respond"])
async def test_001_br_002_every_way_to_be_done_makes_room(how: str) -> None:
    bench, inbox = Bench(), Inbox()
    subscription = await bench.subscription(flow_control={"max_messages": 1}, ack_deadline=5)
    subscription.on("message", inbox).open()
    await bench.publish("a", "b")
    await until(lambda: inbox.data == ["a"])
    await idle()
    if how == "ack":
        inbox.messages[0].ack()
    elif how == "nack":
        inbox.messages[0].nack()
    elif how == "expiry":
        bench.clock.advance(5)
    else:
        await inbox.messages[0].ack_with_response()
    await until(lambda: len(inbox) == 2)
    await idle()
    assert len(inbox) == 2


async def test_001_br_003_no_more_is_pulled_while_max_bytes_are_in_flight() -> None:
    bench, inbox = Bench(), Inbox()
    subscription = await bench.subscription(flow_control={"max_bytes": 1000})
    subscription.on("message", inbox).open()
    await bench.publish("a" * 400, "b" * 400, "c" * 400)
    await idle()
    assert len(inbox) == 2
    assert subscription.outstanding.bytes == 800
    inbox.messages[0].ack()
    await until(lambda: len(inbox) == 3)


async def test_001_br_003_a_message_larger_than_max_bytes_comes_alone() -> None:
    bench, inbox = Bench(), Inbox()
    subscription = await bench.subscription(flow_control={"max_bytes": 1000})
    subscription.on("message", inbox).open()
    await bench.publish("small", "l" * 5000)
    await idle()
    assert inbox.data == ["small"]
    inbox.messages[0].ack()
    await until(lambda: len(inbox) == 2)
    await bench.publish("next")
    await idle()
    assert len(inbox) == 2
    inbox.messages[1].ack()
    await until(lambda: inbox.data[2:] == ["next"])


async def test_001_br_004_with_excess_allowed_a_pull_ends_above_the_limit_and_the_next_waits() -> None:
    bench, inbox = Bench(), Inbox()
    subscription = await bench.subscription(flow_control={"maxMessages": 5, "allowExcessMessages": True})
    await bench.publish(*["x"] * 10)
    subscription.on("message", inbox).open()
    await idle()
    assert len(inbox) == 10
    await bench.publish("later")
    for message in inbox.messages[:5]:
        message.ack()
    await idle()
    assert len(inbox) == 10
    inbox.messages[5].ack()
    await until(lambda: len(inbox) == 11)


async def test_001_br_005_a_lease_lasts_as_long_as_the_streams_ack_deadline() -> None:
    bench, inbox = Bench(), Inbox()
    subscription = await bench.subscription(ack_deadline=3, ack_deadline_seconds=600)
    subscription.on("message", inbox).open()
    (message_id,) = await bench.publish("a")
    await until(lambda: len(inbox) == 1)
    bench.clock.advance(2.999)
    await idle()
    assert len(inbox) == 1
    bench.clock.advance(0.001)
    await until(lambda: len(inbox) == 2)
    assert inbox.attempts == [1, 2]
    assert [message.id for message in inbox.messages] == [message_id] * 2


async def test_001_br_005_the_default_lease_is_sixty_seconds() -> None:
    bench, inbox = Bench(), Inbox()
    subscription = await bench.subscription()
    subscription.on("message", inbox).open()
    await bench.publish("a")
    await until(lambda: len(inbox) == 1)
    bench.clock.advance(59.999)
    await idle()
    assert len(inbox) == 1
    bench.clock.advance(0.001)
    await until(lambda: len(inbox) == 2)


@pytest.mark.parametrize("seconds", [0, 0.5, 601, "5", True])
def test_001_br_005_a_streams_ack_deadline_is_one_to_six_hundred_seconds(seconds: float) -> None:
    with pytest.raises(InvalidArgument, match="Ack deadline must be between 1 and 600 seconds"):
        PubSub().subscription("s", ack_deadline=seconds)


async def test_001_br_006_messages_of_a_key_come_in_order_and_those_of_others_beside_them() -> None:
    bench, inbox = Bench(), Inbox()
    subscription = await bench.subscription(message_ordering=True)
    subscription.on("message", inbox).open()
    await bench.publish("a1", "a2", "a3", key="a")
    await bench.publish("b1", "b2", key="b")
    await bench.publish("free")
    await idle()
    assert inbox.data == ["a1", "b1", "free"]
    inbox.messages[0].nack()
    await until(lambda: inbox.data[3:] == ["a1"])
    inbox.messages[3].ack()
    await until(lambda: inbox.data[4:] == ["a2"])


async def test_001_br_006_ordering_cannot_be_had_of_a_subscription_that_was_created_without() -> None:
    bench = Bench()
    await bench.subscription()
    with pytest.raises(FailedPrecondition, match="without message ordering"):
        bench.pubsub.subscription("my-sub", message_ordering=True).open()


async def test_001_br_007_a_paused_stream_delivers_nothing_and_its_leases_go_on() -> None:
    bench, inbox = Bench(), Inbox()
    subscription = await bench.subscription(ack_deadline=5)
    subscription.on("message", inbox).open()
    await bench.publish("a")
    await until(lambda: len(inbox) == 1)
    subscription.pause()
    await bench.publish("b")
    bench.clock.advance(5)
    await idle()
    assert inbox.data == ["a"]
    assert subscription.queue.statistics("my-sub").ready == 2
    subscription.resume()
    await until(lambda: inbox.data == ["a", "a", "b"])


async def test_001_br_007_what_is_acknowledged_during_a_pause_is_acknowledged() -> None:
    bench, inbox = Bench(), Inbox()
    subscription = await bench.subscription(ack_deadline=5)
    subscription.on("message", inbox).open()
    await bench.publish("a")
    await until(lambda: len(inbox) == 1)
    subscription.pause()
    inbox.messages[0].ack()
    bench.clock.advance(5)
    assert subscription.queue.statistics("my-sub").totals.acknowledged == 1


async def test_001_br_007_a_callback_that_pauses_gets_no_further_message() -> None:
    bench = Bench()
    subscription = await bench.subscription()
    inbox = Inbox(lambda message: (message.ack(), subscription.pause()))
    await bench.publish("a", "b", "c")
    subscription.on("message", inbox).open()
    await idle()
    assert inbox.data == ["a"]
    subscription.resume()
    await until(lambda: inbox.data == ["a", "b"])
    assert inbox.attempts == [1, 1]


async def test_001_br_007_a_subscription_may_be_paused_before_it_is_opened() -> None:
    bench, inbox = Bench(), Inbox()
    subscription = await bench.subscription()
    subscription.pause()
    subscription.on("message", inbox).open()
    await bench.publish("a")
    await idle()
    assert len(inbox) == 0
    subscription.resume()
    await until(lambda: inbox.data == ["a"])


async def test_001_br_008_stopping_waits_until_everything_is_settled_and_then_says_so() -> None:
    bench, inbox, closed = Bench(), Inbox(), []
    subscription = await bench.subscription()
    subscription.on("message", inbox).on("close", lambda: closed.append(True)).open()
    await bench.publish("a", "b")
    await until(lambda: len(inbox) == 2)
    stopping = asyncio.create_task(subscription.close())
    await bench.publish("too late")
    inbox.messages[0].ack()
    await idle()
    assert not stopping.done()
    inbox.messages[1].nack()
    await stopping
    assert closed == [True]
    assert inbox.data == ["a", "b"]
    assert subscription.queue.statistics("my-sub").ready == 2
    assert not subscription.is_open


async def test_001_br_008_stopping_ends_when_the_last_lease_does() -> None:
    bench, inbox = Bench(), Inbox()
    subscription = await bench.subscription(ack_deadline=30)
    subscription.on("message", inbox).open()
    await bench.publish("a")
    await until(lambda: len(inbox) == 1)
    stopping = asyncio.create_task(subscription.close())
    await idle()
    bench.clock.advance(29.9)
    await idle()
    assert not stopping.done()
    bench.clock.advance(0.1)
    await stopping


async def test_001_br_008_a_lease_that_was_moved_is_waited_for_as_it_was_moved() -> None:
    bench, inbox = Bench(), Inbox()
    subscription = await bench.subscription(ack_deadline=5)
    subscription.on("message", inbox).open()
    await bench.publish("a")
    await until(lambda: len(inbox) == 1)
    inbox.messages[0].modify_ack_deadline(60)
    stopping = asyncio.create_task(subscription.close())
    bench.clock.advance(59)
    await idle()
    assert not stopping.done()
    bench.clock.advance(1)
    await stopping


async def test_001_br_008_closing_twice_or_what_was_never_open_does_nothing() -> None:
    bench, closed = Bench(), []
    subscription = await bench.subscription()
    subscription.on("close", lambda: closed.append(True))
    await subscription.close()
    assert closed == []
    subscription.open()
    await asyncio.gather(subscription.close(), subscription.close())
    await subscription.close()
    assert closed == [True]


async def test_001_br_008_a_closed_subscription_can_be_opened_again() -> None:
    bench, inbox = Bench(), Inbox(Message.ack)
    subscription = await bench.subscription()
    subscription.on("message", inbox)
    for payload in ("a", "b"):
        subscription.open()
        await bench.publish(payload)
        await until(lambda payload=payload: inbox.data[-1:] == [payload])
        await subscription.close()
    assert inbox.data == ["a", "b"]


async def test_001_br_008_a_stream_leaves_no_watch_and_no_timer_behind() -> None:
    bench = Bench()
    subscription = await bench.subscription()
    subscription.on("message", Inbox(Message.ack)).open()
    await bench.publish("a")
    await idle()
    await subscription.close()
    broker: Any = subscription.queue.broker
    assert broker._watches._by_subscription == {}
    assert len(subscription.outstanding) == 0


def _flaky(monkeypatch: pytest.MonkeyPatch, failures: list[Exception]) -> list[float]:
    """Pulls fail so often, then work; the times of all pulls."""
    times: list[float] = []
    original = MessageQueue.pull

    def pull(self: MessageQueue, *args: Any, **options: Any) -> Any:
        times.append(time.monotonic())
        if failures:
            raise failures.pop(0)
        return original(self, *args, **options)

    monkeypatch.setattr(MessageQueue, "pull", pull)
    return times


@pytest.mark.parametrize("error", [RuntimeError("temporary"), Unavailable("temporary")])
async def test_001_br_009_a_pull_that_fails_is_told_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(message_stream, "RECOVERY", RetryPolicy(20_000_000, 40_000_000))
    times = _flaky(monkeypatch, [error, error, error])
    bench, inbox, errors = Bench(), Inbox(Message.ack), []
    subscription = await bench.subscription()
    subscription.on("message", inbox).on("error", errors.append).open()
    await bench.publish("a")
    received = asyncio.Event()
    subscription.on("message", lambda _: received.set())
    await asyncio.wait_for(received.wait(), 30)
    assert inbox.data == ["a"]
    assert errors == [error] * 3
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert gaps[0] >= 0.02
    assert gaps[1] >= 0.04
    assert subscription.is_open
    await subscription.close()


def test_001_br_009_the_pauses_double_from_a_tenth_of_a_second_to_half_a_minute() -> None:
    pauses = [message_stream.RECOVERY.backoff_ns(failures) / 1e9 for failures in range(1, 12)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30]


async def test_001_br_009_a_pause_ends_at_once_when_the_stream_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_stream, "RECOVERY", RetryPolicy(3600 * 10**9, 3600 * 10**9))
    _flaky(monkeypatch, [RuntimeError("temporary")])
    bench, errors = Bench(), []
    subscription = await bench.subscription()
    subscription.on("message", Inbox()).on("error", errors.append).open()
    await until(lambda: errors)
    await subscription.close()


@pytest.mark.parametrize("how", ["the subscription is deleted", "the topic is deleted", "the queue is emptied"])
async def test_001_br_009_a_fatal_error_is_told_and_ends_the_stream(how: str) -> None:
    pubsub, inbox, events = PubSub(), Inbox(), []
    topic = await pubsub.topic("my-topic").create()
    subscription = await topic.subscription("my-sub").create()
    subscription.on("error", events.append).on("close", lambda: events.append("close")).on("message", inbox).open()
    await topic.publish_message(b"held")
    await until(lambda: len(inbox) == 1)
    if how == "the subscription is deleted":
        await subscription.delete()
    elif how == "the topic is deleted":
        await topic.delete()
    else:
        MessageQueue.reset_instance()
    await until(lambda: len(events) == 2)
    assert isinstance(events[0], SubscriptionDetached if how == "the topic is deleted" else SubscriptionNotFound)
    assert events[1] == "close"
    await subscription.close()
    inbox.messages[0].ack()


async def test_001_br_009_a_fatal_error_of_a_pull_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    error = InvalidArgument("never right")
    _flaky(monkeypatch, [error])
    bench, events = Bench(), []
    subscription = await bench.subscription()
    subscription.on("message", Inbox()).on("error", events.append).on("close", lambda: events.append("close")).open()
    await until(lambda: len(events) == 2)
    assert events == [error, "close"]


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_001_br_009_a_callback_that_raises_is_a_nack_and_an_error_and_no_end(asynchronous: bool) -> None:
    bench, inbox, errors = Bench(), Inbox(), []

    def fail_once(message: Message) -> None:
        inbox(message)
        if message.delivery_attempt == 1:
            raise ERROR
        message.ack()

    async def fail_once_async(message: Message) -> None:
        await asyncio.sleep(0)
        fail_once(message)

    subscription = await bench.subscription()
    subscription.on("message", fail_once_async if asynchronous else fail_once).on("error", errors.append).open()
    await bench.publish("a")
    await until(lambda: inbox.attempts == [1, 2])
    assert errors == [ERROR]
    assert subscription.is_open
    await subscription.close()
    assert subscription.queue.statistics("my-sub").ready == 0


async def test_001_br_009_an_error_that_nobody_listens_to_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()

    def fail(message: Message) -> None:
        message.ack()
        raise ERROR

    subscription = await bench.subscription()
    subscription.on("message", fail).open()
    await bench.publish("a")
    await until(lambda: caplog.records)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info is not None
    assert record.exc_info[1] is ERROR


async def test_001_br_009_listeners_that_fail_hinder_nobody(caplog: pytest.LogCaptureFixture) -> None:
    bench, inbox, errors = Bench(), Inbox(Message.ack), []

    def fail(_: object) -> None:
        raise ERROR

    async def fail_later(_: object) -> None:
        raise ERROR

    subscription = await bench.subscription()
    subscription.on("error", fail).on("error", fail_later).on("error", errors.append)
    subscription.on("message", inbox).on("message", fail).open()
    await bench.publish("a", "b")
    await until(lambda: len(errors) == 2)
    assert inbox.data == ["a", "b"]
    assert subscription.queue.statistics("my-sub").totals.acknowledged == 2
    await until(lambda: len(caplog.records) == 4)


async def test_001_br_009_a_nack_that_fails_is_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    bench, errors, error = Bench(), [], Unavailable("disk full")

    def refuse(*_: object) -> None:
        raise error

    def fail(message: Message) -> None:
        raise ERROR

    monkeypatch.setattr(bench.pubsub.queue.broker, "modify_ack_deadline", refuse)
    subscription = await bench.subscription()
    subscription.on("message", fail).on("error", errors.append).open()
    await bench.publish("a")
    await until(lambda: len(errors) == 2)
    assert errors == [error, ERROR]
    assert subscription.is_open
    await bench.publish("b")
    await until(lambda: len(errors) == 4)


async def test_001_br_010_several_streams_share_the_messages_and_each_is_delivered_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a lease that takes a while to become durable, so many pulls are under way at a time."""
    commits: list[Commit] = []
    original = MessageQueue.pull

    def slow(self: MessageQueue, *args: Any, **options: Any) -> Any:
        reply = original(self, *args, **options)
        if not reply.provisional:
            return reply
        commits.append(Commit())
        return Reply(reply.provisional, commits[-1])

    monkeypatch.setattr(MessageQueue, "pull", slow)
    bench, inbox = Bench(), Inbox(Message.ack)
    subscription = await bench.subscription(streaming_options={"max_streams": 3})
    await bench.publish(*[str(number) for number in range(100)] * 3)
    subscription.on("message", inbox).open()
    await idle()
    assert len(commits) == 3
    assert len(inbox) == 0
    while len(inbox) < 300:
        commits.pop(0).finish()
        await idle()
        assert len(commits) <= 3
    assert len({message.id for message in inbox.messages}) == 300
    await subscription.close()


async def test_001_br_010_a_pull_whose_commit_fails_delivers_nothing_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commit = Commit()
    original = MessageQueue.pull
    monkeypatch.setattr(message_stream, "RECOVERY", RetryPolicy(1, 1))

    def slow(self: MessageQueue, *args: Any, **options: Any) -> Any:
        reply = original(self, *args, **options)
        return Reply(reply.provisional, commit) if reply.provisional and not commit.done else reply

    monkeypatch.setattr(MessageQueue, "pull", slow)
    bench, inbox, errors = Bench(), Inbox(Message.ack), []
    subscription = await bench.subscription(ack_deadline=5)
    subscription.on("message", inbox).on("error", errors.append).open()
    await bench.publish("a")
    await idle()
    commit.finish(OSError("disk full"))
    await until(lambda: errors)
    assert isinstance(errors[0], Unavailable)
    bench.clock.advance(5)
    await until(lambda: inbox.attempts == [2])


# ── acceptance criteria ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_001_ac_001_basic_streaming_pull() -> None:
    pubsub = PubSub()
    topic = pubsub.topic("my-topic")
    await topic.create()
    subscription = topic.subscription("my-sub")
    await subscription.create()
    received: list[Message] = []

    @subscription.on("message")
    def receive(message: Message) -> None:
        received.append(message)
        message.ack()

    subscription.open()
    await topic.publish_message({"data": b"msg1"})
    await topic.publish_message({"data": b"msg2"})
    await topic.publish_message({"data": b"msg3"})
    await until(lambda: len(received) == 3)
    await subscription.close()


async def test_001_ac_002_flow_control_max_messages() -> None:
    bench, inbox = Bench(), Inbox()
    await bench.topic.create()
    bench.topic.subscription("my-sub")
    subscription = bench.pubsub.subscription("my-sub", {"flowControl": {"maxMessages": 2}})
    await subscription.create()
    subscription.on("message", inbox).open()
    await bench.publish(*[f"msg{number}" for number in range(5)])
    await idle()
    assert len(inbox) == 2
    inbox.messages[0].ack()
    await idle()
    assert len(inbox) == 3


async def test_001_ac_003_flow_control_max_bytes() -> None:
    bench, inbox = Bench(), Inbox()
    subscription = await bench.subscription(flowControl={"maxBytes": 1024})
    subscription.on("message", inbox).open()
    for _ in range(3):
        await bench.topic.publish_message({"data": bytes(512)})
    await idle()
    assert len(inbox) == 2
    inbox.messages[0].ack()
    await idle()
    assert len(inbox) == 3


async def test_001_ac_004_ack_deadline_redelivery() -> None:
    bench = Bench()
    inbox = Inbox(lambda message: message.ack() if len(inbox) > 1 else None)
    subscription = await bench.subscription(ackDeadline=1)
    subscription.on("message", inbox).open()
    await bench.publish("test")
    await idle()
    assert len(inbox) == 1
    bench.clock.advance(1.1)
    await idle()
    assert len(inbox) == 2


async def test_001_ac_005_message_ordering_sequential_delivery() -> None:
    bench, order, at_work = Bench(), [], 0

    async def process(message: Message) -> None:
        nonlocal at_work
        at_work += 1
        assert at_work == 1
        order.append(message.data.decode())
        await idle()
        at_work -= 1
        message.ack()

    subscription = await bench.subscription(messageOrdering=True)
    subscription.on("message", process).open()
    for data in (b"first", b"second", b"third"):
        await bench.topic.publish_message({"data": data, "orderingKey": "user-123"})
    await until(lambda: len(order) == 3)
    assert order == ["first", "second", "third"]
    await subscription.close()


async def test_001_ac_006_pause_and_resume() -> None:
    bench, inbox = Bench(), Inbox(Message.ack)
    subscription = await bench.subscription()
    subscription.on("message", inbox).open()
    await bench.publish("msg1")
    await idle()
    assert len(inbox) == 1
    subscription.pause()
    await bench.publish("msg2")
    await idle()
    assert len(inbox) == 1
    subscription.resume()
    await idle()
    assert len(inbox) == 2


async def test_001_ac_007_stop_waits_for_in_flight() -> None:
    bench, complete, begun = Bench(), [], asyncio.Event()

    async def process(message: Message) -> None:
        begun.set()
        await asyncio.sleep(0.02)
        complete.append(True)
        message.ack()

    subscription = await bench.subscription()
    subscription.on("message", process).open()
    await bench.publish("test")
    await begun.wait()
    await subscription.close()
    assert complete == [True]


async def test_001_ac_008_error_event_on_failure() -> None:
    bench, errors = Bench(), []
    subscription = await bench.subscription()
    subscription.on("error", errors.append)
    subscription.open()
    await bench.topic.delete()
    await until(lambda: len(errors) == 1)


async def test_001_ac_009_multiple_concurrent_messages() -> None:
    bench, inbox = Bench(), Inbox()
    subscription = await bench.subscription(flowControl={"maxMessages": 10})
    subscription.on("message", inbox).open()
    await bench.publish(*[f"msg{number}" for number in range(10)])
    await idle()
    assert len(inbox) == 10


async def test_001_ac_010_allow_excess_messages() -> None:
    bench, inbox = Bench(), Inbox()
    subscription = await bench.subscription(flowControl={"maxMessages": 5, "allowExcessMessages": True})
    subscription.on("message", inbox).open()
    await bench.publish(*[f"msg{number}" for number in range(10)])
    await idle()
    assert len(inbox) >= 5
