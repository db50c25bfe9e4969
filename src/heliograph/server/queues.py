"""The work-queue door over HTTP: `POST /api/v1/command` with a JSON envelope (queue-protocol.md)."""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from heliograph.broker.protocol import Broker
from heliograph.errors import HeliographError, Internal, InvalidArgument
from heliograph.server.closing import Closing
from heliograph.server.feed import Feeds
from heliograph.server.http import answer, read_body
from heliograph.server.peer import attentive
from heliograph.server.queue_commands import QueueCommands
from heliograph.server.routing import ClientGone, Receive, Route, Scope, Send

log = logging.getLogger(__name__)


class Envelope(msgspec.Struct):
    """A request: a command, its payload, and an id that is echoed."""

    command: str
    payload: msgspec.Raw = msgspec.Raw(b"{}")
    request_id: msgspec.Raw = msgspec.Raw(b"null")


_decode = msgspec.json.Decoder(Envelope).decode
_encode = msgspec.json.Encoder().encode


def queue_routes(broker: Broker, feeds: Feeds, closing: Closing) -> list[Route]:
    """The routes of the door.

    Args:
        broker: who does the commands.
        feeds: who waits on which queue.
        closing: ends the waiting.
    """
    commands = QueueCommands(broker, feeds, closing)

    async def command(scope: Scope, receive: Receive, send: Send, _broker: Broker) -> None:
        """One command. Every failure is answered in the envelope."""
        request_id = msgspec.Raw(b"null")
        try:
            request = _envelope(await read_body(receive))
            request_id = request.request_id
            payload = await commands.run(request.command, bytes(request.payload), attentive(scope, receive))
        except HeliographError as error:
            await answer(send, _failure(request_id, error), status=error.http_status)
            return
        except ClientGone:
            raise
        except Exception:
            failure = Internal("The broker failed on this command; its log tells more")
            log.exception("a queue command failed")
            await answer(send, _failure(request_id, failure), status=failure.http_status)
            return
        await answer(send, _success(request_id, payload))

    return [Route("POST", "/api/v1/command", command)]


def _envelope(body: bytes) -> Envelope:
    try:
        return _decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"The request is not a command envelope: {error}") from None


def _success(request_id: msgspec.Raw, payload: dict[str, Any]) -> bytes:
    return _encode({"success": True, "request_id": request_id, "payload": payload, "error": None})


def _failure(request_id: msgspec.Raw, error: HeliographError) -> bytes:
    return _encode(
        {"success": False, "request_id": request_id, "payload": None, "error": error.message, "code": error.reason}
    )
