"""The REST door of a running server, beside gRPC on the same port."""

from __future__ import annotations

import base64
import json
import socket
import struct
import threading
from http.client import HTTPConnection
from typing import Any

import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.server.app import Serving
from tests.server.clients import Answer, Http, Rpc, wait_until

# topic-1 and sub-1 come from the fixtures of tests/server/conftest.py, made over gRPC


def post(http: Http, name: str, verb: str, **body: Any) -> Any:
    answer = http.request("POST", f"/v1/{name}:{verb}", json.dumps(body).encode())
    assert answer.status == 200, answer
    return answer.body


def failure(answer: Answer) -> tuple[int, str, str]:
    error = answer.body["error"]
    assert error["code"] == answer.status
    return answer.status, error["status"], error["message"]


def test_what_is_created_over_rest_is_what_grpc_shows(http: Http, rpc: Rpc, project: str) -> None:
    name = f"{project}/topics/topic-2"
    answer = http.request("PUT", f"/v1/{name}", b'{"labels": {"a": "b"}, "messageRetentionDuration": "600s"}')
    assert answer == (
        200,
        {"name": name, "labels": {"a": "b"}, "messageRetentionDuration": "600s", "state": "ACTIVE"},
    )
    assert http.request("GET", f"/v1/{name}") == answer
    assert rpc("GetTopic", topic=name).labels == {"a": "b"}
    again = http.request("PUT", f"/v1/{name}", b"")
    assert failure(again) == (409, "ALREADY_EXISTS", "Resource already exists in the project (resource=topic-2).")
    assert http.request("DELETE", f"/v1/{name}") == (200, {})
    assert failure(http.request("GET", f"/v1/{name}")) == (404, "NOT_FOUND", "Resource not found (resource=topic-2).")


def test_messages_go_between_rest_and_grpc_both_ways(http: Http, rpc: Rpc, topic: str, subscription: str) -> None:
    published = post(http, topic, "publish", messages=[{"data": "aGVsbG8", "attributes": {"k": "v"}}])
    received = rpc.pull(subscription)
    assert [one.message.message_id for one in received] == published["messageIds"]
    assert (received[0].message.data, dict(received[0].message.attributes)) == (b"hello", {"k": "v"})
    post(http, subscription, "modifyAckDeadline", ackIds=[received[0].ack_id], ackDeadlineSeconds=0)
    again = post(http, subscription, "pull", maxMessages=10)["receivedMessages"]
    assert again[0]["message"]["data"] == "aGVsbG8="
    assert again[0]["message"]["publishTime"].endswith("Z")
    assert post(http, subscription, "acknowledge", ackIds=[again[0]["ackId"]]) == {}
    assert post(http, subscription, "pull", maxMessages=10, returnImmediately=True) == {}


def test_1_4_3_a_message_of_almost_ten_megabytes_comes_back_as_it_was(
    http: Http, topic: str, subscription: str
) -> None:
    data = base64.b64encode(bytes(range(256)) * 39_000).decode()
    post(http, topic, "publish", messages=[{"data": data}])
    received = post(http, subscription, "pull", maxMessages=1)["receivedMessages"]
    assert received[0]["message"]["data"] == data


def test_1_4_3_a_request_is_measured_as_it_would_be_in_grpc(http: Http, topic: str) -> None:
    data = base64.b64encode(bytes(10_000_000)).decode()
    answer = http.request("POST", f"/v1/{topic}:publish", json.dumps({"messages": [{"data": data}]}).encode())
    size = 10_000_000 + 5 + 5 + len(topic) + 2  # data and message with tag and length, and the topic
    assert failure(answer) == (
        400,
        "INVALID_ARGUMENT",
        f"The value for request_size is too large. You passed {size} in the request, but the maximum value is "
        "10000000.",
    )


@pytest.mark.parametrize("how", ["closed", "reset"])
def test_1_6_1_a_waiting_pull_whose_client_has_gone_takes_no_message(
    http: Http, server: Serving, broker: LocalBroker, topic: str, subscription: str, how: str
) -> None:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("POST", f"/v1/{subscription}:pull", '{"maxMessages": 1}')
    wait_until(lambda: is_watched(broker, subscription))
    if how == "reset":
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    wait_until(lambda: not is_watched(broker, subscription))
    post(http, topic, "publish", messages=[{"data": "YQ=="}])
    assert len(post(http, subscription, "pull", maxMessages=1)["receivedMessages"]) == 1


def test_a_waiting_pull_gets_the_message_when_it_comes(http: Http, topic: str, subscription: str) -> None:
    answers: list[Any] = []
    waiting = threading.Thread(target=lambda: answers.append(post(http, subscription, "pull", maxMessages=1)))
    waiting.start()
    post(http, topic, "publish", messages=[{"data": "YQ=="}])
    waiting.join(30)
    assert answers[0]["receivedMessages"][0]["message"]["data"] == "YQ=="


def test_a_name_outside_of_the_rules_is_refused_as_over_grpc(http: Http, project: str) -> None:
    status, code, _ = failure(http.request("PUT", f"/v1/{project}/topics/x", b"{}"))
    assert (status, code) == (400, "INVALID_ARGUMENT")


@pytest.mark.parametrize(("written", "meant"), [("a%25b", "a%b"), ("a%2Bb", "a+b"), ("a+b", "a+b"), ("a%7Eb", "a~b")])
def test_a_name_in_the_path_may_be_escaped(http: Http, project: str, written: str, meant: str) -> None:
    answer = http.request("PUT", f"/v1/{project}/topics/{written}?fields=name", b"{}")
    assert answer == (200, {"name": f"{project}/topics/{meant}"})


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_a_page_of_another_origin_changes_nothing(http: Http, topic: str, method: str) -> None:
    answer = http.request(method, f"/v1/{topic}", b"{}", {"Origin": "http://evil.example"})
    assert failure(answer)[:2] == (403, "PERMISSION_DENIED")
    assert http.request("GET", f"/v1/{topic}").status == 200


@pytest.mark.parametrize("method", ["OPTIONS", "QUERY"])
def test_an_http_method_that_nothing_takes_is_refused_in_the_same_form(http: Http, topic: str, method: str) -> None:
    message = f"/v1/{topic} takes DELETE, GET, PATCH, PUT, not {method}."
    assert failure(http.request(method, f"/v1/{topic}")) == (405, "UNIMPLEMENTED", message)
    assert failure(http.request(method, "/v1/nothing"))[0] == 404


def test_the_description_tells_of_every_method_that_is_served(http: Http) -> None:
    described = http.request("GET", "/openapi/pubsub.json").body
    operations = [operation for path in described["paths"].values() for operation in path.values()]
    assert {"google.pubsub.v1.Publisher.Publish", "google.pubsub.v1.Subscriber.Pull"} <= {
        operation["summary"] for operation in operations
    }
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    refs = {part.partition('"')[0] for part in json.dumps(described).split('"#/components/schemas/')[1:]}
    assert refs <= set(described["components"]["schemas"])


def is_watched(broker: LocalBroker, subscription: str) -> bool:
    """Whether somebody waits for its messages."""
    return bool(broker._watches.of([subscription]))
