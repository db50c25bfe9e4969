"""The moment at which the server begins to shut down, told to everything that waits."""

from __future__ import annotations

from collections.abc import Callable


class Closing:
    """Whoever waits for a long time registers here, so that a shutdown ends its wait at once. Event loop thread
    only."""

    __slots__ = ("_callbacks", "begun")

    def __init__(self) -> None:
        self.begun = False
        self._callbacks: set[Callable[[], object]] = set()

    def begin(self) -> None:
        """Tell everyone, once."""
        self.begun = True
        callbacks, self._callbacks = self._callbacks, set()
        for callback in callbacks:
            callback()

    def add(self, callback: Callable[[], object]) -> None:
        """Call `callback` when the shutdown begins; at once if it has."""
        if self.begun:
            callback()
        else:
            self._callbacks.add(callback)

    def discard(self, callback: Callable[[], object]) -> None:
        """Forget `callback`."""
        self._callbacks.discard(callback)
