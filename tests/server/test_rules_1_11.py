"""Retention, seeking and snapshots (1.11) through the Pub/Sub door."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from heliograph.engine.retention import SWEEP_NS
from heliograph.engine.settings import SECOND_NS
from tests.server.clients import Failure, Rpc
from tests.server.conftest import Timed

INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION
TOPIC, SUBSCRIPTION = "projects/p/topics/topic-1", "projects/p/subscriptions/sub-1"
SNAPSHOT = "projects/p/snapshots/snapshot-1"
DAY = 86_400


def failure(rpc: Rpc, method: str, /, **fields: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(Failure) as raised:
        rpc(method, **fields)
    return raised.value.code(), raised.value.details()


def datas(received: list[Any]) -> list[bytes]:
    return [one.message.data for one in received]


def take(rpc: Rpc, name: str = SUBSCRIPTION) -> list[bytes]:
    """Pull and acknowledge what there is."""
    received = rpc.pull(name)
    if received:
        rpc.acknowledge(name, *[one.ack_id for one in received])
    return datas(received)


def seek(rpc: Rpc, seconds: float, name: str = SUBSCRIPTION) -> None:
    whole = int(seconds)
    rpc("Seek", subscription=name, time=Timestamp(seconds=whole, nanos=int((seconds - whole) * 1e9)))


@pytest.fixture
def retaining(timed: Timed) -> Timed:
    """A subscription that keeps what was acknowledged."""
    timed.rpc.create_topic(TOPIC)
    timed.rpc.create_subscription(SUBSCRIPTION, TOPIC, retain_acked_messages=True)
    return timed


def now(timed: Timed) -> float:
    return timed.clock.now_ns() / 1e9


# ── retention ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_1_11_1_what_is_unacknowledged_is_kept_for_the_retention_and_then_dropped(timed: Timed) -> None:
    timed.rpc.create_topic(TOPIC)
    timed.rpc.create_subscription(SUBSCRIPTION, TOPIC, message_retention_duration={"seconds": 600})
    timed.rpc.publish(TOPIC, b"old")
    timed.clock.advance(300)
    timed.rpc.publish(TOPIC, b"new")
    timed.clock.advance(301 + SWEEP_NS // SECOND_NS)
    assert take(timed.rpc) == [b"new"]


# ── seeking ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_1_11_2_a_seek_needs_a_target(rpc: Rpc, subscription: str) -> None:
    assert failure(rpc, "Seek", subscription=subscription) == (
        INVALID,
        "No target was specified in the SeekRequest. Must specify either a time or a snapshot",
    )


def test_1_11_2_a_missing_subscription_is_not_found(rpc: Rpc, project: str) -> None:
    assert failure(rpc, "Seek", subscription=f"{project}/subscriptions/missing", time={})[0] is NOT_FOUND


def test_1_11_2_back_in_time_what_was_acknowledged_returns(retaining: Timed) -> None:
    retaining.rpc.publish(TOPIC, b"before")
    assert take(retaining.rpc) == [b"before"]
    retaining.clock.advance(10)
    instant = now(retaining)
    retaining.rpc.publish(TOPIC, b"after")
    assert take(retaining.rpc) == [b"after"]
    seek(retaining.rpc, instant)
    assert take(retaining.rpc) == [b"after"]
    seek(retaining.rpc, 0)
    assert take(retaining.rpc) == [b"before", b"after"]


def test_1_11_2_forward_in_time_what_is_older_is_acknowledged(retaining: Timed) -> None:
    retaining.rpc.publish(TOPIC, b"old")
    retaining.clock.advance(10)
    instant = now(retaining)
    retaining.rpc.publish(TOPIC, b"new")
    seek(retaining.rpc, instant)
    assert take(retaining.rpc) == [b"new"]


def test_1_11_2_into_the_far_future_everything_is_purged(rpc: Rpc, topic: str, subscription: str) -> None:
    rpc.publish(topic, b"x")
    seek(rpc, 32_503_680_000, subscription)  # the year 3000, as clients purge
    assert rpc.pull(subscription) == []
    rpc.publish(topic, b"later")
    assert take(rpc, subscription) == [b"later"]


def test_1_3_8_a_new_subscription_can_go_back_to_what_the_topic_retains(timed: Timed) -> None:
    timed.rpc.create_topic(TOPIC, message_retention_duration={"seconds": 3600})
    timed.rpc.publish(TOPIC, b"before")
    timed.rpc.create_subscription(SUBSCRIPTION, TOPIC)
    assert take(timed.rpc) == []
    seek(timed.rpc, 0)
    assert take(timed.rpc) == [b"before"]


def test_1_10_3_dead_letters_wait_for_a_topic_that_was_deleted(timed: Timed) -> None:
    dead, dead_subscription = "projects/p/topics/dead-letters", "projects/p/subscriptions/dead-letters"
    timed.rpc.create_topic(dead)
    timed.rpc.create_topic(TOPIC)
    timed.rpc.create_subscription(SUBSCRIPTION, TOPIC, dead_letter_policy={"dead_letter_topic": dead})
    timed.rpc("DeleteTopic", topic=dead)
    timed.rpc.publish(TOPIC, b"poison")
    for _ in range(5):
        timed.rpc.nack(SUBSCRIPTION, timed.rpc.pull(SUBSCRIPTION)[0].ack_id)
    timed.rpc.create_topic(dead, message_retention_duration={"seconds": 3600})
    timed.rpc.create_subscription(dead_subscription, dead)
    seek(timed.rpc, 0, dead_subscription)
    assert take(timed.rpc, dead_subscription) == [b"poison"]


def test_1_11_6_leases_from_before_a_seek_are_void_and_harmless(retaining: Timed) -> None:
    retaining.rpc.publish(TOPIC, b"x")
    (leased,) = retaining.rpc.pull(SUBSCRIPTION)
    seek(retaining.rpc, 0)
    (again,) = retaining.rpc.pull(SUBSCRIPTION)
    retaining.rpc.acknowledge(SUBSCRIPTION, leased.ack_id)
    retaining.clock.advance(11)
    assert datas(retaining.rpc.pull(SUBSCRIPTION)) == [b"x"]
    assert again.ack_id != leased.ack_id


def test_1_8_1_a_seek_makes_ack_ids_of_exactly_once_invalid(timed: Timed) -> None:
    timed.rpc.create_topic(TOPIC)
    timed.rpc.create_subscription(SUBSCRIPTION, TOPIC, enable_exactly_once_delivery=True)
    timed.rpc.publish(TOPIC, b"x")
    (leased,) = timed.rpc.pull(SUBSCRIPTION)
    seek(timed.rpc, 32_503_680_000)
    assert failure(timed.rpc, "Acknowledge", subscription=SUBSCRIPTION, ack_ids=[leased.ack_id])[0] is INVALID


def test_1_11_2_an_open_stream_gets_what_a_seek_brings_back(retaining: Timed) -> None:
    retaining.rpc.publish(TOPIC, b"x")
    with retaining.rpc.stream(SUBSCRIPTION) as stream:
        (received,) = stream.messages(1)
        stream.send(ack_ids=[received.ack_id])
        stream.send()
        stream.response()
        seek(retaining.rpc, 0)
        assert datas(stream.messages(1)) == [b"x"]


# ── snapshots ───────────────────────────────────────────────────────────────────────────────────────────────────────


def create_snapshot(rpc: Rpc, name: str = SNAPSHOT, subscription: str = SUBSCRIPTION, **fields: Any) -> Any:
    return rpc("CreateSnapshot", name=name, subscription=subscription, **fields)


def test_1_11_4_a_snapshot_expires_7_days_after_its_oldest_message(retaining: Timed) -> None:
    retaining.rpc.publish(TOPIC, b"x")
    published = now(retaining)
    retaining.clock.advance(2 * DAY)
    created = create_snapshot(retaining.rpc, labels={"a": "b"})
    assert (created.name, created.topic, dict(created.labels)) == (SNAPSHOT, TOPIC, {"a": "b"})
    assert abs(created.expire_time.seconds - (published + 7 * DAY)) <= 1
    assert retaining.rpc("GetSnapshot", snapshot=SNAPSHOT) == created
    assert list(retaining.rpc("ListSnapshots", project="projects/p").snapshots) == [created]
    assert list(retaining.rpc("ListTopicSnapshots", topic=TOPIC).snapshots) == [SNAPSHOT]
    retaining.clock.advance(5 * DAY + 60)
    assert failure(retaining.rpc, "GetSnapshot", snapshot=SNAPSHOT)[0] is NOT_FOUND


def test_1_11_4_one_that_would_expire_within_an_hour_is_refused(timed: Timed) -> None:
    timed.rpc.create_topic(TOPIC)
    timed.rpc.create_subscription(SUBSCRIPTION, TOPIC, message_retention_duration={"seconds": 10 * DAY})
    timed.rpc.publish(TOPIC, b"old")
    timed.clock.advance(7 * DAY - 1800)
    assert failure(timed.rpc, "CreateSnapshot", name=SNAPSHOT, subscription=SUBSCRIPTION)[0] is PRECONDITION


def test_1_11_4_names_are_checked_and_taken_once(rpc: Rpc, subscription: str, project: str) -> None:
    name = f"{project}/snapshots/snapshot-1"
    create_snapshot(rpc, name, subscription)
    assert failure(rpc, "CreateSnapshot", name=name, subscription=subscription) == (
        grpc.StatusCode.ALREADY_EXISTS,
        "Resource already exists in the project (resource=snapshot-1).",
    )
    bad = f"{project}/snapshots/a"
    assert failure(rpc, "CreateSnapshot", name=bad, subscription=subscription) == (
        INVALID,
        f"Invalid [snapshots] name: (name={bad})",
    )
    missing = f"{project}/subscriptions/missing"
    assert failure(rpc, "CreateSnapshot", name=f"{name}-2", subscription=missing) == (
        NOT_FOUND,
        "Resource not found (resource=missing).",
    )


def test_1_2_3_a_snapshot_without_a_name_gets_one(rpc: Rpc, subscription: str, project: str) -> None:
    names = {create_snapshot(rpc, "", subscription).name for _ in range(2)}
    assert len(names) == 2
    assert all(name.startswith(f"{project}/snapshots/") for name in names)


def test_1_11_3_a_seek_to_a_snapshot_restores_what_was_unacknowledged_and_what_came_since(rpc: Rpc, topic: str) -> None:
    project = topic.rpartition("/topics/")[0]
    subscription, snapshot = f"{project}/subscriptions/sub-1", f"{project}/snapshots/snapshot-1"
    rpc.create_subscription(subscription, topic)
    rpc.publish(topic, b"done", b"open")
    done, still_open = rpc.pull(subscription)
    rpc.acknowledge(subscription, done.ack_id)
    create_snapshot(rpc, snapshot, subscription)
    rpc.acknowledge(subscription, still_open.ack_id)
    rpc.publish(topic, b"since")
    assert take(rpc, subscription) == [b"since"]
    rpc("Seek", subscription=subscription, snapshot=snapshot)
    assert take(rpc, subscription) == [b"open", b"since"]


def test_1_11_3_a_snapshot_serves_another_subscription_of_its_topic_and_no_other_topic(
    rpc: Rpc, topic: str, subscription: str, project: str
) -> None:
    snapshot, other = f"{project}/snapshots/snapshot-1", f"{project}/subscriptions/other"
    rpc.create_topic(f"{topic}-other")
    rpc.create_subscription(other, topic)
    rpc.publish(topic, b"x")
    create_snapshot(rpc, snapshot, subscription)
    assert take(rpc, other) == [b"x"]
    rpc("Seek", subscription=other, snapshot=snapshot)
    assert take(rpc, other) == [b"x"]
    foreign = f"{project}/subscriptions/foreign"
    rpc.create_subscription(foreign, f"{topic}-other")
    assert failure(rpc, "Seek", subscription=foreign, snapshot=snapshot)[0] is PRECONDITION


def test_1_11_3_a_missing_snapshot_is_not_found(rpc: Rpc, subscription: str, project: str) -> None:
    missing = f"{project}/snapshots/missing"
    for method, fields in [
        ("Seek", {"subscription": subscription, "snapshot": missing}),
        ("GetSnapshot", {"snapshot": missing}),
        ("DeleteSnapshot", {"snapshot": missing}),
        ("UpdateSnapshot", {"snapshot": {"name": missing}, "update_mask": {"paths": ["labels"]}}),
    ]:
        assert failure(rpc, method, **fields) == (NOT_FOUND, "Resource not found (resource=missing).")


def test_1_11_5_labels_and_expiry_of_a_snapshot_are_updated_by_mask(retaining: Timed) -> None:
    created = create_snapshot(retaining.rpc, labels={"a": "b"})
    later = int(now(retaining)) + 3 * DAY
    body = {"name": SNAPSHOT, "labels": {"c": "d"}, "expire_time": {"seconds": later}}
    updated = retaining.rpc("UpdateSnapshot", snapshot=body, update_mask={"paths": ["labels"]})
    assert (dict(updated.labels), updated.expire_time) == ({"c": "d"}, created.expire_time)
    updated = retaining.rpc("UpdateSnapshot", snapshot=body, update_mask={"paths": ["expire_time"]})
    assert updated.expire_time.seconds == later
    assert retaining.rpc("GetSnapshot", snapshot=SNAPSHOT) == updated
    retaining.clock.advance(3 * DAY + 60)
    assert failure(retaining.rpc, "GetSnapshot", snapshot=SNAPSHOT)[0] is NOT_FOUND


@pytest.mark.parametrize(
    ("paths", "fields"),
    [([], {}), (["topic"], {}), (["nothing"], {}), (["expire_time"], {"expire_time": {"seconds": 1}})],
)
def test_1_11_5_a_wrong_update_of_a_snapshot_is_refused(
    rpc: Rpc, subscription: str, project: str, paths: list[str], fields: dict[str, Any]
) -> None:
    name = f"{project}/snapshots/snapshot-1"
    create_snapshot(rpc, name, subscription)
    body = {"name": name} | fields
    assert failure(rpc, "UpdateSnapshot", snapshot=body, update_mask={"paths": paths})[0] is INVALID


def test_1_11_5_a_snapshot_outlives_its_subscription_and_its_topic(rpc: Rpc, topic: str, subscription: str) -> None:
    snapshot = topic.replace("/topics/", "/snapshots/")
    create_snapshot(rpc, snapshot, subscription)
    rpc("DeleteSubscription", subscription=subscription)
    assert rpc("GetSnapshot", snapshot=snapshot).topic == topic
    rpc("DeleteTopic", topic=topic)
    assert rpc("GetSnapshot", snapshot=snapshot).topic == "_deleted-topic_"


def test_1_11_5_what_a_snapshot_holds_is_kept_past_the_retention(timed: Timed) -> None:
    timed.rpc.create_topic(TOPIC)
    timed.rpc.create_subscription(SUBSCRIPTION, TOPIC, message_retention_duration={"seconds": 600})
    timed.rpc.publish(TOPIC, b"held")
    create_snapshot(timed.rpc)
    timed.clock.advance(DAY)
    assert take(timed.rpc) == []
    timed.rpc.create_subscription(f"{SUBSCRIPTION}-2", TOPIC)
    timed.rpc("Seek", subscription=f"{SUBSCRIPTION}-2", snapshot=SNAPSHOT)
    assert take(timed.rpc, f"{SUBSCRIPTION}-2") == [b"held"]


def test_1_11_5_a_deleted_snapshot_is_gone(rpc: Rpc, subscription: str, project: str, topic: str) -> None:
    name = f"{project}/snapshots/snapshot-1"
    create_snapshot(rpc, name, subscription)
    rpc("DeleteSnapshot", snapshot=name)
    assert failure(rpc, "GetSnapshot", snapshot=name)[0] is NOT_FOUND
    assert list(rpc("ListTopicSnapshots", topic=topic).snapshots) == []


def test_1_3_7_snapshots_of_a_missing_topic_are_not_found(rpc: Rpc, project: str) -> None:
    assert failure(rpc, "ListTopicSnapshots", topic=f"{project}/topics/missing")[0] is NOT_FOUND


def test_1_11_5_snapshots_are_listed_in_pages_by_name(rpc: Rpc, subscription: str, project: str) -> None:
    names = [f"{project}/snapshots/snapshot-{number}" for number in range(5)]
    for name in reversed(names):
        create_snapshot(rpc, name, subscription)
    first = rpc("ListSnapshots", project=project, page_size=3)
    second = rpc("ListSnapshots", project=project, page_size=3, page_token=first.next_page_token)
    assert [one.name for one in [*first.snapshots, *second.snapshots]] == names
    assert second.next_page_token == ""
