"""One connection to a broker in another process: requests from any thread, answers by their numbers.

A connection that is lost fails the calls that wait for an answer; the next call connects anew. As long as something is
watched, it is connected anew by itself.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from heliograph.errors import FailedPrecondition, HeliographError, InvalidArgument, Unavailable
from heliograph.remote import operations as o
from heliograph.store.protocol import COMMITTED, Commit

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

_log = logging.getLogger("heliograph")

OPEN_SECONDS = 10.0
RECONNECT_SECONDS = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Waits between attempts; the last one repeats."""


class _Call:
    __slots__ = ("answered", "body", "commit", "error")

    def __init__(self) -> None:
        self.answered = threading.Event()
        self.body: msgspec.Raw | None = None
        self.commit: Commit = COMMITTED
        self.error: HeliographError | None = None


class Link:
    """See the module.

    Args:
        url: `http://HOST:PORT`, `https://…`, or `HOST:PORT`.
        timeout_seconds: how long an answer may take.
        on_event: called with the number of a watch that has something to tell; from any thread.
        on_connected: called with each new connection, before anything else is sent on it: gives the frames to begin
            with.
        on_late: called with a call's operation, its arguments and its result when nobody waits for that any more; from
            another thread.

    Raises:
        InvalidArgument: it is no such URL.
        FailedPrecondition: the extra `client` is not installed.
    """

    def __init__(
        self,
        url: str,
        timeout_seconds: float,
        on_event: Callable[[int], None],
        on_connected: Callable[[], list[bytes]],
        on_late: Callable[[str, Any, msgspec.Raw], None],
    ) -> None:
        self.url, self._address = url, _address(url)
        self._timeout_seconds = timeout_seconds
        self._on_event = on_event
        self._on_connected = on_connected
        self._on_late = on_late
        self._numbers = itertools.count(1)
        self._connecting = threading.Lock()
        self._sending = threading.Lock()
        self._state = threading.Lock()  # guards what follows
        self._socket: ClientConnection | None = None
        self._calls: dict[int, _Call] = {}
        self._commits: dict[int, Commit] = {}
        self._given_up: dict[int, tuple[str, Any]] = {}  # calls whose answer may still come
        self._closed = False
        self._stop = threading.Event()
        self._open = ExitStack()
        try:
            import websockets.sync.client
        except ImportError:
            raise FailedPrecondition(
                "A broker on a server needs the extra `client`: pip install 'heliograph[client]'"
            ) from None
        self._websockets = websockets

    # ── calls ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def number(self) -> int:
        """A new one, for a request whose events are wanted."""
        return next(self._numbers)

    def call(
        self, operation: str, arguments: Any, *, number: int = 0, before: Callable[[], list[bytes]] | None = None
    ) -> tuple[msgspec.Raw, Commit]:
        """Send a request, and wait for the result.

        Args:
            operation: its name.
            arguments: by name.
            number: see `number`; 0 = a new one.
            before: gives the frames to send just before, under the lock that keeps the order.

        Returns:
            The result, and the commit that makes it durable.

        Raises:
            HeliographError: as the operation does.
            Unavailable: there is no connection, or it was lost, or no answer came in time; the operation may or may not
                have happened.
        """
        number = number or next(self._numbers)
        frame = o.encode((number, operation, arguments))
        socket = self._connected()
        call = _Call()
        with self._state:
            self._calls[number] = call
        try:
            with self._sending:
                for earlier in before() if before is not None else ():
                    socket.send(earlier)
                socket.send(frame)
        except self._failures as error:
            self._lost(socket)
            raise Unavailable(f"The connection to {self.url} was lost: {error}") from None
        answered = False
        try:
            answered = call.answered.wait(self._timeout_seconds)
        finally:
            if not answered:
                self._give_up(number, operation, arguments)
        if not call.answered.is_set():
            raise Unavailable(f"{self.url} did not answer in {self._timeout_seconds:g} s")
        if call.error is not None:
            raise call.error
        assert call.body is not None
        return call.body, call.commit

    def _give_up(self, number: int, operation: str, arguments: Any) -> None:
        """Nobody waits for that answer any more; if it has just come, it is as good as in time."""
        with self._state:
            if self._calls.pop(number, None) is not None:
                self._given_up[number] = (operation, arguments)

    def tell(self, frame: bytes) -> None:
        """Send a request that nobody waits for, if there is a connection."""
        with self._state:
            socket = self._socket
        if socket is not None:
            with contextlib.suppress(*self._failures), self._sending:
                socket.send(frame)

    @property
    def _failures(self) -> tuple[type[Exception], ...]:
        return (OSError, self._websockets.exceptions.WebSocketException, TimeoutError, EOFError)

    # ── the connection ──────────────────────────────────────────────────────────────────────────────────────────────

    def _connected(self) -> ClientConnection:
        socket = self._present()
        if socket is not None:
            return socket
        with self._connecting:
            return self._present() or self._connect()

    def _present(self) -> ClientConnection | None:
        with self._state:
            if self._closed:
                raise Unavailable("The broker is closed")
            return self._socket

    def _connect(self) -> ClientConnection:
        opened = ExitStack()
        try:
            connect = self._websockets.sync.client.connect
            socket: ClientConnection = opened.enter_context(
                connect(self._address, compression=None, max_size=None, open_timeout=OPEN_SECONDS, proxy=None)
            )
        except self._failures as error:
            raise Unavailable(f"No broker answers at {self.url}: {error}") from None
        with self._state:
            if self._closed:
                opened.close()
                raise Unavailable("The broker is closed")
            self._socket, self._open = socket, opened
        threading.Thread(target=self._read, args=(socket,), name="heliograph-link", daemon=True).start()
        try:
            with self._sending:
                for frame in self._on_connected():
                    socket.send(frame)
        except self._failures as error:
            self._lost(socket)
            raise Unavailable(f"The connection to {self.url} was lost: {error}") from None
        return socket

    def _read(self, socket: ClientConnection) -> None:
        try:
            while True:
                self._dispatch(socket.recv())
        except self._failures as error:
            if not self._closed:
                _log.info("the connection to %s was lost: %s", self.url, error)
        except Exception:
            _log.exception("an answer of %s could not be read", self.url)
        self._lost(socket)
        for seconds in itertools.chain(RECONNECT_SECONDS, itertools.repeat(RECONNECT_SECONDS[-1])):
            # nothing to send means that nothing is watched
            if not self._on_connected() or self._stop.wait(seconds):
                return
            try:
                self._connected()
            except HeliographError:
                continue
            return

    def _dispatch(self, frame: str | bytes) -> None:
        assert isinstance(frame, bytes)
        number, kind, body = o.decode_answer(frame)
        if kind == o.EVENT:
            self._on_event(number)
        elif kind in (o.DURABLE, o.FAILED):
            with self._state:
                commit = self._commits.pop(number, None)
            if commit is not None:
                commit.finish(None if kind == o.DURABLE else Unavailable(msgspec.msgpack.decode(body, type=str)))
        else:
            pending = Commit() if kind == o.PENDING else COMMITTED
            with self._state:
                call = self._calls.pop(number, None)
                given_up = self._given_up.pop(number, None)
                if kind == o.PENDING and call is not None:
                    self._commits[number] = pending
            if given_up is not None:
                if kind != o.ERROR:
                    self._on_late(*given_up, body)
                return
            if call is None:
                self._on_event(number)  # nobody waits for it: something is watched anew
                return
            if kind == o.ERROR:
                call.error = o.error_of(body)
            else:
                call.body, call.commit = body.copy(), pending
            call.answered.set()

    def _lost(self, socket: ClientConnection) -> None:
        """Whoever waits for an answer on this connection gets none."""
        with self._state:
            if self._socket is not socket:
                return
            self._socket = None
            calls, self._calls = self._calls, {}
            commits, self._commits = self._commits, {}
            self._given_up.clear()
            opened, self._open = self._open, ExitStack()
        for call in calls.values():
            call.error = Unavailable(f"The connection to {self.url} was lost before the answer")
            call.answered.set()
        for commit in commits.values():
            commit.finish(Unavailable(f"the connection to {self.url} was lost before it was known"))
        with contextlib.suppress(*self._failures):
            opened.close()

    def close(self) -> None:
        """End the connection, and fail what waits. Idempotent."""
        with self._state:
            self._closed = True
            socket = self._socket
        self._stop.set()
        if socket is not None:
            self._lost(socket)


def _address(url: object) -> str:
    if not isinstance(url, str) or not url:
        raise InvalidArgument(f"The URL of a server is wanted, as http://localhost:8085, not {url!r}")
    parts = urlsplit(url if "://" in url else f"http://{url}")
    schemes = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}
    if parts.scheme not in schemes or not parts.hostname:
        raise InvalidArgument(f"The URL of a server is wanted, as http://localhost:8085, not {url!r}")
    return f"{schemes[parts.scheme]}://{parts.netloc}{parts.path.rstrip('/')}{o.PATH}"
