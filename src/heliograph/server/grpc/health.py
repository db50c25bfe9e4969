"""`grpc.health.v1.Health/Check`, for orchestrators that ask over gRPC.

Its two messages are so small that well-known wrapper types have the same form on the wire: the request is one string in
field 1, the response one number in field 1.
"""

from __future__ import annotations

from collections.abc import Collection

from google.protobuf.wrappers_pb2 import Int32Value, StringValue

from heliograph.broker.protocol import Broker
from heliograph.server.call import Call
from heliograph.server.grpc.call import Method, Unary
from heliograph.server.grpc.status import NOT_FOUND, RpcError

SERVING, NOT_SERVING = 1, 2


def health_methods(services: Collection[str], broker: Broker) -> dict[str, Method]:
    """The method, by full name.

    Args:
        services: full names of the services that are served; "" asks for the server as a whole.
        broker: while it cannot work, nothing is served.
    """

    async def check(request: StringValue, _call: Call) -> bytes:
        if request.value and request.value not in services:
            raise RpcError(NOT_FOUND, f"Unknown service: {request.value}")
        status = NOT_SERVING if broker.health().reason else SERVING
        return Int32Value(value=status).SerializeToString()

    return {"/grpc.health.v1.Health/Check": Unary(StringValue, Int32Value, check)}
