"""Spec 001, around the stream: pulling by hand, threads and event loops, slow callbacks, listeners, options."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import time
from typing import Any

import pytest

from heliograph import (
    FlowControlExceeded,
    InvalidArgument,
    Message,
    MessageStream,
    PubSub,
    SubscriberOptions,
    SystemClock,
)
from heliograph.client import message_stream
from tests.client.conftest import Bench, Inbox, idle, until

ERROR = RuntimeError("the callback's own")


# ── pulling by hand ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_001_an_explicit_pull_at_the_limit_is_refused_with_code_8() -> None:
    bench = Bench()
    subscription = await bench.subscription(flow_control={"max_messages": 2})
    await bench.publish("a", "b", "c")
    messages = await subscription.pull(10)
    assert len(messages) == 2
    with pytest.raises(FlowControlExceeded, match=r"^Flow control: max messages exceeded$") as failure:
        await subscription.pull(10)
    assert failure.value.code == 8
    messages[0].ack()
    (message,) = await subscription.pull()
    assert message.data == b"c"


async def test_001_an_explicit_pull_at_the_limit_of_bytes_is_refused_with_code_8() -> None:
    bench = Bench()
    subscription = await bench.subscription(flow_control={"max_bytes": 3})
    await bench.publish("abc", "d")
    await subscription.pull(10)
    with pytest.raises(FlowControlExceeded, match=r"^Flow control: max bytes exceeded$"):
        await subscription.pull(10)


async def test_001_an_explicit_pull_with_excess_allowed_may_end_above_the_limit() -> None:
    bench = Bench()
    subscription = await bench.subscription(flow_control={"max_messages": 2, "allow_excess_messages": True})
    await bench.publish("a", "b", "c")
    assert len(await subscription.pull(10)) == 3


async def test_001_an_explicit_pull_leases_as_the_subscription_says_or_the_object() -> None:
    bench = Bench()
    subscription = await bench.subscription(ack_deadline_seconds=20)
    await bench.publish("a")
    await subscription.pull()
    bench.clock.advance(19.9)
    assert await subscription.pull() == []
    bench.clock.advance(0.1)
    subscription.set_options(ack_deadline=2)
    (message,) = await subscription.pull()
    assert message.delivery_attempt == 2
    bench.clock.advance(2)
    assert len(await subscription.pull()) == 1


@pytest.mark.parametrize("count", [0, -1, 2**31, 1.5, "1", None, True])
async def test_001_an_explicit_pull_takes_a_number_of_messages(count: int) -> None:
    subscription = await Bench().subscription()
    with pytest.raises(InvalidArgument):
        await subscription.pull(count)


# ── threads, loops and load ─────────────────────────────────────────────────────────────────────────────────────────


async def test_001_messages_may_be_settled_from_any_thread() -> None:
    bench, inbox = Bench(), Inbox()
    subscription = await bench.subscription(flow_control={"max_messages": 10})
    subscription.on("message", inbox).open()
    everything = asyncio.Event()
    loop = asyncio.get_running_loop()
    left = list(range(200))

    def work() -> None:
        while left:
            if inbox.messages:
                inbox.messages.pop().ack()
                left.pop()
            else:
                time.sleep(0)  # lets the other thread run
        loop.call_soon_threadsafe(everything.set)

    thread = threading.Thread(target=work)
    await bench.publish(*["x"] * 200)
    thread.start()
    await asyncio.wait_for(everything.wait(), 30)
    thread.join()
    await subscription.close()
    assert subscription.queue.statistics("my-sub").totals.acknowledged == 200


async def test_001_what_another_thread_publishes_wakes_the_stream() -> None:
    pubsub, received = PubSub(), asyncio.Event()
    topic = await pubsub.topic("t").create()
    subscription = await topic.subscription("s").create()
    subscription.on("message", Message.ack).on("message", lambda _: received.set()).open()
    await idle()
    await asyncio.to_thread(pubsub.queue.publish, "t", [{"data": b"x"}])
    await asyncio.wait_for(received.wait(), 30)


def test_001_a_stream_left_open_in_a_closed_loop_harms_nobody_and_can_be_opened_in_the_next() -> None:
    bench, inbox = Bench(), Inbox(Message.ack)

    async def begin() -> Any:
        subscription = await bench.subscription()
        subscription.on("message", inbox).open()
        return subscription

    subscription = asyncio.run(begin())
    asyncio.run(bench.publish("a"))

    async def again() -> None:
        subscription.open()
        await until(lambda: inbox.data == ["a"])
        await subscription.close()

    asyncio.run(again())


async def test_001_stopping_ends_even_where_the_broker_was_closed_before() -> None:
    pubsub, inbox = PubSub(clock=SystemClock()), Inbox()
    topic = await pubsub.topic("t").create()
    subscription = await topic.subscription("s", ack_deadline=1).create()
    subscription.on("message", inbox).on("error", lambda _: None).open()
    await topic.publish_message(b"x")
    await until(lambda: len(inbox) == 1)
    inbox.messages[0]._source.deadline_ns = subscription.outstanding._earliest_ns = 1  # as if its second had passed
    pubsub.queue.broker.close()
    await asyncio.wait_for(subscription.close(), 30)


async def test_001_an_acknowledgement_counts_from_its_call_though_it_is_carried_out_later() -> None:
    bench, inbox = Bench(), Inbox()
    subscription = await bench.subscription(ack_deadline=5)
    subscription.on("message", inbox).open()
    await bench.publish("a")
    await until(lambda: len(inbox) == 1)
    inbox.messages[0].ack()
    bench.clock.advance(5)  # no turn of the loop between the two
    await idle()
    assert len(inbox) == 1


async def test_001_a_slow_plain_callback_leases_little_ahead_and_lets_others_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, turns = Bench(), []
    moments = iter(range(1_000_000))
    monkeypatch.setattr(message_stream.time, "monotonic", lambda: next(moments))  # every callback takes a second
    subscription = await bench.subscription()
    inbox = Inbox(lambda message: message.ack())
    await bench.publish(*["x"] * 100)
    subscription.on("message", inbox).open()
    while len(inbox) < 100:
        await asyncio.sleep(0)
        turns.append(len(inbox))
        outstanding = subscription.queue.statistics("my-sub").outstanding
        assert outstanding <= (32 if len(inbox) <= 32 else 1)
    assert len(turns) >= 100
    monkeypatch.undo()


async def test_001_a_slow_callback_that_settles_nothing_gets_everything_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, inbox = Bench(), Inbox()
    moments = iter(range(1_000_000))
    monkeypatch.setattr(message_stream.time, "monotonic", lambda: next(moments))
    subscription = await bench.subscription()
    await bench.publish(*["x"] * 100)
    subscription.on("message", inbox).open()
    await until(lambda: len(inbox) == 100)
    monkeypatch.undo()


async def test_001_what_was_leased_and_not_shown_before_its_lease_ended_is_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench()
    moments = iter(range(1_000_000))
    monkeypatch.setattr(message_stream.time, "monotonic", lambda: next(moments))
    subscription = await bench.subscription(ack_deadline=5)
    inbox = Inbox(lambda message: (message.ack(), bench.clock.advance(6)) if len(inbox) == 1 else message.ack())
    await bench.publish("a", "b", "c")
    subscription.on("message", inbox).open()
    await until(lambda: len(inbox) == 3)
    assert inbox.data == ["a", "b", "c"]
    assert inbox.attempts == [1, 2, 2]
    monkeypatch.undo()


async def test_001_once_and_remove_listener() -> None:
    bench, first, always = Bench(), Inbox(), Inbox(Message.ack)
    subscription = await bench.subscription()
    subscription.once("message", first).on("message", always).open()
    await bench.publish("a", "b")
    await until(lambda: len(always) == 2)
    assert first.data == ["a"]
    subscription.remove_listener("message", always)
    subscription.remove_listener("message", always)
    await bench.publish("c")
    await idle()
    assert len(always) == 2
    assert subscription.listener_count("message") == 0


async def test_001_listeners_can_be_decorators_and_all_be_removed() -> None:
    subscription = await Bench().subscription()

    @subscription.once("error")
    @subscription.on("error")
    def listener(error: Exception) -> None:
        pass

    assert subscription.listener_count("error") == 2
    assert subscription.emit("error", ERROR)
    assert subscription.listener_count("error") == 1
    assert not subscription.remove_all_listeners("error").emit("error", ERROR)
    assert subscription.on("close", print).remove_all_listeners().listener_count("close") == 0


@pytest.mark.parametrize(("event", "listener"), [("mesage", print), ("", print), (None, print), ("message", 5)])
def test_001_an_event_that_does_not_exist_or_a_listener_that_cannot_be_called_is_refused(
    event: str, listener: Any
) -> None:
    subscription = PubSub().subscription("s")
    for use in (subscription.on, subscription.once):
        with pytest.raises(InvalidArgument):
            use(event, listener)
    assert subscription.listener_count("message") == 0


async def test_001_options_can_change_while_the_stream_is_open() -> None:
    bench, inbox = Bench(), Inbox()
    subscription = await bench.subscription(flow_control={"max_messages": 1})
    subscription.on("message", inbox).open()
    await bench.publish("a", "b", "c")
    await idle()
    assert len(inbox) == 1
    subscription.set_options(flowControl={"maxMessages": 2})
    await idle()
    assert len(inbox) == 2
    with pytest.raises(InvalidArgument):
        subscription.set_options(flow_control={"max_messages": -1})
    assert subscription.options.flow_control is not None
    assert subscription.options.flow_control.max_messages == 2


async def test_001_stream_options_change_what_they_name() -> None:
    stream = MessageStream(await Bench().subscription(), {"ackDeadline": 5})
    stream.set_options(flow_control={"maxMessages": 3})
    assert (stream.options.ack_deadline, stream.options.flow_control.max_messages) == (5, 3)
    stream.set_options(SubscriberOptions())
    assert stream.options == SubscriberOptions()


async def test_001_callbacks_run_in_the_context_of_whoever_opened_the_stream() -> None:
    variable = contextvars.ContextVar("variable", default="unset")
    seen: list[str] = []
    bench = Bench()
    subscription = await bench.subscription()
    variable.set("subscriber")
    subscription.on("message", Message.ack).on("message", lambda _: seen.append(variable.get())).open()

    async def publish() -> None:
        variable.set("publisher")
        await bench.publish("a")

    await asyncio.create_task(publish())
    await until(lambda: seen)
    assert seen == ["subscriber"]


async def test_001_async_callbacks_are_kept_while_they_run() -> None:
    bench, finished = Bench(), []
    release = asyncio.Event()

    async def process(message: Message) -> None:
        await release.wait()
        message.ack()
        finished.append(message.id)

    subscription = await bench.subscription()
    subscription.on("message", process).open()
    await bench.publish("a", "b")
    await idle()
    gc.collect()
    release.set()
    await until(lambda: len(finished) == 2)


async def test_001_a_cancelled_callback_gives_its_message_back() -> None:
    bench, tasks = Bench(), []

    async def process(message: Message) -> None:
        task = asyncio.current_task()
        tasks.append(task)
        if message.delivery_attempt == 1:
            await asyncio.Event().wait()
        message.ack()

    subscription = await bench.subscription()
    subscription.on("message", process).open()
    await bench.publish("a")
    await until(lambda: tasks)
    tasks[0].cancel()
    await until(lambda: len(tasks) == 2)
    await subscription.close()
