"""Requests over HTTP/1.1 and WebSocket at little cost to the sender, which shares the machine with the server.

Requests are made beforehand, and of an answer only what is needed is looked at. WebSocket frames are masked with zeros,
as the protocol allows, so that nothing needs to be computed for each byte.
"""

from __future__ import annotations

import selectors
import socket

WAIT_SECONDS_MAX = 60.0


def post(path: str, body: bytes) -> bytes:
    """A whole request."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def connect(endpoint: str) -> socket.socket:
    """A connection that waits for nothing before it sends."""
    host, _, port = endpoint.rpartition(":")
    opened = socket.create_connection((host, int(port)), timeout=WAIT_SECONDS_MAX)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return opened


def read_answer(connection: socket.socket) -> bytes:
    """The body of one answer of HTTP/1.1.

    Raises:
        RuntimeError: it is not 200, or the connection is gone.
    """
    received = b""
    while b"\r\n\r\n" not in received:
        received += _some(connection)
    head, _, body = received.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise RuntimeError(received[:500].decode("latin-1"))
    length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
    while len(body) < length:
        body += _some(connection)
    return body


def _some(connection: socket.socket) -> bytes:
    received = connection.recv(1 << 20)
    if not received:
        raise RuntimeError("the server has closed the connection")
    return received


def ask(connection: socket.socket, path: str, body: bytes) -> bytes:
    """One request and its answer's body."""
    connection.sendall(post(path, body))
    return read_answer(connection)


def keep_in_flight(connections: list[socket.socket], request: bytes, count: int) -> None:
    """Send `request` `count` times, on each connection as soon as the answer before is there."""
    with selectors.DefaultSelector() as selector:
        left, waiting = count, 0
        for connection in connections[:count]:
            selector.register(connection, selectors.EVENT_READ)
            connection.sendall(request)
            left, waiting = left - 1, waiting + 1
        while waiting:
            for key, _ in selector.select(WAIT_SECONDS_MAX):
                connection = key.fileobj  # type: ignore[assignment]  # as registered
                read_answer(connection)
                waiting -= 1
                if left:
                    connection.sendall(request)
                    left, waiting = left - 1, waiting + 1


class WebSocket:
    """A client's side of a WebSocket.

    Args:
        endpoint: HOST:PORT.
        path: where it is.
    """

    def __init__(self, endpoint: str, path: str) -> None:
        self.socket = connect(endpoint)
        self.socket.sendall(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        received = b""
        while not received.endswith(b"\r\n\r\n"):
            received += _some(self.socket)
        if not received.startswith(b"HTTP/1.1 101"):
            raise RuntimeError(received.decode("latin-1"))
        self._buffer = bytearray()

    def send(self, text: bytes) -> None:
        """One message."""
        length = len(text)
        if length < 126:
            head = bytes((0x81, 0x80 | length))
        elif length < 1 << 16:
            head = b"\x81\xfe" + length.to_bytes(2, "big")
        else:
            head = b"\x81\xff" + length.to_bytes(8, "big")
        self.socket.sendall(b"".join((head, b"\0\0\0\0", text)))

    def received(self) -> list[bytes]:
        """What has come, and if that is no whole message, what comes next; pings are answered."""
        buffer = self._buffer
        buffer += _some(self.socket)
        messages: list[bytes] = []
        start = 0
        while (frame := _frame(buffer, start)) is not None:
            head, end = frame
            opcode = buffer[start] & 0x0F
            payload = bytes(buffer[start + head : end])
            start = end
            if opcode == 0x9:
                self.socket.sendall(bytes((0x8A, 0x80 | len(payload))) + b"\0\0\0\0" + payload)
            elif opcode == 0x8:
                raise RuntimeError(f"the server has closed the WebSocket: {payload!r}")
            else:
                messages.append(payload)
        del buffer[:start]
        return messages

    def close(self) -> None:
        """End it, without a word."""
        self.socket.close()


def _frame(buffer: bytearray, start: int) -> tuple[int, int] | None:
    """How long the head of the frame at `start` is, and where the frame ends; None = it is not whole yet."""
    left = len(buffer) - start
    if left < 2:
        return None
    length, head = buffer[start + 1] & 0x7F, 2
    if length == 126:
        head = 4
        length = int.from_bytes(buffer[start + 2 : start + 4], "big")
    elif length == 127:
        head = 10
        length = int.from_bytes(buffer[start + 2 : start + 10], "big")
    return (head, start + head + length) if left >= head + length else None
