"""Is it up: `GET /healthz` for machines; `GET /` for people, and for scripts that wait for the official emulator."""

from __future__ import annotations

from heliograph import __version__
from heliograph.broker.protocol import Broker
from heliograph.server.http import TEXT, answer, answer_json
from heliograph.server.routing import Receive, Route, Scope, Send


async def healthz(_scope: Scope, _receive: Receive, send: Send, broker: Broker) -> None:
    """`{"status": "ok", "version": …, "store": …, "durability": …}`. While nothing can be committed it is 503, the
    status "unavailable", and the cause under "reason". Where the data are is nobody's business here."""
    health = broker.health()
    body = {
        "status": "unavailable" if health.reason else "ok",
        "version": __version__,
        "store": health.store,
        "durability": health.durability,
    }
    if health.reason:
        body["reason"] = " ".join(health.reason.split())
    await answer_json(send, body, status=503 if health.reason else 200)


async def front(scope: Scope, _receive: Receive, send: Send, _broker: Broker) -> None:
    """ "Ok", as the official emulator says; to a browser one line that tells a person what answers there."""
    text = "Ok\n"
    if any(name == b"accept" and b"text/html" in value for name, value in scope["headers"]):
        text = (
            f"Heliograph {__version__}: Pub/Sub v1 over gRPC and at /v1/, described at /openapi/pubsub.json; "
            "work queues at /api/v1/command; the console for people at /console\n"
        )
    await answer(send, text.encode(), headers=(TEXT,))


ROUTES = (
    Route("GET", "/healthz", healthz),
    Route("HEAD", "/healthz", healthz),
    Route("GET", "/", front),
    Route("HEAD", "/", front),
)
