"""What HTTP handlers share: bodies within bounds, query parameters, JSON answers. No rule of any door."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import parse_qs

import msgspec

from heliograph.errors import HeliographError, InvalidArgument, ResourceExhausted
from heliograph.server.routing import ClientGone, Receive, Scope, Send

BODY_BYTES_MAX = 20 * 1024 * 1024
"""Largest HTTP request body: twice the largest message, since JSON makes it longer."""

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes of a client; the last for what is nested too deeply."""

JSON = (b"content-type", b"application/json")
TEXT = (b"content-type", b"text/plain; charset=utf-8")
HTML = (b"content-type", b"text/html; charset=utf-8")

T = TypeVar("T")


class BodyTooLarge(ResourceExhausted):
    """A request body above the limit; the rest of it was not read."""

    http_status_own = 413


class MethodNotAllowed(InvalidArgument):
    """The path is known, but not with this HTTP method."""

    http_status_own = 405


class ForeignOrigin(HeliographError):
    """A page of another host sent the request, through the browser of somebody who may reach the broker."""

    code = 7


def check_origin(scope: Scope) -> None:
    """Refuse what a browser sends on behalf of a page that is not the broker's own. Every other client sends no Origin.

    Raises:
        ForeignOrigin: there is an `Origin`, and it does not name the host that the request is for.
    """
    headers = dict(scope["headers"])
    origin = headers.get(b"origin")
    if origin is None:
        return
    _, separator, host = origin.partition(b"://")
    if not separator or host.lower() != headers.get(b"host", b"").lower():
        raise ForeignOrigin(f"Requests of pages of another origin are refused: {origin[:100].decode('latin-1')}")


def check_fetch(scope: Scope) -> None:
    """Refuse a GET that a browser sends on behalf of a page that is not the broker's own: an image is fetched by
    anyone, without an `Origin`. For the few GET requests that change something.

    Raises:
        ForeignOrigin: the browser says that it is so.
    """
    check_origin(scope)
    if dict(scope["headers"]).get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
        raise ForeignOrigin("Requests of pages of another origin are refused")


def check_length(scope: Scope, bytes_max: int = BODY_BYTES_MAX) -> None:
    """Refuse a body that is announced to be too large before any of it is read.

    Raises:
        BodyTooLarge.
    """
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value[:20]) > bytes_max:
            raise BodyTooLarge(f"The request body is larger than {bytes_max} bytes")


async def read_body(receive: Receive, bytes_max: int = BODY_BYTES_MAX) -> bytes:
    """The whole request body.

    Raises:
        BodyTooLarge: more than `bytes_max`.
        ClientGone: the client left before the end.
    """
    event = await receive()
    body: bytes = event.get("body", b"")
    if event["type"] == "http.request" and not event.get("more_body") and len(body) <= bytes_max:
        return body
    chunks = bytearray(body)
    while event["type"] == "http.request" and len(chunks) <= bytes_max:
        if not event.get("more_body"):
            return bytes(chunks)
        event = await receive()
        chunks += event.get("body", b"")
    if event["type"] == "http.disconnect":
        raise ClientGone
    raise BodyTooLarge(f"The request body is larger than {bytes_max} bytes")


def check_utf8(body: bytes) -> None:
    """Refuse what is no text: msgspec passes over parts that it need not look at, and they would be sent on.

    Raises:
        UnicodeDecodeError.
    """
    if not body.isascii():
        body.decode()


async def read_json(receive: Receive, decode: Callable[[bytes], T], bytes_max: int = BODY_BYTES_MAX) -> T:
    """The request body, decoded.

    Args:
        decode: that of a msgspec decoder.
        bytes_max: of the body.

    Raises:
        InvalidArgument: it is not what `decode` takes.
        BodyTooLarge, ClientGone: see `read_body`.
    """
    try:
        return decode(await read_body(receive, bytes_max))
    except UNREADABLE as error:
        raise InvalidArgument(f"The request is not what this path takes: {error}") from None


def query(scope: Scope) -> dict[str, str]:
    """The query parameters; of a repeated one, the last.

    Raises:
        InvalidArgument: not UTF-8.
    """
    try:
        text = bytes(scope["query_string"]).decode("ascii")
        return {name: values[-1] for name, values in parse_qs(text, keep_blank_values=True, errors="strict").items()}
    except ValueError:
        raise InvalidArgument("The query string is not valid UTF-8") from None


def required(scope: Scope, name: str) -> str:
    """A query parameter that must be there.

    Raises:
        InvalidArgument: it is missing or empty.
    """
    value = query(scope).get(name, "")
    if not value:
        raise InvalidArgument(f"The query parameter {name} is missing")
    return value


async def answer(
    send: Send, body: bytes, *, status: int = 200, headers: tuple[tuple[bytes, bytes], ...] = (JSON,)
) -> None:
    """Send a whole response."""
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


async def answer_json(send: Send, value: Any, *, status: int = 200) -> None:
    """Send `value`, anything that msgspec encodes, as JSON."""
    await answer(send, msgspec.json.encode(value), status=status)


async def answer_error(send: Send, error: HeliographError) -> None:
    """The JSON form of an error, outside of the doors that have their own envelope."""
    body = {"success": False, "error": error.message, "code": error.reason}
    await answer_json(send, body, status=error.http_status)
