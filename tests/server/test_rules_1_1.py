"""Services and methods (1.1.1-1.1.4), message sizes (1.1.7), and codes that clients do not retry (1.1.8)."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from heliograph.server.grpc.call import Bidi
from tests.server.clients import METHODS, Failure, Rpc

RETRIED = {
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.UNKNOWN,
}
"""Codes on which some official client repeats some call."""

PUBLISHER = (
    "CreateTopic UpdateTopic Publish GetTopic ListTopics ListTopicSubscriptions ListTopicSnapshots DeleteTopic "
    "DetachSubscription"
)
SUBSCRIBER = (
    "CreateSubscription GetSubscription UpdateSubscription ListSubscriptions DeleteSubscription ModifyAckDeadline "
    "Acknowledge Pull StreamingPull ModifyPushConfig GetSnapshot ListSnapshots CreateSnapshot UpdateSnapshot "
    "DeleteSnapshot Seek"
)
IAM_POLICY = "SetIamPolicy GetIamPolicy TestIamPermissions"


def methods_of(service: str) -> set[str]:
    return {name for name, (path, _) in METHODS.items() if path.startswith(f"/{service}/")}


def test_1_1_1_publisher_has_its_9_methods() -> None:
    assert methods_of("google.pubsub.v1.Publisher") == set(PUBLISHER.split())


def test_1_1_2_subscriber_has_its_16_methods() -> None:
    assert methods_of("google.pubsub.v1.Subscriber") == set(SUBSCRIBER.split())


def test_1_1_3_schema_service_has_its_10_methods() -> None:
    assert len(methods_of("google.pubsub.v1.SchemaService")) == 10


def test_1_1_4_the_mixin_iam_policy_has_its_3_methods() -> None:
    assert methods_of("google.iam.v1.IAMPolicy") == set(IAM_POLICY.split())


def test_1_1_7_a_message_of_10_mb_goes_in_and_comes_out(rpc: Rpc, topic: str, subscription: str, server: Any) -> None:
    rpc.publish(topic, bytes(9_999_900))
    with Rpc(server.port, **{"grpc.max_receive_message_length": -1}) as unlimited:
        assert [len(one.message.data) for one in unlimited.pull(subscription)] == [9_999_900]


# ── permanent faults ────────────────────────────────────────────────────────────────────────────────────────────────

MISSING: dict[str, Any] = {
    "topic": "projects/missing/topics/missing",
    "subscription": "projects/missing/subscriptions/missing",
    "snapshot": "projects/missing/snapshots/missing",
    "resource": "projects/missing/topics/missing",
    "project": "projects",
    "parent": "projects",
    "update_mask": {"paths": ["labels"]},
    "messages": [{"data": b"x"}],
    "ack_ids": ["1-1-1"],
    "max_messages": 1,
}
"""Fields of a request that names what does not exist."""


def missing_request(name: str) -> Any:
    request_class = METHODS[name][1].request_class
    fields: dict[str, Any] = {}
    for field in request_class.DESCRIPTOR.fields:
        value = MISSING.get(field.name)
        if field.message_type is not None and isinstance(value, str):
            value = {"name": value}
        if field.name == "name":
            kind = "schemas" if "Schema" in METHODS[name][0] else "subscriptions"
            value = f"projects/missing/{kind}/missing"
        if value is not None and field.containing_oneof is None:
            fields[field.name] = value
    return request_class(**fields)


def code_of(rpc: Rpc, name: str, request: bytes) -> grpc.StatusCode:
    path, method = METHODS[name]
    if isinstance(method, Bidi):
        stream = rpc.channel.stream_stream(path, request_serializer=bytes, response_deserializer=bytes)
        call = stream(iter([request]), timeout=30)
        with pytest.raises(Failure):
            next(call)
        return call.code()
    with pytest.raises(Failure) as raised:
        rpc.channel.unary_unary(path, request_serializer=bytes, response_deserializer=bytes)(request, timeout=30)
    return raised.value.code()


@pytest.mark.parametrize("name", METHODS)
def test_1_1_8_a_permanent_fault_has_a_code_that_no_client_retries(rpc: Rpc, name: str) -> None:
    faults = {"not protobuf": b"\xff\xff", "empty": b""}
    if name != "TestIamPermissions":  # answers that there are none
        faults["missing"] = missing_request(name).SerializeToString()
    codes = {fault: code_of(rpc, name, request) for fault, request in faults.items()}
    assert not RETRIED.intersection(codes.values()), codes
