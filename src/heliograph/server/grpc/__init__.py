"""gRPC spoken as ASGI: calls, frames, trailers, and the health service; which methods there are comes from outside."""
