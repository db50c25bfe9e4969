"""Spec 002, Message: every requirement and acceptance criterion, by number."""

from __future__ import annotations

import asyncio
import copy
import pickle
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from heliograph import (
    AckResponse,
    DatetimeWithNanoseconds,
    InvalidAckId,
    InvalidArgument,
    Message,
    MessageTooLarge,
    PubSub,
    SubscriptionNotFound,
    Unavailable,
)
from heliograph.engine.limits import MIB
from tests.client.conftest import Bench, Inbox, idle, until


async def received(bench: Bench, **options: object) -> tuple[Inbox, Message]:
    """The first delivery of one message, and the inbox where others will come."""
    inbox = Inbox()
    subscription = await bench.subscription(**options)
    subscription.on("message", inbox).open()
    await bench.topic.publish_message(data=b"Hello World", attributes={"key": "value"}, ordering_key="user-123")
    await until(lambda: len(inbox) == 1)
    return inbox, inbox.messages[0]


# ── requirements ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_002_br_001_every_property_is_there() -> None:
    bench = Bench()
    bench.clock.advance(0.123456789)
    _, message = await received(bench)
    assert message.id.isdigit()
    assert message.ack_id
    assert message.data == b"Hello World"
    assert type(message.data) is bytes
    assert message.attributes == {"key": "value"}
    assert isinstance(message.publish_time, datetime)
    assert message.publish_time.utcoffset() == timedelta(0)
    assert message.received == bench.clock.now_ns() // 1_000_000
    assert message.ordering_key == "user-123"
    assert message.delivery_attempt == 1


async def test_002_br_001_the_publish_time_has_nanoseconds() -> None:
    bench = Bench()
    bench.clock.advance(0.123456789)
    _, message = await received(bench)
    assert isinstance(message.publish_time, DatetimeWithNanoseconds)
    assert message.publish_time.nanosecond == 123_456_789
    assert message.publish_time.rfc3339() == "2001-09-09T01:46:40.123456789Z"
    assert message.publish_time == datetime(2001, 9, 9, 1, 46, 40, 123456, UTC)


async def test_002_br_001_a_message_can_be_made_by_hand() -> None:
    subscription = PubSub().subscription("s")
    now = datetime.now(UTC)
    message = Message("1", "1-1-1", b"data", {"k": "v"}, now, subscription, "key")
    assert (message.id, message.ack_id, message.data, message.attributes) == ("1", "1-1-1", b"data", {"k": "v"})
    assert (message.publish_time, message.ordering_key, message.delivery_attempt) == (now, "key", 1)
    assert abs(message.received / 1000 - now.timestamp()) < 60


@pytest.mark.parametrize(
    "changes",
    [{"id": ""}, {"id": 1}, {"ack_id": None}, {"data": "text"}, {"attributes": 5}, {"publish_time": 0},
     {"ordering_key": 5}, {"delivery_attempt": 0}],
    ids=str,
)  # fmt: skip
def test_002_br_001_a_message_of_bad_parts_is_refused(changes: dict[str, Any]) -> None:
    parts: dict[str, Any] = {
        "id": "1",
        "ack_id": "1-1-1",
        "data": b"",
        "attributes": {},
        "publish_time": datetime.now(UTC),
        "subscription": PubSub().subscription("s"),
    }
    with pytest.raises(InvalidArgument):
        Message(**parts | changes)


async def test_002_br_002_an_acknowledged_message_is_not_delivered_again_and_makes_room() -> None:
    bench = Bench()
    inbox, message = await received(bench, flow_control={"max_messages": 1})
    message.ack()
    bench.clock.advance(1_000)
    await bench.publish("next")
    await until(lambda: inbox.data == ["Hello World", "next"])


async def test_002_br_002_acknowledging_again_has_no_effect() -> None:
    bench = Bench()
    _, message = await received(bench)
    for _ in range(3):
        message.ack()
    await idle()
    assert bench.pubsub.queue.statistics("my-sub").totals.acknowledged == 1


async def test_002_br_003_a_nacked_message_comes_again_at_once_with_the_next_attempt_and_makes_room() -> None:
    inbox, message = await received(Bench(), flow_control={"max_messages": 1})
    message.nack()
    await until(lambda: inbox.attempts == [1, 2])
    assert inbox.messages[1].id == message.id
    assert inbox.messages[1].ack_id != message.ack_id


async def test_002_br_003_a_nack_after_an_ack_has_no_effect() -> None:
    bench = Bench()
    inbox, message = await received(bench)
    message.ack()
    message.nack()
    message.modify_ack_deadline(0)
    bench.clock.advance(1_000)
    await idle()
    assert len(inbox) == 1


async def test_002_br_003_a_nack_is_subject_to_the_retry_policy() -> None:
    bench = Bench()
    inbox, message = await received(bench, retry_policy={"minimum_backoff": 5, "maximum_backoff": 5})
    message.nack()
    bench.clock.advance(4.9)
    await idle()
    assert len(inbox) == 1
    bench.clock.advance(0.1)
    await until(lambda: len(inbox) == 2)


async def test_002_br_004_the_deadline_is_set_from_now_as_often_as_is_wanted() -> None:
    bench = Bench()
    inbox, message = await received(bench, ack_deadline=1)
    for _ in range(3):
        message.modify_ack_deadline(10)
        bench.clock.advance(9.9)
    await idle()
    assert len(inbox) == 1
    bench.clock.advance(0.1)
    await until(lambda: len(inbox) == 2)


async def test_002_br_004_a_deadline_of_zero_is_a_nack() -> None:
    inbox, message = await received(Bench())
    message.modify_ack_deadline(0)
    await until(lambda: inbox.attempts == [1, 2])


@pytest.mark.parametrize("seconds", [-1, 601, float("nan"), "5", None, True])
async def test_002_br_004_a_deadline_out_of_bounds_is_refused_with_code_3(seconds: float) -> None:
    _, message = await received(Bench())
    with pytest.raises(InvalidArgument, match=r"^Ack deadline must be between 0 and 600 seconds$") as failure:
        message.modify_ack_deadline(seconds)
    assert failure.value.code == 3


async def test_002_br_005_a_message_that_nobody_settles_comes_again_with_the_next_attempt() -> None:
    bench = Bench()
    inbox, message = await received(bench, ack_deadline=7)
    bench.clock.advance(7)
    await until(lambda: inbox.attempts == [1, 2])
    message.ack()
    message.nack()
    await idle()
    assert len(inbox) == 2
    inbox.messages[1].ack()
    bench.clock.advance(1_000)
    await idle()
    assert len(inbox) == 2


async def test_002_br_006_the_length_is_the_bytes_of_data() -> None:
    _, message = await received(Bench())
    assert message.length == 11


async def test_002_br_007_empty_data_are_a_message_like_any_other() -> None:
    bench, inbox = Bench(), Inbox()
    subscription = await bench.subscription()
    subscription.on("message", inbox).open()
    await bench.publish("")
    await until(lambda: len(inbox) == 1)
    assert (inbox.messages[0].data, inbox.messages[0].length) == (b"", 0)
    inbox.messages[0].nack()
    await until(lambda: len(inbox) == 2)


async def test_002_br_008_changing_the_attributes_changes_no_message() -> None:
    bench = Bench()
    await bench.subscription("other")
    _, message = await received(bench)
    message.attributes["key"] = "changed"
    message.attributes["new"] = "new"
    assert message.attributes == {"key": "value"}
    (copy_of_other,) = await bench.pubsub.subscription("other").pull()
    assert copy_of_other.attributes == {"key": "value"}


@pytest.mark.parametrize("name", ["id", "ack_id", "data", "attributes", "publish_time", "received", "ordering_key",
                                  "delivery_attempt", "length", "something_else"])  # fmt: skip
async def test_002_br_008_a_message_is_immutable(name: str) -> None:
    _, message = await received(Bench())
    with pytest.raises(AttributeError):
        setattr(message, name, None)


async def test_002_br_009_without_an_ordering_key_there_is_none() -> None:
    bench, inbox = Bench(), Inbox()
    subscription = await bench.subscription()
    subscription.on("message", inbox).open()
    await bench.publish("a")
    await until(lambda: len(inbox) == 1)
    assert inbox.messages[0].ordering_key is None


@pytest.mark.parametrize("before", ["ack", "nack", "expiry", "ack_with_response"])
async def test_002_br_010_with_exactly_once_an_answer_that_comes_too_late_says_so(before: str) -> None:
    bench = Bench()
    _, message = await received(bench, enable_exactly_once_delivery=True)
    if before == "expiry":
        bench.clock.advance(60)
    elif before == "ack_with_response":
        assert await message.ack_with_response() is AckResponse.SUCCESS
    else:
        getattr(message, before)()
    assert await message.ack_with_response() is AckResponse.INVALID
    assert await message.nack_with_response() is AckResponse.INVALID


async def test_002_br_010_without_exactly_once_every_answer_is_success() -> None:
    bench = Bench()
    _, message = await received(bench)
    bench.clock.advance(60)
    for _ in range(2):
        assert await message.ack_with_response() is AckResponse.SUCCESS
        assert await message.nack_with_response() is AckResponse.SUCCESS


async def test_002_br_010_the_answer_tells_of_a_subscription_that_is_gone() -> None:
    bench = Bench()
    _, message = await received(bench, enable_exactly_once_delivery=True)
    bench.pubsub.queue.unregister_subscription("my-sub")
    assert await message.ack_with_response() is AckResponse.FAILED_PRECONDITION


async def test_002_br_010_the_answer_tells_of_a_broker_that_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    _, message = await received(bench, enable_exactly_once_delivery=True)

    def fail(*_: object) -> None:
        raise Unavailable("disk full")

    monkeypatch.setattr(bench.pubsub.queue.broker, "acknowledge", fail)
    assert await message.ack_with_response() is AckResponse.OTHER


async def test_002_br_010_an_answer_makes_room() -> None:
    inbox, message = await received(Bench(), flow_control={"max_messages": 1}, enable_exactly_once_delivery=True)
    assert await message.nack_with_response() is AckResponse.SUCCESS
    await until(lambda: len(inbox) == 2)
    assert await inbox.messages[1].ack_with_response() is AckResponse.SUCCESS


def test_002_br_010_the_numbers_are_grpcs() -> None:
    assert {response.name: response.value for response in AckResponse} == {
        "SUCCESS": 0,
        "INVALID": 3,
        "PERMISSION_DENIED": 7,
        "FAILED_PRECONDITION": 9,
        "OTHER": 13,
    }


async def test_002_br_011_more_than_ten_megabytes_are_refused() -> None:
    bench = Bench()
    subscription = await bench.subscription()
    await bench.topic.publish_message(data=bytes(10 * MIB))
    with pytest.raises(MessageTooLarge, match=r"^Message size exceeds maximum of 10MB$") as failure:
        await bench.topic.publish_message(data=bytes(10 * MIB + 1))
    assert failure.value.code == 3
    assert isinstance(failure.value, InvalidArgument)
    assert subscription.queue.statistics("my-sub").ready == 1


# ── acceptance criteria ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_002_ac_001_basic_message_properties() -> None:
    bench, inbox = Bench(), Inbox()
    subscription = await bench.subscription()
    subscription.on("message", inbox).open()
    await bench.topic.publish_message({"data": b"Hello World", "attributes": {"key": "value"}})
    await until(lambda: len(inbox) == 1)
    (message,) = inbox.messages
    assert message.id is not None
    assert isinstance(message.data, bytes)
    assert message.data.decode() == "Hello World"
    assert message.attributes == {"key": "value"}
    assert isinstance(message.publish_time, datetime)


async def test_002_ac_002_ack_removes_message() -> None:
    bench = Bench()
    inbox = Inbox(lambda message: message.ack() if len(inbox) == 1 else None)
    subscription = await bench.subscription(ackDeadline=1)
    subscription.on("message", inbox).open()
    await bench.publish("test")
    await until(lambda: len(inbox) == 1)
    bench.clock.advance(1.2)
    await idle()
    assert len(inbox) == 1


async def test_002_ac_003_nack_causes_immediate_redelivery() -> None:
    bench = Bench()
    inbox = Inbox(lambda message: message.nack() if len(inbox) == 1 else message.ack())
    subscription = await bench.subscription()
    subscription.on("message", inbox).open()
    await bench.publish("test")
    await until(lambda: len(inbox) > 1)


async def test_002_ac_004_modify_ack_deadline() -> None:
    bench = Bench()
    inbox = Inbox(lambda message: message.modify_ack_deadline(5))
    subscription = await bench.subscription(ackDeadline=1)
    subscription.on("message", inbox).open()
    await bench.publish("test")
    await until(lambda: len(inbox) == 1)
    bench.clock.advance(1.5)
    await idle()
    assert len(inbox) == 1
    bench.clock.advance(0.5)
    inbox.messages[0].ack()
    bench.clock.advance(10)
    await idle()
    assert len(inbox) == 1


async def test_002_ac_005_message_length_property() -> None:
    _, message = await received(Bench())
    assert message.length == len(message.data) == 11


async def test_002_ac_006_empty_data_message() -> None:
    bench, inbox = Bench(), Inbox(Message.ack)
    subscription = await bench.subscription()
    subscription.on("message", inbox).open()
    await bench.topic.publish_message({"data": b""})
    await until(lambda: len(inbox) == 1)
    (message,) = inbox.messages
    assert isinstance(message.data, bytes)
    assert len(message.data) == message.length == 0


async def test_002_ac_007_ordering_key_present() -> None:
    bench, inbox = Bench(), Inbox(Message.ack)
    subscription = await bench.subscription()
    subscription.on("message", inbox).open()
    await bench.topic.publish_message({"data": b"test", "orderingKey": "user-123"})
    await until(lambda: len(inbox) == 1)
    assert inbox.messages[0].ordering_key == "user-123"


async def test_002_ac_008_multiple_acks_are_idempotent() -> None:
    bench, errors = Bench(), []
    inbox = Inbox(lambda message: (message.ack(), message.ack(), message.ack()))
    subscription = await bench.subscription()
    subscription.on("message", inbox).on("error", errors.append).open()
    await bench.publish("test")
    await idle()
    assert (len(inbox), errors) == (1, [])


async def test_002_ac_009_ack_after_nack_has_no_effect() -> None:
    bench = Bench()
    inbox = Inbox(lambda message: (message.nack(), message.ack()))
    subscription = await bench.subscription()
    subscription.on("message", inbox).open()
    await bench.publish("test")
    await until(lambda: len(inbox) > 1)


async def test_002_ac_010_delivery_attempt_counter() -> None:
    bench = Bench()
    inbox = Inbox(lambda message: message.nack() if message.delivery_attempt < 3 else message.ack())
    subscription = await bench.subscription()
    subscription.on("message", inbox).open()
    await bench.publish("test")
    await idle()
    assert inbox.attempts == [1, 2, 3]


async def test_002_ac_011_ack_with_response_returns_success() -> None:
    bench, responses = Bench(), []

    async def acknowledge(message: Message) -> None:
        responses.append(await message.ack_with_response())

    subscription = await bench.subscription(enableExactlyOnceDelivery=True)
    subscription.on("message", acknowledge).open()
    await bench.publish("test")
    await until(lambda: responses)
    assert responses == [AckResponse.SUCCESS] == [0]


async def test_002_ac_012_nack_with_response_returns_success() -> None:
    bench, responses = Bench(), []

    async def give_back_once(message: Message) -> None:
        answer = message.nack_with_response() if not responses else message.ack_with_response()
        responses.append(await answer)

    subscription = await bench.subscription(enableExactlyOnceDelivery=True)
    subscription.on("message", give_back_once).open()
    await bench.publish("test")
    await until(lambda: len(responses) == 2)
    assert responses[0] == AckResponse.SUCCESS == 0


async def test_002_ac_013_ack_with_response_handles_invalid_ack_id() -> None:
    bench, responses = Bench(), []

    async def acknowledge_twice(message: Message) -> None:
        responses.append(await message.ack_with_response())
        responses.append(await message.ack_with_response())

    subscription = await bench.subscription(enableExactlyOnceDelivery=True)
    subscription.on("message", acknowledge_twice).open()
    await bench.publish("test")
    await until(lambda: len(responses) == 2)
    assert responses == [AckResponse.SUCCESS, AckResponse.INVALID] == [0, 3]


async def test_002_ac_014_response_methods_work_without_exactly_once() -> None:
    bench, responses = Bench(), []

    async def acknowledge(message: Message) -> None:
        responses.append(await message.ack_with_response())

    subscription = await bench.subscription()
    subscription.on("message", acknowledge).open()
    await bench.publish("test")
    await until(lambda: responses)
    assert responses == [AckResponse.SUCCESS]


# ── what is not the message's ───────────────────────────────────────────────────────────────────────────────────────


async def test_002_an_ack_id_of_another_subscription_is_refused_and_changes_nothing() -> None:
    bench = Bench()
    other = await bench.subscription("other")
    _, message = await received(bench)
    forged = Message(message.id, message.ack_id, b"", {}, message.publish_time, other)
    for use in (forged.ack, lambda: forged.modify_ack_deadline(5)):
        forged._settled = False
        with pytest.raises(InvalidAckId, match=r"^Invalid ack ID: ") as failure:
            use()
        assert failure.value.code == 3
    assert bench.pubsub.queue.statistics("my-sub").outstanding == 1


async def test_002_a_message_made_by_hand_from_a_true_ack_id_can_be_settled() -> None:
    bench = Bench()
    _, message = await received(bench)
    subscription = bench.pubsub.subscription("my-sub")
    Message(message.id, message.ack_id, b"", {}, message.publish_time, subscription).ack()
    assert bench.pubsub.queue.statistics("my-sub").totals.acknowledged == 1


async def test_002_settling_after_the_subscription_was_deleted_has_no_effect() -> None:
    bench = Bench()
    subscription = await bench.subscription()
    await bench.publish("a", "b", "c")
    first, second, third = await subscription.pull()
    await subscription.delete()
    first.ack()
    second.nack()
    third.modify_ack_deadline(5)
    with pytest.raises(SubscriptionNotFound):
        await subscription.pull()


async def test_002_two_threads_that_settle_one_message_settle_it_once() -> None:
    bench = Bench()
    _, message = await received(bench)
    await asyncio.gather(asyncio.to_thread(message.ack), asyncio.to_thread(message.ack))
    await idle()
    assert bench.pubsub.queue.statistics("my-sub").totals.acknowledged == 1


def test_002_a_datetime_with_nanoseconds_goes_through_copy_and_pickle() -> None:
    moment = DatetimeWithNanoseconds.from_ns(1_768_383_000_000_000_001)
    for other in (copy.copy(moment), copy.deepcopy(moment), pickle.loads(pickle.dumps(moment))):
        assert isinstance(other, DatetimeWithNanoseconds)
        assert other == moment
        assert other.nanosecond == 1
        assert other.timestamp_ns() == 1_768_383_000_000_000_001


@pytest.mark.parametrize(
    ("instant_ns", "text"),
    [
        (0, "1970-01-01T00:00:00Z"),
        (1_000_000_000_500_000_000, "2001-09-09T01:46:40.5Z"),
        (1_768_383_000_123_456_789, "2026-01-14T09:30:00.123456789Z"),
    ],
)
def test_002_a_datetime_with_nanoseconds_is_written_as_rfc_3339(instant_ns: int, text: str) -> None:
    assert DatetimeWithNanoseconds.from_ns(instant_ns).rfc3339() == text


def test_002_what_is_reckoned_from_it_has_microseconds() -> None:
    later = DatetimeWithNanoseconds.from_ns(1_500) + timedelta(microseconds=1)
    assert isinstance(later, DatetimeWithNanoseconds)
    assert later.nanosecond == 2_000
    assert later.timestamp_ns() == 2_000
    assert pickle.loads(pickle.dumps(later)) == later
