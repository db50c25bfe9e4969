"""A REST door in front of handlers that give back the request they got: what is asked is what was understood."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import pytest
from google.iam.v1 import iam_policy_pb2
from google.pubsub_v1 import types

from heliograph.errors import HeliographError
from heliograph.server.call import Call
from heliograph.server.grpc.call import Method, Unary
from heliograph.server.pubsub.texts import translate
from heliograph.server.rest.bindings import Binding, pubsub_bindings
from heliograph.server.rest.door import RestDoor
from heliograph.server.routing import Event, Scope

BINDINGS = pubsub_bindings()

_RESOURCES = {"CreateTopic": "Topic", "CreateSubscription": "Subscription"}


def request_class(method: str) -> Any:
    """The request of a method, also of one that the server does not have yet."""
    name = method.rpartition("/")[2]
    if "iam" in method:
        return getattr(iam_policy_pb2, f"{name}Request")
    return getattr(types, _RESOURCES.get(name, f"{name}Request")).pb()


class Answer(NamedTuple):
    status: int
    body: Any
    headers: dict[str, str]
    text: str

    @property
    def message(self) -> str:
        text: str = self.body["error"]["message"]
        return text


class Echo:
    """Calls the door without a network."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.calls: list[Call] = []
        self.failure: HeliographError | Exception | None = None
        methods: dict[str, Method] = {}
        for binding in BINDINGS:
            kind = request_class(binding.method)
            methods[binding.method] = Unary(kind, kind, self._handle)
        self._routes = {route.method: route.handler for route in RestDoor(BINDINGS, methods, translate).routes()}

    async def _handle(self, request: Any, call: Call) -> bytes:
        if self.failure is not None:
            raise self.failure
        self.requests.append(request)
        self.calls.append(call)
        encoded: bytes = request.SerializeToString()
        return encoded

    def __call__(self, http_method: str, path: str, body: Any = None, **query: Any) -> Answer:
        """One request; `body` is JSON unless it is bytes."""
        encoded = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        scope: Scope = {
            "type": "http",
            "http_version": "2",
            "method": http_method,
            "path": path,
            "query_string": urlencode(query, doseq=True, quote_via=quote).encode(),
            "headers": [],
        }
        sent: list[Event] = []

        async def receive() -> Event:
            return {"type": "http.request", "body": encoded}

        async def send(event: Event) -> None:
            sent.append(event)

        handler: Callable[..., Any] = self._routes[http_method]
        run(handler(scope, receive, send, None))
        start, *bodies = sent
        headers = {name.decode(): value.decode() for name, value in start["headers"]}
        text = b"".join(event["body"] for event in bodies).decode()
        return Answer(start["status"], json.loads(text), headers, text)

    def text(self, http_method: str, path: str, **query: Any) -> str:
        """The answer as it is sent."""
        return self(http_method, path, **query).text

    def understood(self, http_method: str, path: str, body: Any = None, **query: Any) -> Any:
        """The request that the handler got."""
        answer = self(http_method, path, body, **query)
        assert answer.status == 200, answer
        return self.requests[-1]

    def refusal(self, http_method: str, path: str, body: Any = None, **query: Any) -> str:
        """Why the request was refused as a mistake of the caller's."""
        answer = self(http_method, path, body, **query)
        error = answer.body["error"]
        assert (answer.status, error["code"], error["status"]) == (400, 400, "INVALID_ARGUMENT"), answer
        return answer.message


def run(handling: Coroutine[Any, Any, None]) -> None:
    """Run what never waits: an event loop for each of thousands of requests would take most of the time."""
    with pytest.raises(StopIteration):
        handling.send(None)


def find(method: str) -> Binding:
    """The first binding of a method, by its short name."""
    return next(binding for binding in BINDINGS if binding.method.endswith(f"/{method}"))
