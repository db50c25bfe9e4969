"""An endpoint that pushes go to: a real HTTP server, which answers as the test says."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self

from tests.server.clients import wait_until


class Pushed(NamedTuple):
    """A request that came."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def envelope(self) -> Any:
        return json.loads(self.body)

    @property
    def message(self) -> Any:
        return self.envelope["message"]


class Endpoint:
    """Listens within its `with` block.

    Args:
        answer: the status for a request; 0 = hang up without one.
        tls: its side of TLS; None = without.
    """

    def __init__(self, answer: Callable[[Pushed], int] = lambda _: 204, *, tls: ssl.SSLContext | None = None) -> None:
        self.answer = answer
        self.requests: list[Pushed] = []
        self.open = 0
        self.most_open = 0
        self._lock = threading.Lock()
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                endpoint.handle(self, Pushed(self.path, headers, body))

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self._server.server_port}/push"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def handle(self, handler: BaseHTTPRequestHandler, pushed: Pushed) -> None:
        with self._lock:
            self.requests.append(pushed)
            self.open += 1
            self.most_open = max(self.most_open, self.open)
        status = self.answer(pushed)
        with self._lock:
            self.open -= 1
        if status == 0:
            handler.close_connection = True
            return
        handler.send_response(status)
        handler.send_header("content-length", "0")
        handler.end_headers()

    def wait(self, count: int) -> list[Pushed]:
        """The requests, once there are so many."""
        wait_until(lambda: len(self.requests) >= count)
        return self.requests

    def payloads(self) -> list[str]:
        """The messages that came, in order, still in base64."""
        return [one.message["data"] for one in self.requests]
