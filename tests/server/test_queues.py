"""The work-queue door over `POST /api/v1/command` (queue-protocol.md)."""

from __future__ import annotations

import http.client
import itertools
import json
import socket
import struct
import threading
from typing import Any

import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.server.app import Serving
from heliograph.wire.queues import QueueConfig
from tests.server.clients import Answer, Http, wait_until
from tests.server.conftest import serving

_numbers = itertools.count(1)


@pytest.fixture
def queue(http: Http) -> str:
    name = f"tasks-{next(_numbers)}"
    http.command("queue.create", name=name)
    return name


def raw(http: Http, body: bytes) -> Answer:
    return http.request("POST", "/api/v1/command", body)


def test_the_request_id_is_echoed_whatever_it_is(http: Http) -> None:
    for request_id in ("abc", 7, None):
        body = json.dumps({"command": "queue.list", "payload": {}, "request_id": request_id}).encode()
        answer = raw(http, body)
        assert answer.body["request_id"] == request_id
        assert answer.body["success"] is True
        assert answer.body["error"] is None


def test_a_failure_keeps_the_request_id(http: Http) -> None:
    answer = raw(http, b'{"command": "queue.stats", "payload": {"queue": "missing"}, "request_id": "r"}')
    assert answer == (
        404,
        {
            "success": False,
            "request_id": "r",
            "payload": None,
            "error": "Queue not found: missing",
            "code": "QueueNotFound",
        },
    )


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b'{"payload": {}}',
        b'{"command": 7}',
        b'{"command": "queue.fly"}',
        b'{"command": "queue.publish", "payload": 7}',
        b'{"command": "queue.publish", "payload": {"queue": 7, "message": 1}}',
        b'{"command": "queue.publish", "payload": {"message": 1}}',
        b'{"command": "queue.list", "payload": \xff}',
        b'{"command": "\xff"}',
        b'{"command": "queue.publish", "payload": {"queue": "q", "message": "\xff"}}',
        b'{"command": "queue.list", "request_id": "\xff"}',
        b'{"command": "queue.list", "payload": ' + b"[" * 100_000,
        b'{"command": "queue.publish", "payload": {"queue": "q", "message": ' + b"[" * 5_000 + b"]" * 5_000 + b"}}",
    ],
)
def test_bad_input_is_an_invalid_argument_that_says_what_is_wrong(http: Http, body: bytes) -> None:
    answer = raw(http, body)
    assert (answer.status, answer.body["code"]) == (400, "InvalidArgument")
    assert answer.body["error"]


def test_a_body_of_30_mb_is_refused_and_the_server_goes_on(http: Http, server: Serving) -> None:
    connection = http_connection(server)
    try:
        connection.request("POST", "/api/v1/command", bytes(30_000_000))
        assert connection.getresponse().status == 413
    except (BrokenPipeError, ConnectionResetError):
        pass  # refused while it was being sent
    finally:
        connection.close()
    http.command("queue.list")


def test_a_body_of_100_mb_is_refused_before_it_is_sent(http: Http, server: Serving) -> None:
    with socket.create_connection(("127.0.0.1", server.port), timeout=30) as raw:
        raw.sendall(b"POST /api/v1/command HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 413 ")
    http.command("queue.list")


def test_an_answer_carries_4_mib_and_a_larger_message_goes_alone(http: Http, queue: str) -> None:
    big = "x" * 1_500_000
    for _ in range(4):
        http.command("queue.publish", queue=queue, message=big)
    assert len(http.command("queue.peek", queue=queue, count=10)["messages"]) == 2
    consumed = http.command("queue.consume", queue=queue, max_messages=10)["messages"]
    assert len(consumed) == 2
    ids = [one["message_id"] for one in consumed]
    http.command("queue.nack", queue=queue, message_ids=ids, requeue=False)
    letters = http.command("dlq.list", queue=queue)
    assert (len(letters["messages"]), letters["total"]) == (2, 2)
    http.command("queue.publish", queue=queue, message="x" * 9_000_000, priority=9)
    assert len(http.command("queue.consume", queue=queue, max_messages=10)["messages"]) == 1


def http_connection(server: Serving) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)


def test_queues_are_listed_by_name_and_topics_are_not(http: Http, queue: str, topic: str) -> None:
    queues = http.command("queue.list")["queues"]
    assert queue in queues
    assert not any("projects/" in name for name in queues)


def test_the_pubsub_door_cannot_reach_a_queue_nor_the_queue_door_a_topic(http: Http, topic: str) -> None:
    assert http.failure("queue.publish", queue=topic, message=1) == (404, "QueueNotFound")


def test_bytes_come_back_as_bytes_beside_the_flat_fields(http: Http, queue: str) -> None:
    payload = [0, 255, 10]
    sent = http.command("queue.publish", queue=queue, payload=payload, priority=7, max_retries=1, headers={"a": "b"})
    consumed = http.command("queue.consume", queue=queue)
    nested = {
        "id": sent["message_id"],
        "payload": payload,
        "priority": 7,
        "retry_count": 0,
        "max_retries": 1,
        "headers": {"a": "b"},
    }
    assert consumed["message"] == nested
    assert (consumed["message_id"], consumed["priority"], consumed["retry_count"]) == (sent["message_id"], 7, 0)


def test_an_empty_byte_array_is_a_message(http: Http, queue: str) -> None:
    http.command("queue.publish", queue=queue, payload=[])
    assert http.command("queue.consume", queue=queue)["message"]["payload"] == []


@pytest.mark.parametrize(
    "fields", [{}, {"message": 1, "payload": [1]}, {"payload": [256]}, {"payload": "text"}, {"message": 1, "ttl": 0}]
)
def test_a_message_is_either_json_or_bytes(http: Http, queue: str, fields: dict[str, Any]) -> None:
    assert http.failure("queue.publish", queue=queue, **fields) == (400, "InvalidArgument")


def test_header_values_are_strings(http: Http, queue: str) -> None:
    assert http.failure("queue.publish", queue=queue, message=1, headers={"a": 1}) == (400, "InvalidArgument")


@pytest.mark.parametrize("how", ["closed", "reset"])
def test_a_waiting_consume_whose_client_has_gone_takes_no_message(
    http: Http, server: Serving, broker: LocalBroker, queue: str, how: str
) -> None:
    connection = http_connection(server)
    body = json.dumps({"command": "queue.consume", "payload": {"queue": queue, "timeout": 10}})
    connection.request("POST", "/api/v1/command", body)
    wait_until(lambda: watched(broker, queue))
    if how == "reset":
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    wait_until(lambda: not watched(broker, queue))
    http.command("queue.publish", queue=queue, message=1)
    assert http.command("queue.consume", queue=queue)["message"] == 1


def test_many_waits_on_few_connections_are_not_taken_for_clients_that_have_gone(
    http: Http, server: Serving, queue: str
) -> None:
    statuses: list[int] = []

    def consume() -> None:
        connection = http_connection(server)
        payload = {"queue": queue, "timeout": 10, "prefetch": 1000, "consumer_id": threading.current_thread().name}
        for _ in range(40):
            connection.request("POST", "/api/v1/command", json.dumps({"command": "queue.consume", "payload": payload}))
            response = connection.getresponse()
            response.read()
            statuses.append(response.status)
        connection.close()

    threads = [threading.Thread(target=consume) for _ in range(4)]
    for thread in threads:
        thread.start()
    for number in range(160):
        http.command("queue.publish", queue=queue, message=number)
    for thread in threads:
        thread.join()
    assert statuses == [200] * 160


def watched(broker: LocalBroker, queue: str) -> bool:
    """Whether somebody waits for messages of the queue."""
    return bool(broker._watches.of([f"queues/{queue}"]))


def test_a_waiting_consume_is_answered_when_the_server_shuts_down() -> None:
    answers: list[Any] = []
    broker = LocalBroker()
    with serving(broker) as server:
        http = Http(server.port)
        http.command("queue.create", name="tasks")
        waiting = threading.Thread(
            target=lambda: answers.append(http.command("queue.consume", queue="tasks", timeout=60))
        )
        waiting.start()
        wait_until(lambda: watched(broker, "tasks"))
        server.stop()
        waiting.join(30)
    assert answers[0]["message_id"] is None


def consume_later(http: Http, answers: list[Any], **fields: Any) -> threading.Thread:
    """A consume that waits; its answer goes to the end of `answers`."""
    waiting = threading.Thread(target=lambda: answers.append(http.try_command("queue.consume", timeout=60, **fields)))
    waiting.start()
    return waiting


def until_waiting(broker: LocalBroker, queue: str, count: int) -> None:
    """Until so many wait for messages of the queue."""

    def members() -> int:
        watches = broker._watches.of([f"queues/{queue}"])
        feed = watches[0]._callback._arrived.__self__ if watches else None  # type: ignore[attr-defined]  # a LoopSignal
        return feed.members if feed is not None else 0

    wait_until(lambda: members() == count)


def test_a_consumer_at_its_prefetch_leaves_the_messages_to_those_behind_it(
    http: Http, broker: LocalBroker, queue: str
) -> None:
    full: list[Any] = []
    free: list[Any] = []
    waiting = []
    for number in range(2):
        waiting.append(consume_later(http, full, queue=queue, consumer_id="a", prefetch=1))
        until_waiting(broker, queue, number + 1)
    waiting.append(consume_later(http, free, queue=queue, consumer_id="b", prefetch=1))
    until_waiting(broker, queue, 3)
    http.command("queue.publish_batch", queue=queue, messages=[{"message": 1}, {"message": 2}])
    waiting[-1].join(30)
    assert [answer.body["payload"]["message"] for answer in free] == [2]
    # an acknowledgement makes room, also for who stands aside
    wait_until(lambda: bool(full))
    http.command("queue.ack", queue=queue, message_id=full[0].body["payload"]["message_id"])
    http.command("queue.publish", queue=queue, message=3)
    for thread in waiting:
        thread.join(30)
    assert [answer.body["payload"]["message"] for answer in full] == [1, 3]


def test_a_consumer_at_its_prefetch_does_not_wait_for_a_queue_that_is_deleted(
    http: Http, broker: LocalBroker, queue: str
) -> None:
    answers: list[Any] = []
    waiting = []
    for number in range(2):
        waiting.append(consume_later(http, answers, queue=queue, consumer_id="a", prefetch=1))
        until_waiting(broker, queue, number + 1)
    http.command("queue.publish", queue=queue, message=1)
    wait_until(lambda: len(answers) == 1)
    http.command("queue.publish", queue=queue, message=2)
    http.command("queue.delete", queue=queue)
    for thread in waiting:
        thread.join(30)
    assert [answer.status for answer in answers] == [200, 404]


def test_a_server_starts_in_front_of_a_broker_that_has_queues_already() -> None:
    broker = LocalBroker()
    broker.create_queue("tasks", QueueConfig().settings())
    with serving(broker) as up:
        assert Http(up.port).command("queue.list") == {"queues": ["tasks"]}
