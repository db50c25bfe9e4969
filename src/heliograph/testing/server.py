"""A server inside the test's process: the real doors on a free port, in a thread with an event loop of its own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

from heliograph.broker.broker import LocalBroker
from heliograph.server.app import ServeOptions
from heliograph.server.server_thread import ServerThread
from heliograph.testing.clock import MovableClock
from heliograph.testing.hooks import TestHooks
from heliograph.testing.ledger import PublishedMessage

SECONDS_MAX = 30.0
"""How long starting and stopping may take before they are given up."""


class Server:
    """A server for tests, up within its `with` block, or from `start()` to `stop()`. Several may run at once, also in
    several processes: each has a free port.

    Args:
        data_dir: keep everything in this directory, so that another server can go on from there; None = in memory.
        clock: the broker's time; None = the machine's, which `advance` moves on. With `heliograph.SimulatedClock()`
            time stands between steps.
        host: address to listen on.
        port: 0 = a free one.
        lenient: take what only the official emulator takes (short names, short deadlines).
        admin: serve the hooks at `/admin/v1/…` too (`testing/admin.py`), for tests in other languages.
    """

    def __init__(
        self,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        clock: MovableClock | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        lenient: bool = False,
        admin: bool = False,
    ) -> None:
        self._data_dir = data_dir
        self._hooks = TestHooks(clock, serves_admin=admin)
        options = ServeOptions(host=host, port=port, grace_seconds=1.0, lenient=lenient)
        self._thread = ServerThread(self._open, options, self._hooks)

    # ── up and down ─────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> Self:
        """Start, and return when it answers.

        Raises:
            OSError: the port cannot be had.
            StoreRefused: the data directory cannot be used; it is left untouched.
            RuntimeError: it was started before.
        """
        self._thread.start(SECONDS_MAX)
        return self

    def stop(self) -> None:
        """End the streams, answer what is pending, close the broker. Idempotent.

        Raises:
            Internal: it did not end in time.
        """
        self._thread.stop(SECONDS_MAX)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _open(self) -> LocalBroker:
        return self._hooks.open_broker(self._data_dir)

    # ── where it is ─────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def host(self) -> str:
        """The address that it listens on."""
        return self._thread.serving.host

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return self._thread.serving.port

    @property
    def endpoint(self) -> str:
        """HOST:PORT, as `PUBSUB_EMULATOR_HOST` and `heliograph.PubSub(endpoint=…)` take it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """`http://HOST:PORT`, for REST, queues and the admin routes."""
        return f"http://{self.endpoint}"

    @property
    def broker(self) -> LocalBroker:
        """The broker behind the doors, in this process."""
        return self._live_hooks().broker

    def environment(self) -> dict[str, str]:
        """The variables under which official clients, of this process or another, use this server."""
        return {"PUBSUB_EMULATOR_HOST": self.endpoint}

    @contextlib.contextmanager
    def emulating(self) -> Iterator[Self]:
        """Set `environment()` in this process for the length of a block: official clients made in it use this
        server."""
        before = {name: os.environ.get(name) for name in self.environment()}
        os.environ.update(self.environment())
        try:
            yield self
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value

    def _live_hooks(self) -> TestHooks:
        """The hooks of a server that is up.

        Raises:
            RuntimeError: it is not.
        """
        _ = self._thread.serving
        return self._hooks

    # ── what a test does ────────────────────────────────────────────────────────────────────────────────────────────

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass at once: leases end, backoffs pass, retention drops what it must.

        Raises:
            ValueError: negative.
        """
        self._live_hooks().advance(seconds)

    def fail(self, method: str, code: Any, *, times: int | None = 1, message: str = "") -> None:
        """Let the next `times` calls of a method fail before they do anything, whatever door they come through. Mind
        that official clients try again on some codes.

        Args:
            method: of Pub/Sub by its short name, such as "Publish" or "StreamingPull" (of that, the next streams to be
                opened), or a queue command, such as "queue.publish".
            code: gRPC's, as a number, a name ("UNAVAILABLE") or a `grpc.StatusCode`.
            times: how many calls; None = all until `clear_failures`.
            message: what the caller is told; "" = that a test wanted it.

        Raises:
            InvalidArgument: no such method or code, or `times` below 1.
        """
        self._live_hooks().fail(method, code, times=times, message=message)

    def clear_failures(self) -> None:
        """Nothing fails on order any more."""
        self._hooks.faults.clear()

    def messages(self, topic: str | None = None) -> list[PublishedMessage]:
        """What was published since the server started, or `clear`, in order; with what became of it so far.

        Args:
            topic: full name, such as `projects/p/topics/t`, or `queues/NAME`; None = all.
        """
        return self._hooks.messages(topic)

    def clear(self) -> None:
        """Everything goes: topics, subscriptions, snapshots, schemas, policies, queues, orders to fail, the list of
        published messages. The clock stays where it is."""
        self._live_hooks().clear()
