"""Telling the event loop from any thread that something may have happened."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable


class LoopSignal:
    """Signals until the loop gets to them are one call. To be made on the loop's thread.

    Args:
        arrived: called on the loop.
    """

    def __init__(self, arrived: Callable[[], None]) -> None:
        self._arrived = arrived
        self._under_way = False
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def __call__(self) -> None:
        """Signal; from any thread."""
        if self._under_way:
            return
        self._under_way = True
        if threading.get_ident() == self._thread:
            self._loop.call_soon(self._arrive)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._arrive)

    def _arrive(self) -> None:
        self._under_way = False  # first: what happens from now on is a signal of its own
        self._arrived()
