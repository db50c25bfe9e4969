"""`grpc.health.v1.Health`, for orchestrators that ask over gRPC, and clients that watch."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Collection
from typing import Any

from grpc_health.v1 import health_pb2 as proto

from heliograph.broker.protocol import Broker
from heliograph.errors import Unavailable
from heliograph.server.call import Call
from heliograph.server.closing import Closing
from heliograph.server.grpc.call import Bidi, BidiCall, Method, Unary
from heliograph.server.grpc.status import NOT_FOUND, RpcError
from heliograph.server.routing import ClientGone

LOOK_SECONDS = 5.0
"""How often a watched broker is asked; it does not tell by itself."""

_SERVICE = "/grpc.health.v1.Health/"


def health_methods(services: Collection[str], broker: Broker, closing: Closing) -> dict[str, Method]:
    """The methods, by full name.

    Args:
        services: full names of the services that are served; "" asks for the server as a whole.
        broker: while it cannot work, nothing is served.
        closing: ends the watching.
    """
    health = _Health(services, broker, closing)
    return {
        f"{_SERVICE}Check": Unary(proto.HealthCheckRequest, proto.HealthCheckResponse, health.check),
        f"{_SERVICE}Watch": Bidi(proto.HealthCheckRequest, proto.HealthCheckResponse, health.watch),
    }


class _Health:
    def __init__(self, services: Collection[str], broker: Broker, closing: Closing) -> None:
        self._services = services
        self._broker = broker
        self._closing = closing

    async def check(self, request: Any, _call: Call) -> bytes:
        if self._is_unknown(request.service):
            raise RpcError(NOT_FOUND, f"Unknown service: {request.service}")
        return self._status(request.service)

    async def watch(self, call: BidiCall) -> None:
        """The status now, and whenever it changes; an unknown service is a status here, and no failure."""
        requests = await call.read()
        service = requests[0].service if requests else ""
        closed = asyncio.get_running_loop().create_future()
        gone = asyncio.ensure_future(call.until_gone())
        close = functools.partial(_finish, closed)
        self._closing.add(close)
        told = b""
        try:
            while not closed.done():
                status = self._status(service)
                if status != told:
                    await call.write(status)
                    told = status
                await asyncio.wait((gone, closed), timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    raise ClientGone
        finally:
            self._closing.discard(close)
            gone.cancel()
        raise Unavailable("The server is shutting down.")

    def _is_unknown(self, service: str) -> bool:
        return bool(service) and service not in self._services

    def _status(self, service: str) -> bytes:
        statuses = proto.HealthCheckResponse
        if self._is_unknown(service):
            status = statuses.SERVICE_UNKNOWN
        else:
            status = statuses.NOT_SERVING if self._broker.health().reason else statuses.SERVING
        encoded: bytes = statuses(status=status).SerializeToString()
        return encoded


def _finish(closed: asyncio.Future[None]) -> None:
    if not closed.done():
        closed.set_result(None)
