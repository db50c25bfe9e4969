"""The table of HTTP routes: which door answers which path. gRPC has its own table (`server/pubsub/methods.py`).

A door that speaks HTTP is a module with a constant ``ROUTES``, a tuple of `Route`; `server/app.py` lists the modules in
its ``HTTP_DOORS``, and nothing else needs changing. A handler is called as ``await handler(scope, receive, send,
broker)`` with the three arguments of ASGI and the broker. `heliograph.errors` that it raises before it has sent
anything become the JSON error answer; anything else becomes a 500 without detail. `server/http.py` has what handlers
share: reading a body within bounds, query parameters, JSON answers.

A path that ends in ``/`` matches everything below it; the longest match wins. Example::

    async def bounds(scope: Scope, receive: Receive, send: Send, broker: Broker) -> None:
        first, last = broker.log_bounds(required(scope, "topic"))
        await answer_json(send, {"first": first, "last": last})

    ROUTES = (Route("GET", "/api/v1/log/bounds", bounds), Route("GET", "/api/v1/log/read", read))
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, NamedTuple, TypeAlias

from heliograph.broker.protocol import Broker

Scope: TypeAlias = MutableMapping[str, Any]
Event: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Event]]
Send: TypeAlias = Callable[[Event], Awaitable[None]]
Handler: TypeAlias = Callable[[Scope, Receive, Send, Broker], Awaitable[None]]


class ClientGone(Exception):
    """The client cancelled the request or lost its connection: there is nobody to answer."""


class Route(NamedTuple):
    """One entry of the table.

    Args:
        method: the HTTP method, upper case.
        path: an exact path, or a prefix when it ends in ``/`` (``/`` itself is exact).
        handler: see the module.
    """

    method: str
    path: str
    handler: Handler


class RouteTable:
    """Finds the handler of a request.

    Args:
        routes: in any order.

    Raises:
        ValueError: two routes claim the same method and path.
    """

    def __init__(self, routes: Iterable[Route]) -> None:
        self._exact: dict[str, dict[str, Handler]] = {}
        self._prefixes: dict[str, dict[str, Handler]] = {}
        for route in routes:
            prefix = route.path.endswith("/") and route.path != "/"
            handlers = (self._prefixes if prefix else self._exact).setdefault(route.path, {})
            if route.method in handlers:
                raise ValueError(f"two routes for {route.method} {route.path}")
            handlers[route.method] = route.handler
        self._by_length = sorted(self._prefixes, key=len, reverse=True)

    def handlers(self, path: str) -> dict[str, Handler]:
        """Those of a path, by method; empty when nobody knows the path."""
        exact = self._exact.get(path)
        if exact is not None:
            return exact
        return next((self._prefixes[prefix] for prefix in self._by_length if path.startswith(prefix)), {})
