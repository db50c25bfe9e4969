"""Updates by mask: topics (1.3.4) and subscriptions (1.5.11-1.5.13), ModifyPushConfig (1.5.16), detaching (1.5.15)."""

from __future__ import annotations

from typing import Any

import grpc
import msgspec
import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.engine.dead_letter import DeadLetterPolicy
from heliograph.engine.retry import RetryPolicy
from heliograph.engine.settings import SubscriptionSettings, TopicSettings
from tests.server.clients import Failure, Rpc, wait_until
from tests.server.conftest import Timed

INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND
PRECONDITION = grpc.StatusCode.FAILED_PRECONDITION


def failure(rpc: Rpc, method: str, /, **fields: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(Failure) as raised:
        rpc(method, **fields)
    return raised.value.code(), raised.value.details()


def update_topic(rpc: Rpc, name: str, *paths: str, **fields: Any) -> Any:
    return rpc("UpdateTopic", topic={"name": name} | fields, update_mask={"paths": paths})


def update(rpc: Rpc, name: str, *paths: str, **fields: Any) -> Any:
    return rpc("UpdateSubscription", subscription={"name": name} | fields, update_mask={"paths": paths})


def refused(rpc: Rpc, name: str, *paths: str, **fields: Any) -> tuple[grpc.StatusCode, str]:
    subscription = {"name": name} | fields
    return failure(rpc, "UpdateSubscription", subscription=subscription, update_mask={"paths": paths})


# ── topics ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_1_3_4_what_the_mask_names_is_changed_and_nothing_else(rpc: Rpc, project: str) -> None:
    name = f"{project}/topics/topic-1"
    rpc.create_topic(name, labels={"a": "b"}, kms_key_name="key")
    updated = update_topic(rpc, name, "labels", labels={"c": "d"}, kms_key_name="other")
    assert (dict(updated.labels), updated.kms_key_name) == ({"c": "d"}, "key")
    assert rpc("GetTopic", topic=name) == updated
    assert list(rpc("ListTopics", project=project).topics) == [updated]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("labels", {"labels": {"x": "y"}}),
        ("kms_key_name", {"kms_key_name": "key"}),
        ("message_retention_duration", {"message_retention_duration": {"seconds": 700}}),
        ("message_storage_policy", {"message_storage_policy": {"allowed_persistence_regions": ["europe-west1"]}}),
        ("ingestion_data_source_settings", {"ingestion_data_source_settings": {"cloud_storage": {"bucket": "abc"}}}),
        ("message_transforms", {"message_transforms": [{"ai_inference": {"endpoint": "e"}}]}),
    ],
)
def test_1_3_4_a_field_is_set_and_cleared_again(rpc: Rpc, topic: str, path: str, fields: dict[str, Any]) -> None:
    before = rpc("GetTopic", topic=topic)
    assert update_topic(rpc, topic, path, **fields) != before
    assert update_topic(rpc, topic, path) == before


def test_1_3_4_the_mask_may_name_a_field_in_a_field(rpc: Rpc, topic: str) -> None:
    policy = {"allowed_persistence_regions": ["europe-west1"]}
    update_topic(rpc, topic, "message_storage_policy", message_storage_policy=policy)
    updated = update_topic(
        rpc, topic, "message_storage_policy.enforce_in_transit", message_storage_policy={"enforce_in_transit": True}
    )
    assert list(updated.message_storage_policy.allowed_persistence_regions) == ["europe-west1"]
    assert updated.message_storage_policy.enforce_in_transit


@pytest.mark.parametrize("path", ["name", "state", "satisfies_pzs", "tags"])
def test_1_3_4_some_fields_never_change(rpc: Rpc, topic: str, path: str) -> None:
    assert failure(rpc, "UpdateTopic", topic={"name": topic}, update_mask={"paths": [path]}) == (
        INVALID,
        f"Invalid update_mask provided in the UpdateTopicRequest: the '{path}' field in the Topic is not mutable.",
    )


def test_1_3_4_an_empty_mask_is_refused(rpc: Rpc, topic: str) -> None:
    assert failure(rpc, "UpdateTopic", topic={"name": topic}) == (
        INVALID,
        "The update_mask in the UpdateTopicRequest must be set, and must contain a non-empty paths list.",
    )


def test_1_3_4_a_wrong_value_is_refused_and_changes_nothing(rpc: Rpc, topic: str) -> None:
    before = rpc("GetTopic", topic=topic)
    with pytest.raises(Failure) as raised:
        update_topic(rpc, topic, "labels", "message_storage_policy", labels={"a": "b"}, message_storage_policy={})
    assert raised.value.code() is INVALID
    assert rpc("GetTopic", topic=topic) == before


def test_1_3_4_a_missing_topic_is_not_found(rpc: Rpc, project: str) -> None:
    with pytest.raises(Failure) as raised:
        update_topic(rpc, f"{project}/topics/missing", "labels")
    assert raised.value.code() is NOT_FOUND


# ── subscriptions ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_1_5_11_without_a_mask_an_update_is_refused(rpc: Rpc, subscription: str) -> None:
    assert refused(rpc, subscription, labels={"a": "b"}) == (
        INVALID,
        "The update_mask in the UpdateSubscriptionRequest must be set, and must contain a non-empty paths list.",
    )


@pytest.mark.parametrize("path", ["name", "topic", "enable_message_ordering", "filter", "detached", "state", "tags"])
def test_1_5_12_some_fields_never_change(rpc: Rpc, subscription: str, path: str) -> None:
    assert refused(rpc, subscription, path) == (
        INVALID,
        f"Invalid update_mask provided in the UpdateSubscriptionRequest: the '{path}' field in the Subscription is not "
        "mutable.",
    )


def test_1_5_11_one_immutable_path_and_nothing_of_the_update_happens(rpc: Rpc, subscription: str) -> None:
    before = rpc("GetSubscription", subscription=subscription)
    assert refused(rpc, subscription, "labels", "filter", labels={"a": "b"})[0] is INVALID
    assert rpc("GetSubscription", subscription=subscription) == before


@pytest.mark.parametrize("path", ["pushConfig", "nothing", "labels.a", "push_config.nothing", "", "*"])
def test_1_5_12_an_unknown_path_is_refused(rpc: Rpc, subscription: str, path: str) -> None:
    assert refused(rpc, subscription, path) == (
        INVALID,
        f"Invalid update_mask provided in the UpdateSubscriptionRequest: '{path}' is not a known Subscription field. "
        "Note that field paths must be of the form 'push_config' rather than 'pushConfig'.",
    )


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("push_config", {"push_config": {"push_endpoint": "http://localhost/"}}),
        ("bigquery_config", {"bigquery_config": {"table": "p.d.t"}}),
        ("cloud_storage_config", {"cloud_storage_config": {"bucket": "bucket"}}),
        ("bigtable_config", {"bigtable_config": {"table": "projects/p/instances/i/tables/t"}}),
        ("ack_deadline_seconds", {"ack_deadline_seconds": 77}),
        ("retain_acked_messages", {"retain_acked_messages": True}),
        ("message_retention_duration", {"message_retention_duration": {"seconds": 700}}),
        ("labels", {"labels": {"a": "b"}}),
        ("expiration_policy", {"expiration_policy": {"ttl": {"seconds": 30 * 86_400}}}),
        ("retry_policy", {"retry_policy": {"minimum_backoff": {"seconds": 1}}}),
        ("enable_exactly_once_delivery", {"enable_exactly_once_delivery": True}),
        ("message_transforms", {"message_transforms": [{"ai_inference": {"endpoint": "e"}}]}),
    ],
)
def test_1_5_13_a_field_is_set_and_cleared_again(
    rpc: Rpc, subscription: str, path: str, fields: dict[str, Any]
) -> None:
    before = rpc("GetSubscription", subscription=subscription)
    updated = update(rpc, subscription, path, **fields)
    assert updated != before
    assert rpc("GetSubscription", subscription=subscription) == updated
    assert update(rpc, subscription, path) == before


def test_1_5_13_a_dead_letter_policy_is_set_changed_in_part_and_removed(
    rpc: Rpc, topic: str, subscription: str
) -> None:
    policy = {"dead_letter_topic": topic, "max_delivery_attempts": 10}
    update(rpc, subscription, "dead_letter_policy", dead_letter_policy=policy)
    path = "dead_letter_policy.max_delivery_attempts"
    changed = update(rpc, subscription, path, dead_letter_policy={"max_delivery_attempts": 20}).dead_letter_policy
    assert (changed.dead_letter_topic, changed.max_delivery_attempts) == (topic, 20)
    assert not update(rpc, subscription, "dead_letter_policy").HasField("dead_letter_policy")


def test_1_5_8_the_dead_letter_topic_of_an_update_must_exist(rpc: Rpc, subscription: str, project: str) -> None:
    policy = {"dead_letter_topic": f"{project}/topics/missing"}
    assert refused(rpc, subscription, "dead_letter_policy", dead_letter_policy=policy)[0] is NOT_FOUND


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("ack_deadline_seconds", {"ack_deadline_seconds": 5}),
        ("message_retention_duration", {"message_retention_duration": {"seconds": 1}}),
        ("expiration_policy", {"expiration_policy": {"ttl": {"seconds": 1}}}),
        ("push_config", {"push_config": {"push_endpoint": "nowhere"}}),
        ("labels", {"labels": {"A": "b"}}),
    ],
)
def test_1_5_13_the_rules_of_creation_hold_for_updates(
    rpc: Rpc, subscription: str, path: str, fields: dict[str, Any]
) -> None:
    assert refused(rpc, subscription, path, **fields)[0] is INVALID


def test_1_5_13_what_is_updated_is_in_force(timed: Timed) -> None:
    topic, name = "projects/p/topics/topic-1", "projects/p/subscriptions/sub-1"
    timed.rpc.create_topic(topic)
    timed.rpc.create_subscription(name, topic)
    update(timed.rpc, name, "ack_deadline_seconds", ack_deadline_seconds=100)
    timed.rpc.publish(topic, b"x")
    timed.rpc.pull(name)
    timed.clock.advance(99)
    assert timed.rpc.pull(name) == []
    timed.clock.advance(2)
    assert len(timed.rpc.pull(name)) == 1


def test_1_7_5_open_streams_are_told_that_properties_change(rpc: Rpc, subscription: str) -> None:
    with rpc.stream(subscription) as one, rpc.stream(subscription) as two:
        for stream in (one, two):
            assert not stream.response().subscription_properties.exactly_once_delivery_enabled
        update(rpc, subscription, "enable_exactly_once_delivery", enable_exactly_once_delivery=True)
        for stream in (one, two):
            assert stream.response().subscription_properties.exactly_once_delivery_enabled


# ── push configuration, detaching ───────────────────────────────────────────────────────────────────────────────────


def test_1_5_16_a_push_configuration_comes_and_goes(rpc: Rpc, subscription: str) -> None:
    push = {"push_endpoint": "http://localhost/push"}
    rpc("ModifyPushConfig", subscription=subscription, push_config=push)
    assert rpc("GetSubscription", subscription=subscription).push_config.push_endpoint == "http://localhost/push"
    rpc("ModifyPushConfig", subscription=subscription)
    pulled = rpc("GetSubscription", subscription=subscription)
    assert pulled.HasField("push_config")
    assert not pulled.push_config.push_endpoint


def test_1_5_16_a_wrong_endpoint_is_refused(rpc: Rpc, subscription: str) -> None:
    code, text = failure(rpc, "ModifyPushConfig", subscription=subscription, push_config={"push_endpoint": "x"})
    assert (code, text.partition(".")[0]) == (INVALID, "Invalid push endpoint given (endpoint=x)")


def test_1_5_7_exactly_once_cannot_become_push(rpc: Rpc, topic: str, project: str) -> None:
    name = f"{project}/subscriptions/exactly-once"
    rpc.create_subscription(name, topic, enable_exactly_once_delivery=True)
    push = {"push_endpoint": "http://localhost/push"}
    assert failure(rpc, "ModifyPushConfig", subscription=name, push_config=push)[0] is INVALID


def test_1_5_15_a_detached_subscription_has_nothing_and_refuses_pulls(
    rpc: Rpc, topic: str, subscription: str, project: str
) -> None:
    rpc.publish(topic, b"lost")
    with rpc.stream(subscription, max_outstanding_messages=1) as full:
        full.messages(1)
        with rpc.stream(subscription) as idle:
            idle.response()
            rpc("DetachSubscription", subscription=subscription)
            assert [full.failure()[0], idle.failure()[0]] == [PRECONDITION] * 2
    assert failure(rpc, "Pull", subscription=subscription, max_messages=1)[0] is PRECONDITION
    with rpc.stream(subscription) as late:
        assert late.failure()[0] is PRECONDITION
    detached = rpc("GetSubscription", subscription=subscription)
    assert (detached.detached, detached.topic) == (True, topic)
    assert list(rpc("ListTopicSubscriptions", topic=topic).subscriptions) == []
    assert list(rpc("ListSubscriptions", project=project).subscriptions) == [detached]
    rpc("DeleteSubscription", subscription=subscription)


def test_1_5_15_a_waiting_pull_ends_when_its_subscription_is_detached(rpc: Rpc, subscription: str) -> None:
    from tests.server.test_pull import pull_later

    waiting = pull_later(rpc, subscription)
    rpc("GetSubscription", subscription=subscription)
    rpc("DetachSubscription", subscription=subscription)
    wait_until(waiting.done)
    assert waiting.exception().code() is PRECONDITION


def test_1_5_15_a_missing_subscription_cannot_be_detached(rpc: Rpc, project: str) -> None:
    assert failure(rpc, "DetachSubscription", subscription=f"{project}/subscriptions/missing")[0] is NOT_FOUND


# ── what was made elsewhere ─────────────────────────────────────────────────────────────────────────────────────────


def test_what_another_door_has_made_keeps_what_an_update_does_not_name(
    broker: LocalBroker, rpc: Rpc, topic: str, project: str
) -> None:
    settings = SubscriptionSettings(
        ack_deadline_ns=500_000_000,
        retry_policy=RetryPolicy(1, 3_600_000_000_000),
        dead_letter_policy=DeadLetterPolicy(topic, 2),
        message_retention_ns=1_000_000_000,
    )
    name = f"{project}/subscriptions/in-process"
    broker.create_subscription(name, topic, settings)
    for label in ("a", "b"):
        update(rpc, name, "labels", labels={"label": label})
    rpc("ModifyPushConfig", subscription=name, push_config={})
    kept = broker.get_subscription(name).settings
    assert kept.labels == {"label": "b"}
    assert settings == msgspec.structs.replace(kept, labels={}, resource=b"")


def test_what_another_door_has_made_is_held_to_the_rules_where_it_is_changed(
    broker: LocalBroker, rpc: Rpc, topic: str, project: str
) -> None:
    name = f"{project}/subscriptions/in-process"
    broker.create_subscription(name, topic, SubscriptionSettings(dead_letter_policy=DeadLetterPolicy(topic, 2)))
    policy = {"dead_letter_topic": topic, "max_delivery_attempts": 3}
    status, text = refused(rpc, name, "dead_letter_policy", dead_letter_policy=policy)
    assert (status, "max_delivery_attempts" in text) == (INVALID, True)
    update(rpc, name, "dead_letter_policy.max_delivery_attempts", dead_letter_policy={"max_delivery_attempts": 6})
    changed = broker.get_subscription(name).settings.dead_letter_policy
    assert changed == DeadLetterPolicy(topic, 6, source_attributes=True)


def test_a_topic_that_another_door_has_made_keeps_what_an_update_does_not_name(
    broker: LocalBroker, rpc: Rpc, project: str
) -> None:
    name = f"{project}/topics/in-process"
    broker.create_topic(name, TopicSettings(message_retention_ns=1_000_000_000))
    update_topic(rpc, name, "labels", labels={"a": "b"})
    assert broker.get_topic(name).settings.message_retention_ns == 1_000_000_000


def test_1_5_3_a_refused_duration_is_told_as_it_was_given(rpc: Rpc, subscription: str) -> None:
    fields = {"message_retention_duration": {"seconds": 2_678_401, "nanos": 500_000_000}}
    _, text = refused(rpc, subscription, "message_retention_duration", **fields)
    assert "You passed 2678401.5s in the request" in text
