"""How a call ends: the numbers, the trailers, and the translation of errors into them."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from urllib.parse import quote

from heliograph.errors import HeliographError
from heliograph.wire.varint import varint

OK = 0
CANCELLED = 1
INVALID_ARGUMENT = 3
DEADLINE_EXCEEDED = 4
NOT_FOUND = 5
RESOURCE_EXHAUSTED = 8
ABORTED = 10
UNIMPLEMENTED = 12
INTERNAL = 13
UNAVAILABLE = 14

Headers = list[tuple[bytes, bytes]]

CONTENT_TYPE = (b"content-type", b"application/grpc")
OK_TRAILERS: Headers = [(b"grpc-status", b"0")]

# everything printable in ASCII but the percent sign goes as it is (gRPC over HTTP/2, "Percent-Encoded")
_UNQUOTED = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")

MESSAGE_BYTES_MAX = 1024
"""Of `grpc-message`, before its encoding, which may triple it: clients refuse headers beyond 8 KiB in all, and would
then lose the status with the text."""


class RpcError(Exception):
    """A call that ends with this status. For what is wrong in the transport, or has no `heliograph.errors` of its own.

    Args:
        code: gRPC's number.
        message: for the caller.
        details: messages packed as `google.protobuf.Any`: (type URL, serialized), in the order in which they are sent.
    """

    def __init__(self, code: int, message: str, details: Iterable[tuple[str, bytes]] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = tuple(details)


def rpc_error(error: HeliographError) -> RpcError:
    """The status of an error whose text is fit for the caller."""
    return RpcError(error.code, error.message)


def trailers(error: RpcError) -> Headers:
    """The trailing headers that tell `error`."""
    headers = [(b"grpc-status", str(error.code).encode()), (b"grpc-message", _percent_encoded(error.message))]
    if error.details:
        packed = base64.b64encode(_google_rpc_status(error)).rstrip(b"=")
        headers.append((b"grpc-status-details-bin", packed))
    return headers


def _percent_encoded(message: str) -> bytes:
    encoded = message.encode(errors="replace")
    if len(encoded) > MESSAGE_BYTES_MAX:
        encoded = encoded[:MESSAGE_BYTES_MAX].decode(errors="ignore").encode() + b"..."
    return quote(encoded, safe=_UNQUOTED).encode()


def _google_rpc_status(error: RpcError) -> bytes:
    """A `google.rpc.Status`: code 1, message 2, details 3 (`Any`: type_url 1, value 2)."""
    fields = [b"\x08", varint(error.code), _bytes_field(b"\x12", error.message.encode(errors="replace"))]
    for type_url, value in error.details:
        fields.append(_bytes_field(b"\x1a", _bytes_field(b"\x0a", type_url.encode()) + _bytes_field(b"\x12", value)))
    return b"".join(fields)


def _bytes_field(tag: bytes, value: bytes) -> bytes:
    return b"".join((tag, varint(len(value)), value))
