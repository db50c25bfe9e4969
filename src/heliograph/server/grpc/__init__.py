"""gRPC spoken as ASGI: frames, trailers, and the table of the Pub/Sub methods."""
