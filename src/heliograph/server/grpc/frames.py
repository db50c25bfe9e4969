"""gRPC's length-prefixed messages: one byte of flags, four of length, then the message. No I/O: bytes in, messages
out."""

from __future__ import annotations

import zlib

from heliograph.server.grpc.status import INTERNAL, INVALID_ARGUMENT, UNIMPLEMENTED, RpcError

HEAD_BYTES = 5
MESSAGE_BYTES_MAX = 20 * 1024 * 1024
"""Largest message, also once decompressed: a publish of 10,000,000 bytes must be read to be refused with the right text
(protocol 1.4.3), and one far beyond it must not fill the memory."""

_COMPRESSED = 1
_GZIP_WINDOW = 16 + zlib.MAX_WBITS
_ANY_DEFLATE_WINDOW = 32 + zlib.MAX_WBITS


def frame(message: bytes) -> bytes:
    """`message` with its head, uncompressed."""
    return b"".join((b"\0", len(message).to_bytes(4, "big"), message))


class FrameReader:
    """Takes the body of a request in pieces, however they are cut, and gives back its messages.

    Args:
        encoding: the request's `grpc-encoding`.
        bytes_max: a larger message is refused as soon as its head is seen.
    """

    __slots__ = ("_bytes_max", "_encoding", "_rest")

    def __init__(self, encoding: bytes = b"identity", bytes_max: int = MESSAGE_BYTES_MAX) -> None:
        self._encoding = encoding
        self._bytes_max = bytes_max
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are complete with `data`.

        Raises:
            RpcError: a message is too large, or its compression is unknown or broken. The stream cannot go on.
        """
        if not self._rest and len(data) >= HEAD_BYTES and len(data) == HEAD_BYTES + self._length(data, 0):
            # the usual case, without a second copy: one piece is one message
            return [self._message(data[0], data[HEAD_BYTES:])]
        rest = self._rest
        rest += data
        messages = []
        at = 0
        while len(rest) - at >= HEAD_BYTES:
            end = at + HEAD_BYTES + self._length(rest, at)
            if len(rest) < end:
                break
            messages.append(self._message(rest[at], bytes(rest[at + HEAD_BYTES : end])))
            at = end
        del rest[:at]
        return messages

    @property
    def is_between_messages(self) -> bool:
        """Whether the body may end here."""
        return not self._rest

    def _length(self, data: bytes | bytearray, at: int) -> int:
        length = int.from_bytes(data[at + 1 : at + HEAD_BYTES], "big")
        if length > self._bytes_max:
            raise _too_large(self._bytes_max)
        return length

    def _message(self, flags: int, message: bytes) -> bytes:
        if flags == 0:
            return message
        if flags != _COMPRESSED:
            raise RpcError(INTERNAL, f"The frame has unknown flags {flags}")
        return _decompress(self._encoding, message, self._bytes_max)


def _decompress(encoding: bytes, message: bytes, bytes_max: int) -> bytes:
    if encoding == b"gzip":
        machine = zlib.decompressobj(_GZIP_WINDOW)
    elif encoding == b"deflate":
        machine = zlib.decompressobj(_ANY_DEFLATE_WINDOW)
    elif encoding == b"identity":
        raise RpcError(INTERNAL, "A frame is marked as compressed, but the request names no grpc-encoding")
    else:
        raise RpcError(UNIMPLEMENTED, f"grpc-encoding {encoding.decode(errors='replace')} is not supported; use gzip")
    try:
        plain = machine.decompress(message, bytes_max + 1)
    except zlib.error as error:
        raise RpcError(INTERNAL, f"A compressed frame is damaged: {error}") from None
    if len(plain) > bytes_max:
        raise _too_large(bytes_max)
    if not machine.eof:
        raise RpcError(INTERNAL, "A compressed frame is cut short")
    return plain


def _too_large(bytes_max: int) -> RpcError:
    # not gRPC's own RESOURCE_EXHAUSTED, for which official clients would publish it again and again (protocol 1.1.8)
    return RpcError(INVALID_ARGUMENT, f"Request payload size exceeds the limit: {bytes_max} bytes.")
