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
from tests.server.clients import Answer, Http, wait_until
from tests.server.conftest import Timed, serving

_numbers = itertools.count(1)


@pytest.fixture
def queue(http: Http) -> str:
    name = f"tasks-{next(_numbers)}"
    http.command("queue.create", name=name)
    return name


def raw(http: Http, body: bytes) -> Answer:
    return http.request("POST", "/api/v1/command", body)


# ── the envelope ────────────────────────────────────────────────────────────────────────────────────────────────────


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


def http_connection(server: Serving) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)


# ── queues ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_creating_again_with_equal_settings_changes_nothing_and_with_others_fails(http: Http) -> None:
    http.command("queue.create", name="twice", max_depth=5)
    http.command("queue.publish", queue="twice", message=1)
    http.command("queue.create", name="twice", max_depth=5)
    assert http.command("queue.stats", queue="twice")["depth"] == 1
    assert http.failure("queue.create", name="twice", max_depth=6) == (409, "QueueExists")


def test_the_configuration_may_be_flat_or_under_config(http: Http) -> None:
    http.command("queue.create", name="forms", max_depth=5, prefetch=3, retry_delays=[1, 2])
    http.command("queue.create", name="forms", config={"max_depth": 5, "prefetch": 3, "retry_delays": [1, 2]})


@pytest.mark.parametrize(
    "config",
    [
        {"max_depth": 0},
        {"ack_deadline_secs": 0},
        {"ack_deadline_secs": 601},
        {"default_max_retries": -1},
        {"prefetch": 1001},
        {"prefetch": 0},
        {"ttl": 0},
        {"retry_policy": {"minimum_backoff": 5, "maximum_backoff": 1}},
        {"retry_policy": {"minimum_backoff": 5}, "retry_delays": [1]},
        {"retry_delays": [-1]},
        {"max_depth": "many"},
    ],
)
def test_a_configuration_out_of_bounds_is_invalid(http: Http, config: dict[str, Any]) -> None:
    assert http.failure("queue.create", name="never", **config) == (400, "InvalidArgument")


@pytest.mark.parametrize("name", ["", " a", "a/b", "a\nb", "x" * 256])
def test_a_queues_name_has_no_slash_and_at_most_255_characters(http: Http, name: str) -> None:
    assert http.failure("queue.create", name=name) == (400, "InvalidArgument")


def test_queues_are_listed_by_name_and_topics_are_not(http: Http, queue: str, topic: str) -> None:
    queues = http.command("queue.list")["queues"]
    assert queue in queues
    assert not any("projects/" in name for name in queues)


def test_a_deleted_queue_is_gone(http: Http, queue: str) -> None:
    http.command("queue.delete", queue=queue)
    for command in ("queue.delete", "queue.stats", "queue.consume", "queue.purge", "queue.peek", "dlq.list"):
        assert http.failure(command, queue=queue) == (404, "QueueNotFound")
    assert http.failure("queue.publish", queue=queue, message=1) == (404, "QueueNotFound")
    assert http.failure("queue.ack", queue=queue, message_id="1") == (404, "QueueNotFound")


def test_the_pubsub_door_cannot_reach_a_queue_nor_the_queue_door_a_topic(http: Http, topic: str) -> None:
    assert http.failure("queue.publish", queue=topic, message=1) == (404, "QueueNotFound")


# ── publishing ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("message", [{"a": [1, 2.5, None]}, "text", 7, None, [], "ä", 12345678901234567890, True])
def test_any_json_comes_back_as_it_was_published(http: Http, queue: str, message: Any) -> None:
    http.command("queue.publish", queue=queue, message=message)
    consumed = http.command("queue.consume", queue=queue)
    assert consumed["message"] == message
    assert consumed["message_id"] is not None


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


@pytest.mark.parametrize("priority", [-1, 10, 100])
def test_a_priority_outside_0_to_9_is_refused_and_never_clamped(http: Http, queue: str, priority: int) -> None:
    assert http.failure("queue.publish", queue=queue, message=1, priority=priority) == (400, "InvalidPriority")


@pytest.mark.parametrize("priority", [-1, 10])
def test_a_default_priority_outside_0_to_9_is_refused_and_leaves_no_trace(http: Http, priority: int) -> None:
    refused = http.failure("queue.create", name="never-made", default_priority=priority)
    assert refused == (400, "InvalidPriority")
    http.command("queue.create", name="never-made", default_priority=9)
    http.command("queue.delete", queue="never-made")


def test_header_values_are_strings(http: Http, queue: str) -> None:
    assert http.failure("queue.publish", queue=queue, message=1, headers={"a": 1}) == (400, "InvalidArgument")


def test_higher_priorities_come_first_and_equal_ones_in_order(http: Http, queue: str) -> None:
    for number, priority in enumerate([5, 1, 9, 5, 9]):
        http.command("queue.publish", queue=queue, message=number, priority=priority)
    consumed = [http.command("queue.consume", queue=queue)["message"] for _ in range(5)]
    assert consumed == [2, 4, 0, 3, 1]


def test_the_priority_is_5_unless_the_queue_says_otherwise(http: Http, queue: str) -> None:
    http.command("queue.create", name="urgent", default_priority=8)
    for name, priority in ((queue, 5), ("urgent", 8)):
        http.command("queue.publish", queue=name, message=1)
        http.command("queue.publish", queue=name, payload=[1])
        assert [http.command("queue.consume", queue=name)["priority"] for _ in range(2)] == [priority] * 2


def test_position_counts_ready_messages_of_equal_or_higher_priority(http: Http, queue: str) -> None:
    positions = [
        http.command("queue.publish", queue=queue, message=1, priority=priority)["position"]
        for priority in (5, 5, 9, 1)
    ]
    assert positions == [1, 2, 1, 4]


def test_a_batch_is_published_whole_or_not_at_all(http: Http, queue: str) -> None:
    ids = http.command("queue.publish_batch", queue=queue, messages=[{"message": 1}, {"payload": [2], "priority": 9}])
    assert len(ids["message_ids"]) == 2
    bad = [{"message": 1}, {"message": 1, "priority": 10}]
    assert http.failure("queue.publish_batch", queue=queue, messages=bad) == (400, "InvalidPriority")
    assert http.command("queue.stats", queue=queue)["depth"] == 2


def test_a_full_queue_refuses_with_507(http: Http) -> None:
    http.command("queue.create", name="small", max_depth=2)
    for _ in range(2):
        http.command("queue.publish", queue="small", message=1)
    answer = http.try_command("queue.publish", queue="small", message=1)
    assert (answer.status, answer.body["code"]) == (507, "QueueFull")
    assert answer.body["error"] == "Queue full: small holds its 2 messages"


def test_a_dedup_id_is_one_message_for_ten_minutes_and_answers_the_first_id(timed: Timed) -> None:
    http = timed.http
    http.command("queue.create", name="once")
    first = http.command("queue.publish", queue="once", message=1, dedup_id="order-1")["message_id"]
    consumed = http.command("queue.consume", queue="once")
    http.command("queue.ack", queue="once", message_id=consumed["message_id"])
    timed.clock.advance(599)
    batch = [{"message": 2, "dedup_id": "order-1"}, {"message": 3, "dedup_id": "b"}, {"message": 4, "dedup_id": "b"}]
    again, new, twice = http.command("queue.publish_batch", queue="once", messages=batch)["message_ids"]
    assert (again, new) == (first, twice)
    assert http.command("queue.stats", queue="once")["depth"] == 1
    timed.clock.advance(2)
    later = http.command("queue.publish", queue="once", message=5, dedup_id="order-1")["message_id"]
    assert later not in (first, new)


@pytest.mark.parametrize("dedup_id", ["", "x" * 1025, 7])
def test_a_dedup_id_has_1_to_1024_bytes(http: Http, queue: str, dedup_id: Any) -> None:
    assert http.failure("queue.publish", queue=queue, message=1, dedup_id=dedup_id) == (400, "InvalidArgument")


# ── consuming ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_ready_is_null_and_no_limit(http: Http, queue: str) -> None:
    answer = http.command("queue.consume", queue=queue)
    assert answer == {"message_id": None, "message": None, "at_prefetch_limit": False}


def test_a_delivery_has_every_field(http: Http, queue: str) -> None:
    sent = http.command("queue.publish", queue=queue, message={"n": 1}, priority=8, headers={"source": "web"})
    consumed = http.command("queue.consume", queue=queue)
    assert consumed.pop("lease_id")
    assert consumed == {
        "message_id": sent["message_id"],
        "message": {"n": 1},
        "priority": 8,
        "retry_count": 0,
        "headers": {"source": "web"},
        "at_prefetch_limit": False,
    }


def test_several_at_once_come_as_a_list(http: Http, queue: str) -> None:
    for number in range(3):
        http.command("queue.publish", queue=queue, message=number)
    answer = http.command("queue.consume", queue=queue, max_messages=5)
    assert [one["message"] for one in answer["messages"]] == [0, 1, 2]
    assert http.command("queue.consume", queue=queue, max_messages=5)["messages"] == []


def test_a_waiting_consume_gets_the_message_when_it_comes(http: Http, queue: str) -> None:
    answers: list[Any] = []
    waiting = threading.Thread(
        target=lambda: answers.append(http.command("queue.consume", queue=queue, timeout=10, consumer_id="c"))
    )
    waiting.start()
    http.command("queue.publish", queue=queue, message="here")
    waiting.join(10)
    assert answers[0]["message"] == "here"


def test_a_consume_waits_no_longer_than_its_timeout(http: Http, queue: str) -> None:
    assert http.command("queue.consume", queue=queue, timeout=0.05)["message_id"] is None


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
            target=lambda: answers.append(http.command("queue.consume", queue="tasks", timeout=30))
        )
        waiting.start()
        wait_until(lambda: watched(broker, "tasks"))
        server.stop()
        waiting.join(10)
    assert answers[0]["message_id"] is None


def test_prefetch_bounds_what_a_consumer_holds_and_says_so(http: Http, queue: str) -> None:
    for number in range(3):
        http.command("queue.publish", queue=queue, message=number)
    first = http.command("queue.consume", queue=queue, consumer_id="c", prefetch=2)
    http.command("queue.consume", queue=queue, consumer_id="c", prefetch=2)
    answer = http.command("queue.consume", queue=queue, consumer_id="c", prefetch=2)
    assert answer == {"message_id": None, "message": None, "at_prefetch_limit": True}
    assert http.command("queue.consume", queue=queue, consumer_id="d")["message"] == 2
    http.command("queue.ack", queue=queue, message_id=first["message_id"])
    answer = http.command("queue.consume", queue=queue, consumer_id="c", prefetch=2)
    assert answer["at_prefetch_limit"] is False


def consume_later(http: Http, answers: list[Any], **fields: Any) -> threading.Thread:
    """A consume that waits; its answer goes to the end of `answers`."""
    waiting = threading.Thread(target=lambda: answers.append(http.try_command("queue.consume", timeout=8, **fields)))
    waiting.start()
    return waiting


def until_waiting(broker: LocalBroker, queue: str, count: int) -> None:
    """Until so many wait for messages of the queue."""

    def members() -> int:
        watches = broker._watches.of([f"queues/{queue}"])
        feed = watches[0]._callback.__self__ if watches else None  # type: ignore[attr-defined]  # a bound method
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
    waiting[-1].join(4)
    assert [answer.body["payload"]["message"] for answer in free] == [2]
    # an acknowledgement makes room, also for who stands aside
    wait_until(lambda: bool(full))
    http.command("queue.ack", queue=queue, message_id=full[0].body["payload"]["message_id"])
    http.command("queue.publish", queue=queue, message=3)
    for thread in waiting:
        thread.join(4)
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
        thread.join(4)
    assert [answer.status for answer in answers] == [200, 404]


def test_prefetch_is_10_unless_the_queue_or_the_call_says_otherwise(http: Http, queue: str) -> None:
    http.command("queue.create", name="narrow", prefetch=4)
    for name, prefetch in ((queue, 10), ("narrow", 4)):
        http.command("queue.publish_batch", queue=name, messages=[{"message": 1}] * 20)
        held = http.command("queue.consume", queue=name, consumer_id="c", max_messages=20)["messages"]
        assert len(held) == prefetch
        more = http.command("queue.consume", queue=name, consumer_id="c", max_messages=20, prefetch=15)["messages"]
        assert len(held) + len(more) == 15


@pytest.mark.parametrize(
    "fields", [{"prefetch": 1001}, {"ack_deadline": 0}, {"ack_deadline": 601}, {"timeout": -1}, {"max_messages": 0}]
)
def test_a_consume_out_of_bounds_is_invalid(http: Http, queue: str, fields: dict[str, Any]) -> None:
    assert http.failure("queue.consume", queue=queue, **fields) == (400, "InvalidArgument")


# ── settling ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_acknowledged_message_is_done(timed: Timed) -> None:
    timed.http.command("queue.create", name="tasks")
    timed.http.command("queue.publish", queue="tasks", message=1)
    consumed = timed.http.command("queue.consume", queue="tasks")
    assert timed.http.command("queue.ack", queue="tasks", message_id=consumed["message_id"]) == {"success": True}
    timed.clock.advance(1000)
    assert timed.http.command("queue.consume", queue="tasks")["message_id"] is None


def test_an_expired_lease_brings_the_message_back_and_counts_a_retry(timed: Timed) -> None:
    timed.http.command("queue.create", name="tasks")
    timed.http.command("queue.publish", queue="tasks", message=1, priority=3)
    timed.http.command("queue.consume", queue="tasks", ack_deadline=5)
    timed.clock.advance(4.9)
    assert timed.http.command("queue.consume", queue="tasks")["message_id"] is None
    timed.clock.advance(0.2)
    again = timed.http.command("queue.consume", queue="tasks")
    assert (again["message"], again["retry_count"], again["priority"]) == (1, 1, 3)


def test_a_lease_is_30_seconds_unless_said_otherwise(timed: Timed) -> None:
    timed.http.command("queue.create", name="tasks")
    timed.http.command("queue.publish", queue="tasks", message=1)
    timed.http.command("queue.consume", queue="tasks")
    timed.clock.advance(29.9)
    assert timed.http.command("queue.consume", queue="tasks")["message_id"] is None
    timed.clock.advance(0.2)
    assert timed.http.command("queue.consume", queue="tasks")["message"] == 1


def test_settling_with_a_lease_that_is_not_current_leaves_the_present_holder_alone(timed: Timed) -> None:
    timed.http.command("queue.create", name="tasks")
    timed.http.command("queue.publish", queue="tasks", message=1)
    late = timed.http.command("queue.consume", queue="tasks", ack_deadline=5)
    timed.clock.advance(6)
    present = timed.http.command("queue.consume", queue="tasks")
    fields = {"queue": "tasks", "message_id": late["message_id"], "lease_id": late["lease_id"]}
    for command in ("queue.ack", "queue.nack", "queue.extend"):
        assert timed.http.failure(command, **fields) == (409, "AckDeadlineExceeded")
    fields["lease_id"] = present["lease_id"]
    assert timed.http.command("queue.ack", **fields) == {"success": True}


@pytest.mark.parametrize("command", ["queue.ack", "queue.nack", "queue.extend"])
def test_settling_what_nobody_holds_is_message_not_found(http: Http, queue: str, command: str) -> None:
    sent = http.command("queue.publish", queue=queue, message=1)
    for message_id in (sent["message_id"], "7", "garbage"):
        assert http.failure(command, queue=queue, message_id=message_id) == (404, "MessageNotFound")


def test_several_are_settled_item_by_item(http: Http, queue: str) -> None:
    http.command("queue.publish_batch", queue=queue, messages=[{"message": 1}, {"message": 2}])
    consumed = http.command("queue.consume", queue=queue, max_messages=2)["messages"]
    ids = [consumed[0]["message_id"], "7", consumed[1]["message_id"]]
    results = http.command("queue.ack", queue=queue, message_ids=ids)["results"]
    assert [(one["message_id"], one["success"]) for one in results] == list(zip(ids, [True, False, True], strict=True))
    assert results[1]["code"] == "MessageNotFound"
    assert http.command("queue.stats", queue=queue)["acked_total"] == 2


def test_a_nack_requeues_until_the_retries_are_spent(http: Http) -> None:
    http.command("queue.create", name="retried", default_max_retries=3)
    http.command("queue.publish", queue="retried", message="poison", headers={"a": "b"}, priority=2)
    seen = []
    for _ in range(4):
        consumed = http.command("queue.consume", queue="retried")
        answer = http.command("queue.nack", queue="retried", message_id=consumed["message_id"])
        seen.append((consumed["retry_count"], answer["action"]))
    assert seen == [(0, "requeued"), (1, "requeued"), (2, "requeued"), (3, "dead_lettered")]
    letters = http.command("dlq.list", queue="retried")
    (letter,) = letters["messages"]
    assert letters["total"] == 1
    assert letter.pop("dead_lettered_at") > 1_700_000_000
    assert letter == {
        "message_id": consumed["message_id"],
        "message": "poison",
        "headers": {"a": "b"},
        "priority": 2,
        "retry_count": 3,
        "reason": "MaxRetriesExceeded",
        "original_queue": "retried",
    }


def test_a_message_may_have_its_own_retries(http: Http, queue: str) -> None:
    http.command("queue.publish", queue=queue, message=1, max_retries=0)
    consumed = http.command("queue.consume", queue=queue)
    assert http.command("queue.nack", queue=queue, message_id=consumed["message_id"])["action"] == "dead_lettered"


def test_a_nack_without_requeue_is_a_dead_letter_at_once(http: Http, queue: str) -> None:
    http.command("queue.publish", queue=queue, message=1)
    consumed = http.command("queue.consume", queue=queue)
    answer = http.command("queue.nack", queue=queue, message_id=consumed["message_id"], requeue=False)
    assert answer == {"success": True, "action": "dead_lettered"}
    assert http.command("dlq.list", queue=queue)["messages"][0]["reason"] == "ExplicitNack"
    stats = http.command("queue.stats", queue=queue)
    assert (stats["nacked_total"], stats["dead_lettered_total"]) == (1, 1)


def test_a_nack_waits_its_backoff(timed: Timed) -> None:
    timed.http.command("queue.create", name="tasks", retry_delays=[10, 60])
    timed.http.command("queue.publish", queue="tasks", message=1)
    for delay in (10, 60, 60):
        consumed = timed.http.command("queue.consume", queue="tasks")
        timed.http.command("queue.nack", queue="tasks", message_id=consumed["message_id"])
        timed.clock.advance(delay - 1)
        assert timed.http.command("queue.consume", queue="tasks")["message_id"] is None
        timed.clock.advance(2)
    assert timed.http.command("queue.consume", queue="tasks")["retry_count"] == 3


def test_a_retry_policy_doubles(timed: Timed) -> None:
    timed.http.command("queue.create", name="tasks", retry_policy={"minimum_backoff": 2, "maximum_backoff": 5})
    timed.http.command("queue.publish", queue="tasks", message=1)
    for delay in (2, 4, 5):
        consumed = timed.http.command("queue.consume", queue="tasks")
        timed.http.command("queue.nack", queue="tasks", message_id=consumed["message_id"])
        timed.clock.advance(delay - 0.1)
        assert timed.http.command("queue.consume", queue="tasks")["message_id"] is None
        timed.clock.advance(0.2)


def test_extending_counts_from_now(timed: Timed) -> None:
    timed.http.command("queue.create", name="tasks")
    timed.http.command("queue.publish", queue="tasks", message=1)
    consumed = timed.http.command("queue.consume", queue="tasks", ack_deadline=5)
    timed.clock.advance(4)
    fields = {"message_id": consumed["message_id"], "lease_id": consumed["lease_id"]}
    assert timed.http.command("queue.extend", queue="tasks", ack_deadline=10, **fields) == {"success": True}
    timed.clock.advance(9)
    assert timed.http.command("queue.consume", queue="tasks")["message_id"] is None


def test_extending_by_next_to_nothing_is_no_nack(timed: Timed) -> None:
    timed.http.command("queue.create", name="tasks")
    timed.http.command("queue.publish", queue="tasks", message=1)
    consumed = timed.http.command("queue.consume", queue="tasks")
    timed.http.command("queue.extend", queue="tasks", ack_deadline=1e-12, message_id=consumed["message_id"])
    timed.clock.advance(1)
    stats = timed.http.command("queue.stats", queue="tasks")
    assert (stats["nacked_total"], stats["expired_total"]) == (0, 1)


def test_a_delayed_message_waits_and_an_expired_one_is_a_dead_letter(timed: Timed) -> None:
    timed.http.command("queue.create", name="tasks")
    timed.http.command("queue.publish", queue="tasks", message="later", delay=10)
    timed.http.command("queue.publish", queue="tasks", message="soon gone", ttl=5)
    assert timed.http.command("queue.stats", queue="tasks")["delayed"] == 1
    timed.clock.advance(6)
    assert timed.http.command("queue.consume", queue="tasks")["message_id"] is None
    assert timed.http.command("dlq.list", queue="tasks")["messages"][0]["reason"] == "TTLExpired"
    timed.clock.advance(5)
    assert timed.http.command("queue.consume", queue="tasks")["message"] == "later"


# ── looking, purging, dead letters ──────────────────────────────────────────────────────────────────────────────────


def test_stats_count_everything(timed: Timed) -> None:
    http = timed.http
    http.command("queue.create", name="tasks")
    for priority in (9, 9, 1):
        http.command("queue.publish", queue="tasks", message=1, priority=priority)
    timed.clock.advance(2)
    consumed = http.command("queue.consume", queue="tasks", consumer_id="c")
    stats = http.command("queue.stats", queue="tasks")
    assert stats["avg_wait_time_ms"] == 2000
    assert stats["oldest_message_age_secs"] == 2
    expected = {"depth": 2, "consumers": 1, "published_total": 3, "consumed_total": 1, "outstanding": 1}
    assert {name: stats[name] for name in expected} == expected
    assert stats["depth_by_priority"] == {"9": 1, "1": 1}
    http.command("queue.nack", queue="tasks", message_id=consumed["message_id"])
    http.command("queue.consume", queue="tasks")
    stats = http.command("queue.stats", queue="tasks")
    expected = {"consumed_total": 2, "nacked_total": 1, "redelivered_total": 1, "expired_total": 0, "consumers": 0}
    assert {name: stats[name] for name in expected} == expected


def test_peek_shows_what_is_next_and_takes_nothing(http: Http, queue: str) -> None:
    http.command("queue.publish", queue=queue, message="low", priority=1)
    http.command("queue.publish", queue=queue, message="high", priority=9)
    for _ in range(2):
        messages = http.command("queue.peek", queue=queue, count=5)["messages"]
        assert [one["message"] for one in messages] == ["high", "low"]


def test_purge_takes_ready_and_delayed_messages_and_no_leased_ones(http: Http, queue: str) -> None:
    for fields in ({}, {}, {"delay": 100}):
        http.command("queue.publish", queue=queue, message=1, **fields)
    leased = http.command("queue.consume", queue=queue)
    assert http.command("queue.purge", queue=queue) == {"purged": 2, "ready": 1, "delayed": 1}
    assert http.command("queue.ack", queue=queue, message_id=leased["message_id"]) == {"success": True}


def test_dead_letters_are_listed_in_parts_retried_and_purged(http: Http, queue: str) -> None:
    ids = []
    for number in range(3):
        http.command("queue.publish", queue=queue, message=number)
        ids.append(http.command("queue.consume", queue=queue)["message_id"])
        http.command("queue.nack", queue=queue, message_id=ids[-1], requeue=False)
    part = http.command("dlq.list", queue=queue, offset=1, limit=1)
    assert ([one["message"] for one in part["messages"]], part["total"]) == ([1], 3)
    assert http.command("dlq.retry", queue=queue, message_id=ids[1]) == {"retried": 1}
    again = http.command("queue.consume", queue=queue)
    assert (again["message"], again["retry_count"]) == (1, 0)
    assert http.failure("dlq.retry", queue=queue, message_id="7") == (404, "MessageNotFound")
    assert http.command("dlq.purge", queue=queue) == {"purged": 2}
    assert http.command("dlq.list", queue=queue) == {"messages": [], "total": 0}
