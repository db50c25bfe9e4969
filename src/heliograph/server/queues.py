"""The work-queue door over HTTP: `POST /api/v1/command` with a JSON envelope (queue-protocol.md)."""

from __future__ import annotations

from heliograph.broker.protocol import Broker
from heliograph.errors import HeliographError
from heliograph.server.http import answer, check_length, read_body
from heliograph.server.peer import attentive
from heliograph.server.queue_commands import Caller, QueueCommands
from heliograph.server.queue_envelope import failure, perform
from heliograph.server.routing import Receive, Route, Scope, Send


def queue_routes(commands: QueueCommands) -> list[Route]:
    """The routes of the door.

    Args:
        commands: what it can do.
    """

    async def command(scope: Scope, receive: Receive, send: Send, _broker: Broker) -> None:
        try:
            check_length(scope)
            request = await read_body(receive)
        except HeliographError as error:
            await answer(send, failure(error), status=error.http_status)
            return
        status, body = await perform(commands, request, Caller(attentive(scope, receive)))
        await answer(send, body, status=status)

    return [Route("POST", "/api/v1/command", command)]
