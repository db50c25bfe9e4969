"""`grpc.health.v1.Health/Check`, for orchestrators that ask over gRPC.

Its two messages are so small that well-known wrapper types have the same form on the wire: the request is one string in
field 1, the response one number in field 1.
"""

from __future__ import annotations

from collections.abc import Collection

from google.protobuf.wrappers_pb2 import Int32Value, StringValue

from heliograph.server.grpc.call import Method, Unary, UnaryCall
from heliograph.server.grpc.status import NOT_FOUND, RpcError

SERVING = 1


def health_methods(services: Collection[str]) -> dict[str, Method]:
    """The method, by full name.

    Args:
        services: full names of the services that are served; "" asks for the server as a whole.
    """

    async def check(request: StringValue, _call: UnaryCall) -> bytes:
        if request.value and request.value not in services:
            raise RpcError(NOT_FOUND, f"Unknown service: {request.value}")
        return Int32Value(value=SERVING).SerializeToString()

    return {"/grpc.health.v1.Health/Check": Unary(StringValue, Int32Value, check)}
