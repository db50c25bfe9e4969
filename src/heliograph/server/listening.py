"""Taking the port, on one address or on both loopback addresses."""

from __future__ import annotations

import errno
import socket

LOOPBACK = "localhost"
"""Listened on means both 127.0.0.1 and, where there is one, ::1: what `localhost` leads to differs between clients."""

_TRIES_MAX = 20
_WITHOUT_IPV6 = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT)


def listen(host: str, port: int) -> list[socket.socket]:
    """Take the port, so that a taken one is known before anything is opened or written.

    Args:
        host: an address or a name; `LOOPBACK` for both loopback addresses.
        port: 0 = a free one.

    Returns:
        Listening sockets, at least one, all on the same port.

    Raises:
        OSError: the port is taken, or the address is not this machine's.
    """
    if host != LOOPBACK:
        return [_listen_on(host, port)]
    for _ in range(_TRIES_MAX):
        first = _listen_on("127.0.0.1", port)
        try:
            return [first, _listen_on("::1", first.getsockname()[1])]
        except OSError as error:
            if error.errno in _WITHOUT_IPV6 or isinstance(error, socket.gaierror):
                return [first]
            first.close()
            if port:  # with 0, a port that is free on both addresses is looked for
                raise
    raise OSError(errno.EADDRINUSE, "no port is free on both 127.0.0.1 and ::1")


def _listen_on(host: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener
