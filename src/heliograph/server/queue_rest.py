"""The work-queue door in REST: one path for each command (queue-protocol.md).

Nothing is decided here: path, query and body become the payload of a command. Answers are the command's payload itself;
failures are answered in the envelope of the commands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from heliograph.broker.protocol import Broker
from heliograph.errors import HeliographError, Internal, InvalidArgument, NotFound
from heliograph.server import queue_answers as a
from heliograph.server import queue_requests as q
from heliograph.server.http import (
    UNREADABLE,
    MethodNotAllowed,
    answer,
    answer_json,
    check_fetch,
    check_length,
    check_utf8,
    query,
    read_body,
)
from heliograph.server.peer import attentive
from heliograph.server.queue_commands import Caller, QueueCommands
from heliograph.server.queue_envelope import failure, log
from heliograph.server.routing import ClientGone, Handler, Receive, Route, Scope, Send
from heliograph.wire.queues import Stats

PREFIX = "/queue/"


class Operation(NamedTuple):
    """One path and method.

    Args:
        method: POST, GET or DELETE.
        path: below `/queue/`; `{queue}` and `{consumer}` stand for one segment.
        command: what it does.
        request: type of the command's payload.
        answers: types, one of which is answered.
        summary: one line for the description.
    """

    method: str
    path: str
    command: str
    request: type
    answers: tuple[type, ...]
    summary: str


OPERATIONS = (
    Operation("GET", "list", "queue.list", q.Nothing, (a.Listed,), "The names of all queues."),
    Operation("POST", "{queue}", "queue.create", q.Create, (a.Created,), "Create a queue."),
    Operation("DELETE", "{queue}", "queue.delete", q.Queue, (a.Done,), "Delete a queue and its messages."),
    Operation("GET", "{queue}/stats", "queue.stats", q.Queue, (Stats,), "Gauges and counters."),
    Operation("GET", "{queue}/peek", "queue.peek", q.Peek, (a.Peeked,), "What is next, without a lease."),
    Operation("POST", "{queue}/purge", "queue.purge", q.Queue, (a.Purged,), "Drop what is ready or delayed."),
    Operation("POST", "{queue}/publish", "queue.publish", q.Publish, (a.Published,), "Publish a message."),
    Operation("POST", "{queue}/publish_batch", "queue.publish_batch", q.PublishBatch, (a.Batch,), "All or nothing."),
    Operation(
        "GET", "{queue}/consume/{consumer}", "queue.consume", q.Consume, (a.Consumed, a.Several), "Lease messages."
    ),
    Operation("POST", "{queue}/ack", "queue.ack", q.Settle, (a.Done, a.Results), "Messages are processed."),
    Operation("POST", "{queue}/nack", "queue.nack", q.Nack, (a.Nacked, a.Results), "Messages failed."),
    Operation("POST", "{queue}/extend", "queue.extend", q.Extend, (a.Done, a.Results), "Leases end later."),
    Operation("GET", "{queue}/dlq", "dlq.list", q.ListDeadLetters, (a.DeadLetters,), "The dead letters."),
    Operation("POST", "{queue}/dlq/retry", "dlq.retry", q.RetryDeadLetters, (a.Retried,), "Back to the queue."),
    Operation("POST", "{queue}/dlq/purge", "dlq.purge", q.Queue, (a.DeadLettersPurged,), "Forget dead letters."),
)

_Fields = dict[str, msgspec.Raw]
_decode_fields: Callable[[bytes], _Fields] = msgspec.json.Decoder(_Fields).decode
_encode = msgspec.json.Encoder().encode


def rest_routes(commands: QueueCommands) -> list[Route]:
    """The routes of the door.

    Args:
        commands: what it can do.
    """
    door = _RestDoor(commands)
    return [Route(method, PREFIX, door.handler(method)) for method in ("GET", "POST", "DELETE")]


class _RestDoor:
    def __init__(self, commands: QueueCommands) -> None:
        self._commands = commands
        self._by_path: dict[tuple[str, ...], dict[str, Operation]] = {}
        for operation in OPERATIONS:
            self._by_path.setdefault(_shape(operation.path), {})[operation.method] = operation

    def handler(self, method: str) -> Handler:
        async def handle(scope: Scope, receive: Receive, send: Send, _broker: Broker) -> None:
            try:
                operation, names = self._find(method, scope["path"])
                payload = await self._run(operation, names, scope, receive)
            except HeliographError as error:
                await answer(send, failure(error), status=error.http_status)
                return
            except ClientGone:
                raise
            except Exception:
                log.exception("a queue request failed")
                internal = Internal("The broker failed on this request; its log tells more")
                await answer(send, failure(internal), status=internal.http_status)
                return
            await answer_json(send, payload)

        return handle

    def _find(self, method: str, path: str) -> tuple[Operation, list[str]]:
        """The operation, and what its variables stand for."""
        segments = path.removeprefix(PREFIX).split("/")
        for shape in (tuple(segments), _generic(segments)):
            operations = self._by_path.get(shape)
            if operations is None:
                continue
            operation = operations.get(method)
            if operation is not None:
                wanted = operation.path.split("/")
                return operation, [own for own, part in zip(segments, wanted, strict=True) if part.startswith("{")]
        if self._by_path.get(_generic(segments)) or self._by_path.get(tuple(segments)):
            raise MethodNotAllowed(f"{path} does not take {method}")
        raise NotFound(f"Nothing is served at {path}")

    async def _run(self, operation: Operation, names: list[str], scope: Scope, receive: Receive) -> Any:
        if operation.method == "GET":
            if operation.command == "queue.consume":
                check_fetch(scope)  # it changes something, and a page of anyone could have it fetched
            fields: dict[str, Any] = dict(query(scope))
            if names:
                fields["queue"] = names[0]
            if len(names) > 1:
                fields["consumer_id"] = names[1]
            try:
                request: Any = msgspec.convert(fields, operation.request, strict=False)
            except msgspec.ValidationError as error:
                raise InvalidArgument(f"{operation.command}: {error}") from None
            return await self._commands.run_request(operation.command, request, Caller(attentive(scope, receive)))
        check_length(scope)
        body = _fields(await read_body(receive))
        body["name" if operation.command == "queue.create" else "queue"] = msgspec.Raw(_encode(names[0]))
        return await self._commands.run(operation.command, _encode(body), Caller(receive))


def _fields(body: bytes) -> _Fields:
    if not body:
        return {}
    try:
        check_utf8(body)
        return _decode_fields(body)
    except UNREADABLE as error:
        raise InvalidArgument(f"The body is no JSON object: {error}") from None


def _shape(path: str) -> tuple[str, ...]:
    return tuple("" if part.startswith("{") else part for part in path.split("/"))


def _generic(segments: list[str]) -> tuple[str, ...]:
    """The shape of a path with a queue's name in front, and a consumer's where there is one."""
    consumes = len(segments) == 3 and segments[1] == "consume"
    return ("", "consume", "") if consumes else ("", *segments[1:])
