"""Raw clients: gRPC without any retry or batching of the official libraries, and HTTP."""

from __future__ import annotations

import json
import queue
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple, Self

import grpc

from heliograph.server.pubsub import proto
from heliograph.server.pubsub.methods import pubsub_methods

METHODS: dict[str, Any] = {
    name.rpartition("/")[2]: (name, method)
    for name, method in pubsub_methods(None, None, None).items()  # type: ignore[arg-type]  # only the table is looked at
}

Failure: Any = grpc.RpcError  # what is raised is a call as well, with code() and details()


class Rpc:
    """Calls methods by their short names with the official message classes."""

    def __init__(self, port: int, **options: Any) -> None:
        own_connection = ("grpc.use_local_subchannel_pool", 1)
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=[own_connection, *options.items()])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.channel.close()

    def method(self, name: str) -> Any:
        path, method = METHODS[name]
        return self.channel.unary_unary(
            path,
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=method.response_class.FromString,
        )

    def __call__(self, method: str, /, *, timeout: float = 30, **fields: Any) -> Any:
        """Call a method with a request made of `fields`."""
        return self.method(method)(METHODS[method][1].request_class(**fields), timeout=timeout)

    def create_topic(self, name: str, **fields: Any) -> Any:
        return self("CreateTopic", name=name, **fields)

    def create_subscription(self, name: str, topic: str, **fields: Any) -> Any:
        return self("CreateSubscription", name=name, topic=topic, **fields)

    def publish(self, topic: str, *payloads: bytes, **fields: Any) -> list[str]:
        messages = [{"data": payload, **fields} for payload in payloads]
        return list(self("Publish", topic=topic, messages=messages).message_ids)

    def pull(self, subscription: str, max_messages: int = 1000, timeout: float = 30) -> list[Any]:
        """What there is right now."""
        response = self(
            "Pull", subscription=subscription, max_messages=max_messages, return_immediately=True, timeout=timeout
        )
        return list(response.received_messages)

    def acknowledge(self, subscription: str, *ack_ids: str) -> None:
        self("Acknowledge", subscription=subscription, ack_ids=ack_ids)

    def nack(self, subscription: str, *ack_ids: str) -> None:
        self("ModifyAckDeadline", subscription=subscription, ack_ids=ack_ids, ack_deadline_seconds=0)

    def stream(self, subscription: str, **fields: Any) -> Stream:
        """Open a streaming pull."""
        fields = {"stream_ack_deadline_seconds": 10} | fields
        return Stream(self.channel, proto.StreamingPullRequest(subscription=subscription, **fields))


class Stream:
    """One streaming pull. It is cancelled at the end of its `with` block."""

    def __init__(self, channel: grpc.Channel, first: Any) -> None:
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._requests.put(first)
        path, method = METHODS["StreamingPull"]
        open_stream = channel.stream_stream(
            path,
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=method.response_class.FromString,
        )
        self.call: Any = open_stream(iter(self._requests.get, None), timeout=30)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.call.cancel()
        self._requests.put(None)

    def send(self, **fields: Any) -> None:
        self._requests.put(proto.StreamingPullRequest(**fields))

    def half_close(self) -> None:
        self._requests.put(None)

    def response(self) -> Any:
        """The next response; raises `Failure` when the stream has failed."""
        return next(self.call)

    def messages(self, count: int) -> list[Any]:
        """The next `count` messages, from as many responses as it takes."""
        received: list[Any] = []
        while len(received) < count:
            received += self.response().received_messages
        return received

    def on_message(self, callback: Callable[[Any], object]) -> None:
        """Call `callback` with each message from now on, in a thread, until the stream ends."""

        def read() -> None:
            with suppress(Failure):
                for response in self.call:
                    for message in response.received_messages:
                        callback(message)

        self._reader = threading.Thread(target=read)
        self._reader.start()

    def wait(self) -> None:
        """Until the stream has ended."""
        self._reader.join(30)

    def failure(self) -> tuple[grpc.StatusCode, str]:
        """How the stream ends."""
        try:
            for _ in self.call:
                pass
        except Failure:
            pass
        return self.call.code(), self.call.details()


class Answer(NamedTuple):
    status: int
    body: Any


class Http:
    """JSON over HTTP/1.1."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Answer:
        request = urllib.request.Request(self.url + path, data=body, method=method, headers=headers or {})
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return Answer(response.status, _json(response.read()))
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, _json(error.read()))

    def command(self, command: str, **payload: Any) -> Any:
        """Run a queue command that succeeds."""
        answer = self.try_command(command, **payload)
        assert answer.body["success"], answer.body
        assert answer.status == 200
        return answer.body["payload"]

    def try_command(self, command: str, **payload: Any) -> Answer:
        """Run a queue command that may fail."""
        return self.request("POST", "/api/v1/command", json.dumps({"command": command, "payload": payload}).encode())

    def failure(self, command: str, **payload: Any) -> tuple[int, str]:
        """HTTP status and code of a queue command that fails."""
        answer = self.try_command(command, **payload)
        assert answer.body["success"] is False, answer.body
        assert answer.body["payload"] is None
        return answer.status, answer.body["code"]


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode()


def wait_until(condition: Callable[[], bool]) -> None:
    """For what another process or the network does: there is no event to wait for."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)  # between two looks
