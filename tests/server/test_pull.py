"""Pull, Acknowledge and ModifyAckDeadline of the Pub/Sub door (1.6), dead letters (1.10) and exactly-once (1.8)."""

from __future__ import annotations

import time
from typing import Any

import grpc
import pytest
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from heliograph.broker.broker import LocalBroker
from heliograph.server.app import Serving
from heliograph.server.pubsub import subscriber
from heliograph.store.memory import MemoryStore
from heliograph.testing.faulty_store import FaultyStore
from tests.server.clients import METHODS, Failure, Rpc, wait_until
from tests.server.conftest import Timed, serving

INVALID = grpc.StatusCode.INVALID_ARGUMENT
WELL_FORMED_ACK_ID = "999999-1-1"


def failure(rpc: Rpc, method: str, /, **fields: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(Failure) as raised:
        rpc(method, **fields)
    return raised.value.code(), raised.value.details()


# ── pulling ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("max_messages", [0, -1])
def test_1_6_1_pull_with_max_messages_below_one_is_invalid(rpc: Rpc, subscription: str, max_messages: int) -> None:
    assert failure(rpc, "Pull", subscription=subscription, max_messages=max_messages) == (
        INVALID,
        "You have passed an invalid argument to the service (argument=max_messages).",
    )


def test_1_6_1_pull_returns_at_most_max_messages(rpc: Rpc, topic: str, subscription: str) -> None:
    rpc.publish(topic, *[b"x"] * 5)
    assert [len(rpc.pull(subscription, 3)), len(rpc.pull(subscription, 3))] == [3, 2]


def test_1_6_1_pull_with_nothing_there_answers_empty(
    rpc: Rpc, subscription: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriber, "PULL_WAIT_SECONDS_MAX", 0.2)
    response = rpc("Pull", subscription=subscription, max_messages=1)
    assert list(response.received_messages) == []


@pytest.mark.parametrize(
    ("timeout", "waits"), [(0.05, 0.0), (0.2, 0.1), (0.8, 0.6), (4.0, 3.0), (8.0, 7.0), (60.0, 10.0), (None, 10.0)]
)
def test_1_6_1_pull_waits_so_long_that_its_answer_comes_before_the_client_gives_up(
    timeout: float | None, waits: float
) -> None:
    assert subscriber._wait_seconds(timeout) == pytest.approx(waits)


def test_1_6_1_a_waiting_pull_gets_the_message_when_it_comes(
    rpc: Rpc, topic: str, subscription: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriber, "PULL_WAIT_SECONDS_MAX", 60.0)
    waiting = pull_later(rpc, subscription)
    rpc.publish(topic, b"x")
    published = time.monotonic()
    assert [one.message.data for one in waiting.result().received_messages] == [b"x"]
    assert time.monotonic() - published < 20  # not when its 29 seconds are over


def test_1_6_1_waiting_pulls_share_what_comes(rpc: Rpc, topic: str, subscription: str) -> None:
    waiting = [pull_later(rpc, subscription) for _ in range(5)]
    for number in range(5):
        rpc.publish(topic, str(number).encode())
    received = [one.message.data for pull in waiting for one in pull.result().received_messages]
    assert sorted(received) == [b"0", b"1", b"2", b"3", b"4"]


def test_1_6_1_a_waiting_pull_whose_client_has_gone_takes_no_message(
    rpc: Rpc, broker: LocalBroker, topic: str, subscription: str
) -> None:
    gone = [pull_later(rpc, subscription) for _ in range(3)]
    wait_until(lambda: bool(broker._watches.of([subscription])))
    rpc("GetTopic", topic=topic)  # the pulls are in the server before this is answered
    for pull in gone:
        pull.cancel()
    wait_until(lambda: not broker._watches.of([subscription]))
    rpc.publish(topic, b"x")
    assert [one.message.data for one in rpc.pull(subscription)] == [b"x"]


def test_what_was_being_leased_when_the_client_of_a_pull_went_is_there_for_the_next() -> None:
    store = FaultyStore(MemoryStore())
    broker = LocalBroker(store)
    name = "projects/p/subscriptions/sub-1"
    with serving(broker) as server, Rpc(server.port) as rpc:
        rpc.create_topic("projects/p/topics/topic-1")
        rpc.create_subscription(name, "projects/p/topics/topic-1")
        rpc.publish("projects/p/topics/topic-1", b"x")
        store.hold()
        gone = pull_later(rpc, name)
        wait_until(lambda: broker.statistics(name).outstanding == 1)
        gone.cancel()
        wait_until(lambda: broker.statistics(name).outstanding == 0)
        store.release()
        assert [one.message.data for one in rpc.pull(name)] == [b"x"]


def pull_later(rpc: Rpc, subscription: str) -> Any:
    request = METHODS["Pull"][1].request_class(subscription=subscription, max_messages=1)
    return rpc.method("Pull").future(request, timeout=30)


def test_1_7_7_a_waiting_pull_is_answered_when_the_server_shuts_down() -> None:
    with serving(LocalBroker()) as server, Rpc(server.port) as rpc:
        rpc.create_topic("projects/p/topics/topic-1")
        rpc.create_subscription("projects/p/subscriptions/sub-1", "projects/p/topics/topic-1")
        waiting = pull_later(rpc, "projects/p/subscriptions/sub-1")
        rpc("ListTopics", project="projects/p")
        server.stop()
        assert list(waiting.result().received_messages) == []


def test_a_waiting_pull_ends_when_its_subscription_is_deleted(rpc: Rpc, subscription: str, project: str) -> None:
    waiting = pull_later(rpc, subscription)
    rpc("ListTopics", project=project)
    rpc("DeleteSubscription", subscription=subscription)
    assert waiting.exception().code() is grpc.StatusCode.NOT_FOUND


def test_what_was_published_arrives_whole(rpc: Rpc, topic: str, subscription: str) -> None:
    fields = {"attributes": {"a": "b", "ä": "ö", "empty": ""}, "ordering_key": "key"}
    (message_id,) = rpc.publish(topic, b"\0\xff", **fields)
    (received,) = rpc.pull(subscription)
    assert received.message.data == b"\0\xff"
    assert received.message.attributes == fields["attributes"]
    assert received.message.ordering_key == "key"
    assert received.message.message_id == message_id


def test_a_response_stays_below_4_000_000_bytes(server: Serving, rpc: Rpc, topic: str, subscription: str) -> None:
    for _ in range(5):
        rpc.publish(topic, bytes(1_500_000))
    rpc.publish(topic, bytes(9_000_000))
    counts = []
    with Rpc(server.port, **{"grpc.max_receive_message_length": -1}) as unlimited:
        while True:
            response = unlimited("Pull", subscription=subscription, max_messages=1000, return_immediately=True)
            if not response.received_messages:
                break
            counts.append(len(response.received_messages))
            if response.ByteSize() > 4_000_000:
                assert len(response.received_messages) == 1
    assert sum(counts) == 6
    assert counts == [2, 2, 1, 1]


def test_messages_that_do_not_fit_for_their_many_attributes_stay_for_the_next_pull(
    rpc: Rpc, topic: str, subscription: str
) -> None:
    attributes = {f"{number:02}": "" for number in range(100)}  # 200 bytes that take 800 on the wire
    for _ in range(6):
        rpc.publish(topic, *[b"x"] * 1000, attributes=attributes)
    received: list[str] = []
    while responses := rpc.pull(subscription):
        received += [one.message.message_id for one in responses]
    assert len(received) == len(set(received)) == 6000


# ── acknowledging ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_1_6_2_an_unacknowledged_message_returns_after_its_deadline_with_a_new_ack_id(timed: Timed) -> None:
    topic, subscription = timed_subscription(timed.rpc)
    timed.rpc.publish(topic, b"x")
    (first,) = timed.rpc.pull(subscription)
    timed.clock.advance(9.9)
    assert timed.rpc.pull(subscription) == []
    timed.clock.advance(0.2)
    (second,) = timed.rpc.pull(subscription)
    assert second.message == first.message
    assert second.ack_id != first.ack_id


def timed_subscription(rpc: Rpc, **fields: Any) -> tuple[str, str]:
    topic, subscription = "projects/p/topics/topic-1", "projects/p/subscriptions/sub-1"
    rpc.create_topic(topic)
    rpc.create_subscription(subscription, topic, **fields)
    return topic, subscription


def test_1_6_3_an_acknowledged_message_never_returns(timed: Timed) -> None:
    topic, subscription = timed_subscription(timed.rpc)
    timed.rpc.publish(topic, b"x")
    timed.rpc.acknowledge(subscription, timed.rpc.pull(subscription)[0].ack_id)
    timed.clock.advance(1000)
    assert timed.rpc.pull(subscription) == []


def test_1_6_3_acknowledging_nothing_is_invalid(rpc: Rpc, subscription: str) -> None:
    text = "You have not specified an ack ID in the request."
    assert failure(rpc, "Acknowledge", subscription=subscription) == (INVALID, text)
    assert failure(rpc, "ModifyAckDeadline", subscription=subscription, ack_deadline_seconds=10) == (INVALID, text)


@pytest.mark.parametrize("ack_id", ["", "garbage", "1-2", "1-2-x"])
def test_1_6_3_a_malformed_ack_id_is_invalid(rpc: Rpc, subscription: str, ack_id: str) -> None:
    text = f"You have passed an invalid ack ID to the service (ack_id={ack_id})."
    assert failure(rpc, "Acknowledge", subscription=subscription, ack_ids=[ack_id]) == (INVALID, text)


def test_1_6_3_stale_and_foreign_ack_ids_are_ignored(rpc: Rpc, topic: str, subscription: str) -> None:
    rpc.publish(topic, b"x")
    (received,) = rpc.pull(subscription)
    rpc.acknowledge(subscription, received.ack_id, WELL_FORMED_ACK_ID)
    rpc.acknowledge(subscription, received.ack_id)


@pytest.mark.parametrize("seconds", [-1, 601])
def test_1_6_4_a_modified_deadline_is_0_to_600_seconds(rpc: Rpc, subscription: str, seconds: int) -> None:
    fields = {"subscription": subscription, "ack_ids": [WELL_FORMED_ACK_ID], "ack_deadline_seconds": seconds}
    assert failure(rpc, "ModifyAckDeadline", **fields) == (
        INVALID,
        f"Invalid ack deadline given (ack_deadline={seconds}). The ack deadline must be between 0 and 600 seconds.",
    )


def test_1_6_4_a_modified_deadline_counts_from_now(timed: Timed) -> None:
    topic, subscription = timed_subscription(timed.rpc)
    timed.rpc.publish(topic, b"x")
    (received,) = timed.rpc.pull(subscription)
    timed.clock.advance(9)
    timed.rpc("ModifyAckDeadline", subscription=subscription, ack_ids=[received.ack_id], ack_deadline_seconds=20)
    timed.clock.advance(19)
    assert timed.rpc.pull(subscription) == []
    timed.clock.advance(2)
    assert len(timed.rpc.pull(subscription)) == 1


def test_1_6_4_a_deadline_of_zero_gives_the_message_back_at_once(rpc: Rpc, topic: str, subscription: str) -> None:
    rpc.publish(topic, b"x")
    rpc.nack(subscription, rpc.pull(subscription)[0].ack_id)
    assert [one.message.data for one in rpc.pull(subscription)] == [b"x"]


def test_1_5_9_with_a_retry_policy_a_nack_waits_its_backoff(timed: Timed) -> None:
    topic, subscription = timed_subscription(timed.rpc, retry_policy={"minimum_backoff": {"seconds": 20}})
    timed.rpc.publish(topic, b"x")
    timed.rpc.nack(subscription, timed.rpc.pull(subscription)[0].ack_id)
    timed.clock.advance(19)
    assert timed.rpc.pull(subscription) == []
    timed.clock.advance(2)
    assert len(timed.rpc.pull(subscription)) == 1


def test_1_6_5_requests_of_3000_ack_ids_are_accepted_and_of_512_kib_refused(rpc: Rpc, subscription: str) -> None:
    rpc.acknowledge(subscription, *[WELL_FORMED_ACK_ID] * 3000)
    code, text = failure(rpc, "Acknowledge", subscription=subscription, ack_ids=[WELL_FORMED_ACK_ID] * 50_000)
    assert (code, text.partition(".")[0]) == (INVALID, "The value for request_size is too large")


# ── delivery attempts and dead letters ──────────────────────────────────────────────────────────────────────────────


def test_1_6_6_delivery_attempts_are_told_only_with_a_dead_letter_policy(
    rpc: Rpc, topic: str, subscription: str, project: str
) -> None:
    counted = f"{project}/subscriptions/counted"
    rpc.create_subscription(counted, topic, dead_letter_policy={"dead_letter_topic": topic})
    rpc.publish(topic, b"x")
    told = []
    for name in (counted, subscription):
        for _ in range(2):
            (received,) = rpc.pull(name)
            told.append(received.delivery_attempt)
            rpc.nack(name, received.ack_id)
    assert told == [1, 2, 0, 0]


def test_1_10_2_after_its_attempts_a_message_is_forwarded_with_its_source(rpc: Rpc, topic: str, project: str) -> None:
    dead_letters, dead_subscription = f"{project}/topics/dead-letters", f"{project}/subscriptions/dead-letters"
    rpc.create_topic(dead_letters)
    rpc.create_subscription(dead_subscription, dead_letters)
    name = f"{project}/subscriptions/sub-1"
    policy = {"dead_letter_topic": dead_letters, "max_delivery_attempts": 5}
    rpc.create_subscription(name, topic, dead_letter_policy=policy)
    (message_id,) = rpc.publish(topic, b"poison", attributes={"own": "kept"})
    for _ in range(5):
        rpc.nack(name, rpc.pull(name)[0].ack_id)
    assert rpc.pull(name) == []
    (received,) = rpc("Pull", subscription=dead_subscription, max_messages=1).received_messages
    attributes = dict(received.message.attributes)
    assert received.message.data == b"poison"
    assert received.message.message_id != message_id
    assert attributes.pop("CloudPubSubDeadLetterSourceTopicPublishTime").endswith("+00:00")
    assert attributes == {
        "own": "kept",
        "CloudPubSubDeadLetterSourceDeliveryCount": "5",
        "CloudPubSubDeadLetterSourceSubscription": "sub-1",
        "CloudPubSubDeadLetterSourceSubscriptionProject": project.removeprefix("projects/"),
    }


# ── exactly-once ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def exactly_once(rpc: Rpc, project: str, topic: str) -> str:
    name = f"{project}/subscriptions/exactly-once"
    rpc.create_subscription(name, topic, enable_exactly_once_delivery=True)
    return name


def stale_ids(error: Any) -> dict[str, str]:
    """What the ErrorInfo of a failed acknowledgement says; it is the first of the details (1.8.3)."""
    metadata = dict(error.trailing_metadata())
    status = Status.FromString(metadata["grpc-status-details-bin"])
    info = ErrorInfo()
    assert status.code == 3
    assert status.details[0].Unpack(info)
    assert (info.reason, info.domain) == ("EXACTLY_ONCE_ACKID_FAILURE", "pubsub.googleapis.com")
    return dict(info.metadata)


def test_1_8_2_a_stale_ack_id_fails_with_error_info_and_the_others_are_applied(
    rpc: Rpc, topic: str, exactly_once: str
) -> None:
    rpc.publish(topic, b"one", b"two")
    one, two = rpc.pull(exactly_once)
    rpc.acknowledge(exactly_once, one.ack_id)
    with pytest.raises(Failure) as raised:
        rpc.acknowledge(exactly_once, one.ack_id, two.ack_id)
    assert raised.value.code() is INVALID
    assert raised.value.details().startswith("Some acknowledgement ids in the request were invalid.")
    assert stale_ids(raised.value) == {one.ack_id: "PERMANENT_FAILURE_INVALID_ACK_ID"}
    assert rpc.pull(exactly_once) == []


def test_1_8_2_deadlines_of_stale_ids_fail_likewise(rpc: Rpc, topic: str, exactly_once: str) -> None:
    rpc.publish(topic, b"x")
    (received,) = rpc.pull(exactly_once)
    rpc.nack(exactly_once, received.ack_id)
    with pytest.raises(Failure) as raised:
        rpc.nack(exactly_once, received.ack_id)
    assert list(stale_ids(raised.value)) == [received.ack_id]


def test_1_8_5_the_receipt_of_a_fresh_delivery_succeeds(rpc: Rpc, topic: str, exactly_once: str) -> None:
    rpc.publish(topic, b"x")
    (received,) = rpc.pull(exactly_once)
    rpc("ModifyAckDeadline", subscription=exactly_once, ack_ids=[received.ack_id], ack_deadline_seconds=60)


def test_1_8_7_an_unknown_id_is_stale_and_garbage_is_invalid(rpc: Rpc, exactly_once: str) -> None:
    with pytest.raises(Failure) as raised:
        rpc.acknowledge(exactly_once, WELL_FORMED_ACK_ID)
    assert list(stale_ids(raised.value)) == [WELL_FORMED_ACK_ID]
    code, text = failure(rpc, "Acknowledge", subscription=exactly_once, ack_ids=["garbage"])
    assert (code, text) == (INVALID, "You have passed an invalid ack ID to the service (ack_id=garbage).")


def test_1_8_2_very_many_stale_ids_still_arrive_as_invalid_argument(rpc: Rpc, exactly_once: str) -> None:
    ack_ids = [f"999999-{number}-1" for number in range(1000)]
    with pytest.raises(Failure) as raised:
        rpc.acknowledge(exactly_once, *ack_ids)
    assert raised.value.code() is INVALID
    assert set(stale_ids(raised.value)) < set(ack_ids)
