"""Waiting for messages on behalf of one request: until they come, the time is up, the server closes, or the client
goes."""

from __future__ import annotations

import asyncio
import logging
from types import TracebackType
from typing import Self

from heliograph.server.closing import Closing
from heliograph.server.routing import ClientGone, Receive

log = logging.getLogger(__name__)


class Wait:
    """One request's wait; used as ``async with Wait(…) as wait:``.

    Args:
        receive: the request's; read while waiting, to notice that the client has gone.
        closing: the server's.
        timeout_seconds: from now.
    """

    def __init__(self, receive: Receive, closing: Closing, timeout_seconds: float) -> None:
        self._receive = receive
        self._closing = closing
        self._woken = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._ends_at = self._loop.time() + timeout_seconds
        self.wake = self._woken.set
        """Ends the present wait. The same object every time."""

    async def __aenter__(self) -> Self:
        self._gone = asyncio.ensure_future(until_gone(self._receive))
        self._gone.add_done_callback(self._on_gone)
        self._timer = self._loop.call_at(self._ends_at, self.wake)
        self._closing.add(self.wake)
        await asyncio.sleep(0)  # now the client is watched: before anybody can know that it waits
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.discard(self.wake)
        self._timer.cancel()
        self._gone.cancel()

    @property
    def is_over(self) -> bool:
        """Whether the request should be answered with what there is."""
        return self._closing.begun or self._loop.time() >= self._ends_at

    async def woken(self) -> None:
        """Return at the next `wake`, also one that came since the last return, or when the wait is over.

        Raises:
            ClientGone: nobody waits any more.
        """
        await self._woken.wait()
        self._woken.clear()
        self.check()

    def check(self) -> None:
        """Raises: ClientGone."""
        if self._gone.done():
            raise ClientGone

    def _on_gone(self, task: asyncio.Future[None]) -> None:
        if not task.cancelled():
            if task.exception() is not None:
                log.error("a waiting request could not be watched", exc_info=task.exception())
            self.wake()


async def until_gone(receive: Receive) -> None:
    """Return when the client has gone; the request's body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass
