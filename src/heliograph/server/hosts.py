"""Which names a browser may have reached the broker by.

Whoever looks at a page can be made to send requests to the broker on his own machine: the page's own name is pointed to
127.0.0.1 once the page is loaded (DNS rebinding), and then the browser takes the broker for the page's origin. The name
in `Host` gives it away, for it is not the broker's.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

from heliograph.errors import HeliographError
from heliograph.server.routing import Scope


class ForeignHost(HeliographError):
    """The request is for a host of another name."""

    code = 7


class Hosts:
    """Names that may stand in `Host`: any address, `localhost`, this machine's name, and those given.

    Where the server listens on loopback alone, no request may name another. Elsewhere that is asked of browsers only
    (they send `Origin` or `Sec-Fetch-Site`), for other clients reach it by whatever name the network gives it.

    Args:
        listens_on: the address or name that the server listens on.
        names: further ones.
    """

    def __init__(self, listens_on: str, names: Iterable[str] = ()) -> None:
        self._of_everyone = is_loopback(listens_on)
        self._allowed = {name.lower() for name in (listens_on, socket.gethostname(), *names)}
        self._known: dict[bytes, bool] = {}

    def check(self, scope: Scope) -> None:
        """Raises: ForeignHost."""
        host, is_browser = b"", self._of_everyone
        for name, value in scope["headers"]:
            if name == b"host":
                host = value
            elif name in (b"origin", b"sec-fetch-site"):
                is_browser = True
        if not is_browser or not host:
            return
        allowed = self._known.get(host)
        if allowed is None:
            allowed = self._allows(host.decode("latin-1").lower())
            if len(self._known) < 1_000:
                self._known[host] = allowed
        if not allowed:
            raise ForeignHost(f"This broker is not {host[:100].decode('latin-1')}; allow the name, or use its address")

    def _allows(self, host: str) -> bool:
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and not host.endswith("]") else host
        return name in self._allowed or name == "localhost" or name.endswith(".localhost") or _is_address(name)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    return host == "localhost" or (_is_address(host) and ipaddress.ip_address(host.strip("[]")).is_loopback)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name[1:-1] if name.startswith("[") else name)
    except ValueError:
        return False
    return True
