"""StreamingPull of the Pub/Sub door (1.7), with raw streams."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from functools import partial
from typing import Any

import grpc
import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.server.grpc.call import _GivesWay
from heliograph.server.pubsub.outstanding import Unread
from heliograph.store.memory import MemoryStore
from heliograph.store.protocol import Store
from heliograph.testing.faulty_store import FaultyStore
from tests.server.clients import Failure, Rpc, wait_until
from tests.server.conftest import Timed, serving

INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND


def names(number: int = 1) -> tuple[str, str]:
    return "projects/p/topics/topic-1", f"projects/p/subscriptions/sub-{number}"


def datas(messages: list[Any]) -> list[bytes]:
    return [one.message.data for one in messages]


# ── the first request and the later ones ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seconds", [0, 9, 601])
def test_1_7_1_the_stream_ack_deadline_is_required_and_10_to_600(rpc: Rpc, subscription: str, seconds: int) -> None:
    with rpc.stream(subscription, stream_ack_deadline_seconds=seconds) as stream:
        code, text = stream.failure()
    assert (code, text.partition(" (")[0]) == (INVALID, "Invalid ack deadline given")


def test_1_7_1_a_subscription_in_a_later_request_is_invalid(rpc: Rpc, subscription: str) -> None:
    with rpc.stream(subscription) as stream:
        stream.send(subscription=subscription)
        assert stream.failure()[0] is INVALID


@pytest.mark.parametrize("field", ["max_outstanding_messages", "max_outstanding_bytes", "protocol_version"])
def test_1_7_2_limits_and_version_in_a_later_request_are_invalid(rpc: Rpc, subscription: str, field: str) -> None:
    with rpc.stream(subscription) as stream:
        stream.send(**{field: 1})
        assert stream.failure()[0] is INVALID


def test_1_7_8_a_stream_to_a_missing_subscription_is_not_found(rpc: Rpc, project: str) -> None:
    with rpc.stream(f"{project}/subscriptions/missing") as stream:
        assert stream.failure() == (NOT_FOUND, "Resource not found (resource=missing).")


def test_1_7_1_a_later_deadline_holds_for_what_is_delivered_after_it(timed: Timed) -> None:
    topic, subscription = names()
    timed.rpc.create_topic(topic)
    timed.rpc.create_subscription(subscription, topic)
    with timed.rpc.stream(subscription) as stream:
        stream.response()
        stream.send(stream_ack_deadline_seconds=60)
        stream.send()
        stream.response()  # the ping's answer: the deadline is in force
        timed.rpc.publish(topic, b"x")
        stream.messages(1)
    timed.clock.advance(30)
    assert timed.rpc.pull(subscription) == []
    timed.clock.advance(31)
    assert len(timed.rpc.pull(subscription)) == 1


# ── delivering ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_1_7_5_the_first_response_tells_the_properties(rpc: Rpc, topic: str, project: str, subscription: str) -> None:
    special = f"{project}/subscriptions/special"
    rpc.create_subscription(special, topic, enable_message_ordering=True, enable_exactly_once_delivery=True)
    told = []
    for name in (subscription, special):
        with rpc.stream(name) as stream:
            first = stream.response()
            assert list(first.received_messages) == []
            properties = first.subscription_properties
            told.append((properties.message_ordering_enabled, properties.exactly_once_delivery_enabled))
    assert told == [(False, False), (True, True)]


def test_1_7_5_every_response_tells_them_again(rpc: Rpc, topic: str, project: str) -> None:
    name = f"{project}/subscriptions/exactly-once"
    rpc.create_subscription(name, topic, enable_exactly_once_delivery=True)
    rpc.publish(topic, b"x")
    with rpc.stream(name) as stream:
        responses = [stream.response(), stream.response()]
        stream.send(ack_ids=[responses[1].received_messages[0].ack_id])
        responses.append(stream.response())
    assert all(one.subscription_properties.exactly_once_delivery_enabled for one in responses)


def test_1_7_11_the_backlog_and_what_comes_later_are_delivered(rpc: Rpc, topic: str, subscription: str) -> None:
    rpc.publish(topic, b"before")
    with rpc.stream(subscription) as stream:
        assert datas(stream.messages(1)) == [b"before"]
        rpc.publish(topic, b"after")
        assert datas(stream.messages(1)) == [b"after"]


def test_every_message_of_a_large_backlog_arrives_once(rpc: Rpc, topic: str, subscription: str) -> None:
    for _ in range(5):
        rpc.publish(topic, *[b"x" * 100] * 1000)
    with rpc.stream(subscription) as stream:
        ids = [one.message.message_id for one in stream.messages(5000)]
    assert len(set(ids)) == 5000


def test_a_large_message_arrives_alone_and_whole(rpc: Rpc, topic: str, subscription: str) -> None:
    rpc.publish(topic, b"small")
    rpc.publish(topic, bytes(3_900_000))
    rpc.publish(topic, b"small")
    with rpc.stream(subscription) as stream:
        assert [len(data) for data in datas(stream.messages(3))] == [5, 3_900_000, 5]


@pytest.mark.parametrize("version", [0, 1])
def test_1_7_6_an_empty_request_is_answered(rpc: Rpc, subscription: str, version: int) -> None:
    with rpc.stream(subscription, protocol_version=version) as stream:
        stream.response()
        stream.send()
        assert list(stream.response().received_messages) == []


def test_1_7_7_a_half_closed_stream_ends_with_ok(rpc: Rpc, topic: str, subscription: str) -> None:
    rpc.publish(topic, b"x")
    with rpc.stream(subscription) as stream:
        (received,) = stream.messages(1)
        stream.send(ack_ids=[received.ack_id])
        stream.half_close()
        assert stream.failure()[0] is grpc.StatusCode.OK
    rpc.nack(subscription, received.ack_id)
    assert rpc.pull(subscription) == []


def test_1_7_7_at_shutdown_streams_end_unavailable() -> None:
    topic, subscription = names()
    with serving(LocalBroker()) as server, Rpc(server.port) as rpc:
        rpc.create_topic(topic)
        rpc.create_subscription(subscription, topic)
        with rpc.stream(subscription) as stream:
            stream.response()
            server.stop()
            assert stream.failure() == (grpc.StatusCode.UNAVAILABLE, "The server is shutting down.")


def test_1_5_14_streams_of_a_deleted_subscription_end_not_found(rpc: Rpc, topic: str, subscription: str) -> None:
    rpc.publish(topic, b"x")
    with rpc.stream(subscription, max_outstanding_messages=1) as full:
        full.messages(1)
        with rpc.stream(subscription) as stream:
            stream.response()
            rpc("DeleteSubscription", subscription=subscription)
            assert stream.failure()[0] is NOT_FOUND
        assert full.failure()[0] is NOT_FOUND


def test_a_stream_does_not_go_on_with_a_new_subscription_of_the_name(rpc: Rpc, topic: str, subscription: str) -> None:
    with rpc.stream(subscription) as stream:
        stream.response()
        rpc("DeleteSubscription", subscription=subscription)
        rpc.create_subscription(subscription, topic)
        assert stream.failure()[0] is NOT_FOUND
    rpc.publish(topic, b"x")
    with rpc.stream(subscription) as stream:
        assert datas(stream.messages(1)) == [b"x"]


# ── acknowledging on the stream ─────────────────────────────────────────────────────────────────────────────────────


def test_acknowledgements_on_the_stream_count(timed: Timed) -> None:
    topic, subscription = names()
    timed.rpc.create_topic(topic)
    timed.rpc.create_subscription(subscription, topic)
    timed.rpc.publish(topic, b"done", b"not done")
    with timed.rpc.stream(subscription) as stream:
        done, _ = stream.messages(2)
        stream.send(ack_ids=[done.ack_id])
        stream.half_close()
        stream.failure()
    timed.clock.advance(11)
    assert datas(timed.rpc.pull(subscription)) == [b"not done"]


def test_1_7_4_a_deadline_of_zero_on_the_stream_gives_back(rpc: Rpc, topic: str, subscription: str) -> None:
    rpc.publish(topic, b"x")
    with rpc.stream(subscription) as stream:
        (first,) = stream.messages(1)
        stream.send(modify_deadline_ack_ids=[first.ack_id], modify_deadline_seconds=[0])
        (again,) = stream.messages(1)
    assert again.message == first.message
    assert again.ack_id != first.ack_id


@pytest.mark.parametrize(
    "fields",
    [
        {"modify_deadline_ack_ids": ["1-1-1"]},
        {"modify_deadline_ack_ids": ["1-1-1"], "modify_deadline_seconds": [-1]},
        {"modify_deadline_ack_ids": ["1-1-1"], "modify_deadline_seconds": [601]},
        {"modify_deadline_ack_ids": ["garbage"], "modify_deadline_seconds": [10]},
        {"ack_ids": ["garbage"]},
    ],
    ids=["lengths differ", "negative", "too long", "malformed", "malformed acknowledgement"],
)
def test_1_7_4_what_is_malformed_aborts_the_stream(rpc: Rpc, subscription: str, fields: dict[str, Any]) -> None:
    with rpc.stream(subscription) as stream:
        stream.send(**fields)
        assert stream.failure()[0] is INVALID


def test_1_7_4_stale_ids_on_a_stream_are_ignored(rpc: Rpc, topic: str, subscription: str) -> None:
    with rpc.stream(subscription) as stream:
        stream.send(ack_ids=["999999-1-1"], modify_deadline_ack_ids=["999999-2-1"], modify_deadline_seconds=[10])
        rpc.publish(topic, b"x")
        assert datas(stream.messages(1)) == [b"x"]


def test_1_8_8_under_exactly_once_the_stream_confirms_each_id(rpc: Rpc, topic: str, project: str) -> None:
    name = f"{project}/subscriptions/exactly-once"
    rpc.create_subscription(name, topic, enable_exactly_once_delivery=True)
    rpc.publish(topic, b"x")
    with rpc.stream(name) as stream:
        (received,) = stream.messages(1)
        stream.send(modify_deadline_ack_ids=[received.ack_id], modify_deadline_seconds=[60])
        assert list(stream.response().modify_ack_deadline_confirmation.ack_ids) == [received.ack_id]
        stream.send(ack_ids=[received.ack_id])
        assert list(stream.response().acknowledge_confirmation.ack_ids) == [received.ack_id]
        stream.send(ack_ids=[received.ack_id])
        assert list(stream.response().acknowledge_confirmation.invalid_ack_ids) == [received.ack_id]


def test_1_8_8_an_id_that_is_named_twice_in_one_request_is_confirmed_once(rpc: Rpc, topic: str, project: str) -> None:
    name = f"{project}/subscriptions/exactly-once"
    rpc.create_subscription(name, topic, enable_exactly_once_delivery=True)
    rpc.publish(topic, b"x")
    with rpc.stream(name) as stream:
        (received,) = stream.messages(1)
        twice = [received.ack_id, received.ack_id]
        stream.send(modify_deadline_ack_ids=twice, modify_deadline_seconds=[60, 60])
        confirmation = stream.response().modify_ack_deadline_confirmation
        assert ([received.ack_id], []) == (list(confirmation.ack_ids), list(confirmation.invalid_ack_ids))
        stream.send(ack_ids=twice)
        confirmed = stream.response().acknowledge_confirmation
        assert ([received.ack_id], []) == (list(confirmed.ack_ids), list(confirmed.invalid_ack_ids))


# ── flow control ────────────────────────────────────────────────────────────────────────────────────────────────────


def assert_nothing_comes(rpc: Rpc, stream: Any) -> None:
    """A ping is answered after whatever the server had to send before."""
    stream.send()
    assert list(stream.response().received_messages) == []


def test_1_7_3_no_more_than_the_limit_is_outstanding(rpc: Rpc, topic: str, subscription: str) -> None:
    rpc.publish(topic, *[str(number).encode() for number in range(7)])
    with rpc.stream(subscription, max_outstanding_messages=5) as stream:
        held = stream.messages(5)
        assert_nothing_comes(rpc, stream)
        stream.send(ack_ids=[held[0].ack_id])
        assert datas(stream.messages(1)) == [b"5"]
        assert_nothing_comes(rpc, stream)


def test_1_7_3_unary_acknowledgements_make_room(rpc: Rpc, topic: str, subscription: str) -> None:
    rpc.publish(topic, *[b"x"] * 3)
    with rpc.stream(subscription, max_outstanding_messages=1) as stream:
        for _ in range(3):
            (received,) = stream.messages(1)
            assert_nothing_comes(rpc, stream)
            rpc.acknowledge(subscription, received.ack_id)


def test_1_7_3_unary_nacks_make_room(rpc: Rpc, topic: str, subscription: str) -> None:
    rpc.publish(topic, b"x")
    with rpc.stream(subscription, max_outstanding_messages=1) as stream:
        for _ in range(3):
            rpc.nack(subscription, stream.messages(1)[0].ack_id)
        assert len(stream.messages(1)) == 1


def test_1_7_3_expired_leases_make_room(timed: Timed) -> None:
    topic, subscription = names()
    timed.rpc.create_topic(topic)
    timed.rpc.create_subscription(subscription, topic)
    timed.rpc.publish(topic, b"one", b"two")
    with timed.rpc.stream(subscription, max_outstanding_messages=1) as stream:
        assert datas(stream.messages(1)) == [b"one"]
        assert_nothing_comes(timed.rpc, stream)
        timed.clock.advance(10.1)
        assert len(stream.messages(1)) == 1


def test_1_7_3_an_extended_lease_makes_no_room_before_its_end(timed: Timed) -> None:
    topic, subscription = names()
    timed.rpc.create_topic(topic)
    timed.rpc.create_subscription(subscription, topic)
    timed.rpc.publish(topic, b"one", b"two")
    with timed.rpc.stream(subscription, max_outstanding_messages=1) as stream:
        (one,) = stream.messages(1)
        timed.rpc("ModifyAckDeadline", subscription=subscription, ack_ids=[one.ack_id], ack_deadline_seconds=60)
        timed.clock.advance(30)
        assert_nothing_comes(timed.rpc, stream)
        timed.clock.advance(31)
        assert len(stream.messages(1)) == 1


def test_1_7_3_a_deadline_that_comes_too_late_does_not_keep_its_place(timed: Timed) -> None:
    topic, subscription = names()
    timed.rpc.create_topic(topic)
    timed.rpc.create_subscription(subscription, topic)
    timed.rpc.publish(topic, b"a")
    with timed.rpc.stream(subscription, max_outstanding_messages=3) as stream:
        (late,) = stream.messages(1)
        timed.clock.advance(10)
        assert datas(stream.messages(1)) == [b"a"]
        stream.send(modify_deadline_ack_ids=[late.ack_id], modify_deadline_seconds=[600])
        assert_nothing_comes(timed.rpc, stream)
        timed.rpc.publish(topic, b"b", b"c")
        assert datas(stream.messages(2)) == [b"b", b"c"]


def test_1_11_6_a_seek_makes_room_since_it_ends_the_leases(timed: Timed) -> None:
    topic, subscription = names()
    timed.rpc.create_topic(topic)
    timed.rpc.create_subscription(subscription, topic)
    timed.rpc.publish(topic, b"a", b"b", b"c")
    with timed.rpc.stream(subscription, max_outstanding_messages=2) as stream:
        assert datas(stream.messages(2)) == [b"a", b"b"]
        timed.rpc("Seek", subscription=subscription, time={"seconds": 0})
        assert datas(stream.messages(2)) == [b"a", b"b"]
        assert_nothing_comes(timed.rpc, stream)


def test_1_7_3_bytes_are_bounded_and_one_message_may_overshoot(rpc: Rpc, topic: str, subscription: str) -> None:
    for _ in range(3):
        rpc.publish(topic, bytes(1000))
    with rpc.stream(subscription, max_outstanding_bytes=1500) as stream:
        held = stream.messages(2)
        assert_nothing_comes(rpc, stream)
        rpc.acknowledge(subscription, *[one.ack_id for one in held])
        assert len(stream.messages(1)) == 1


def test_1_7_3_a_message_larger_than_the_limit_is_delivered_alone(rpc: Rpc, topic: str, subscription: str) -> None:
    rpc.publish(topic, bytes(5000), b"next")
    with rpc.stream(subscription, max_outstanding_bytes=100) as stream:
        assert [len(data) for data in datas(stream.messages(1))] == [5000]
        assert_nothing_comes(rpc, stream)


# ── several streams ─────────────────────────────────────────────────────────────────────────────────────────────────


def collect(received: list[int], number: int, _message: Any) -> None:
    received.append(number)


def test_1_7_12_single_messages_go_round_the_streams(rpc: Rpc, topic: str, subscription: str) -> None:
    received: list[int] = []
    with ExitStack() as stack:
        streams = [stack.enter_context(rpc.stream(subscription)) for _ in range(3)]
        for number, stream in enumerate(streams):
            stream.response()
            stream.on_message(partial(collect, received, number))
        for _ in range(30):
            rpc.publish(topic, b"x")
        wait_until(lambda: len(received) == 30)
        for stream in streams:
            stream.half_close()
        for stream in streams:
            stream.wait()
    assert all(received.count(number) >= 5 for number in range(3)), received


def test_1_7_12_a_large_backlog_is_shared(rpc: Rpc, topic: str, subscription: str) -> None:
    with rpc.stream(subscription) as one, rpc.stream(subscription) as two:
        one.response()
        two.response()
        for _ in range(10):
            rpc.publish(topic, *[b"x"] * 1000)
        counts = [len(one.messages(2000)), len(two.messages(2000))]
    assert min(counts) >= 2000


def test_a_full_stream_leaves_the_messages_to_the_others(rpc: Rpc, topic: str, subscription: str) -> None:
    rpc.publish(topic, b"x")
    with rpc.stream(subscription, max_outstanding_messages=1) as full:
        full.messages(1)
        with rpc.stream(subscription) as free:
            for _ in range(10):
                rpc.publish(topic, b"x")
            assert len(free.messages(10)) == 10


def test_1_7_9_leases_outlive_their_stream(timed: Timed) -> None:
    topic, subscription = names()
    timed.rpc.create_topic(topic)
    timed.rpc.create_subscription(subscription, topic)
    timed.rpc.publish(topic, b"x")
    with timed.rpc.stream(subscription, max_outstanding_messages=10) as stream:
        (received,) = stream.messages(1)
    timed.clock.advance(9)
    assert timed.rpc.pull(subscription) == []
    timed.rpc.acknowledge(subscription, received.ack_id)
    timed.clock.advance(100)
    assert timed.rpc.pull(subscription) == []


def test_what_a_closing_stream_gave_back_is_not_lost_with_it(rpc: Rpc, topic: str, subscription: str) -> None:
    rpc.publish(topic, b"x")
    with rpc.stream(subscription, max_outstanding_messages=10, stream_ack_deadline_seconds=600) as closing:
        (received,) = closing.messages(1)
        rpc.nack(subscription, received.ack_id)
        closing.messages(1)  # handed straight back, and never confirmed
    with rpc.stream(subscription) as other:
        assert datas(other.messages(1)) == [b"x"]


def subscribed(store: Store, rpc_of: ExitStack) -> tuple[LocalBroker, Rpc]:
    """A server on `store` with one message waiting for `names()`."""
    broker = LocalBroker(store)
    rpc = rpc_of.enter_context(Rpc(rpc_of.enter_context(serving(broker)).port))
    topic, subscription = names()
    rpc.create_topic(topic)
    rpc.create_subscription(subscription, topic)
    rpc.publish(topic, b"x")
    return broker, rpc


def test_what_was_being_leased_when_the_client_went_is_there_for_the_next() -> None:
    store = FaultyStore(MemoryStore())
    subscription = names()[1]
    with ExitStack() as stack:
        broker, rpc = subscribed(store, stack)
        store.hold()
        with rpc.stream(subscription, stream_ack_deadline_seconds=600):
            wait_until(lambda: broker.statistics(subscription).outstanding == 1)
        wait_until(lambda: broker.statistics(subscription).outstanding == 0)
        store.release()
        assert datas(rpc.pull(subscription)) == [b"x"]


def test_a_stream_that_cannot_give_back_when_it_ends_still_leaves_its_place() -> None:
    store = FaultyStore(MemoryStore())
    subscription = names()[1]
    with ExitStack() as stack:
        broker, rpc = subscribed(store, stack)
        with rpc.stream(subscription, max_outstanding_messages=10) as stream:
            (received,) = stream.messages(1)
            rpc.nack(subscription, received.ack_id)
            stream.messages(1)
            store.fail_next(1_000)
            broker.create_topic("t")
        wait_until(lambda: not broker._watches.of([subscription]))
        store.fail_next(0)
        store.retry()


def test_what_a_client_settles_just_after_its_stream_has_ended_counts() -> None:
    """It nacked the message, was handed it again, and closes: its last word comes by a call of its own."""
    subscription = names()[1]
    with ExitStack() as stack:
        broker, rpc = subscribed(MemoryStore(), stack)
        for settle in (rpc.nack, rpc.acknowledge):
            with rpc.stream(subscription) as stream:
                (received,) = stream.messages(1)
                rpc.nack(subscription, received.ack_id)
                (received,) = stream.messages(1)
            wait_until(lambda: not broker._watches.of([subscription]))
            settle(subscription, received.ack_id)
        totals = broker.statistics(subscription).totals
        assert (totals.nacked, totals.acknowledged) == (3, 1)


def test_a_stream_that_nobody_reads_does_not_hold_up_other_calls_of_its_client(
    rpc: Rpc, topic: str, subscription: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Unread, "PATIENCE_SECONDS", 0.005)
    monkeypatch.setattr(_GivesWay, "PATIENCE_SECONDS", 0.05)
    for _ in range(20):
        rpc.publish(topic, *[bytes(1_000)] * 500)
    with rpc.stream(subscription) as stream:
        stream.response()
        threading.Event().wait(0.1)
        for _ in range(3):
            assert rpc("GetTopic", topic=topic, timeout=30).name == topic


def test_1_9_messages_of_a_key_arrive_one_after_the_other(rpc: Rpc, topic: str, project: str) -> None:
    name = f"{project}/subscriptions/ordered"
    rpc.create_subscription(name, topic, enable_message_ordering=True)
    rpc.publish(topic, *[str(number).encode() for number in range(5)], ordering_key="k")
    received = []
    with rpc.stream(name) as stream:
        for _ in range(5):
            (one,) = stream.messages(1)
            received.append(one.message.data)
            rpc.acknowledge(name, one.ack_id)
    assert received == [b"0", b"1", b"2", b"3", b"4"]


def test_a_stream_that_sends_garbage_ends_and_the_server_goes_on(rpc: Rpc, topic: str, subscription: str) -> None:
    call = rpc.channel.stream_stream(
        "/google.pubsub.v1.Subscriber/StreamingPull", request_serializer=bytes, response_deserializer=bytes
    )(iter([b"\xff\xff\xff"]), timeout=30)
    with pytest.raises(Failure) as raised:
        list(call)
    assert raised.value.code() is INVALID
    rpc.publish(topic, b"x")
    assert datas(rpc.pull(subscription)) == [b"x"]
