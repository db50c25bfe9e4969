"""The work-queue door over one WebSocket, `/api/v1/ws`: the commands of `POST /api/v1/command`, and pushed messages
(queue-protocol.md).

Commands run side by side, begun in the order in which they came; an answer carries the request's id. What a client does
not read holds up its own connection only: at most `COMMANDS_MAX` commands of one connection are not answered, then no
more are read from it, and one that reads nothing for `SEND_SECONDS_MAX` is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

import msgspec

from heliograph.broker.broker import QUEUE_PREFIX
from heliograph.broker.protocol import Broker
from heliograph.engine.message import Delivery
from heliograph.errors import HeliographError
from heliograph.server.closing import Closing
from heliograph.server.feed import Feeds
from heliograph.server.http import check_origin
from heliograph.server.queue_commands import Caller, QueueCommands, in_words_of_queues
from heliograph.server.queue_envelope import perform
from heliograph.server.queue_session import Session
from heliograph.server.routing import ClientGone, Event, Receive, Scope, Send

log = logging.getLogger(__name__)

COMMANDS_MAX = 1_024
"""Of one connection at a time, those that wait for messages among them."""

SEND_SECONDS_MAX = 20.0
"""A client that takes nothing for so long is closed, and its messages go to others."""

GOING_AWAY = 1001

_encode = msgspec.json.Encoder().encode


class QueueSocket:
    """The door.

    Args:
        broker: who has the messages.
        feeds: who waits on which queue.
        closing: ends the connections.
        commands: those of the door over HTTP.
    """

    PATH = "/api/v1/ws"

    def __init__(self, broker: Broker, feeds: Feeds, closing: Closing, commands: QueueCommands) -> None:
        self._broker = broker
        self._feeds = feeds
        self._closing = closing
        self._commands = commands

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection, from its handshake to its end."""
        await receive()
        try:
            check_origin(scope)
        except HeliographError as error:
            log.info("a WebSocket was refused: %s", error)
            await send({"type": "websocket.close", "code": 1008})
            return
        await send({"type": "websocket.accept"})
        connection = _Connection(self._commands, send)
        session = Session(self._broker, self._feeds, self._commands.holders, connection.push, connection.fail)
        connection.caller = Caller(connection.until_gone, session)
        self._closing.add(connection.going_away)
        try:
            await connection.run(receive)
        finally:
            self._closing.discard(connection.going_away)
            session.close()


class _Connection:
    def __init__(self, commands: QueueCommands, send: Send) -> None:
        self.caller: Caller
        self._commands = commands
        self._send_event = send
        self._sending = asyncio.Lock()
        self._tasks: set[asyncio.Future[None]] = set()
        self._room = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._gone: asyncio.Future[int] = loop.create_future()
        """Done when the connection is over; the result is the code to close it with, 0 = it is closed."""
        self._loop = loop

    def going_away(self) -> None:
        """The server shuts down."""
        self._over(GOING_AWAY)

    def _over(self, code: int) -> None:
        if not self._gone.done():
            self._gone.set_result(code)

    async def until_gone(self) -> Event:
        """As ASGI's `receive`, for a command that waits."""
        await asyncio.shield(self._gone)
        return {"type": "http.disconnect"}

    async def run(self, receive: Receive) -> None:
        """Read commands until the end."""
        reader = asyncio.ensure_future(self._read(receive))
        try:
            await asyncio.wait((reader, self._gone), return_when=asyncio.FIRST_COMPLETED)
            code = self._gone.result() if self._gone.done() else 0
            self._over(0)  # also for the commands that wait
            if reader.done() and not reader.cancelled():
                reader.result()
            if code:
                await self._close(code)
        finally:
            reader.cancel()
            for task in self._tasks:
                task.cancel()

    async def _close(self, code: int) -> None:
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=1)  # waiting ones are answered, as over HTTP
        if not self._sending.locked():
            with contextlib.suppress(Exception):
                await self._send_event({"type": "websocket.close", "code": code})

    async def _read(self, receive: Receive) -> None:
        while True:
            event = await receive()
            if event["type"] != "websocket.receive":
                return
            text = event.get("text")
            request = event.get("bytes") or b"" if text is None else text.encode()
            task = asyncio.ensure_future(self._perform(request))
            self._tasks.add(task)
            task.add_done_callback(self._done)
            if len(self._tasks) >= COMMANDS_MAX:
                self._room.clear()
                await self._room.wait()

    def _done(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)
        self._room.set()
        if not task.cancelled() and task.exception() is not None:
            log.error("a WebSocket's command was not answered", exc_info=task.exception())
            self._over(1011)

    async def _perform(self, request: bytes) -> None:
        with contextlib.suppress(ClientGone):
            _, answer = await perform(self._commands, request, self.caller)
            await self._send(answer)

    # ── sending ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _send(self, *texts: bytes) -> None:
        async with self._sending:
            for text in texts:
                timer = self._loop.call_later(SEND_SECONDS_MAX, self._stalled)
                try:
                    await self._send_event({"type": "websocket.send", "text": text.decode()})
                finally:
                    timer.cancel()

    def _stalled(self) -> None:
        log.info("a WebSocket's client has read nothing for %.0f s: it is closed", SEND_SECONDS_MAX)
        self._over(0)

    async def push(self, name: str, deliveries: Sequence[Delivery], together: int) -> None:
        """See `queue_session.Push`."""
        await self._send(*self._commands.pushed(name, deliveries, together))

    async def fail(self, name: str, error: HeliographError) -> None:
        """See `queue_session.Fail`."""
        error = in_words_of_queues(error)
        queue = name.removeprefix(QUEUE_PREFIX)
        answer = {"type": "error", "queue": queue, "error": error.message, "code": error.reason}
        with contextlib.suppress(Exception):  # the connection may be over meanwhile
            await self._send(_encode(answer))
