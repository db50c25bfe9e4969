"""What the calls of one client connection have to know of each other.

h2corn holds two megabytes of unsent bodies for a connection. A stream that has filled them, because its client does not
read it just now, holds up every other answer on that connection; and official clients put everything on one connection,
and some read their stream on only when another call is answered. So whoever sends much on a stream must keep below
that, by what its client confirms (`unread`); and where that did not help, the stream gives way (`BidiCall.write`).
"""

from __future__ import annotations

from collections.abc import Callable

from heliograph.server.routing import Scope


class Connection:
    """One client connection that has streams. Event loop thread only."""

    __slots__ = ("answered", "answering", "streams", "unread", "waiting")

    def __init__(self) -> None:
        self.streams = 0
        self.answering = 0
        """Answers to unary calls that are being sent."""
        self.answered = 0
        """Such answers that have been sent; grows."""
        self.unread = 0
        """Bytes that streams have sent, and that the client has not shown to have read."""
        self.waiting: dict[Callable[[], None], None] = {}
        """Who is to be called when `unread` shrinks."""


class Connections:
    """The connections that have streams, by the client's address."""

    def __init__(self) -> None:
        self._connections: dict[object, Connection] = {}

    def get(self, scope: Scope) -> Connection | None:
        """The connection of a request, if it has streams."""
        return self._connections.get(scope.get("client")) if self._connections else None

    def join(self, scope: Scope) -> Connection:
        """The connection of a request that is a stream."""
        connection = self._connections.setdefault(scope.get("client"), Connection())
        connection.streams += 1
        return connection

    def leave(self, scope: Scope, connection: Connection) -> None:
        """The stream has ended."""
        connection.streams -= 1
        if not connection.streams:
            self._connections.pop(scope.get("client"), None)
