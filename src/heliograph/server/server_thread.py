"""A server in a thread of its own, with an event loop of its own: for programs that do something else meanwhile."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from collections.abc import Callable

from heliograph.broker.protocol import Broker
from heliograph.errors import Internal
from heliograph.server.app import ServeOptions, Serving, serve
from heliograph.server.hooks import Hooks


class ServerThread:
    """A server from `start` to `stop`.

    Args:
        open_broker: opens the broker, in a thread; the server closes it.
        options: how to serve; it announces nothing and leaves signals alone, whatever they say.
        hooks: for tests; None = none.
    """

    def __init__(self, open_broker: Callable[[], Broker], options: ServeOptions, hooks: Hooks | None = None) -> None:
        self._open_broker = open_broker
        self._options = dataclasses.replace(options, announce=False, handle_signals=False)
        self._hooks = hooks
        self._thread: threading.Thread | None = None
        self._up_or_over = threading.Event()
        self._serving: Serving | None = None
        self._failure: BaseException | None = None

    @property
    def serving(self) -> Serving:
        """Where it listens.

        Raises:
            RuntimeError: it was not started.
        """
        if self._serving is None:
            raise RuntimeError("the server is not up: use it in its `with` block, or call start()")
        return self._serving

    def start(self, seconds_max: float | None = None) -> None:
        """Start, and return when it accepts requests.

        Args:
            seconds_max: how long that may take; None = as long as recovery takes.

        Raises:
            RuntimeError: it was started before.
            Internal: it took longer.
            OSError, StoreRefused: see `serve`.
        """
        if self._thread is not None:
            raise RuntimeError("a server starts once")
        self._thread = threading.Thread(target=self._run, name="heliograph-server", daemon=True)
        self._thread.start()
        if not self._up_or_over.wait(seconds_max):
            raise Internal(f"The server did not start within {seconds_max:.0f} s")
        if self._failure is not None:
            self._thread.join()
            raise self._failure

    def stop(self, seconds_max: float | None = None) -> None:
        """End the streams, answer what is pending, close the broker. Idempotent; without `start` nothing.

        Args:
            seconds_max: how long that may take; None = as long as it takes.

        Raises:
            Internal: it took longer.
            BaseException: what ended the server before.
        """
        if self._thread is None or self._serving is None:
            return
        self._serving.stop()
        self._thread.join(seconds_max)
        if self._thread.is_alive():
            raise Internal(f"The server did not stop within {seconds_max:.0f} s")
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _run(self) -> None:
        try:
            asyncio.run(serve(self._open_broker, self._options, on_started=self._on_started, hooks=self._hooks))
        except BaseException as failure:
            self._failure = failure
        finally:
            self._up_or_over.set()

    def _on_started(self, serving: Serving) -> None:
        self._serving = serving
        self._up_or_over.set()
