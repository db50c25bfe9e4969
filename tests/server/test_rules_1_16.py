"""`google.iam.v1.IAMPolicy` (1.1.4, 1.16): kept and given back, and all is allowed."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.iam.v1 import iam_policy_pb2_grpc

from tests.server.clients import Failure, Rpc
from tests.server.conftest import Timed

BINDINGS = [{"role": "roles/pubsub.subscriber", "members": ["user:somebody@example.com"]}]


def code(rpc: Rpc, method: str, /, **fields: Any) -> grpc.StatusCode:
    with pytest.raises(Failure) as raised:
        rpc(method, **fields)
    return raised.value.code()


@pytest.fixture
def schema(rpc: Rpc, project: str) -> str:
    definition = {"type_": "AVRO", "definition": '"string"'}
    name: str = rpc("CreateSchema", parent=project, schema_id="schema-1", schema=definition).name
    return name


@pytest.fixture
def snapshot(rpc: Rpc, subscription: str) -> str:
    name: str = rpc("CreateSnapshot", subscription=subscription).name
    return name


@pytest.fixture(params=["topic", "subscription", "snapshot", "schema"])
def resource(request: pytest.FixtureRequest) -> str:
    name: str = request.getfixturevalue(request.param)
    return name


def test_1_16_a_policy_that_was_never_set_is_empty(rpc: Rpc, resource: str) -> None:
    policy = rpc("GetIamPolicy", resource=resource)
    assert (list(policy.bindings), policy.version, policy.etag) == ([], 0, b"\x00\x20\x01")


def test_1_16_a_policy_is_kept_with_a_new_etag_each_time(rpc: Rpc, resource: str) -> None:
    first = rpc("SetIamPolicy", resource=resource, policy={"bindings": BINDINGS})
    assert first.bindings[0].role == "roles/pubsub.subscriber"
    assert rpc("GetIamPolicy", resource=resource) == first
    second = rpc("SetIamPolicy", resource=resource, policy={"bindings": BINDINGS, "etag": first.etag})
    assert len({b"", b"\x00\x20\x01", first.etag, second.etag}) == 4


def test_1_16_a_policy_that_changed_meanwhile_is_not_overwritten(rpc: Rpc, resource: str) -> None:
    stale = rpc("GetIamPolicy", resource=resource).etag
    kept = rpc("SetIamPolicy", resource=resource, policy={"bindings": BINDINGS, "etag": stale})
    assert code(rpc, "SetIamPolicy", resource=resource, policy={"etag": stale}) is grpc.StatusCode.ABORTED
    assert rpc("GetIamPolicy", resource=resource) == kept


def test_1_16_with_a_mask_the_rest_of_the_policy_stays(rpc: Rpc, topic: str) -> None:
    rpc("SetIamPolicy", resource=topic, policy={"bindings": BINDINGS})
    policy = rpc("SetIamPolicy", resource=topic, policy={"version": 3}, update_mask={"paths": ["version"]})
    assert (policy.version, len(policy.bindings)) == (3, 1)


def test_1_16_an_unknown_version_is_invalid(rpc: Rpc, topic: str) -> None:
    assert code(rpc, "SetIamPolicy", resource=topic, policy={"version": 2}) is grpc.StatusCode.INVALID_ARGUMENT


def test_1_16_all_permissions_are_granted(rpc: Rpc, resource: str) -> None:
    asked = ["pubsub.topics.get", "pubsub.topics.publish"]
    assert list(rpc("TestIamPermissions", resource=resource, permissions=asked).permissions) == asked


def test_1_16_a_wildcard_is_no_permission(rpc: Rpc, topic: str) -> None:
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    assert code(rpc, "TestIamPermissions", resource=topic, permissions=["pubsub.*"]) is invalid


@pytest.mark.parametrize("kind", ["topics", "subscriptions", "snapshots", "schemas"])
def test_1_16_what_is_missing_has_no_policy_and_no_permissions(rpc: Rpc, project: str, kind: str) -> None:
    missing = f"{project}/{kind}/missing"
    for method in ("GetIamPolicy", "SetIamPolicy"):
        assert code(rpc, method, resource=missing) is grpc.StatusCode.NOT_FOUND
    assert list(rpc("TestIamPermissions", resource=missing, permissions=["pubsub.topics.get"]).permissions) == []


@pytest.mark.parametrize("name", ["", "projects/p", "projects/p/queues/tasks", "topics/t"])
def test_1_16_what_is_no_resource_is_invalid(rpc: Rpc, name: str) -> None:
    for method in ("GetIamPolicy", "SetIamPolicy", "TestIamPermissions"):
        assert code(rpc, method, resource=name) is grpc.StatusCode.INVALID_ARGUMENT


def test_1_16_a_policy_goes_with_its_resource(
    rpc: Rpc, topic: str, subscription: str, schema: str, project: str
) -> None:
    resources = (topic, subscription, schema)
    for resource in resources:
        rpc("SetIamPolicy", resource=resource, policy={"bindings": BINDINGS})
    rpc("DeleteSubscription", subscription=subscription)
    rpc("DeleteTopic", topic=topic)
    rpc("DeleteSchema", name=schema)
    definition = {"type_": "AVRO", "definition": '"string"'}
    rpc("CreateSchema", parent=project, schema_id="schema-1", schema=definition)
    rpc.create_topic(topic)
    rpc.create_subscription(subscription, topic)
    assert [list(rpc("GetIamPolicy", resource=one).bindings) for one in resources] == [[]] * 3


def test_1_1_4_the_stub_of_the_mixin_finds_its_service(rpc: Rpc, topic: str) -> None:
    from google.iam.v1 import iam_policy_pb2

    stub = iam_policy_pb2_grpc.IAMPolicyStub(rpc.channel)
    request = iam_policy_pb2.TestIamPermissionsRequest(resource=topic, permissions=["pubsub.topics.get"])
    assert list(stub.TestIamPermissions(request, timeout=30).permissions) == ["pubsub.topics.get"]


def test_1_16_an_expired_subscription_leaves_no_policy_to_the_next_of_its_name(timed: Timed) -> None:
    topic, name = "projects/p/topics/topic-1", "projects/p/subscriptions/sub-1"
    timed.rpc.create_topic(topic)
    short = {"expiration_policy": {"ttl": {"seconds": 86_400}}}
    timed.rpc.create_subscription(name, topic, **short)
    timed.rpc("SetIamPolicy", resource=name, policy={"bindings": BINDINGS})
    timed.clock.advance(86_500)
    timed.rpc.create_subscription(name, topic, **short)
    assert list(timed.rpc("GetIamPolicy", resource=name).bindings) == []
