"""Notices that an HTTP/1.1 client has gone while its request waits.

h2corn reads nothing from an HTTP/1.1 connection until its request is answered, so it tells of a closed one only when it
is too late: the message is leased to nobody. (On HTTP/2, and so for gRPC, it tells at once.) So here the connection's
socket is looked up among the process's own, and the event loop watches a duplicate of it; nothing is read from it.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import Iterable

from heliograph.server.routing import Event, Receive, Scope

_DESCRIPTORS = next((path for path in ("/proc/self/fd", "/dev/fd") if os.path.isdir(path)), "")

_DISCONNECT: Event = {"type": "http.disconnect"}

_known: dict[tuple[str, int], int] = {}
"""Descriptors by client, as they were when last looked at."""


def attentive(scope: Scope, receive: Receive) -> Receive:
    """`receive`, for a request whose body has been read: on HTTP/1.1 it also tells when the connection is closed.

    A client that closes its sending side alone counts as gone, as with most servers.
    """
    client = scope.get("client")
    if scope["http_version"] == "2" or not client or not _DESCRIPTORS:
        return receive

    async def receive_or_gone() -> Event:
        watched = _duplicate((client[0], client[1]))
        if watched is None:
            return await receive()
        event = asyncio.ensure_future(_event(receive))
        gone = _when_closed(watched)
        try:
            await asyncio.wait((event, gone), return_when=asyncio.FIRST_COMPLETED)
            return event.result() if event.done() else _DISCONNECT
        finally:
            # before it is closed: its number may be another connection's at once
            asyncio.get_running_loop().remove_reader(watched)
            watched.close()
            event.cancel()
            gone.cancel()

    return receive_or_gone


async def _event(receive: Receive) -> Event:
    """What h2corn's `receive` gives to be awaited is not quite a coroutine, and no task can be made of it."""
    return await receive()


def _when_closed(watched: socket.socket) -> asyncio.Future[None]:
    """Done when the other side of the connection has closed it. The caller removes the reader."""
    loop = asyncio.get_running_loop()
    gone: asyncio.Future[None] = loop.create_future()

    def look() -> None:
        try:
            is_gone = not watched.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            is_gone = True
        loop.remove_reader(watched)  # where the next request has come already, nothing more can be learnt
        if is_gone and not gone.done():
            gone.set_result(None)

    loop.add_reader(watched, look)
    return gone


def _duplicate(client: tuple[str, int]) -> socket.socket | None:
    """A duplicate of the socket of our connection with `client`; None if it cannot be found."""
    descriptor = _known.get(client)
    if descriptor is None or _client_of(descriptor) != client:
        descriptor = _find(client)
    if descriptor is None:
        return None
    try:
        duplicate = socket.socket(fileno=os.dup(descriptor))
    except OSError:
        return None
    duplicate.setblocking(False)
    return duplicate


def _find(client: tuple[str, int]) -> int | None:
    """First among descriptors that are new since the last look, then among all."""
    descriptors = {int(name) for name in os.listdir(_DESCRIPTORS)}
    _note(descriptors.difference(_known.values()))
    if client not in _known or _client_of(_known[client]) != client:
        _known.clear()
        _note(descriptors)
    return _known.get(client)


def _note(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        client = _client_of(descriptor)
        if client is not None:
            _known[client] = descriptor


def _client_of(descriptor: int) -> tuple[str, int] | None:
    """Who is on the other side of a descriptor, if it is a connected socket."""
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            return None
        borrowed = socket.socket(fileno=descriptor)
    except OSError:
        return None
    try:
        peer = borrowed.getpeername()
        return (peer[0], peer[1]) if isinstance(peer, tuple) else None
    except OSError:
        return None
    finally:
        borrowed.detach()
