"""Names (1.2), topics (1.3) and publishing (1.4) of the Pub/Sub door."""

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


# ── names ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("last", ["abc", "a.b-c_d~e+f%20g", "A23", "x" * 255])
def test_1_2_1_a_name_of_3_to_255_allowed_characters_is_accepted(rpc: Rpc, project: str, last: str) -> None:
    assert rpc.create_topic(f"{project}/topics/{last}").name == f"{project}/topics/{last}"


@pytest.mark.parametrize(
    "last", ["", "ab", "1abc", "-abc", "goog-topic", "google", "a b c", "a/b/c", "äbcd", "abc\n", "x" * 256]
)
def test_1_2_1_any_other_name_is_invalid(rpc: Rpc, project: str, last: str) -> None:
    name = f"{project}/topics/{last}"
    assert failure(rpc, "CreateTopic", name=name) == (INVALID, f"Invalid [topics] name: (name={name})")


@pytest.mark.parametrize("name", ["", "topic-1", "queues/tasks", "projects/p", "projects//topics/topic-1"])
def test_1_2_1_nothing_outside_projects_can_be_reached(rpc: Rpc, name: str) -> None:
    code, text = failure(rpc, "Publish", topic=name, messages=[{"data": b"x"}])
    assert (code, text.partition(")")[0]) == (INVALID, f"Invalid resource name given (name={name}")


def test_1_2_5_a_missing_resource_is_named_by_its_last_part(rpc: Rpc, project: str) -> None:
    assert failure(rpc, "GetTopic", topic=f"{project}/topics/missing") == (
        NOT_FOUND,
        "Resource not found (resource=missing).",
    )


def test_1_2_2_the_text_differs_for_what_is_created_and_what_should_exist(rpc: Rpc, project: str) -> None:
    name = f"{project}/topics/x"
    assert failure(rpc, "CreateTopic", name=name)[1] == f"Invalid [topics] name: (name={name})"
    text = failure(rpc, "GetTopic", topic=name)[1]
    assert text.startswith(f"Invalid resource name given (name={name}). Refer to https://")
    assert text.endswith(" for more information.")


def test_1_2_7_a_topic_in_place_of_a_subscription_is_invalid(rpc: Rpc, topic: str) -> None:
    assert failure(rpc, "GetSubscription", subscription=topic)[0] is INVALID


# ── topics ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_1_3_1_a_topic_that_exists_is_refused_even_if_identical(rpc: Rpc, topic: str) -> None:
    assert failure(rpc, "CreateTopic", name=topic) == (
        grpc.StatusCode.ALREADY_EXISTS,
        "Resource already exists in the project (resource=topic-1).",
    )


def test_1_3_2_every_field_is_given_back_on_create_get_and_list(rpc: Rpc, project: str) -> None:
    fields = {
        "labels": {"team": "red"},
        "kms_key_name": "key",
        "message_storage_policy": {"allowed_persistence_regions": ["europe-west1"]},
        "message_retention_duration": {"seconds": 600},
        "ingestion_data_source_settings": {"cloud_storage": {"bucket": "bucket"}},
    }
    name = f"{project}/topics/topic-1"
    created = rpc.create_topic(name, **fields)
    assert created.labels == {"team": "red"}
    assert created.kms_key_name == "key"
    assert created.message_retention_duration.seconds == 600
    assert created.ingestion_data_source_settings.cloud_storage.bucket == "bucket"
    assert created.state == 1
    assert rpc("GetTopic", topic=name) == created
    assert list(rpc("ListTopics", project=project).topics) == [created]


@pytest.mark.parametrize("seconds", [599, 31 * 86_400 + 1])
def test_1_3_2_topic_retention_is_10_minutes_to_31_days(rpc: Rpc, project: str, seconds: int) -> None:
    name = f"{project}/topics/topic-1"
    assert failure(rpc, "CreateTopic", name=name, message_retention_duration={"seconds": seconds})[0] is INVALID


def test_1_3_2_a_storage_policy_without_regions_is_invalid(rpc: Rpc, project: str) -> None:
    assert failure(rpc, "CreateTopic", name=f"{project}/topics/topic-1", message_storage_policy={})[0] is INVALID


@pytest.mark.parametrize(
    "labels", [{"Upper": "x"}, {"": "x"}, {"1a": "x"}, {"a": "Y"}, {"a" * 64: ""}, {"a": "b" * 64}]
)
def test_1_3_3_labels_have_their_alphabet(rpc: Rpc, project: str, labels: dict[str, str]) -> None:
    assert failure(rpc, "CreateTopic", name=f"{project}/topics/topic-1", labels=labels)[0] is INVALID


def test_1_3_3_there_are_at_most_64_labels(rpc: Rpc, project: str) -> None:
    labels = {f"label-{number}": "" for number in range(65)}
    assert failure(rpc, "CreateTopic", name=f"{project}/topics/topic-1", labels=labels)[0] is INVALID


def test_1_3_5_a_deleted_topic_is_gone(rpc: Rpc, topic: str) -> None:
    rpc("DeleteTopic", topic=topic)
    assert failure(rpc, "GetTopic", topic=topic)[0] is NOT_FOUND
    assert failure(rpc, "DeleteTopic", topic=topic)[0] is NOT_FOUND
    assert failure(rpc, "Publish", topic=topic, messages=[{"data": b"x"}])[0] is NOT_FOUND


def test_1_2_4_subscriptions_outlive_their_topic_with_their_backlog(rpc: Rpc, topic: str, subscription: str) -> None:
    rpc.publish(topic, b"kept")
    rpc("DeleteTopic", topic=topic)
    assert rpc("GetSubscription", subscription=subscription).topic == "_deleted-topic_"
    assert [one.message.data for one in rpc.pull(subscription)] == [b"kept"]


def test_1_3_5_a_topic_made_again_has_none_of_the_old_subscriptions(rpc: Rpc, topic: str, subscription: str) -> None:
    rpc("DeleteTopic", topic=topic)
    rpc.create_topic(topic)
    rpc.publish(topic, b"not for the old one")
    assert rpc.pull(subscription) == []
    assert rpc("GetSubscription", subscription=subscription).topic == "_deleted-topic_"
    assert list(rpc("ListTopicSubscriptions", topic=topic).subscriptions) == []


def test_1_3_6_topics_are_listed_in_pages_by_name(rpc: Rpc, project: str) -> None:
    names = [f"{project}/topics/topic-{number:02}" for number in range(7)]
    for name in reversed(names):
        rpc.create_topic(name)
    listed, token, pages = [], "", 0
    while pages == 0 or token:
        page = rpc("ListTopics", project=project, page_size=3, page_token=token)
        listed += [topic.name for topic in page.topics]
        token, pages = page.next_page_token, pages + 1
    assert (listed, pages) == (names, 3)


def test_1_3_6_other_projects_are_not_listed(rpc: Rpc, project: str, topic: str) -> None:
    rpc.create_topic(f"{project}0/topics/topic-1")
    assert [one.name for one in rpc("ListTopics", project=project).topics] == [topic]


def test_1_3_6_a_negative_page_size_is_invalid(rpc: Rpc, project: str) -> None:
    assert failure(rpc, "ListTopics", project=project, page_size=-1) == (
        INVALID,
        "The value for page_size is too small. You passed -1 in the request, but the minimum value is 0.",
    )


@pytest.mark.parametrize("token", ["garbage!", "Z2FyYmFnZQ==", "ä"])
def test_1_3_6_a_token_that_no_page_gave_is_invalid(rpc: Rpc, project: str, token: str) -> None:
    assert failure(rpc, "ListTopics", project=project, page_token=token)[0] is INVALID


def test_1_3_7_subscriptions_of_a_topic_are_listed_by_full_name(rpc: Rpc, topic: str, subscription: str) -> None:
    assert list(rpc("ListTopicSubscriptions", topic=topic).subscriptions) == [subscription]


def test_1_3_7_subscriptions_of_a_missing_topic_are_not_found(rpc: Rpc, project: str) -> None:
    assert failure(rpc, "ListTopicSubscriptions", topic=f"{project}/topics/missing")[0] is NOT_FOUND


# ── publishing ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_1_4_1_a_message_needs_data_or_an_attribute(rpc: Rpc, topic: str) -> None:
    assert failure(rpc, "Publish", topic=topic, messages=[{"ordering_key": "k"}])[0] is INVALID
    rpc("Publish", topic=topic, messages=[{"attributes": {"a": ""}}])


@pytest.mark.parametrize(("count", "text"), [(0, "too small. You passed 0"), (1001, "too large. You passed 1001")])
def test_1_4_2_a_publish_has_1_to_1000_messages(rpc: Rpc, topic: str, count: int, text: str) -> None:
    code, details = failure(rpc, "Publish", topic=topic, messages=[{"data": b"x"}] * count)
    assert code is INVALID
    assert details.startswith(f"The value for message_count is {text} in the request")


def publish_request_of(topic: str, size: int) -> dict[str, Any]:
    """Fields of a request of exactly `size` bytes."""
    from heliograph.server.pubsub import proto

    data = size - 100
    for _ in range(3):
        fields = {"topic": topic, "messages": [{"data": bytes(data)}]}
        data += size - proto.PublishRequest(**fields).ByteSize()
    return fields


def test_1_4_3_a_request_of_10_000_000_bytes_is_accepted(rpc: Rpc, topic: str) -> None:
    assert len(rpc("Publish", **publish_request_of(topic, 10_000_000)).message_ids) == 1


def test_1_4_3_a_larger_request_is_refused(rpc: Rpc, topic: str) -> None:
    assert failure(rpc, "Publish", **publish_request_of(topic, 10_000_001)) == (
        INVALID,
        "The value for request_size is too large. You passed 10000001 in the request, but the maximum value is "
        "10000000.",
    )
    assert failure(rpc, "Publish", **publish_request_of(topic, 10_485_761)) == (
        INVALID,
        "Request payload size exceeds the limit: 10485760 bytes.",
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"attributes": {"goog-a": "x"}},
        {"attributes": {"": "x"}},
        {"attributes": {"k" * 257: "x"}},
        {"attributes": {"k": "v" * 1025}},
        {"attributes": {str(number): "" for number in range(101)}},
        {"ordering_key": "k" * 1025},
    ],
    ids=["reserved", "empty key", "long key", "long value", "too many", "long ordering key"],
)
def test_1_4_4_attributes_and_keys_have_their_bounds(rpc: Rpc, topic: str, fields: dict[str, Any]) -> None:
    assert failure(rpc, "Publish", topic=topic, messages=[{"data": b"x"} | fields])[0] is INVALID


def test_1_4_5_one_bad_message_refuses_all(rpc: Rpc, topic: str, subscription: str) -> None:
    messages = [{"data": b"good"}, {"data": b"bad", "attributes": {"": "x"}}]
    assert failure(rpc, "Publish", topic=topic, messages=messages)[0] is INVALID
    assert rpc.pull(subscription) == []


def test_1_4_6_one_request_has_one_ordering_key(rpc: Rpc, topic: str) -> None:
    messages = [{"data": b"x", "ordering_key": "a"}, {"data": b"x", "ordering_key": "b"}]
    assert failure(rpc, "Publish", topic=topic, messages=messages)[0] is INVALID


def test_1_4_7_ids_come_in_order_unique_and_as_decimal_numbers(rpc: Rpc, topic: str, subscription: str) -> None:
    ids = rpc.publish(topic, *[str(number).encode() for number in range(50)]) + rpc.publish(topic, b"50")
    assert sorted(set(ids), key=int) == ids
    received = {one.message.data: one.message.message_id for one in rpc.pull(subscription)}
    assert received == {str(number).encode(): id_ for number, id_ in enumerate(ids)}


def test_1_4_7_the_server_sets_id_and_publish_time(rpc: Rpc, topic: str, subscription: str) -> None:
    rpc.publish(topic, b"x", message_id="mine", publish_time={"seconds": 1})
    message = rpc.pull(subscription)[0].message
    assert message.message_id != "mine"
    assert message.publish_time.seconds > 1_700_000_000


def test_1_4_8_a_topic_without_subscriptions_takes_messages(rpc: Rpc, topic: str) -> None:
    assert len(rpc.publish(topic, b"for nobody")) == 1
