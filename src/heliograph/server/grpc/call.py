"""One gRPC call, spoken as ASGI: request frames in, response frames and a status out.

Any ASGI server that offers HTTP/2 and `http.response.trailers` could take h2corn's place under it. The methods come
from outside as a table; nothing here knows Pub/Sub.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from google.protobuf.message import DecodeError

from heliograph.errors import HeliographError
from heliograph.server.call import Call
from heliograph.server.grpc.connection import Connection, Connections
from heliograph.server.grpc.frames import HEAD_BYTES, FrameReader, frame
from heliograph.server.grpc.status import (
    CONTENT_TYPE,
    INTERNAL,
    INVALID_ARGUMENT,
    OK_TRAILERS,
    UNIMPLEMENTED,
    RpcError,
    rpc_error,
    trailers,
)
from heliograph.server.routing import ClientGone, Event, Receive, Scope, Send

log = logging.getLogger(__name__)

_TIMEOUT_UNIT_SECONDS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}

Events: TypeAlias = tuple[Event, ...]

_RESPONSE_START: Event = {"type": "http.response.start", "status": 200, "headers": [CONTENT_TYPE], "trailers": True}
_TRAILERS_OK: Event = {"type": "http.response.trailers", "headers": OK_TRAILERS}


PIECE_BYTES = 128 * 1024
"""Given to the HTTP server at a time: a client that does not read its stream costs what the server holds for its
connection (`connection.py`), and one piece."""


class Unary(NamedTuple):
    """A method of one request and one response.

    Args:
        request_class, response_class: protobuf classes.
        handler: gives the serialized response.
    """

    request_class: Any
    response_class: Any
    handler: Callable[[Any, Call], Awaitable[bytes]]


class Bidi(NamedTuple):
    """A method of many requests and many responses; the handler returns to end it with OK."""

    request_class: Any
    response_class: Any
    handler: Callable[[BidiCall], Awaitable[None]]


Method: TypeAlias = Unary | Bidi


class UnaryCall:
    """What the handler of a unary method may know besides the request."""

    __slots__ = ("_scope", "receive", "request_bytes")

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._scope = scope
        self.receive = receive
        """ASGI's; a handler that waits learns from it that the client has gone."""
        self.request_bytes = 0
        """Size of the serialized request."""

    def timeout_seconds(self) -> float | None:
        """How long the client is going to wait, from the start of the call; None = it does not say."""
        return _timeout_seconds(_header(self._scope, b"grpc-timeout"))

    async def read(self) -> bytes:
        """The request's message. What follows it is not waited for: only a broken client would send more."""
        event = await self.receive()
        body: bytes = event.get("body", b"")
        length = len(body) - HEAD_BYTES
        if length >= 0 and body[0] == 0 and int.from_bytes(body[1:HEAD_BYTES], "big") == length:
            self.request_bytes = length
            return body[HEAD_BYTES:]
        reader = FrameReader(_header(self._scope, b"grpc-encoding") or b"identity")
        while True:
            if event["type"] != "http.request":
                raise ClientGone
            messages = reader.feed(event.get("body", b""))
            if messages:
                self.request_bytes = len(messages[0])
                return messages[0]
            if not event.get("more_body"):
                raise RpcError(INTERNAL, "The request ended before its message was complete")
            event = await self.receive()


class BidiCall:
    """Both directions of a bidirectional call. One task may read while another writes."""

    __slots__ = ("_reader", "_receive", "_request_class", "_scope", "_send", "connection", "started")

    def __init__(self, scope: Scope, receive: Receive, send: Send, request_class: Any, connection: Connection) -> None:
        self.connection = connection
        self._scope = scope
        self._receive = receive
        self._send = send
        self._request_class = request_class
        self._reader = FrameReader(_header(scope, b"grpc-encoding") or b"identity")
        self.started = False

    def header(self, name: bytes) -> bytes | None:
        """A header of the request, by its name in lower case."""
        return _header(self._scope, name)

    async def read(self) -> list[Any] | None:
        """The next requests, at least one; None when the client has half-closed.

        Raises:
            ClientGone: the client has gone.
            RpcError: what came is not a message of the method.
        """
        while True:
            event = await self._receive()
            if event["type"] != "http.request":
                raise ClientGone
            body = event.get("body", b"")
            if body and (messages := self._reader.feed(body)):
                return [_parse(self._request_class, message) for message in messages]
            if not event.get("more_body"):
                if not self._reader.is_between_messages:
                    raise RpcError(INTERNAL, "The request ended within a message")
                return None

    async def until_gone(self) -> None:
        """Return when the client has gone; for a handler that has read all that it wants to read."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def write(self, message: bytes) -> None:
        """Send a response; returns when the connection has room for more.

        Raises:
            ClientGone: the client has gone; or it does not read this stream, and what waits to be sent on it holds up
                the answers to the client's other calls: then the stream is reset, and the client may open it again.
        """
        body = frame(message)
        gives_way = _GivesWay(self.connection)
        try:
            if not self.started:
                self.started = True
                await self._send(_RESPONSE_START)
            for start in range(0, len(body), PIECE_BYTES):
                piece = body[start : start + PIECE_BYTES] if len(body) > PIECE_BYTES else body
                await self._send({"type": "http.response.body", "body": piece, "more_body": True})
        except asyncio.CancelledError:
            if not gives_way.gave_way:
                raise
            log.warning("a stream that was not read, and held up other calls of its client, was reset")
            raise ClientGone from None
        except Exception as error:
            raise ClientGone from error  # whatever kind of error the server under this has for it
        finally:
            gives_way.end()


class _GivesWay:
    """Watches one write, and cancels it when it waits while the answers to other calls of its connection wait too."""

    __slots__ = ("_answered", "_connection", "_loop", "_task", "_timer", "gave_way")

    PATIENCE_SECONDS = 1.0

    def __init__(self, connection: Connection) -> None:
        self.gave_way = False
        self._connection = connection
        self._answered = -1
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._timer = self._loop.call_later(self.PATIENCE_SECONDS, self._look)

    def _look(self) -> None:
        connection = self._connection
        if connection.answering and connection.answered == self._answered and self._task is not None:
            self.gave_way = True
            self._task.cancel()
            return
        self._answered = connection.answered if connection.answering else -1
        self._timer = self._loop.call_later(self.PATIENCE_SECONDS, self._look)

    def end(self) -> None:
        self._timer.cancel()
        if self.gave_way and self._task is not None:
            self._task.uncancel()


class GrpcApplication:
    """The ASGI application for gRPC requests.

    Args:
        methods: by full name, as in the path: ``/package.Service/Method``.
        translate: from an error of the broker to a status, in the words of the protocol served.
    """

    def __init__(
        self, methods: Mapping[str, Method], translate: Callable[[HeliographError], RpcError] = rpc_error
    ) -> None:
        self._methods = methods
        self._translate = translate
        self._connections = Connections()

    @staticmethod
    def speaks(scope: Scope) -> bool:
        """Whether a request is gRPC (and not gRPC-Web or plain HTTP)."""
        content_type = _header(scope, b"content-type")
        return content_type is not None and (
            content_type == b"application/grpc" or content_type.startswith((b"application/grpc+", b"application/grpc;"))
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one call; never raises for the call's own failure, nor when the client has gone."""
        method = self._methods.get(scope["path"])
        if type(method) is Unary:
            events = await self._unary(method, scope, receive)
        elif type(method) is Bidi:
            events = await self._bidi(method, scope, receive, send)
        else:
            events = _status_alone(RpcError(UNIMPLEMENTED, f"Method not found: {scope['path']}"))
        connection = self._connections.get(scope)
        if connection is not None:
            connection.answering += 1
        try:
            for event in events:
                await send(event)
        except Exception as error:
            # ASGI leaves open what a server raises for a client that has gone; h2corn has an error of its own
            log.debug("%s could not be answered: %r", scope["path"], error)
        finally:
            if connection is not None:
                connection.answering -= 1
                connection.answered += 1

    async def _unary(self, method: Unary, scope: Scope, receive: Receive) -> Events:
        call = UnaryCall(scope, receive)
        try:
            request = _parse(method.request_class, await call.read())
            response = await method.handler(request, call)
        except ClientGone:
            return await _nothing()
        except Exception as error:
            return _status_alone(self._status(error, scope))
        return (_RESPONSE_START, {"type": "http.response.body", "body": frame(response)}, _TRAILERS_OK)

    async def _bidi(self, method: Bidi, scope: Scope, receive: Receive, send: Send) -> Events:
        connection = self._connections.join(scope)
        call = BidiCall(scope, receive, send, method.request_class, connection)
        status = _TRAILERS_OK
        try:
            await method.handler(call)
        except ClientGone:
            return await _nothing()
        except Exception as error:
            failure = self._status(error, scope)
            if not call.started:
                return _status_alone(failure)
            status = {"type": "http.response.trailers", "headers": trailers(failure)}
        finally:
            self._connections.leave(scope, connection)
        end: Events = ({"type": "http.response.body", "body": b""}, status)
        return end if call.started else (_RESPONSE_START, *end)

    def _status(self, error: Exception, scope: Scope) -> RpcError:
        if isinstance(error, RpcError):
            return error
        if isinstance(error, HeliographError):
            return self._translate(error)
        log.error("%s failed", scope["path"], exc_info=error)
        return RpcError(INTERNAL, "The broker failed on this call; its log tells more")


async def _nothing() -> Events:
    """The answer for a client that has gone. h2corn tells of it a moment before it knows itself, and would complain on
    standard error that the answer is not complete."""
    await asyncio.sleep(0.05)
    return ()


def _status_alone(error: RpcError) -> Events:
    """A response without a message ("Trailers-Only")."""
    headers = [CONTENT_TYPE, *trailers(error)]
    return ({"type": "http.response.start", "status": 200, "headers": headers}, {"type": "http.response.body"})


def _parse(request_class: Any, message: bytes) -> Any:
    try:
        return request_class.FromString(message)
    except DecodeError as error:
        name = request_class.DESCRIPTOR.full_name
        raise RpcError(INVALID_ARGUMENT, f"The request is not a {name}: {error}") from None


def _header(scope: Scope, name: bytes) -> bytes | None:
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


def _timeout_seconds(value: bytes | None) -> float | None:
    """`grpc-timeout`: at most eight digits and a unit. What is malformed counts as not given."""
    if not value or not value[:-1].isdigit():
        return None
    unit = _TIMEOUT_UNIT_SECONDS.get(value[-1:])
    return None if unit is None else int(value[:-1]) * unit
