"""Each method once over REST, as people write it with curl: what comes back is what the rules say over gRPC too."""

from __future__ import annotations

import json
from typing import Any

import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.server.app import Application
from heliograph.server.closing import Closing
from heliograph.server.rest.bindings import pubsub_bindings
from tests.server.clients import Http

AVRO = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}'


class Rest:
    def __init__(self, http: Http) -> None:
        self._http = http

    def __call__(self, method: str, path: str, body: Any = None) -> Any:
        """The answer of a request that is done."""
        status, answer = self.status(method, path, body)
        assert status == 200, answer
        return answer

    def status(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        encoded = None if body is None else json.dumps(body).encode()
        answer = self._http.request(method, f"/v1/{path}", encoded)
        return answer.status, answer.body


@pytest.fixture
def rest(http: Http) -> Rest:
    return Rest(http)


def test_topics(rest: Rest, project: str) -> None:
    name = f"{project}/topics/topic-1"
    rest("PUT", name, {"labels": {"a": "1"}})
    updated = rest("PATCH", name, {"topic": {"labels": {"b": "2"}}, "updateMask": "labels"})
    assert updated == {"name": name, "labels": {"b": "2"}, "state": "ACTIVE"}
    body = {"topic": {"messageRetentionDuration": "600s"}}
    assert rest("PATCH", f"{name}?updateMask=messageRetentionDuration", body)["messageRetentionDuration"] == "600s"
    assert rest.status("PATCH", name, {"topic": {"labels": {}}})[0] == 400
    assert rest("GET", f"{project}/topics?pageSize=1") == {"topics": [rest("GET", name)]}
    assert rest("GET", f"{name}/subscriptions") == {}
    assert rest("DELETE", name) == {}
    assert rest.status("GET", name)[0] == 404


def test_subscriptions(rest: Rest, project: str) -> None:
    topic, name = f"{project}/topics/topic-1", f"{project}/subscriptions/sub-1"
    rest("PUT", topic, {})
    rest("PUT", name, {"topic": topic, "ackDeadlineSeconds": 20})
    update = {"subscription": {"ackDeadlineSeconds": 30}, "updateMask": "ackDeadlineSeconds"}
    assert rest("PATCH", name, update)["ackDeadlineSeconds"] == 30
    update = {"subscription": {"ack_deadline_seconds": 40}, "update_mask": "ack_deadline_seconds"}
    assert rest("PATCH", name, update)["ackDeadlineSeconds"] == 40
    push = {"pushConfig": {"pushEndpoint": "http://127.0.0.1:9/push"}}
    assert rest("POST", f"{name}:modifyPushConfig", push) == {}
    assert rest("GET", name)["pushConfig"]["pushEndpoint"] == "http://127.0.0.1:9/push"
    assert rest("POST", f"{name}:modifyPushConfig", {"pushConfig": {}}) == {}
    assert rest("GET", f"{topic}/subscriptions") == {"subscriptions": [name]}
    assert rest("POST", f"{name}:detach") == {}
    assert rest("GET", name)["detached"] is True
    status, answer = rest.status("POST", f"{name}:pull", {"maxMessages": 1})
    assert (status, answer["error"]["status"]) == (400, "FAILED_PRECONDITION")
    assert rest("DELETE", name) == {}


def test_1_8_2_a_stale_ack_id_under_exactly_once_delivery_is_told_with_its_detail(rest: Rest, project: str) -> None:
    topic, name = f"{project}/topics/topic-1", f"{project}/subscriptions/sub-1"
    rest("PUT", topic, {})
    rest("PUT", name, {"topic": topic, "enableExactlyOnceDelivery": True})
    rest("POST", f"{topic}:publish", {"messages": [{"attributes": {"a": "b"}}]})
    ack_id = rest("POST", f"{name}:pull", {"maxMessages": 1})["receivedMessages"][0]["ackId"]
    rest("POST", f"{name}:acknowledge", {"ackIds": [ack_id]})
    status, answer = rest.status("POST", f"{name}:acknowledge", {"ackIds": [ack_id]})
    assert (status, answer["error"]["status"]) == (400, "INVALID_ARGUMENT")
    assert answer["error"]["details"][0] == {
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": "EXACTLY_ONCE_ACKID_FAILURE",
        "domain": "pubsub.googleapis.com",
        "metadata": {ack_id: "PERMANENT_FAILURE_INVALID_ACK_ID"},
    }


def test_schemas(rest: Rest, project: str) -> None:
    name = f"{project}/schemas/order"
    created = rest("POST", f"{project}/schemas?schemaId=order", {"type": "AVRO", "definition": AVRO})
    assert (created["name"], created["type"], created["definition"]) == (name, "AVRO", AVRO)
    assert "definition" not in rest("GET", f"{project}/schemas")["schemas"][0]
    assert rest("GET", f"{project}/schemas?view=FULL")["schemas"][0]["definition"] == AVRO
    assert rest("GET", f"{name}?view=BASIC").get("definition") is None
    second = AVRO.replace("Order", "Order2")
    schema = {"name": name, "type": "AVRO", "definition": second}
    committed = rest("POST", f"{name}:commit", {"schema": schema})
    assert len(rest("GET", f"{name}:listRevisions")["schemas"]) == 2
    rest("POST", f"{name}:rollback", {"revisionId": created["revisionId"]})
    rest("DELETE", f"{name}@{committed['revisionId']}:deleteRevision")
    assert rest("POST", f"{project}/schemas:validate", {"schema": {"type": "AVRO", "definition": AVRO}}) == {}
    message = {"name": name, "message": "eyJpZCI6ICIxIn0=", "encoding": "JSON"}
    assert rest("POST", f"{project}/schemas:validateMessage", message) == {}
    assert rest("DELETE", name) == {}


def test_iam_policies(rest: Rest, project: str) -> None:
    topic = f"{project}/topics/topic-1"
    rest("PUT", topic, {})
    assert rest("GET", f"{topic}:getIamPolicy")["etag"] == "ACAB"
    policy = {"bindings": [{"role": "roles/viewer", "members": ["user:a@example.com"]}]}
    kept = rest("POST", f"{topic}:setIamPolicy", {"policy": policy})
    assert kept["bindings"] == policy["bindings"]
    assert rest("GET", f"{topic}:getIamPolicy?options.requestedPolicyVersion=1") == kept
    permissions = {"permissions": ["pubsub.topics.publish"]}
    assert rest("POST", f"{topic}:testIamPermissions", permissions) == permissions


def test_seek_and_snapshots(rest: Rest, project: str) -> None:
    topic, name = f"{project}/topics/topic-1", f"{project}/subscriptions/sub-1"
    snapshot = f"{project}/snapshots/snap-1"
    rest("PUT", topic, {})
    rest("PUT", name, {"topic": topic})
    rest("POST", f"{topic}:publish", {"messages": [{"data": "YQ=="}]})
    made = rest("PUT", snapshot, {"subscription": name})
    assert (made["name"], made["topic"]) == (snapshot, topic)
    assert rest("GET", snapshot) == made
    assert rest("GET", f"{topic}/snapshots") == {"snapshots": [snapshot]}
    labelled = rest("PATCH", snapshot, {"snapshot": {"labels": {"a": "b"}}, "updateMask": "labels"})
    assert rest("GET", f"{project}/snapshots") == {"snapshots": [labelled]}
    assert rest("POST", f"{name}:seek", {"time": "3000-01-01T00:00:00Z"}) == {}
    assert rest("POST", f"{name}:pull", {"maxMessages": 1, "returnImmediately": True}) == {}
    assert rest("POST", f"{name}:seek", {"snapshot": snapshot}) == {}
    assert rest("POST", f"{name}:pull", {"maxMessages": 1})["receivedMessages"][0]["message"]["data"] == "YQ=="
    assert rest("DELETE", snapshot) == {}
    assert rest.status("PUT", f"{project}/snapshots/", {"subscription": name})[0] == 404  # over REST it needs a name


def test_every_binding_is_served() -> None:
    broker = LocalBroker()
    methods = Application(broker, Closing()).methods
    broker.close()
    assert {binding.method for binding in pubsub_bindings()} - set(methods) == set()
