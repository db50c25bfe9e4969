"""The peer of the gRPC door: grpcio's own server, which answers every Publish with one fixed response and does nothing
else. `python -m benchmarks.bare_grpcio` says where it listens, as `heliograph serve` does, and ends on SIGTERM."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.pubsub_v1 import types

THREADS = 8
PUBLISH = "/google.pubsub.v1.Publisher/Publish"


class _Publish(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in its stubs only
    def service(self, call: Any) -> Any:
        if call.method != PUBLISH:
            return None
        request_class = types.PublishRequest.pb(types.PublishRequest())

        def answer(request: Any, _context: Any) -> Any:
            return types.PublishResponse(message_ids=["1"] * len(request.messages))

        return grpc.unary_unary_rpc_method_handler(
            answer, request_deserializer=request_class.FromString, response_serializer=types.PublishResponse.serialize
        )


def main() -> None:
    """Serve until SIGTERM."""
    server = grpc.server(ThreadPoolExecutor(THREADS))
    server.add_generic_rpc_handlers((_Publish(),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    print(f"Server started, listening on {port}", flush=True)
    ended.wait()
    server.stop(0).wait()


if __name__ == "__main__":
    main()
