"""The resource Subscription of the Pub/Sub door (1.5)."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from tests.server.clients import Failure, Rpc

INVALID = grpc.StatusCode.INVALID_ARGUMENT
NOT_FOUND = grpc.StatusCode.NOT_FOUND


def failure(rpc: Rpc, method: str, /, **fields: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(Failure) as raised:
        rpc(method, **fields)
    return raised.value.code(), raised.value.details()


@pytest.fixture
def name(project: str) -> str:
    return f"{project}/subscriptions/sub-1"


def refused(rpc: Rpc, name: str, topic: str, /, **fields: Any) -> tuple[grpc.StatusCode, str]:
    return failure(rpc, "CreateSubscription", name=name, topic=topic, **fields)


def test_1_2_3_without_a_name_it_gets_one_in_the_topics_project(rpc: Rpc, topic: str, project: str) -> None:
    names = {rpc.create_subscription("", topic).name for _ in range(2)}
    assert len(names) == 2
    assert all(name.startswith(f"{project}/subscriptions/") for name in names)


def test_1_2_6_a_topic_of_another_project_may_be_subscribed(rpc: Rpc, topic: str, project: str) -> None:
    assert rpc.create_subscription(f"{project}-other/subscriptions/sub-1", topic).topic == topic


def test_1_5_1_its_topic_must_exist(rpc: Rpc, name: str, project: str) -> None:
    assert refused(rpc, name, f"{project}/topics/missing") == (NOT_FOUND, "Resource not found (resource=missing).")


def test_1_5_1_a_name_is_taken_once(rpc: Rpc, topic: str, subscription: str) -> None:
    assert refused(rpc, subscription, topic) == (
        grpc.StatusCode.ALREADY_EXISTS,
        "Resource already exists in the project (resource=sub-1).",
    )


def test_1_5_1_it_receives_what_is_published_after_its_creation(rpc: Rpc, topic: str, name: str) -> None:
    rpc.publish(topic, b"before")
    rpc.create_subscription(name, topic)
    rpc.publish(topic, b"after")
    assert [one.message.data for one in rpc.pull(name)] == [b"after"]


@pytest.mark.parametrize("seconds", [5, 9, 601, -1])
def test_1_5_2_the_ack_deadline_is_10_to_600_seconds(rpc: Rpc, topic: str, name: str, seconds: int) -> None:
    assert refused(rpc, name, topic, ack_deadline_seconds=seconds) == (
        INVALID,
        f"Invalid ack deadline given (ack_deadline={seconds}). The ack deadline must be between 10 and 600 seconds.",
    )


@pytest.mark.parametrize("seconds", [599, 31 * 86_400 + 1])
def test_1_5_3_retention_is_10_minutes_to_31_days(rpc: Rpc, topic: str, name: str, seconds: int) -> None:
    code, text = refused(rpc, name, topic, message_retention_duration={"seconds": seconds})
    assert code is INVALID
    assert text.startswith("The value for message retention duration is out of bounds. You passed ")
    assert text.endswith("must be between 10m and 744h.")


def test_1_5_4_expiration_is_31_days_unless_said_otherwise(rpc: Rpc, topic: str, name: str) -> None:
    assert rpc.create_subscription(name, topic).expiration_policy.ttl.seconds == 31 * 86_400


def test_1_5_4_an_empty_expiration_policy_means_never(rpc: Rpc, topic: str, name: str) -> None:
    created = rpc.create_subscription(name, topic, expiration_policy={})
    assert created.HasField("expiration_policy")
    assert not created.expiration_policy.HasField("ttl")


def test_1_5_4_expiration_below_a_day_is_invalid(rpc: Rpc, topic: str, name: str) -> None:
    assert refused(rpc, name, topic, expiration_policy={"ttl": {"seconds": 86_399}})[0] is INVALID


def test_1_5_4_retention_is_not_longer_than_a_short_expiration(rpc: Rpc, topic: str, name: str) -> None:
    created = rpc.create_subscription(name, topic, expiration_policy={"ttl": {"seconds": 2 * 86_400}})
    assert created.message_retention_duration.seconds == 2 * 86_400


def test_1_5_5_a_plain_subscription_is_normalised(rpc: Rpc, topic: str, name: str) -> None:
    created = rpc.create_subscription(name, topic)
    assert created.ack_deadline_seconds == 10
    assert created.message_retention_duration.seconds == 604_800
    assert created.HasField("push_config")
    assert created.state == 1


def test_1_5_5_what_was_created_is_what_is_listed(rpc: Rpc, topic: str, name: str, project: str) -> None:
    dead_letters = f"{project}/topics/dead-letters"
    rpc.create_topic(dead_letters)
    created = rpc.create_subscription(
        name,
        topic,
        ack_deadline_seconds=30,
        retain_acked_messages=True,
        message_retention_duration={"seconds": 700},
        labels={"a": "b"},
        enable_message_ordering=True,
        enable_exactly_once_delivery=True,
        expiration_policy={"ttl": {"seconds": 90_000}},
        dead_letter_policy={"dead_letter_topic": dead_letters},
        retry_policy={},
        message_transforms=[{"javascript_udf": {"function_name": "f", "code": "function f(m) { return m; }"}}],
    )
    assert created.dead_letter_policy.max_delivery_attempts == 5
    assert created.retry_policy.minimum_backoff.seconds == 10
    assert created.retry_policy.maximum_backoff.seconds == 600
    assert created.message_transforms[0].javascript_udf.function_name == "f"
    assert rpc("GetSubscription", subscription=name) == created
    assert list(rpc("ListSubscriptions", project=project).subscriptions) == [created]


def test_1_3_8_the_retention_of_its_topic_is_mirrored(rpc: Rpc, project: str, name: str) -> None:
    topic = f"{project}/topics/topic-1"
    rpc.create_topic(topic, message_retention_duration={"seconds": 1200})
    assert rpc.create_subscription(name, topic).topic_message_retention_duration.seconds == 1200


def test_1_5_6_messages_go_to_one_place_at_most(rpc: Rpc, topic: str, name: str) -> None:
    fields = {"push_config": {"push_endpoint": "http://localhost"}, "bigquery_config": {"table": "p.d.t"}}
    assert refused(rpc, name, topic, **fields)[0] is INVALID


def test_1_5_7_exactly_once_is_for_pull_only(rpc: Rpc, topic: str, name: str) -> None:
    push = {"push_config": {"push_endpoint": "http://localhost"}, "enable_exactly_once_delivery": True}
    assert refused(rpc, name, topic, **push)[0] is INVALID


@pytest.mark.parametrize("attempts", [1, 4, 101])
def test_1_5_8_delivery_attempts_are_5_to_100(rpc: Rpc, topic: str, name: str, attempts: int) -> None:
    policy = {"dead_letter_topic": topic, "max_delivery_attempts": attempts}
    code, text = refused(rpc, name, topic, dead_letter_policy=policy)
    assert code is INVALID
    assert text.startswith("The value for max_delivery_attempts is too")


def test_1_5_8_the_dead_letter_topic_must_exist(rpc: Rpc, topic: str, name: str, project: str) -> None:
    policy = {"dead_letter_topic": f"{project}/topics/missing"}
    assert refused(rpc, name, topic, dead_letter_policy=policy)[0] is NOT_FOUND


@pytest.mark.parametrize(
    "policy",
    [
        {"minimum_backoff": {"seconds": 601}},
        {"maximum_backoff": {"seconds": 601}},
        {"minimum_backoff": {"seconds": -1}},
        {"minimum_backoff": {"seconds": 20}, "maximum_backoff": {"seconds": 19}},
    ],
)
def test_1_5_9_backoff_is_0_to_600_seconds_and_grows(rpc: Rpc, topic: str, name: str, policy: dict[str, Any]) -> None:
    assert refused(rpc, name, topic, retry_policy=policy)[0] is INVALID


def test_1_5_10_a_filter_has_at_most_256_bytes(rpc: Rpc, topic: str, name: str) -> None:
    assert refused(rpc, name, topic, filter="x" * 257)[0] is INVALID


def test_1_12_what_a_filter_does_not_let_pass_is_not_delivered(rpc: Rpc, topic: str, name: str) -> None:
    assert rpc.create_subscription(name, topic, filter='attributes.a = "b"').filter == 'attributes.a = "b"'
    rpc.publish(topic, b"other", attributes={"a": "c"})
    rpc.publish(topic, b"this", attributes={"a": "b"})
    assert [one.message.data for one in rpc.pull(name)] == [b"this"]


@pytest.mark.parametrize("text", ["data:x", 'attributes:a = "x"', "attributes:a AND attributes:b OR attributes:c"])
def test_1_12_2_what_is_no_filter_is_refused(rpc: Rpc, topic: str, name: str, text: str) -> None:
    assert refused(rpc, name, topic, filter=text)[0] is INVALID


def test_1_5_14_a_deleted_subscription_is_gone_and_empty_when_made_again(
    rpc: Rpc, topic: str, subscription: str
) -> None:
    rpc.publish(topic, b"x")
    rpc("DeleteSubscription", subscription=subscription)
    for method in ("GetSubscription", "DeleteSubscription"):
        assert failure(rpc, method, subscription=subscription)[0] is NOT_FOUND
    assert failure(rpc, "Pull", subscription=subscription, max_messages=1)[0] is NOT_FOUND
    rpc.create_subscription(subscription, topic)
    assert rpc.pull(subscription) == []


def test_subscriptions_are_listed_in_pages_by_name(rpc: Rpc, topic: str, project: str) -> None:
    names = [f"{project}/subscriptions/sub-{number}" for number in range(5)]
    for name in reversed(names):
        rpc.create_subscription(name, topic)
    first = rpc("ListSubscriptions", project=project, page_size=3)
    second = rpc("ListSubscriptions", project=project, page_size=3, page_token=first.next_page_token)
    assert [one.name for one in [*first.subscriptions, *second.subscriptions]] == names
    assert second.next_page_token == ""
