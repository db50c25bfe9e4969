"""The work-queue door over one WebSocket, `/api/v1/ws`: the commands of `POST /api/v1/command`, and pushed messages
(queue-protocol.md).

Commands run side by side, begun in the order in which they came; an answer carries the request's id.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import msgspec

from heliograph.broker.protocol import Broker
from heliograph.broker.queues import QUEUE_PREFIX, in_words_of_queues
from heliograph.engine.message import Delivery
from heliograph.errors import HeliographError
from heliograph.server.closing import Closing
from heliograph.server.feed import Feeds
from heliograph.server.hosts import Hosts
from heliograph.server.queue_commands import Caller, QueueCommands
from heliograph.server.queue_envelope import perform
from heliograph.server.queue_session import Session
from heliograph.server.routing import ClientGone, Receive, Scope, Send
from heliograph.server.websocket import Socket, is_welcome

_encode = msgspec.json.Encoder().encode


class QueueSocket:
    """The door.

    Args:
        broker: who has the messages.
        feeds: who waits on which queue.
        closing: ends the connections.
        commands: those of the door over HTTP.
        hosts: by which names it may be reached.
    """

    PATH = "/api/v1/ws"

    def __init__(self, broker: Broker, feeds: Feeds, closing: Closing, commands: QueueCommands, hosts: Hosts) -> None:
        self._broker = broker
        self._feeds = feeds
        self._closing = closing
        self._commands = commands
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection, from its handshake to its end."""
        if not await is_welcome(scope, receive, send, self._hosts):
            return
        client = _Client(self._commands, Socket(send, self._closing))
        session = Session(self._broker, self._feeds, self._commands.holders, client.push, client.fail)
        client.caller = Caller(client.socket.until_gone, session)
        try:
            await client.socket.run(receive, client.perform)
        finally:
            session.close()


class _Client:
    def __init__(self, commands: QueueCommands, socket: Socket) -> None:
        self.caller: Caller
        self.socket = socket
        self._commands = commands

    async def perform(self, request: bytes) -> None:
        """Run a command, and answer it."""
        with contextlib.suppress(ClientGone):
            _, answer = await perform(self._commands, request, self.caller)
            await self.socket.send_texts(answer)

    async def push(self, name: str, deliveries: Sequence[Delivery], together: int) -> None:
        """See `queue_session.Push`."""
        await self.socket.send_texts(*self._commands.pushed(name, deliveries, together))

    async def fail(self, name: str, error: HeliographError) -> None:
        """See `queue_session.Fail`."""
        error = in_words_of_queues(error)
        queue = name.removeprefix(QUEUE_PREFIX)
        answer = {"type": "error", "queue": queue, "error": error.message, "code": error.reason}
        with contextlib.suppress(Exception):  # the connection may be over meanwhile
            await self.socket.send_texts(_encode(answer))
