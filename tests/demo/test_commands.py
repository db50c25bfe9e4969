from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from heliograph.demo import commands as commands_module
from heliograph.demo.commands import CommandRefused, Commands
from heliograph.errors import Unavailable

DONE = (200, {"success": True, "payload": {"message_id": "1"}, "error": None})
AWAY = (503, {"success": False, "payload": None, "error": "closing", "code": "Unavailable"})
HANGS_UP = (0, {})


class Door(NamedTuple):
    """A work-queue door that answers what it is told, one answer a request, the last for ever."""

    endpoint: str
    answers: list[tuple[int, dict[str, Any]]]
    requests: list[dict[str, Any]]


@pytest.fixture
def door() -> Iterator[Door]:
    answers: list[tuple[int, dict[str, Any]]] = []
    requests: list[dict[str, Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            requests.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            status, answer = answers.pop(0) if len(answers) > 1 else answers[0]
            if not status:
                self.close_connection = True
                return
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing on the terminal."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield Door(f"127.0.0.1:{server.server_port}", answers, requests)
        server.shutdown()
        thread.join()


@pytest.fixture
def commands(door: Door) -> Iterator[Commands]:
    client = Commands(door.endpoint)
    yield client
    client.close()


def test_a_call_answers_the_payload(door: Door, commands: Commands) -> None:
    door.answers.append(DONE)
    assert commands.call("queue.publish", {"queue": "q", "message": 1}) == {"message_id": "1"}
    assert door.requests == [{"command": "queue.publish", "payload": {"queue": "q", "message": 1}}]


def test_a_refusal_is_raised_with_its_reason(door: Door, commands: Commands) -> None:
    door.answers.append((404, {"success": False, "error": "Queue not found: q", "code": "QueueNotFound"}))
    with pytest.raises(CommandRefused, match="QueueNotFound: Queue not found: q") as refused:
        commands.call("queue.publish", {})
    assert (refused.value.reason, refused.value.repeated) == ("QueueNotFound", False)


@pytest.mark.parametrize("failure", [AWAY, HANGS_UP])
def test_a_call_is_repeated_while_the_broker_is_away(
    door: Door, commands: Commands, failure: tuple[int, dict[str, Any]]
) -> None:
    door.answers.extend([failure, failure, DONE])
    commands.call("queue.publish", {})
    assert len(door.requests) == 3


def test_a_refusal_after_a_repetition_says_so(door: Door, commands: Commands) -> None:
    door.answers.extend([HANGS_UP, (404, {"success": False, "error": "gone", "code": "MessageNotFound"})])
    with pytest.raises(CommandRefused) as refused:
        commands.call("queue.ack", {})
    assert refused.value.repeated


def test_an_answer_that_is_no_envelope_is_a_refusal_with_the_status(door: Door, commands: Commands) -> None:
    door.answers.append((404, {"error": "Nothing is served here"}))
    with pytest.raises(CommandRefused, match="404: HTTP 404"):
        commands.call("queue.ack", {})


def test_nothing_is_repeated_any_more_when_the_caller_stops(door: Door) -> None:
    door.answers.append(AWAY)
    stopping = threading.Event()
    stopping.set()
    commands = Commands(door.endpoint, stopping)
    with pytest.raises(Unavailable, match=r"queue\.consume was not answered: closing"):
        commands.call("queue.consume", {})
    commands.close()
    assert len(door.requests) == 1


def test_a_broker_that_stays_away_is_given_up(door: Door, commands: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands_module, "AWAY_SECONDS_MAX", 0.0)
    door.answers.append(AWAY)
    with pytest.raises(Unavailable):
        commands.call("queue.consume", {})
