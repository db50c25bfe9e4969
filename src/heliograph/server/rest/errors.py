"""The body of an answer that is an error (pubsub-protocol.md 1.17)."""

from __future__ import annotations

from typing import Any

from google.protobuf import json_format, symbol_database
from google.rpc.code_pb2 import Code

from heliograph.errors import HTTP_STATUS
from heliograph.server.grpc.status import INTERNAL, RpcError


def http_status(code: int) -> int:
    """The HTTP status of a gRPC code."""
    return HTTP_STATUS.get(code, HTTP_STATUS[INTERNAL])


def error_body(error: RpcError, status: int) -> dict[str, Any]:
    """`{"error": {"code", "message", "status", "details"}}`.

    Args:
        error: how the call ended.
        status: the HTTP status that it is answered with.
    """
    told: dict[str, Any] = {"code": status, "message": error.message, "status": Code.Name(error.code)}
    if error.details:
        told["details"] = [_detail(type_url, value) for type_url, value in error.details]
    return {"error": told}


def _detail(type_url: str, value: bytes) -> dict[str, Any]:
    """A packed message as JSON writes a `google.protobuf.Any`."""
    message_class = symbol_database.Default().GetSymbol(type_url.rpartition("/")[2])
    return {"@type": type_url, **json_format.MessageToDict(message_class.FromString(value))}
