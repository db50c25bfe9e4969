"""The doors through which the rules of work queues are tested; all of them understand the same commands."""

from __future__ import annotations

import itertools
import json
import queue
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, Protocol

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from heliograph import errors
from heliograph.broker.broker import LocalBroker
from heliograph.broker.clock import SimulatedClock
from tests.server.clients import Answer, Http
from tests.server.conftest import serving


class Door(Protocol):
    """Commands of queue-protocol.md, whatever carries them."""

    def command(self, command: str, **payload: Any) -> Any:
        """Run a command that succeeds; its payload."""

    def failure(self, command: str, **payload: Any) -> tuple[int, str]:
        """HTTP status and code of a command that fails."""


class TimedDoor(NamedTuple):
    """A door to a broker whose time stands still until it is told to go on."""

    door: Door
    clock: SimulatedClock


class SocketDoor:
    """The WebSocket; usable from several threads."""

    def __init__(self, port: int) -> None:
        self._open = ExitStack()
        self.socket: ClientConnection = self._open.enter_context(
            connect(f"ws://127.0.0.1:{port}/api/v1/ws", compression=None, max_size=None)
        )
        self.pushes: queue.Queue[Any] = queue.Queue()
        """What the server sent by itself."""
        self._answers: dict[int, queue.Queue[Any]] = {}
        self._numbers = itertools.count(1)
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        try:
            for text in self.socket:
                message = json.loads(text)
                if "type" in message:
                    self.pushes.put(message)
                else:
                    self._answers[message["request_id"]].put(message)
        except ConnectionClosed:
            pass
        for waiting in list(self._answers.values()):
            waiting.put(None)

    def send(self, command: str, **payload: Any) -> queue.Queue[Any]:
        """Begin a command; its answer will be in the queue."""
        number = next(self._numbers)
        answer = self._answers[number] = queue.Queue()
        self.socket.send(json.dumps({"command": command, "payload": payload, "request_id": number}))
        return answer

    def try_command(self, command: str, **payload: Any) -> Answer:
        """Run a command that may fail."""
        body = self.send(command, **payload).get(timeout=10)
        assert body is not None, "the connection was closed"
        return Answer(200 if body["success"] else status_of(body["code"]), body)

    def command(self, command: str, **payload: Any) -> Any:
        """See `Door`."""
        answer = self.try_command(command, **payload)
        assert answer.body["success"], answer.body
        return answer.body["payload"]

    def failure(self, command: str, **payload: Any) -> tuple[int, str]:
        """See `Door`."""
        answer = self.try_command(command, **payload)
        assert answer.body["success"] is False, answer.body
        return answer.status, answer.body["code"]

    def pushed(self) -> Any:
        """The next message that the server pushes."""
        return self.pushes.get(timeout=10)

    def close(self) -> None:
        """End the connection properly."""
        self._open.close()
        self._reader.join(10)


def status_of(code: str) -> int:
    """The HTTP status of an error that came without one."""
    error: errors.HeliographError = getattr(errors, code).__new__(getattr(errors, code))
    return error.http_status


@contextmanager
def http_door(broker: LocalBroker) -> Iterator[Door]:
    with serving(broker) as server:
        yield Http(server.port)


@contextmanager
def socket_door(broker: LocalBroker) -> Iterator[Door]:
    with serving(broker) as server:
        door = SocketDoor(server.port)
        try:
            yield door
        finally:
            door.close()


DOORS = {"http": http_door, "websocket": socket_door}
