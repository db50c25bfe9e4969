"""The JSON envelope of the work-queue door, around every command and its answer, whatever carries it
(queue-protocol.md)."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from heliograph.errors import HeliographError, Internal, InvalidArgument
from heliograph.server.http import UNREADABLE, check_utf8
from heliograph.server.queue_commands import Caller, QueueCommands
from heliograph.server.routing import ClientGone

log = logging.getLogger(__name__)


class Envelope(msgspec.Struct):
    """A request: a command, its payload, and an id that is echoed."""

    command: str
    payload: msgspec.Raw = msgspec.Raw(b"{}")
    request_id: msgspec.Raw = msgspec.Raw(b"null")


_decode = msgspec.json.Decoder(Envelope).decode
_encode = msgspec.json.Encoder().encode
_NO_ID = msgspec.Raw(b"null")


async def perform(commands: QueueCommands, request: bytes, caller: Caller) -> tuple[int, bytes]:
    """Run one command. Every failure is answered in the envelope.

    Returns:
        The HTTP status, and the answer.

    Raises:
        ClientGone: there is nobody to answer.
    """
    request_id = _NO_ID
    try:
        envelope = _envelope(request)
        request_id = envelope.request_id
        payload = await commands.run(envelope.command, bytes(envelope.payload), caller)
    except HeliographError as error:
        return error.http_status, failure(error, request_id)
    except ClientGone:
        raise
    except Exception:
        log.exception("a queue command failed")
        internal = Internal("The broker failed on this command; its log tells more")
        return internal.http_status, failure(internal, request_id)
    return 200, _success(request_id, payload)


def _envelope(body: bytes) -> Envelope:
    try:
        check_utf8(body)
        return _decode(body)
    except UNREADABLE as error:
        raise InvalidArgument(f"The request is not a command envelope: {error}") from None


def _success(request_id: msgspec.Raw, payload: dict[str, Any]) -> bytes:
    return _encode({"success": True, "request_id": request_id, "payload": payload, "error": None})


def failure(error: HeliographError, request_id: msgspec.Raw = _NO_ID) -> bytes:
    """The answer that says why a command failed."""
    return _encode(
        {"success": False, "request_id": request_id, "payload": None, "error": error.message, "code": error.reason}
    )
