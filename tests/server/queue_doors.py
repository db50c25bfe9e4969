"""The doors through which the rules of work queues are tested; all of them understand the same commands."""

from __future__ import annotations

import dataclasses
import itertools
import json
import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, Protocol

import msgspec
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from heliograph import Outgoing, Queue, errors, queues
from heliograph.broker.broker import LocalBroker
from heliograph.broker.clock import SimulatedClock
from heliograph.client.arguments import count_of
from heliograph.wire.queues import prefetch_of
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
        body = self.send(command, **payload).get(timeout=30)
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
        return self.pushes.get(timeout=30)

    def close(self) -> None:
        """End the connection properly."""
        self._open.close()
        self._reader.join(30)


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


class ClientDoor:
    """The Python client, on a broker of this process or of a server, in the words of the commands."""

    def __init__(self, **where: Any) -> None:
        self._where = where
        self._queues: dict[Any, Queue] = {}

    def _queue(self, name: str, **options: Any) -> Queue:
        key = (name, *sorted(options.items())) if options.get("consumer_id") or not options else object()
        if key not in self._queues:
            self._queues[key] = Queue(name, **self._where, **options)
        return self._queues[key]

    def close(self) -> None:
        for opened in self._queues.values():
            opened.close()

    def command(self, command: str, **payload: Any) -> Any:
        """See `Door`."""
        return getattr(self, command.replace(".", "_"))(**payload)

    def try_command(self, command: str, **payload: Any) -> Answer:
        """Run a command that fails."""
        with pytest.raises(errors.HeliographError) as failed:
            self.command(command, **payload)
        return Answer(failed.value.http_status, {"code": failed.value.reason, "error": failed.value.message})

    def failure(self, command: str, **payload: Any) -> tuple[int, str]:
        """See `Door`."""
        answer = self.try_command(command, **payload)
        return answer.status, answer.body["code"]

    def queue_create(self, name: str, config: dict[str, Any] | None = None, **flat: Any) -> Any:
        self._queue(name).create(**(config or flat))
        return {"name": name, "success": True}

    def queue_delete(self, queue: str) -> Any:
        self._queue(queue).delete()

    def queue_list(self) -> Any:
        return {"queues": queues(**self._where)}

    def queue_stats(self, queue: str) -> Any:
        return msgspec.structs.asdict(self._queue(queue).stats())

    def queue_purge(self, queue: str) -> Any:
        purged = self._queue(queue).purge()
        return {"purged": sum(purged), "ready": purged.ready, "delayed": purged.delayed}

    def queue_peek(self, queue: str, count: int = 1) -> Any:
        return {"messages": [vars_of(message) for message in self._queue(queue).peek(count)]}

    def queue_publish(self, queue: str, **fields: Any) -> Any:
        message_id = self._queue(queue).publish(_value_of(fields), **fields)
        return {"message_id": message_id, "position": self._queue(queue).position(fields.get("priority", 5))}

    def queue_publish_batch(self, queue: str, messages: list[dict[str, Any]]) -> Any:
        batch = [Outgoing(_value_of(fields), **fields) for fields in [dict(fields) for fields in messages]]
        return {"message_ids": self._queue(queue).publish_batch(batch)}

    def queue_consume(
        self, queue: str, timeout: float = 0, max_messages: int = 1, prefetch: int | None = None, **options: Any
    ) -> Any:
        consumer = self._queue(queue, **{"consumer_id": ""} | options)
        consumer.consumer_id = options.get("consumer_id", "")  # as of a call without one
        own = prefetch_of(consumer._settings()) if prefetch is None else prefetch
        consumer.prefetch = count_of(own, "prefetch", 1, 1_000)
        count_of(max_messages, "max_messages")
        try:
            messages = consumer.take_many(min(max_messages, 1_000), timeout=timeout)
        except errors.FlowControlExceeded:
            return {"message_id": None, "message": None, "at_prefetch_limit": True}
        self._held += messages
        answers = [vars_of(message) for message in messages]
        if max_messages > 1:
            return {"messages": answers, "at_prefetch_limit": False}
        return (answers[0] if answers else {"message_id": None, "message": None}) | {"at_prefetch_limit": False}

    _held: list[Any] = []

    def queue_ack(self, queue: str, **which: Any) -> Any:
        return self._each(which, lambda own, lease: self._queue(queue).ack(own, lease_id=lease))

    def queue_nack(self, queue: str, requeue: bool = True, **which: Any) -> Any:
        return self._each(which, lambda own, lease: self._queue(queue).nack(own, lease_id=lease, requeue=requeue))

    def queue_extend(self, queue: str, ack_deadline: float = 30, **which: Any) -> Any:
        return self._each(which, lambda own, lease: self._queue(queue).extend(own, ack_deadline, lease_id=lease))

    def _each(self, which: dict[str, Any], settle: Callable[[str, str | None], str | None]) -> Any:
        if "message_id" in which:
            return _settled(settle(which["message_id"], which.get("lease_id")))
        results = []
        for own_id in which["message_ids"]:
            try:
                results.append({"message_id": own_id} | _settled(settle(own_id, None)))
            except errors.HeliographError as error:
                results.append({"message_id": own_id, "success": False, "code": error.reason})
        return {"results": results}

    def dlq_list(self, queue: str, limit: int = 100, offset: int = 0) -> Any:
        letters = self._queue(queue).dead_letters(limit=limit, offset=offset)
        told = [vars_of(letter) | {"dead_lettered_at": letter.dead_lettered_at.timestamp()} for letter in letters]
        return {"messages": told, "total": self._queue(queue).stats().dead_letters}

    def dlq_retry(self, queue: str, message_id: str | None = None) -> Any:
        return {"retried": self._queue(queue).retry_dead_letters(None if message_id is None else [message_id])}

    def dlq_purge(self, queue: str) -> Any:
        return {"purged": self._queue(queue).purge_dead_letters()}


def _value_of(fields: dict[str, Any]) -> Any:
    return bytes(fields.pop("payload")) if "payload" in fields else fields.pop("message")


def _settled(action: str | None) -> dict[str, Any]:
    return {"success": True} | ({"action": action} if action else {})


def vars_of(message: Any) -> dict[str, Any]:
    """The fields of a message, in the words of the commands."""
    fields = {field.name: getattr(message, field.name) for field in dataclasses.fields(message)}
    fields["message_id"] = fields.pop("id")
    hidden = {"_settle", "_settled", "queue", "max_retries"}
    return {name: value for name, value in fields.items() if name not in hidden}


@contextmanager
def client_door(broker: LocalBroker) -> Iterator[Door]:
    door = ClientDoor(broker=broker)
    try:
        yield door
    finally:
        door.close()
        broker.close()


@contextmanager
def remote_client_door(broker: LocalBroker) -> Iterator[Door]:
    with serving(broker) as server:
        door = ClientDoor(url=f"http://127.0.0.1:{server.port}")
        try:
            yield door
        finally:
            door.close()


DOORS = {
    "http": http_door,
    "websocket": socket_door,
    "in process": client_door,
    "client of a server": remote_client_door,
}
