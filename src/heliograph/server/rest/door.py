"""The REST door: requests of `google.api.http` bindings, answered by the same handlers as gRPC."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
from google.protobuf import json_format

from heliograph.broker.protocol import Broker
from heliograph.errors import HeliographError
from heliograph.server.grpc.call import Method, Unary
from heliograph.server.grpc.status import INTERNAL, INVALID_ARGUMENT, NOT_FOUND, UNIMPLEMENTED, RpcError
from heliograph.server.http import BODY_BYTES_MAX, JSON, BodyTooLarge, MethodNotAllowed, answer, read_body
from heliograph.server.peer import attentive
from heliograph.server.rest.bindings import Binding
from heliograph.server.rest.documents import BadDocument, Document, canonical, message_in, message_of, put
from heliograph.server.rest.errors import error_body, http_status
from heliograph.server.rest.paths import PathTable, PathTemplate
from heliograph.server.rest.query import Options, read_query
from heliograph.server.rest.selection import parse_selection, select
from heliograph.server.routing import ClientGone, Receive, Route, Scope, Send

HTTP_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
PREFIX = "/v1/"

METHOD_NOT_ALLOWED_STATUS = 405
_WITHOUT_BODY = ("GET", "DELETE")

log = logging.getLogger(__name__)

_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class Bound(NamedTuple):
    """A binding and its method."""

    binding: Binding
    method: Unary


@dataclass(frozen=True, slots=True)
class HttpCall:
    """A call that came as JSON over HTTP; see `server.call.Call`."""

    receive: Receive
    request_bytes: int

    def timeout_seconds(self) -> float | None:
        """HTTP has no header for it."""
        return None


class _WrongHttpMethod(Exception):
    """The path means something, but not with this HTTP method."""

    def __init__(self, http_methods: list[str]) -> None:
        super().__init__()
        self.http_methods = http_methods


class RestDoor:
    """Answers the requests of bindings.

    Args:
        bindings: which request means which method; those of methods that are not there count for nothing.
        methods: the handlers, by full name.
        translate: from an error of the broker to a status, in the words of the protocol served.
    """

    def __init__(
        self,
        bindings: Iterable[Binding],
        methods: Mapping[str, Method],
        translate: Callable[[HeliographError], RpcError],
    ) -> None:
        self._translate = translate
        self._table: PathTable[Bound] = PathTable(
            (binding.http_method, PathTemplate(binding.template), Bound(binding, method))
            for binding in bindings
            if isinstance(method := methods.get(binding.method), Unary)
        )

    def routes(self) -> list[Route]:
        """Everything below `/v1/`."""
        return [Route(http_method, PREFIX, self._answer) for http_method in HTTP_METHODS]

    async def _answer(self, scope: Scope, receive: Receive, send: Send, _broker: Broker) -> None:
        try:
            body = await self._call(scope, receive)
        except ClientGone:
            raise
        except Exception as error:
            await self._answer_failure(error, scope, send)
        else:
            await answer(send, body)

    async def _answer_failure(self, error: Exception, scope: Scope, send: Send) -> None:
        if isinstance(error, _WrongHttpMethod):
            allowed = ", ".join(error.http_methods)
            failure = RpcError(UNIMPLEMENTED, f"{scope['path'][:200]} takes {allowed}, not {scope['method']}.")
            await _answer_error(send, failure, METHOD_NOT_ALLOWED_STATUS, (JSON, (b"allow", allowed.encode())))
        else:
            failure = self._failure(error, scope)
            await _answer_error(send, failure, http_status(failure.code))

    async def _call(self, scope: Scope, receive: Receive) -> bytes:
        (binding, method), bound = self._find(scope)
        body = b"" if binding.http_method in _WITHOUT_BODY else await read_body(receive)
        descriptor = method.request_class.DESCRIPTOR
        document = _document(body, binding.body, descriptor)
        for field, value in bound.items():
            put(document, descriptor, field, value, "path")
        options = read_query(scope["query_string"], document, descriptor)
        selection = parse_selection(options.selection, method.response_class.DESCRIPTOR) if options.selection else {}
        request = message_of(document, method.request_class())
        call = HttpCall(attentive(scope, receive), request.ByteSize())
        response = method.response_class.FromString(await method.handler(request, call))
        told = json_format.MessageToDict(response, use_integers_for_enums=options.numbers_for_enums)
        return _json(select(told, selection), options)

    async def refuse(self, error: HeliographError, scope: Scope, send: Send) -> None:
        """Answer a request below `/v1/` that was refused before it came here, or whose HTTP method nothing takes."""
        if isinstance(error, MethodNotAllowed):
            await self._answer_failure(self._not_found(scope), scope, send)
        else:
            await self._answer_failure(error, scope, send)

    def _find(self, scope: Scope) -> tuple[Bound, dict[str, str]]:
        found = self._table.find(scope["method"], scope["path"])
        if found is not None:
            return found
        raise self._not_found(scope)

    def _not_found(self, scope: Scope) -> Exception:
        http_methods = self._table.http_methods(scope["path"])
        if http_methods:
            return _WrongHttpMethod(http_methods)
        return RpcError(NOT_FOUND, f"Nothing is served at {scope['path'][:200]}")

    def _failure(self, error: Exception, scope: Scope) -> RpcError:
        if isinstance(error, RpcError):
            return error
        if isinstance(error, BodyTooLarge):
            # the code that this error has elsewhere is one that clients repeat the call for
            return RpcError(INVALID_ARGUMENT, f"Request payload size exceeds the limit: {BODY_BYTES_MAX} bytes.")
        if isinstance(error, HeliographError):
            return self._translate(error)
        log.error("%s %s failed", scope["method"], scope["path"], exc_info=error)
        return RpcError(INTERNAL, "The broker failed on this call; its log tells more")


def _document(body: bytes, body_field: str, descriptor: Any) -> Document:
    """What a request's body says, as a document of the whole request."""
    if not body.strip():
        return {}
    try:
        value = _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadDocument(f"The body is not JSON: {error}") from None
    if body_field in ("*", ""):  # without a field for it, a body may still repeat what the path says
        return canonical(value, descriptor)
    name, held = message_in(descriptor, body_field)
    return {name: canonical(value, held, name)}


def _json(value: Any, options: Options) -> bytes:
    encoded = _encode(value)
    return msgspec.json.format(encoded, indent=2) + b"\n" if options.pretty else encoded


async def _answer_error(
    send: Send, error: RpcError, status: int, headers: tuple[tuple[bytes, bytes], ...] = (JSON,)
) -> None:
    body = msgspec.json.format(_encode(error_body(error, status)), indent=2) + b"\n"
    await answer(send, body, status=status, headers=headers)
