"""The door of claims: JSON in, Arrow out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import httpx
import pyarrow as pa
import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.engine.message import Draft
from heliograph.wire import arrow
from tests.spark.fakes import ServerThread

WHOSE = {"subscription": "s", "consumer": "job"}


@pytest.fixture(scope="module")
def door() -> Iterator[tuple[LocalBroker, httpx.Client]]:
    broker = LocalBroker(event_retention_ns=10**15)
    broker.create_topic("t")
    with ServerThread(broker) as server, httpx.Client(base_url=server.endpoint) as client:
        yield broker, client


@pytest.fixture
def client(door: tuple[LocalBroker, httpx.Client]) -> Iterator[httpx.Client]:
    broker, client = door
    broker.create_subscription("s", "t")
    broker.publish("t", [Draft(b"%d" % number, {"n": str(number)}) for number in range(25)])
    yield client
    broker.delete_subscription("s")


def post(client: httpx.Client, path: str, **request: Any) -> dict[str, Any]:
    answer = client.post(f"/api/v1/claims/{path}", json=WHOSE | request)
    assert answer.status_code == 200, answer.text
    return json.loads(answer.content)  # type: ignore[no-any-return]


def fetch(client: httpx.Client, number: int, columns: str = "") -> httpx.Response:
    return client.get(f"/api/v1/claims/fetch?{urlencode(WHOSE | {'claim': number, 'columns': columns})}")


def test_claims_are_taken_listed_read_extended_and_acknowledged(client: httpx.Client) -> None:
    taken = post(client, "claim", max_messages=22, messages_per_claim=10, ttl_seconds=600)["claims"]
    assert [(claim["number"], claim["messages"]) for claim in taken] == [(1, 10), (2, 10), (3, 2)]
    listed = client.get(f"/api/v1/claims?{urlencode(WHOSE)}").json()
    assert [claim["number"] for claim in listed["claims"]] == [1, 2, 3]
    assert (listed["ready"], listed["topic"]) == (3, "t")
    with pa.ipc.open_stream(fetch(client, 2).content) as stream:
        table = stream.read_all()
    assert table.schema == arrow.CLAIM_SCHEMA
    assert table.column("data").to_pylist() == [b"%d" % number for number in range(10, 20)]
    assert (table.column("claim").to_pylist(), table.column("delivery_attempt").to_pylist()) == ([2] * 10, [1] * 10)
    assert post(client, "extend", ttl_seconds=60) == {"messages": 22}
    assert post(client, "acknowledge", up_to=2) == {"messages": 20}
    assert post(client, "release") == {"messages": 2}


def test_columns_come_as_chosen(client: httpx.Client) -> None:
    post(client, "claim", max_messages=3)
    with pa.ipc.open_stream(fetch(client, 1, "delivery_attempt,message_id").content) as stream:
        assert stream.read_all().column_names == ["delivery_attempt", "message_id"]


def test_a_claim_that_is_gone_is_404_with_its_own_reason(client: httpx.Client) -> None:
    answer = fetch(client, 99)
    assert (answer.status_code, answer.json()["code"]) == (404, "ClaimNotFound")


@pytest.mark.parametrize(
    "request_",
    [
        {"max_messages": 0},
        {"max_messages": 1, "messages_per_claim": 10**6},
        {"max_messages": 1, "ttl_seconds": 0},
        {"max_messages": 1, "ttl_seconds": 10**7},
        {"max_messages": "many"},
        {"max_messages": 1, "consumer": ""},
    ],
)
def test_a_bad_request_is_refused(client: httpx.Client, request_: dict[str, Any]) -> None:
    answer = client.post("/api/v1/claims/claim", json=WHOSE | request_)
    assert (answer.status_code, answer.json()["code"]) == (400, "InvalidArgument")


def test_the_event_log_is_read_over_http(client: httpx.Client) -> None:
    before = client.get("/api/v1/events/bounds").json()["last"]
    post(client, "claim", max_messages=2)
    post(client, "acknowledge", up_to=1)
    query = f"first={before + 1}&columns=event,subscription,consumer,attempt"
    with pa.ipc.open_stream(client.get(f"/api/v1/events/read?{query}").content) as stream:
        rows = [tuple(row.values()) for row in stream.read_all().to_pylist()]
    assert rows == [("delivered", "s", "claims/job", 1)] * 2 + [("acknowledged", "s", None, 1)] * 2
    assert client.get("/api/v1/events/offset?time_ns=1").json()["position"] <= before
    assert client.get(f"/api/v1/events/read?last={10**9}").status_code == 400
