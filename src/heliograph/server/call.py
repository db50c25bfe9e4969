"""What a handler may know of the call that it serves, besides its request; gRPC and REST each have their own."""

from __future__ import annotations

from typing import Protocol

from heliograph.server.routing import Receive


class Call(Protocol):
    """One call of a method with one request and one response."""

    @property
    def receive(self) -> Receive:
        """ASGI's, after the request has been read; a handler that waits learns from it that the client has gone."""

    @property
    def request_bytes(self) -> int:
        """Size of the serialized request; for a transport that has it in another form, of what it would be."""

    def timeout_seconds(self) -> float | None:
        """How long the client is going to wait, from the start of the call; None = it does not say."""
