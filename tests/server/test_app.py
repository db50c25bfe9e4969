"""The server as a whole: what it answers besides its doors, how it starts and how it ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import grpc
import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.engine.facts import Fact
from heliograph.errors import InvalidArgument, Unavailable
from heliograph.server.app import ServeOptions, Serving, serve
from heliograph.server.routing import Receive, Route, RouteTable, Scope, Send
from heliograph.store.memory import MemoryStore
from heliograph.store.protocol import Commit
from heliograph.testing.faulty_store import FaultyStore
from tests.portions import quick_first
from tests.server.clients import METHODS, Http, Rpc
from tests.server.conftest import serving


def test_healthz_tells_that_it_is_up(http: Http) -> None:
    answer = http.request("GET", "/healthz")
    assert answer.status == 200
    assert answer.body["status"] == "ok"
    assert answer.body["version"]


def test_healthz_tells_the_store_and_its_durability(http: Http) -> None:
    body = http.request("GET", "/healthz").body
    assert (body["store"], body["durability"]) == ("memory", "none")


def test_a_store_that_cannot_commit_is_503_with_the_cause_until_it_can_again() -> None:
    store = FaultyStore(MemoryStore())
    broker = LocalBroker(store)
    with serving(broker) as server:
        http = Http(server.port)
        store.fail_next()
        broker.create_topic("t")
        failing = http.request("GET", "/healthz")
        store.retry()
        well = http.request("GET", "/healthz")
    assert (failing.status, failing.body["status"]) == (503, "unavailable")
    assert failing.body["reason"] == "The store cannot commit: [Errno 28] No space left on device"
    assert (well.status, well.body["status"]) == (200, "ok")


def test_the_front_page_says_ok_as_the_official_emulator_does(http: Http) -> None:
    assert http.request("GET", "/") == (200, "Ok\n")
    assert http.request("HEAD", "/").status == 200


def test_the_front_page_tells_a_browser_in_one_line_what_answers_there(http: Http) -> None:
    answer = http.request("GET", "/", headers={"Accept": "text/html,*/*;q=0.8"})
    assert answer.status == 200
    assert answer.body.startswith("Heliograph ")
    assert answer.body.count("\n") == 1


def test_an_unknown_path_is_404_and_a_wrong_method_405(http: Http) -> None:
    assert http.request("GET", "/nothing").status == 404
    assert http.request("POST", "/healthz", b"").status == 405


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "", "http://", "http://127.0.0.1", "http://127.0.0.1:{port}.evil.example"]
)
def test_a_page_of_another_origin_cannot_post_to_the_broker(http: Http, server: Serving, origin: str) -> None:
    headers = {"Origin": origin.format(port=server.port), "Content-Type": "text/plain"}
    answer = http.request(
        "POST", "/api/v1/command", b'{"command": "queue.create", "payload": {"name": "evil"}}', headers
    )
    assert (answer.status, answer.body["code"], answer.body["success"]) == (403, "ForeignOrigin", False)
    assert "evil" not in http.command("queue.list")["queues"]


def test_a_page_of_the_brokers_own_origin_can_post_to_it(http: Http, server: Serving) -> None:
    headers = {"Origin": f"http://127.0.0.1:{server.port}"}
    assert http.request("POST", "/api/v1/command", b'{"command": "queue.list"}', headers).status == 200


async def _handler(_scope: Scope, _receive: Receive, _send: Send, _broker: object) -> None: ...


def test_the_longest_prefix_finds_the_handler_and_an_exact_path_wins() -> None:
    routes = RouteTable([Route("GET", path, _handler) for path in ("/", "/a/", "/a/b/", "/a/b/c")])
    assert [bool(routes.handlers(path)) for path in ("/", "/x", "/a", "/a/x", "/a/b/x", "/a/b/c")] == [
        True,
        False,
        False,
        True,
        True,
        True,
    ]


def test_two_routes_for_one_path_are_a_mistake_of_ours() -> None:
    with pytest.raises(ValueError, match="two routes for GET /a"):
        RouteTable([Route("GET", "/a", _handler), Route("GET", "/a", _handler)])


def test_the_server_listens_on_loopback_unless_told_otherwise(server: Serving) -> None:
    assert server.host == "127.0.0.1"


def test_stopping_closes_the_broker() -> None:
    broker = LocalBroker()
    with serving(broker):
        pass
    with pytest.raises(Unavailable):
        broker.create_topic("t")


def test_a_taken_port_is_an_os_error_and_the_broker_is_never_opened() -> None:
    opened: list[LocalBroker] = []

    def open_broker() -> LocalBroker:
        opened.append(LocalBroker())
        return opened[-1]

    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = ServeOptions(port=taken.getsockname()[1], announce=False, handle_signals=False)
        with pytest.raises(OSError, match="in use"):
            asyncio.run(serve(open_broker, options))
    assert opened == []


def test_a_broker_that_cannot_be_opened_ends_the_server_with_its_error() -> None:
    def open_broker() -> LocalBroker:
        raise InvalidArgument("not today")

    with pytest.raises(InvalidArgument, match="not today"):
        asyncio.run(serve(open_broker, ServeOptions(port=0, announce=False, handle_signals=False)))


PROGRAM = """
import asyncio
from heliograph.broker.broker import LocalBroker
from heliograph.server.app import ServeOptions, serve
asyncio.run(serve(LocalBroker, ServeOptions(port=0)))
"""


@pytest.mark.parametrize("number", quick_first([signal.SIGTERM, signal.SIGINT], 1))
def test_it_says_when_it_is_ready_and_a_signal_ends_it_with_code_0(number: signal.Signals) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        line = process.stdout.readline()
        assert line.startswith("Server started, listening on ")
        with Rpc(int(line.split()[-1])) as rpc:
            rpc.create_topic("projects/p/topics/topic-1")
            rpc.create_subscription("projects/p/subscriptions/sub-1", "projects/p/topics/topic-1")
            with rpc.stream("projects/p/subscriptions/sub-1") as stream:
                stream.response()
                process.send_signal(number)
                assert stream.failure() is not None
        assert process.wait(30) == 0
        assert process.stdout.read() == ""
        assert process.stderr.read() == ""


def test_a_handlers_bug_is_a_500_without_its_text(
    http: Http, broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> int:
        raise RuntimeError("secret")

    monkeypatch.setattr(broker, "list_subscriptions", fails)
    answer = http.try_command("queue.list")
    assert answer.status == 500
    assert answer.body["code"] == "Internal"
    assert "secret" not in str(answer.body)


def test_many_idle_streams_cost_nothing(rpc: Rpc, topic: str, subscription: str) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            stack.enter_context(rpc.stream(subscription)).response()
        spent = []
        while len(spent) < 10 and not (spent and spent[-1] < 0.25):  # opening them may still cost something at first
            before = time.process_time()
            time.sleep(0.5)  # idleness is what is measured, in processor time
            spent.append(time.process_time() - before)
    assert spent[-1] < 0.25  # the clients of a hundred streams are in this process as well


class SlowStore(MemoryStore):
    """Its commits are over when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.commits: list[Commit] = []
        self.is_slow = False
        self.appended = threading.Event()

    def append(self, facts: Sequence[Fact]) -> Commit:
        commit = super().append(facts)
        if self.is_slow:
            commit = Commit()
            self.commits.append(commit)
            self.appended.set()
        return commit


TOPIC = "projects/p/topics/topic-1"


def test_a_publish_that_waits_for_its_commit_is_answered_during_a_shutdown() -> None:
    store = SlowStore()
    with serving(LocalBroker(store)) as server, Rpc(server.port) as rpc:
        rpc.create_topic(TOPIC)
        store.is_slow = True
        request = METHODS["Publish"][1].request_class(topic=TOPIC, messages=[{"data": b"x"}])
        answer = rpc.method("Publish").future(request, timeout=30)
        assert store.appended.wait(30)
        assert not answer.done()
        server.stop()
        store.commits[0].finish()
        assert len(answer.result().message_ids) == 1


def test_a_commit_that_fails_is_unavailable_and_never_a_success() -> None:
    store = SlowStore()
    with serving(LocalBroker(store)) as server, Rpc(server.port) as rpc:
        rpc.create_topic(TOPIC)
        store.is_slow = True
        request = METHODS["Publish"][1].request_class(topic=TOPIC, messages=[{"data": b"x"}])
        answer = rpc.method("Publish").future(request, timeout=30)
        assert store.appended.wait(30)
        store.commits[0].finish(OSError("disk full"))
        assert answer.exception().code() is grpc.StatusCode.UNAVAILABLE
