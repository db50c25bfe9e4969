"""One WebSocket, whatever is spoken over it: requests side by side, sends one after the other, and bounds for a client
that does not read.

What a client does not read holds up its own connection only: at most `REQUESTS_MAX` requests of one connection are not
answered, then no more are read from it, and one that reads nothing for `SEND_SECONDS_MAX` is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from heliograph.errors import HeliographError
from heliograph.server.closing import Closing
from heliograph.server.hosts import Hosts
from heliograph.server.http import check_origin
from heliograph.server.routing import Event, Receive, Scope, Send

log = logging.getLogger(__name__)

REQUESTS_MAX = 1_024
"""Of one connection at a time, those that wait for messages among them."""

SEND_SECONDS_MAX = 20.0
"""A client that takes nothing for so long is closed, and its messages go to others."""

GOING_AWAY = 1001
POLICY_VIOLATION = 1008
INTERNAL_ERROR = 1011


async def is_welcome(scope: Scope, receive: Receive, send: Send, hosts: Hosts) -> bool:
    """Answer the handshake: no page of another origin gets a connection."""
    await receive()
    try:
        hosts.check(scope)
        check_origin(scope)
    except HeliographError as error:
        log.info("a WebSocket was refused: %s", error)
        await send({"type": "websocket.close", "code": POLICY_VIOLATION})
        return False
    await send({"type": "websocket.accept"})
    return True


class Socket:
    """See the module.

    Args:
        send: ASGI's.
        closing: ends it.
    """

    def __init__(self, send: Send, closing: Closing) -> None:
        self._send_event = send
        self._closing = closing
        self._sending = asyncio.Lock()
        self._sent = 0  # messages
        self._watchdog: asyncio.TimerHandle
        self._tasks: set[asyncio.Future[None]] = set()
        self._room = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._gone: asyncio.Future[int] = self._loop.create_future()
        """Done when the connection is over; the result is the code to close it with, 0 = it is closed."""

    def _over(self, code: int) -> None:
        if not self._gone.done():
            self._gone.set_result(code)

    def _going_away(self) -> None:
        self._over(GOING_AWAY)

    async def until_gone(self) -> Event:
        """As ASGI's `receive`, for a request that waits."""
        await asyncio.shield(self._gone)
        return {"type": "http.disconnect"}

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def run(self, receive: Receive, begin: Callable[[bytes], Coroutine[Any, Any, None] | None]) -> None:
        """Read requests until the end.

        Args:
            receive: ASGI's.
            begin: called with each request, in order; what it gives is done side by side with the others.
        """
        self._closing.add(self._going_away)
        reader = asyncio.ensure_future(self._read(receive, begin))
        try:
            await asyncio.wait((reader, self._gone), return_when=asyncio.FIRST_COMPLETED)
            code = self._gone.result() if self._gone.done() else 0
            self._over(0)  # also for the requests that wait
            if reader.done():
                reader.result()
            if code:
                await self._close(code)
        finally:
            self._closing.discard(self._going_away)
            reader.cancel()
            for task in self._tasks:
                task.cancel()

    async def _close(self, code: int) -> None:
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=1)  # waiting ones are answered, as over HTTP
        if not self._sending.locked():
            with contextlib.suppress(Exception):
                await self._send_event({"type": "websocket.close", "code": code})

    async def _read(self, receive: Receive, begin: Callable[[bytes], Coroutine[Any, Any, None] | None]) -> None:
        while True:
            event = await receive()
            if event["type"] != "websocket.receive":
                return
            text = event.get("text")
            work = begin(event.get("bytes") or b"" if text is None else text.encode())
            if work is not None:
                self.add(work)
            if len(self._tasks) >= REQUESTS_MAX:
                self._room.clear()
                await self._room.wait()

    def add(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something side by side with the rest, for as long as the connection lasts."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)
        self._room.set()
        if task.cancelled() or task.exception() is None:
            return
        if not self._gone.done():
            log.info("a WebSocket's request could not be answered", exc_info=task.exception())
        self._over(INTERNAL_ERROR)

    # ── sending ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def send_texts(self, *texts: bytes) -> None:
        """Send one message for each, UTF-8."""
        await self._send([{"type": "websocket.send", "text": text.decode()} for text in texts])

    async def send_bytes(self, *frames: bytes) -> None:
        """Send one message for each."""
        await self._send([{"type": "websocket.send", "bytes": frame} for frame in frames])

    async def _send(self, events: list[Event]) -> None:
        async with self._sending:
            self._watch_sending(-1)
            try:
                for event in events:
                    await self._send_event(event)
                    self._sent += 1
            finally:
                self._watchdog.cancel()

    def _watch_sending(self, sent: int) -> None:
        """Look again and again whether anything was sent since."""
        if sent == self._sent:
            log.info("a WebSocket's client has read nothing for %.0f s: it is closed", SEND_SECONDS_MAX)
            self._over(0)
        else:
            self._watchdog = self._loop.call_later(SEND_SECONDS_MAX, self._watch_sending, self._sent)
