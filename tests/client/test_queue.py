"""The Python client of work queues, in process and on a server; the rules of queues themselves are tested in
`tests/server/test_queue_rules.py`."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import heliograph
from heliograph import (
    AckDeadlineExceeded,
    AsyncQueue,
    FailedPrecondition,
    FlowControlExceeded,
    InvalidArgument,
    InvalidPriority,
    LocalBroker,
    MessageNotFound,
    MessageQueue,
    Outgoing,
    Queue,
    QueueExists,
    QueueNotFound,
    Unavailable,
)
from heliograph.broker.clock import Clock, SimulatedClock, SystemClock
from heliograph.client.queue_message import Lease
from tests.client.extensions import Extensions
from tests.server.clients import wait_until
from tests.server.conftest import serving


@pytest.fixture
def clock() -> Clock:
    return SystemClock()


@pytest.fixture
def broker(clock: Clock) -> Iterator[LocalBroker]:
    local = LocalBroker(clock=clock)
    yield local
    local.close()


@pytest.fixture(params=["in process", "on a server"])
def where(request: pytest.FixtureRequest, broker: LocalBroker) -> Iterator[dict[str, Any]]:
    """What tells a queue where it is."""
    if request.param == "in process":
        yield {"broker": broker}
    else:
        with serving(broker) as server:
            yield {"url": f"http://127.0.0.1:{server.port}"}


@pytest.fixture
def tasks(where: dict[str, Any]) -> Iterator[Queue]:
    with Queue("tasks", **where) as queue:
        yield queue.create()


def take(queue: Queue, **options: Any) -> heliograph.QueueMessage:
    message = queue.take(**options)
    assert message is not None
    return message


# ── messages ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("value", [{"a": [1, None]}, "text", 7, None, b"\x00\xff", b""])
def test_a_value_comes_back_as_it_was_published(tasks: Queue, value: Any) -> None:
    sent = tasks.publish(value, priority=7, headers={"source": "web"}, max_retries=1)
    message = take(tasks)
    assert (message.id, message.message) == (sent, value)
    assert (message.priority, message.retry_count, message.max_retries) == (7, 0, 1)
    assert (message.headers, message.queue) == ({"source": "web"}, "tasks")


def test_a_block_that_ends_acknowledges(tasks: Queue) -> None:
    tasks.publish(1)
    with take(tasks) as message:
        assert not message.settled
    assert message.settled
    assert tasks.stats().acked_total == 1


def test_an_exception_gives_the_message_back_as_failed_and_goes_on_its_way(tasks: Queue) -> None:
    tasks.publish(1)
    with pytest.raises(ValueError, match="poison"), take(tasks):
        raise ValueError("poison")
    assert take(tasks).retry_count == 1


def test_what_was_settled_in_the_block_is_not_settled_again(tasks: Queue) -> None:
    tasks.publish(1)
    with take(tasks) as message:
        assert message.nack(requeue=False) == "dead_lettered"
    assert (tasks.stats().nacked_total, tasks.stats().acked_total) == (1, 0)


def test_consume_ends_when_nothing_comes_and_gives_the_higher_priority_first(tasks: Queue) -> None:
    tasks.publish_batch([Outgoing("low", priority=1), Outgoing("high", priority=9), "middle"])
    values = []
    for message in tasks.consume(timeout=0.05):
        with message:
            values.append(message.message)
    assert values == ["high", "middle", "low"]


def test_consume_waits_for_what_comes(tasks: Queue, where: dict[str, Any]) -> None:
    values: list[Any] = []

    def work() -> None:
        for message in tasks.consume(timeout=30):
            with message:
                values.append(message.message)
            if len(values) == 3:
                return

    worker = threading.Thread(target=work)
    worker.start()
    with Queue("tasks", **where) as other:
        for number in range(3):
            other.publish(number)
    worker.join(30)
    assert values == [0, 1, 2]


def test_a_delayed_message_wakes_who_waits(tasks: Queue) -> None:
    tasks.publish("later", delay=0.1)
    assert take(tasks, timeout=30).message == "later"


def test_workers_of_one_queue_object_share_it(tasks: Queue) -> None:
    tasks.prefetch = 4
    tasks.publish_batch(range(40))
    seen: list[int] = []

    def work() -> None:
        while (message := tasks.take(timeout=0.2)) is not None:
            with message:
                seen.append(message.message)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(seen) == list(range(40))


# ── leases ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("clock", [SimulatedClock()], ids=["a clock that stands"])
def test_a_lease_goes_on_while_the_message_is_held(
    where: dict[str, Any], broker: LocalBroker, clock: SimulatedClock
) -> None:
    extensions = Extensions(broker, clock, 0.3)
    with Queue("short", ack_deadline=0.3, **where) as queue, Queue("short", **where) as other:
        queue.create().publish(1)
        with take(queue):
            extensions.wait()  # a client keeps its leases by its own clock
            assert other.take() is None
        assert queue.stats().acked_total == 1


def test_a_message_that_nobody_has_any_more_comes_back_when_its_lease_ends(where: dict[str, Any]) -> None:
    with Queue("short", ack_deadline=0.2, **where) as queue:
        queue.create().publish(1)
        take(queue)
        gc.collect()
        assert take(queue, timeout=30).retry_count == 1


def test_too_late_is_told(where: dict[str, Any]) -> None:
    with Queue("tasks", **where) as queue, Queue("tasks", **where) as other:
        queue.create().publish(1)
        message = take(queue)
        other.nack(message.id)
        with pytest.raises(AckDeadlineExceeded):
            message.ack()


def test_a_message_is_settled_by_its_id_from_anywhere(tasks: Queue, where: dict[str, Any]) -> None:
    tasks.publish(1)
    message = take(tasks)
    with Queue("tasks", **where) as other:
        other.extend(message.id, 60, lease_id=message.lease_id)
        other.ack(message.id, lease_id=message.lease_id)
        with pytest.raises(MessageNotFound):
            other.ack(message.id)
    assert tasks.room == 1


def test_no_more_is_held_than_prefetch_says(tasks: Queue) -> None:
    tasks.publish_batch([1, 2, 3])
    held = take(tasks)
    with pytest.raises(FlowControlExceeded):
        tasks.take()
    tasks.prefetch = 2
    second = take(tasks)
    held.ack()
    assert take(tasks).message == 3
    second.ack()


def test_consume_says_so_when_the_message_before_is_not_settled(tasks: Queue) -> None:
    tasks.publish_batch([1, 2])
    kept = []
    with pytest.raises(FlowControlExceeded):
        kept.extend(tasks.consume(timeout=1))


def test_what_is_held_goes_back_when_the_queue_is_closed(tasks: Queue, where: dict[str, Any]) -> None:
    tasks.publish_batch(range(3))
    with Queue("tasks", prefetch=3, ack_deadline=600, **where) as other:
        messages = other.consume(timeout=1)
        held = next(messages)
        messages.close()  # type: ignore[attr-defined]  # a generator
        assert tasks.stats().outstanding == 1
    wait_until(lambda: tasks.stats().outstanding == 0)
    assert held.retry_count == take(tasks).retry_count == 0
    with pytest.raises(FailedPrecondition):
        other.take()


def test_an_iterator_ends_in_silence_when_the_broker_cannot_take_its_messages_back(
    tasks: Queue, where: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def refuse(_subscription: str, ack_ids: list[str]) -> None:
        asked.extend(ack_ids)
        raise Unavailable("The broker does not answer")

    with Queue("tasks", prefetch=3, **where) as queue:
        for value in range(3):
            queue.publish(value)
        messages = queue.consume(timeout=0)
        next(messages)
        with monkeypatch.context() as failing:
            failing.setattr(queue.broker, "release", refuse)
            messages.close()
    assert len(asked) == 2


def test_closing_ends_who_waits(tasks: Queue) -> None:
    failures: list[BaseException] = []

    def work() -> None:
        try:
            tasks.take(timeout=30)
        except FailedPrecondition as failure:
            failures.append(failure)

    worker = threading.Thread(target=work)
    worker.start()
    wait_until(lambda: tasks._watch is not None)
    tasks.close()
    worker.join(30)
    assert len(failures) == 1


# ── the queue ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_queue_is_made_once_and_then_only_with_equal_settings(tasks: Queue, where: dict[str, Any]) -> None:
    tasks.create()
    with pytest.raises(QueueExists):
        tasks.create(max_depth=5)
    assert heliograph.queues(**where) == ["tasks"]
    tasks.delete()
    for operation in (tasks.delete, tasks.stats, tasks.take, tasks.peek, lambda: tasks.publish(1)):
        with pytest.raises(QueueNotFound):
            operation()


def test_dead_letters_are_seen_put_back_and_forgotten(tasks: Queue) -> None:
    tasks.publish_batch(["a", "b"], max_retries=0, headers={"k": "v"})
    for _ in range(2):
        take(tasks).nack()
    first, second = tasks.dead_letters()
    assert (first.message, first.reason, first.headers) == ("a", "MaxRetriesExceeded", {"k": "v"})
    assert tasks.retry_dead_letters([second.id]) == 1
    assert take(tasks).message == "b"
    assert tasks.purge_dead_letters() == 1


def test_peek_purge_and_stats(tasks: Queue) -> None:
    tasks.publish_batch([1, 2])
    tasks.publish(3, delay=60)
    assert [message.message for message in tasks.peek(5)] == [1, 2]
    assert tasks.stats().depth == 3
    assert tasks.purge() == (2, 1)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"priority": -1}, InvalidPriority),
        ({"priority": 10}, InvalidPriority),
        ({"ttl": 0}, InvalidArgument),
        ({"delay": "soon"}, InvalidArgument),
        ({"headers": {"a": 1}}, InvalidArgument),
        ({"colour": "red"}, InvalidArgument),
    ],
)
def test_options_that_are_not_possible_are_refused(
    tasks: Queue, options: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        tasks.publish(1, **options)
    assert tasks.stats().depth == 0


@pytest.mark.parametrize(
    "options",
    [
        {"prefetch": 0},
        {"prefetch": 1_001},
        {"ack_deadline": 0},
        {"ack_deadline": 601},
        {"broker": 7},
        {"url": "http://localhost:1", "data_dir": "somewhere"},
    ],
)
def test_a_queue_that_is_not_possible_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument):
        Queue("tasks", **options)


def test_a_plain_queue_is_of_the_one_broker_of_the_process() -> None:
    MessageQueue.reset_instance()
    Queue("tasks").create().publish("here")
    assert take(Queue("tasks")).message == "here"
    MessageQueue.reset_instance()


def test_a_data_dir_keeps_everything_and_a_late_ack_finds_its_message(tmp_path: Path) -> None:
    with Queue("tasks", data_dir=tmp_path, consumer_id="worker") as queue:
        queue.create(max_depth=10).publish({"n": 1}, headers={"k": "v"})
        queue.publish("failed")
        held = take(queue)
        lease = held.lease_id
        with pytest.raises(QueueExists):
            queue.create(max_depth=11)
        # as when the process is killed: nothing is given back
        assert queue._keeper is not None
        queue._keeper.let_go(Lease(lease, queue._queue))
    with Queue("tasks", data_dir=tmp_path) as queue:
        queue.ack(held.id, lease_id=lease)
        assert queue.stats().acked_total == 1
        assert take(queue).message == "failed"


# ── event loops ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def fail_at_first(queue: AsyncQueue) -> None:
    async for message in queue.consume():
        async with message:
            raise ValueError("poison")


def test_the_same_in_an_event_loop(where: dict[str, Any]) -> None:
    async def story() -> list[Any]:
        seen: list[Any] = []
        async with AsyncQueue("tasks", **where) as queue:
            await queue.create()
            await queue.publish_batch([Outgoing("low", priority=1), "middle"])
            await queue.publish("high", priority=9)
            async for message in queue.consume(timeout=0.05):
                async with message:
                    seen.append(message.message)
            await queue.publish("poison", max_retries=0)
            with pytest.raises(ValueError, match="poison"):
                await fail_at_first(queue)
            (letter,) = await queue.dead_letters()
            assert letter.reason == "MaxRetriesExceeded"
            assert await queue.retry_dead_letters() == 1
            again = await queue.take()
            assert again is not None
            await again.extend(60)
            assert await again.nack(requeue=False) == "dead_lettered"
            assert await queue.purge_dead_letters() == 1
            assert (await queue.stats()).acked_total == 3
        return seen

    assert asyncio.run(story()) == ["high", "middle", "low"]


def test_a_coroutine_that_waits_gets_what_comes(where: dict[str, Any]) -> None:
    async def story() -> Any:
        async with AsyncQueue("tasks", **where) as queue, AsyncQueue("tasks", **where) as other:
            await queue.create()
            waiting = asyncio.ensure_future(queue.take(timeout=30))
            await asyncio.sleep(0.02)
            await other.publish("here")
            message = await waiting
            assert message is not None
            return message.message

    assert asyncio.run(story()) == "here"


def test_a_coroutine_that_is_cancelled_while_it_waits_takes_nothing(where: dict[str, Any]) -> None:
    async def story() -> int:
        async with AsyncQueue("tasks", **where) as queue:
            await queue.create()
            waiting = asyncio.ensure_future(queue.take(timeout=None))
            await asyncio.sleep(0.02)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await queue.publish(1)
            return (await queue.stats()).outstanding

    assert asyncio.run(story()) == 0
