"""Exactly-once (1.8), ordering (1.9) and dead letters (1.10) as a client of the Pub/Sub door sees them."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import grpc
import pytest

from tests.server.clients import Failure, Rpc, wait_until
from tests.server.conftest import Timed
from tests.server.test_pull import stale_ids

INVALID = grpc.StatusCode.INVALID_ARGUMENT
TOPIC, SUBSCRIPTION = "projects/p/topics/topic-1", "projects/p/subscriptions/sub-1"


def code(rpc: Rpc, method: str, /, **fields: Any) -> grpc.StatusCode:
    with pytest.raises(Failure) as raised:
        rpc(method, **fields)
    return raised.value.code()


def datas(received: list[Any]) -> list[bytes]:
    return [one.message.data for one in received]


def subscribed(rpc: Rpc, **fields: Any) -> str:
    rpc.create_topic(TOPIC)
    rpc.create_subscription(SUBSCRIPTION, TOPIC, **fields)
    return SUBSCRIPTION


# ── where messages go ───────────────────────────────────────────────────────────────────────────────────────────────


def test_1_6_7_subscribers_of_one_subscription_share_and_subscriptions_of_one_topic_each_get_all(
    rpc: Rpc, topic: str, subscription: str, project: str
) -> None:
    other = f"{project}/subscriptions/other"
    rpc.create_subscription(other, topic)
    ids = rpc.publish(topic, *[b"x"] * 10)
    shared = [one.message.message_id for _ in range(2) for one in rpc.pull(subscription, 5)]
    assert sorted(shared) == sorted(one.message.message_id for one in rpc.pull(other)) == ids


# ── exactly-once ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_1_8_1_only_the_latest_ack_id_of_a_message_counts(timed: Timed) -> None:
    name = subscribed(timed.rpc, enable_exactly_once_delivery=True)
    timed.rpc.publish(TOPIC, b"x")
    (first,) = timed.rpc.pull(name)
    timed.clock.advance(11)
    (second,) = timed.rpc.pull(name)
    assert second.ack_id != first.ack_id
    assert code(timed.rpc, "Acknowledge", subscription=name, ack_ids=[first.ack_id]) is INVALID
    timed.rpc.acknowledge(name, second.ack_id)


def test_1_8_1_nothing_returns_while_its_lease_holds_nor_after_its_acknowledgement(timed: Timed) -> None:
    name = subscribed(timed.rpc, enable_exactly_once_delivery=True)
    timed.rpc.publish(TOPIC, b"x")
    (received,) = timed.rpc.pull(name)
    for _ in range(5):
        timed.clock.advance(9)
        assert timed.rpc.pull(name) == []
        fields = {"subscription": name, "ack_ids": [received.ack_id], "ack_deadline_seconds": 10}
        timed.rpc("ModifyAckDeadline", **fields)
    timed.rpc.acknowledge(name, received.ack_id)
    timed.clock.advance(1000)
    assert timed.rpc.pull(name) == []


def test_1_8_1_an_ended_lease_cannot_be_acknowledged_any_more(timed: Timed) -> None:
    name = subscribed(timed.rpc, enable_exactly_once_delivery=True)
    timed.rpc.publish(TOPIC, b"x")
    (received,) = timed.rpc.pull(name)
    timed.clock.advance(11)
    assert code(timed.rpc, "Acknowledge", subscription=name, ack_ids=[received.ack_id]) is INVALID
    assert datas(timed.rpc.pull(name)) == [b"x"]


def test_1_8_6_a_second_acknowledgement_is_invalid(rpc: Rpc, topic: str, project: str) -> None:
    name = f"{project}/subscriptions/exactly-once"
    rpc.create_subscription(name, topic, enable_exactly_once_delivery=True)
    rpc.publish(topic, b"x")
    (received,) = rpc.pull(name)
    rpc.acknowledge(name, received.ack_id)
    assert code(rpc, "Acknowledge", subscription=name, ack_ids=[received.ack_id]) is INVALID


def test_1_8_4_without_exactly_once_a_stale_id_is_no_failure(timed: Timed) -> None:
    name = subscribed(timed.rpc)
    timed.rpc.publish(TOPIC, b"x")
    (received,) = timed.rpc.pull(name)
    timed.clock.advance(11)
    timed.rpc.acknowledge(name, received.ack_id)
    timed.rpc.nack(name, received.ack_id)


def test_1_8_3_each_id_that_failed_is_named_and_no_other(rpc: Rpc, topic: str, project: str) -> None:
    name = f"{project}/subscriptions/exactly-once"
    rpc.create_subscription(name, topic, enable_exactly_once_delivery=True)
    rpc.publish(topic, *[b"x"] * 4)
    one, two, three, four = [received.ack_id for received in rpc.pull(name)]
    rpc.acknowledge(name, one)
    rpc.nack(name, two)
    with pytest.raises(Failure) as raised:
        rpc.acknowledge(name, three, one, four, two)
    assert sorted(stale_ids(raised.value)) == sorted([one, two])


def test_1_8_3_of_more_failed_ids_than_headers_hold_none_is_named_lest_the_others_pass_for_successes(
    rpc: Rpc, topic: str, project: str
) -> None:
    name = f"{project}/subscriptions/exactly-once"
    rpc.create_subscription(name, topic, enable_exactly_once_delivery=True)
    for count, named in ((70, 70), (100, 0)):
        rpc.publish(topic, *[b"x"] * count)
        ack_ids = [received.ack_id for received in rpc.pull(name)]
        rpc.acknowledge(name, *ack_ids)
        with pytest.raises(Failure) as raised:
            rpc.acknowledge(name, *ack_ids)
        assert (raised.value.code(), len(stale_ids(raised.value))) == (INVALID, named)


@pytest.mark.parametrize("seconds", [None, 60, 0])
def test_1_8_2_an_id_that_is_named_twice_in_one_call_is_one_id_and_no_failure(
    rpc: Rpc, topic: str, project: str, seconds: int | None
) -> None:
    name = f"{project}/subscriptions/exactly-once"
    rpc.create_subscription(name, topic, enable_exactly_once_delivery=True)
    rpc.publish(topic, b"x")
    (received,) = rpc.pull(name)
    twice = [received.ack_id, received.ack_id]
    if seconds is None:
        rpc("Acknowledge", subscription=name, ack_ids=twice)
    else:
        rpc("ModifyAckDeadline", subscription=name, ack_ids=twice, ack_deadline_seconds=seconds)


def test_1_9_5_an_acknowledgement_says_nothing_about_what_came_before(timed: Timed) -> None:
    name = subscribed(timed.rpc)
    timed.rpc.publish(TOPIC, b"1", b"2")
    timed.rpc.acknowledge(name, timed.rpc.pull(name)[1].ack_id)
    timed.clock.advance(11)
    assert datas(timed.rpc.pull(name)) == [b"1"]


# ── ordering ────────────────────────────────────────────────────────────────────────────────────────────────────────


def received_in_turn(rpc: Rpc, name: str) -> list[bytes]:
    """Pull and acknowledge until there is nothing more."""
    received: list[bytes] = []
    while pulled := rpc.pull(name):
        received += datas(pulled)
        rpc.acknowledge(name, *[one.ack_id for one in pulled])
    return received


@pytest.fixture
def ordered(rpc: Rpc, topic: str, project: str) -> str:
    name = f"{project}/subscriptions/ordered"
    rpc.create_subscription(name, topic, enable_message_ordering=True)
    return name


def test_1_9_1_each_key_arrives_in_the_order_of_publication(rpc: Rpc, topic: str, ordered: str) -> None:
    for number in range(5):
        for key in ("a", "b"):
            rpc.publish(topic, f"{key}{number}".encode(), ordering_key=key)
    received = received_in_turn(rpc, ordered)
    for key in (b"a", b"b"):
        assert [data for data in received if data.startswith(key)] == [key + b"%d" % number for number in range(5)]


def test_1_9_1_messages_without_a_key_are_never_held_up(rpc: Rpc, topic: str, ordered: str) -> None:
    rpc.publish(topic, b"a1", b"a2", ordering_key="a")
    rpc.publish(topic, b"x", b"y")
    assert sorted(datas(rpc.pull(ordered))) == [b"a1", b"x", b"y"]


def test_1_9_2_after_a_nack_a_key_goes_on_where_it_was(rpc: Rpc, topic: str, ordered: str) -> None:
    rpc.publish(topic, b"1", b"2", b"3", ordering_key="a")
    (first,) = rpc.pull(ordered)
    rpc.nack(ordered, first.ack_id)
    assert received_in_turn(rpc, ordered) == [b"1", b"2", b"3"]


def test_1_9_3_nothing_of_a_key_is_on_one_stream_while_another_has_it(rpc: Rpc, topic: str, ordered: str) -> None:
    outstanding, most, received = 0, 0, list[bytes]()
    lock = threading.Lock()

    def take(stream: Any, message: Any) -> None:
        nonlocal outstanding, most
        with lock:
            outstanding += 1
            most = max(most, outstanding)
            received.append(message.message.data)
        with lock:
            outstanding -= 1
        stream.send(ack_ids=[message.ack_id])

    with rpc.stream(ordered) as one, rpc.stream(ordered) as two:
        for stream in (one, two):
            stream.response()
            stream.on_message(partial(take, stream))
        rpc.publish(topic, *[b"%d" % number for number in range(6)], ordering_key="a")
        wait_until(lambda: len(received) == 6)
    assert (received, most) == ([b"%d" % number for number in range(6)], 1)


def test_1_9_4_a_second_pull_gets_nothing_of_a_key_that_is_outstanding(rpc: Rpc, topic: str, ordered: str) -> None:
    rpc.publish(topic, b"1", b"2", ordering_key="a")
    assert len(rpc.pull(ordered)) == 1
    assert rpc.pull(ordered) == []


def test_1_9_6_the_backoff_of_a_message_holds_up_its_key_alone(timed: Timed) -> None:
    policy = {"minimum_backoff": {"seconds": 20}}
    name = subscribed(timed.rpc, enable_message_ordering=True, retry_policy=policy)
    timed.rpc.publish(TOPIC, b"a1", b"a2", ordering_key="a")
    timed.rpc.nack(name, timed.rpc.pull(name)[0].ack_id)
    timed.rpc.publish(TOPIC, b"b1", ordering_key="b")
    assert datas(timed.rpc.pull(name)) == [b"b1"]
    timed.clock.advance(21)
    assert datas(timed.rpc.pull(name)) == [b"a1"]


# ── dead letters ────────────────────────────────────────────────────────────────────────────────────────────────────

DEAD, DEAD_SUBSCRIPTION = "projects/p/topics/dead-letters", "projects/p/subscriptions/dead-letters"


@pytest.fixture
def dying(timed: Timed) -> Timed:
    """A subscription whose messages are given up after five deliveries."""
    timed.rpc.create_topic(DEAD)
    timed.rpc.create_subscription(DEAD_SUBSCRIPTION, DEAD)
    policy = {"dead_letter_topic": DEAD, "max_delivery_attempts": 5}
    subscribed(timed.rpc, dead_letter_policy=policy, enable_message_ordering=True)
    return timed


def test_1_10_1_after_exactly_its_attempts_a_message_is_given_up_also_by_expiry(dying: Timed) -> None:
    dying.rpc.publish(TOPIC, b"poison")
    attempts = []
    for _ in range(5):
        (received,) = dying.rpc.pull(SUBSCRIPTION)
        attempts.append(received.delivery_attempt)
        dying.clock.advance(11)
    assert attempts == [1, 2, 3, 4, 5]
    assert dying.rpc.pull(SUBSCRIPTION) == []
    (dead,) = dying.rpc("Pull", subscription=DEAD_SUBSCRIPTION, max_messages=1).received_messages
    assert dead.message.data == b"poison"
    assert dead.message.attributes["CloudPubSubDeadLetterSourceDeliveryCount"] == "5"


def test_1_9_6_a_key_goes_on_after_its_message_was_given_up(dying: Timed) -> None:
    dying.rpc.publish(TOPIC, b"poison", b"next", ordering_key="a")
    for _ in range(5):
        dying.rpc.nack(SUBSCRIPTION, dying.rpc.pull(SUBSCRIPTION)[0].ack_id)
    (following,) = dying.rpc("Pull", subscription=SUBSCRIPTION, max_messages=1).received_messages
    assert following.message.data == b"next"
    (dead,) = dying.rpc("Pull", subscription=DEAD_SUBSCRIPTION, max_messages=1).received_messages
    assert dead.message.ordering_key == "a"


def test_1_10_4_streams_tell_the_attempt_and_give_up_likewise(dying: Timed) -> None:
    dying.rpc.publish(TOPIC, b"poison")
    attempts = []
    with dying.rpc.stream(SUBSCRIPTION) as stream:
        for _ in range(5):
            (received,) = stream.messages(1)
            attempts.append(received.delivery_attempt)
            stream.send(modify_deadline_ack_ids=[received.ack_id], modify_deadline_seconds=[0])
        (dead,) = dying.rpc("Pull", subscription=DEAD_SUBSCRIPTION, max_messages=1).received_messages
    assert (attempts, dead.message.data) == ([1, 2, 3, 4, 5], b"poison")
