"""The REST forms of the work-queue door, and their description (queue-protocol.md)."""

from __future__ import annotations

import importlib.util
import itertools
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.server.app import Serving
from heliograph.server.queue_rest import OPERATIONS, PREFIX
from tests.server.clients import Answer, Http, wait_until

SECONDS_MAX = 300
CHECKS = "not_a_server_error,content_type_conformance,response_schema_conformance"

_numbers = itertools.count(1)


@pytest.fixture
def path(http: Http) -> str:
    path = f"/queue/rest-{next(_numbers)}"
    assert post(http, path, max_depth=100).status == 200
    return path


def post(http: Http, path: str, **body: Any) -> Answer:
    return http.request("POST", path, json.dumps(body).encode())


def test_a_message_goes_its_whole_way(http: Http, path: str) -> None:
    sent = post(http, f"{path}/publish", message={"n": 1}, priority=8)
    assert (sent.status, sent.body["position"]) == (200, 1)
    status, consumed = http.request("GET", f"{path}/consume/worker-1?timeout=0&ack_deadline=60")
    assert (status, consumed["message"], consumed["priority"]) == (200, {"n": 1}, 8)
    settled = {"message_id": consumed["message_id"], "lease_id": consumed["lease_id"]}
    assert post(http, f"{path}/nack", **settled) == (200, {"success": True, "action": "requeued"})
    consumed = http.request("GET", f"{path}/consume/worker-1").body
    assert consumed["retry_count"] == 1
    assert post(http, f"{path}/ack", message_id=consumed["message_id"]) == (200, {"success": True})
    assert http.request("GET", f"{path}/stats").body["acked_total"] == 1


def test_the_consumer_in_the_path_has_its_prefetch(http: Http, path: str) -> None:
    post(http, f"{path}/publish_batch", messages=[{"message": 1}, {"message": 2}])
    http.request("GET", f"{path}/consume/c?prefetch=1")
    assert http.request("GET", f"{path}/consume/c?prefetch=1").body["at_prefetch_limit"] is True
    assert http.request("GET", f"{path}/consume/d?prefetch=1").body["message"] == 2


def test_several_are_consumed_and_settled_at_once(http: Http, path: str) -> None:
    post(http, f"{path}/publish_batch", messages=[{"message": 1}, {"message": 2}])
    messages = http.request("GET", f"{path}/consume/c?max_messages=5").body["messages"]
    answer = post(http, f"{path}/ack", message_ids=[one["message_id"] for one in messages])
    assert [one["success"] for one in answer.body["results"]] == [True, True]


def test_queues_are_listed_peeked_at_purged_and_deleted(http: Http, path: str) -> None:
    name = path.removeprefix("/queue/")
    assert name in http.request("GET", "/queue/list").body["queues"]
    post(http, f"{path}/publish", message="x")
    assert [one["message"] for one in http.request("GET", f"{path}/peek?count=3").body["messages"]] == ["x"]
    assert post(http, f"{path}/purge") == (200, {"purged": 1, "ready": 1, "delayed": 0})
    assert http.request("DELETE", path) == (200, {"success": True})
    assert name not in http.request("GET", "/queue/list").body["queues"]


def test_dead_letters_are_listed_retried_and_purged(http: Http, path: str) -> None:
    post(http, f"{path}/publish", message="poison")
    message_id = http.request("GET", f"{path}/consume/c").body["message_id"]
    post(http, f"{path}/nack", message_id=message_id, requeue=False)
    letters = http.request("GET", f"{path}/dlq?limit=10").body
    assert [(one["message"], one["reason"]) for one in letters["messages"]] == [("poison", "ExplicitNack")]
    assert post(http, f"{path}/dlq/retry", message_id=message_id) == (200, {"retried": 1})
    assert post(http, f"{path}/dlq/purge") == (200, {"purged": 0})


def test_a_queues_name_may_need_escapes(http: Http) -> None:
    assert post(http, "/queue/b%C3%BCro%20%3F").status == 200
    assert "büro ?" in http.request("GET", "/queue/list").body["queues"]
    assert http.request("GET", "/queue/b%C3%BCro%20%3F/stats").body["queue"] == "büro ?"


def test_a_waiting_consume_is_ended_by_a_message(http: Http, broker: LocalBroker, path: str) -> None:
    answers: list[Answer] = []
    waiting = threading.Thread(target=lambda: answers.append(http.request("GET", f"{path}/consume/c?timeout=60")))
    waiting.start()
    wait_until(lambda: bool(broker._watches.of([path.replace("/queue/", "queues/")])))
    post(http, f"{path}/publish", message="here")
    waiting.join(30)
    assert answers[0].body["message"] == "here"


@pytest.mark.parametrize(
    ("method", "rest", "body", "expected"),
    [
        ("GET", "/missing/stats", None, (404, "QueueNotFound")),
        ("GET", "/{queue}/consume/c?timeout=soon", None, (400, "InvalidArgument")),
        ("GET", "/{queue}/consume/c?prefetch=1001", None, (400, "InvalidArgument")),
        ("GET", "/{queue}/consume", None, (404, "NotFound")),
        ("GET", "/{queue}/publish", None, (405, "MethodNotAllowed")),
        ("GET", "/", None, (405, "MethodNotAllowed")),
        ("POST", "/{queue}/fly", b"{}", (404, "NotFound")),
        ("POST", "/{queue}/publish", b"{", (400, "InvalidArgument")),
        ("POST", "/{queue}/publish", b"[]", (400, "InvalidArgument")),
        ("POST", "/{queue}/publish", b'{"message": ' + b"[" * 5_000 + b"]" * 5_000 + b"}", (400, "InvalidArgument")),
        ("POST", "/{queue}/publish", b'{"message": "\xff"}', (400, "InvalidArgument")),
        ("POST", "/{queue}/publish", b"\xff", (400, "InvalidArgument")),
        ("POST", "/{queue}/publish", b"", (400, "InvalidArgument")),
        ("POST", "/{queue}/publish", b'{"message": 1, "priority": 10}', (400, "InvalidPriority")),
        ("POST", "/{queue}/ack", b'{"message_id": "7"}', (404, "MessageNotFound")),
        ("POST", "/{queue}", b'{"max_depth": 5}', (409, "QueueExists")),
    ],
)
def test_failures_come_in_the_envelope(
    http: Http, path: str, method: str, rest: str, body: bytes | None, expected: tuple[int, str]
) -> None:
    answer = http.request(method, "/queue" + rest.replace("{queue}", path.removeprefix("/queue/")), body)
    assert (answer.status, answer.body["code"]) == expected
    assert (answer.body["success"], answer.body["payload"]) == (False, None)


def test_the_name_in_the_path_counts_and_not_one_in_the_body(http: Http, path: str) -> None:
    assert post(http, f"{path}/publish", message=1, queue="missing").status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_of_anyone_cannot_have_messages_fetched(http: Http, path: str, site: str) -> None:
    answer = http.request("GET", f"{path}/consume/c", headers={"Sec-Fetch-Site": site})
    assert (answer.status, answer.body["code"]) == (403, "ForeignOrigin")
    assert http.request("GET", f"{path}/consume/c", headers={"Sec-Fetch-Site": "same-origin"}).status == 200


# ── the description ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_description_has_every_path_and_what_it_takes(http: Http) -> None:
    document = http.request("GET", "/openapi.json").body
    described = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert described == {(op.method, PREFIX + op.path) for op in OPERATIONS} | {("POST", "/api/v1/command")}
    publish = document["paths"]["/queue/{queue}/publish"]["post"]
    properties = publish["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert set(properties) >= {"message", "payload", "priority", "ttl", "delay", "headers", "max_retries", "dedup_id"}
    consume = document["paths"]["/queue/{queue}/consume/{consumer}"]["get"]
    assert {parameter["name"] for parameter in consume["parameters"]} == {
        "queue",
        "consumer",
        "timeout",
        "ack_deadline",
        "prefetch",
        "max_messages",
    }


def test_every_reference_of_the_description_leads_somewhere(http: Http) -> None:
    document = http.request("GET", "/openapi.json").body
    text = json.dumps(document)
    wanted = {part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]}
    assert wanted <= set(document["components"]["schemas"])


def test_every_answer_has_the_described_form(http: Http, path: str) -> None:
    queue = path.removeprefix("/queue/")
    post(http, f"{path}/publish_batch", messages=[{"message": 1}] * 4)
    consumed = [http.request("GET", f"{path}/consume/c").body["message_id"] for _ in range(3)]
    bodies: dict[str, Any] = {
        "queue.create": {"max_depth": 100},
        "queue.publish": {"message": 1},
        "queue.publish_batch": {"messages": [{"message": 1}]},
        "queue.ack": {"message_id": consumed[0]},
        "queue.extend": {"message_id": consumed[1]},
        "queue.nack": {"message_id": consumed[2], "requeue": False},
    }
    order = sorted(OPERATIONS, key=lambda op: (op.command == "queue.delete", "purge" in op.command))
    for operation in order:
        url = PREFIX + operation.path.replace("{queue}", queue).replace("{consumer}", "c")
        body = json.dumps(bodies.get(operation.command, {})).encode() if operation.method == "POST" else None
        answer = http.request(operation.method, url, body)
        assert answer.status == 200, (operation.command, answer)
        assert any(_fits(answer.body, kind) for kind in operation.answers), (operation.command, answer.body)


def _fits(body: Any, kind: type[msgspec.Struct]) -> bool:
    try:
        msgspec.convert(body, kind)
    except msgspec.ValidationError:
        return False
    return set(body) <= {field.name for field in msgspec.structs.fields(kind)}


@pytest.mark.slow
@pytest.mark.timeout(2 * SECONDS_MAX)
@pytest.mark.skipif(not importlib.util.find_spec("schemathesis"), reason="schemathesis is not installed")
def test_nothing_that_schemathesis_makes_of_the_description_is_a_server_error(server: Serving, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{server.port}/openapi.json"
    command = (sys.executable, "-m", "schemathesis.cli", "run", url, "--checks", CHECKS, "--max-examples", "10")
    options = ("--phases", "coverage,fuzzing", "--seed", "1", "--request-timeout", "20", "--warnings", "off")
    # it would wait for messages, up to an hour
    without = ("--exclude-path", "/queue/{queue}/consume/{consumer}")
    ran = subprocess.run(
        [*command, *options, *without, "--no-color"], cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS_MAX
    )
    assert ran.returncode == 0, ran.stdout
    assert Http(server.port).request("GET", "/healthz").status == 200
