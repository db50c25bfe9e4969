"""`heliograph.testing.Server`, as applications use it in their tests: with the official client in front of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.api_core import exceptions
from google.cloud import pubsub_v1

from heliograph import SimulatedClock
from heliograph.broker.staged_part import StagedPart
from heliograph.engine.message import Draft
from heliograph.errors import InvalidArgument
from heliograph.testing import Server
from heliograph.testing.pytest_plugin import heliograph_server as heliograph_server  # the fixture
from tests.server.clients import Http, Rpc

ROOT = Path(__file__).parents[2]
TOPIC = "projects/p/topics/orders"
SUBSCRIPTION = "projects/p/subscriptions/billing"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(clock=SimulatedClock(), admin=True) as server:
        yield server


@pytest.fixture
def rpc(server: Server) -> Iterator[Rpc]:
    with Rpc(server.port) as rpc:
        rpc.create_topic(TOPIC)
        rpc.create_subscription(SUBSCRIPTION, TOPIC)
        yield rpc


@pytest.fixture
def http(server: Server) -> Http:
    return Http(server.port)


def post(http: Http, path: str, body: str = "{}") -> Any:
    return http.request("POST", path, body.encode())


# ── the server ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_official_client_uses_it_through_the_environment() -> None:
    with Server() as server, server.emulating():
        publisher, subscriber = pubsub_v1.PublisherClient(), pubsub_v1.SubscriberClient()
        with subscriber:
            publisher.create_topic(name=TOPIC)
            subscriber.create_subscription(name=SUBSCRIPTION, topic=TOPIC)
            published = publisher.publish(TOPIC, b"x", colour="red").result(30)
            (received,) = subscriber.pull(subscription=SUBSCRIPTION, max_messages=1).received_messages
            subscriber.acknowledge(subscription=SUBSCRIPTION, ack_ids=[received.ack_id])
        publisher.stop()
        publisher.transport.close()
    (message,) = server.messages(TOPIC)
    assert (message.message_id, message.data, message.attributes) == (published, b"x", {"colour": "red"})
    assert (message.deliveries, message.acknowledgements) == (1, 1)
    assert os.environ.get("PUBSUB_EMULATOR_HOST") != server.endpoint


def test_it_is_up_in_less_than_a_second_with_its_process() -> None:
    """Loading the libraries included, in CPU time: how long a busy machine takes is no matter of the server. The best
    of several: who shares a core makes it slower too."""
    code = (
        "import sys, time; from heliograph.testing import Server\n"
        "with Server() as server: print(server.endpoint, time.process_time(), 'pandas' in sys.modules)"
    )
    best = 9.0
    for _ in range(5):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        endpoint, seconds, pandas = done.stdout.split()
        assert endpoint.startswith("127.0.0.1:")
        assert pandas == "False"  # Arrow loads it at the first chance
        best = min(best, float(seconds))
        if best < 1:
            break
    assert best < 1


def test_many_at_once_do_not_clash() -> None:
    with ThreadPoolExecutor(8) as pool:
        servers = list(pool.map(lambda _: Server().start(), range(8)))
        assert len({server.port for server in servers}) == 8
        assert {Http(server.port).request("GET", "/healthz").status for server in servers} == {200}
        list(pool.map(Server.stop, servers))


def test_with_a_data_directory_the_next_goes_on_from_there(tmp_path: Path) -> None:
    with Server(data_dir=tmp_path) as server, Rpc(server.port) as rpc:
        rpc.create_topic(TOPIC)
        rpc.create_subscription(SUBSCRIPTION, TOPIC)
        rpc.publish(TOPIC, b"before")
    with Server(data_dir=tmp_path) as server, Rpc(server.port) as rpc:
        rpc.publish(TOPIC, b"after")
        assert [one.message.data for one in rpc.pull(SUBSCRIPTION)] == [b"before", b"after"]
        assert [(one.data, one.deliveries) for one in server.messages()] == [(b"after", 1)]


def test_what_keeps_it_from_starting_is_raised_and_not_hidden(server: Server) -> None:
    with pytest.raises(OSError, match="in use"), Server(port=server.port):
        pass


def test_used_outside_its_block_it_says_what_is_missing() -> None:
    with pytest.raises(RuntimeError, match="with"):
        Server().endpoint  # noqa: B018
    server = Server()
    with server, pytest.raises(RuntimeError, match="once"):
        server.start()
    server.stop()


def test_the_fixture_sets_the_environment(heliograph_server: Server) -> None:
    assert os.environ["PUBSUB_EMULATOR_HOST"] == heliograph_server.endpoint
    assert Http(heliograph_server.port).request("GET", "/healthz").status == 200


def test_pytest_finds_the_fixture_where_heliograph_is_installed() -> None:
    entries = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    assert entries == {"heliograph": heliograph_server.__module__}


# ── time ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_time_stands_until_it_is_moved_on(server: Server, rpc: Rpc) -> None:
    rpc.publish(TOPIC, b"x")
    (first,) = rpc.pull(SUBSCRIPTION)
    server.advance(9.9)
    assert rpc.pull(SUBSCRIPTION) == []
    server.advance(0.1)
    (second,) = rpc.pull(SUBSCRIPTION)
    assert first.message.message_id == second.message.message_id
    (message,) = server.messages(TOPIC)
    assert message.subscriptions[SUBSCRIPTION].expirations == 1


def test_an_open_stream_notices_that_time_was_moved_on(server: Server, rpc: Rpc) -> None:
    rpc.publish(TOPIC, b"x")
    with rpc.stream(SUBSCRIPTION) as stream:
        (first,) = stream.messages(1)
        server.advance(10)
        (second,) = stream.messages(1)
    assert first.message.message_id == second.message.message_id


def test_by_default_time_goes_on_and_can_be_moved_on_as_well() -> None:
    with Server() as server, Rpc(server.port) as rpc:
        before_ns = server.broker.now_ns()
        rpc.create_topic(TOPIC)
        rpc.create_subscription(SUBSCRIPTION, TOPIC)
        rpc.publish(TOPIC, b"x")
        assert len(rpc.pull(SUBSCRIPTION)) == 1
        server.advance(3600)
        assert len(rpc.pull(SUBSCRIPTION)) == 1
        assert 3600e9 < server.broker.now_ns() - before_ns < 3700e9
        with pytest.raises(ValueError, match="back"):
            server.advance(-1)


# ── calls that fail ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_method_fails_as_often_as_ordered(server: Server, rpc: Rpc) -> None:
    server.fail("Publish", grpc.StatusCode.RESOURCE_EXHAUSTED, times=2, message="slow down")
    for _ in range(2):
        with pytest.raises(grpc.RpcError) as caught:
            rpc.publish(TOPIC, b"x")
        assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "slow down")  # type: ignore[attr-defined]
    rpc.publish(TOPIC, b"x")
    assert len(server.messages(TOPIC)) == 1


def test_the_official_client_tries_again_after_a_passing_failure(heliograph_server: Server) -> None:
    publisher = pubsub_v1.PublisherClient()
    publisher.create_topic(name=TOPIC)
    heliograph_server.fail("Publish", "UNAVAILABLE")
    publisher.publish(TOPIC, b"x").result(30)
    heliograph_server.fail("Publish", "PERMISSION_DENIED")
    with pytest.raises(exceptions.PermissionDenied):
        publisher.publish(TOPIC, b"x").result(30)
    assert len(heliograph_server.messages(TOPIC)) == 1
    publisher.stop()
    publisher.transport.close()


def test_a_stream_can_be_made_to_fail_and_all_calls_until_told_otherwise(server: Server, rpc: Rpc) -> None:
    server.fail("StreamingPull", 7)
    with rpc.stream(SUBSCRIPTION) as stream:
        assert stream.failure()[0] is grpc.StatusCode.PERMISSION_DENIED
    server.fail("Pull", "INTERNAL", times=None)
    for _ in range(3):
        with pytest.raises(grpc.RpcError):
            rpc.pull(SUBSCRIPTION)
    server.clear_failures()
    assert rpc.pull(SUBSCRIPTION) == []


@pytest.mark.parametrize(
    ("method", "code", "times"),
    [("Publsh", "UNAVAILABLE", 1), ("Publish", "OK", 1), ("Publish", 0, 1), ("Publish", 17, 1), ("Publish", 14, 0)],
)
def test_an_order_that_cannot_be_carried_out_is_refused(server: Server, method: str, code: Any, times: int) -> None:
    with pytest.raises(InvalidArgument):
        server.fail(method, code, times=times)


# ── what was published ──────────────────────────────────────────────────────────────────────────────────────────────


def test_deliveries_and_acknowledgements_are_counted_by_subscription(server: Server, rpc: Rpc) -> None:
    other = f"{SUBSCRIPTION}-2"
    rpc.create_subscription(other, TOPIC)
    ids = rpc.publish(TOPIC, b"a", b"b")
    received = rpc.pull(SUBSCRIPTION)
    rpc.acknowledge(SUBSCRIPTION, received[0].ack_id)
    rpc.nack(SUBSCRIPTION, received[1].ack_id)
    rpc.pull(SUBSCRIPTION)
    rpc.pull(other)
    first, second = server.messages(TOPIC)
    assert [first.message_id, second.message_id] == ids
    assert (first.deliveries, first.acknowledgements) == (2, 1)
    assert (second.deliveries, second.acknowledgements) == (3, 0)
    assert second.subscriptions[SUBSCRIPTION].nacks == 1
    assert second.subscriptions[other].deliveries == 1


def test_what_a_filter_leaves_out_was_neither_delivered_nor_acknowledged(server: Server, rpc: Rpc) -> None:
    red = f"{SUBSCRIPTION}-red"
    rpc.create_subscription(red, TOPIC, filter='attributes.colour = "red"')
    rpc.publish(TOPIC, b"x", attributes={"colour": "blue"})
    assert rpc.pull(red) == []
    (message,) = server.messages(TOPIC)
    assert (message.deliveries, message.acknowledgements) == (0, 0)


def test_a_fault_is_for_rest_as_well(server: Server, rpc: Rpc, http: Http) -> None:
    server.fail("GetTopic", "PERMISSION_DENIED", message="no")
    assert http.request("GET", f"/v1/{TOPIC}").status == 403
    assert http.request("GET", f"/v1/{TOPIC}").status == 200


def test_commands_of_work_queues_fail_on_order_too(server: Server, http: Http) -> None:
    http.command("queue.create", name="tasks")
    server.fail("queue.stats", "PERMISSION_DENIED", message="no")
    answer = http.try_command("queue.stats", queue="tasks")
    assert (answer.status, answer.body["code"], answer.body["error"]) == (403, "PermissionDenied", "no")
    http.command("queue.stats", queue="tasks")


def test_messages_of_work_queues_are_listed_too(server: Server, http: Http) -> None:
    http.command("queue.create", name="tasks")
    http.command("queue.publish", queue="tasks", payload=[1])
    (message,) = server.messages("queues/tasks")
    assert (message.topic, message.deliveries) == ("queues/tasks", 0)


def test_clear_leaves_nothing(server: Server, rpc: Rpc, http: Http) -> None:
    http.command("queue.create", name="tasks")
    rpc.publish(TOPIC, b"x")
    definition = {"type_": "AVRO", "definition": '"int"'}
    schema = rpc("CreateSchema", parent="projects/p", schema_id="state", schema=definition)
    policy = {"bindings": [{"role": "roles/pubsub.viewer", "members": ["user:a@example.com"]}]}
    rpc("SetIamPolicy", resource=TOPIC, policy=policy)
    rpc("CreateSnapshot", name="projects/p/snapshots/one", subscription=SUBSCRIPTION)
    server.fail("Publish", "ABORTED")
    server.clear()
    assert server.messages() == []
    assert list(rpc("ListSnapshots", project="projects/p").snapshots) == []
    assert list(rpc("ListSchemas", parent="projects/p").schemas) == []
    with pytest.raises(grpc.RpcError):
        rpc("GetSchema", name=schema.name)
    assert list(rpc("ListTopics", project="projects/p").topics) == []
    assert list(rpc("ListSubscriptions", project="projects/p").subscriptions) == []
    assert server.broker.list_subscriptions() == []
    rpc.create_topic(TOPIC)
    assert list(rpc("GetIamPolicy", resource=TOPIC).bindings) == []
    rpc.create_subscription(SUBSCRIPTION, TOPIC)
    rpc.publish(TOPIC, b"y")
    assert [one.message.data for one in rpc.pull(SUBSCRIPTION)] == [b"y"]
    assert [(one.data, one.deliveries) for one in server.messages(TOPIC)] == [(b"y", 1)]


# ── the same over HTTP ──────────────────────────────────────────────────────────────────────────────────────────────


def test_admin_messages_tell_what_became_of_each(http: Http, rpc: Rpc) -> None:
    rpc.publish(TOPIC, b"x", attributes={"colour": "red"})
    rpc.pull(SUBSCRIPTION)
    answer = http.request("GET", f"/admin/v1/messages?topic={TOPIC}")
    (message,) = answer.body["messages"]
    assert message["data"] == "eA=="
    assert message["attributes"] == {"colour": "red"}
    assert message["deliveries"] == message["subscriptions"][SUBSCRIPTION]["deliveries"] == 1
    assert message["acknowledgements"] == 0
    assert http.request("GET", "/admin/v1/messages?topic=other").body == {"messages": []}


def test_admin_clock_moves_on(http: Http, rpc: Rpc) -> None:
    rpc.publish(TOPIC, b"x")
    rpc.pull(SUBSCRIPTION)
    before = int(http.request("GET", "/admin/v1/clock").body["now_ns"])
    assert int(post(http, "/admin/v1/clock/advance", '{"seconds": 10}').body["now_ns"]) == before + 10 * 10**9
    assert len(rpc.pull(SUBSCRIPTION)) == 1


def test_clear_leaves_no_schema_no_policy_and_no_snapshot(server: Server, rpc: Rpc) -> None:
    schema = {"type_": "AVRO", "definition": '"string"'}
    rpc("CreateSchema", parent="projects/p", schema_id="text", schema=schema)
    rpc.create_topic("projects/p/topics/kept")
    rpc.create_subscription("projects/p/subscriptions/kept", "projects/p/topics/kept")
    server.broker.create_snapshot("projects/p/snapshots/kept", "projects/p/subscriptions/kept").result()
    policy = {"bindings": [{"role": "roles/owner", "members": ["user:a@example.com"]}]}
    rpc("SetIamPolicy", resource="projects/p/topics/kept", policy=policy)
    server.clear()
    assert not rpc("ListSchemas", parent="projects/p").schemas
    assert not server.broker.list_snapshots()
    rpc.create_topic("projects/p/topics/kept")
    assert not rpc("GetIamPolicy", resource="projects/p/topics/kept").bindings


def test_after_clear_a_writer_of_batches_begins_anew(server: Server) -> None:
    for _ in range(2):
        server.broker.create_topic("projects/p/topics/t").result()
        first, last = server.broker.stage("stage", [Draft(b"m")]).result()
        part = StagedPart("projects/p/topics/t", first, last)
        assert server.broker.publish_staged("writer", 0, "stage", [part], 10) == (1, 0)
        server.clear()


def test_admin_faults_are_ordered_listed_and_cleared(http: Http, rpc: Rpc) -> None:
    order = '{"method": "Pull", "code": "UNAVAILABLE", "times": null, "message": "no"}'
    listed = {"faults": [{"method": "Pull", "code": 14, "message": "no", "times": None}]}
    assert post(http, "/admin/v1/faults", order).body == listed
    with pytest.raises(grpc.RpcError):
        rpc.pull(SUBSCRIPTION)
    assert http.request("GET", "/admin/v1/faults").body == listed
    assert post(http, "/admin/v1/faults/clear").body == {"faults": []}
    assert rpc.pull(SUBSCRIPTION) == []


def test_admin_clear_empties_the_broker(http: Http, rpc: Rpc) -> None:
    assert post(http, "/admin/v1/clear").status == 200
    assert list(rpc("ListTopics", project="projects/p").topics) == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/admin/v1/clock/advance", '{"seconds": -1}'),
        ("/admin/v1/clock/advance", '{"seconds": 1e12}'),
        ("/admin/v1/clock/advance", "nonsense"),
        ("/admin/v1/faults", '{"method": "Nothing", "code": 14}'),
        ("/admin/v1/faults", '{"method": "Pull", "code": 14, "often": 2}'),
    ],
)
def test_admin_requests_that_make_no_sense_are_refused(http: Http, path: str, body: str) -> None:
    answer = post(http, path, body)
    assert (answer.status, answer.body["code"]) == (400, "InvalidArgument")


def test_without_being_asked_for_there_are_no_admin_routes() -> None:
    with Server() as server:
        assert Http(server.port).request("GET", "/admin/v1/messages").status == 404
        assert Http(server.port).request("POST", "/admin/v1/clear", b"{}").status == 404


def test_the_example_of_the_documentation_runs() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "testing.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(example, names)
    names["publisher"].stop()
    names["publisher"].transport.close()
    names["subscriber"].close()
