"""The work-queue door, against `heliograph serve` as a process of its own on the same machine (issue: figures)."""

from __future__ import annotations

import json
import selectors
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from benchmarks.harness import Figures, Load, Scale
from benchmarks.http_load import WAIT_SECONDS_MAX, WebSocket, ask, connect, keep_in_flight, post, read_answer
from benchmarks.scenarios import suite
from benchmarks.server import running_server

COMMAND = "/api/v1/command"
SOCKET = "/api/v1/ws"
QUEUE = "bench"
STORES = ("memory", "sqlite")
REQUESTS = {1: 20_000, 100: 2_000}  # by messages in each
CONSUMED = 40_000
ACKED_TOGETHER = 50
PREFETCH = 500
RATE = 1_000  # per second, of publishes, consumes and acks each
RATE_SECONDS = 5
QUEUES = 10_000


def command(name: str, /, **payload: Any) -> bytes:
    """The body of a request."""
    return json.dumps({"command": name, "payload": payload}).encode()


@contextmanager
def _server(store: str) -> Iterator[str]:
    """A server with a queue."""
    with running_server(store) as endpoint:
        with connect(endpoint) as connection:
            ask(connection, COMMAND, command("queue.create", name=QUEUE, max_depth=10_000_000))
        yield endpoint


def _purge(endpoint: str) -> None:
    with connect(endpoint) as connection:
        ask(connection, COMMAND, command("queue.purge", queue=QUEUE))


@suite.scenario(store=STORES, batch=(1, 100), in_flight=(32,), payload_bytes=(100,))
def queue_publish(scale: Scale, *, store: str, batch: int, in_flight: int, payload_bytes: int) -> Iterator[Load]:
    """Publishes over HTTP/1.1 with keep-alive, one on each of many connections at a time."""
    message = {"message": "x" * payload_bytes}
    if batch == 1:
        request = post(COMMAND, command("queue.publish", queue=QUEUE, **message))
    else:
        request = post(COMMAND, command("queue.publish_batch", queue=QUEUE, messages=[message] * batch))
    requests = scale.count(REQUESTS[batch])
    with _server(store) as endpoint:
        connections = [connect(endpoint) for _ in range(in_flight)]
        try:
            yield Load(
                run=lambda: keep_in_flight(connections, request, requests),
                operations=requests * batch,
                prepare=lambda: _purge(endpoint),
            )
        finally:
            for connection in connections:
                connection.close()


class _Pushed(msgspec.Struct):
    message_id: str = ""
    lease_id: str = ""
    type: str = ""
    success: bool = True


_decode = msgspec.json.Decoder(_Pushed).decode


@suite.scenario(store=STORES, connections=(1, 4), payload_bytes=(100,))
def queue_consume(scale: Scale, *, store: str, connections: int, payload_bytes: int) -> Iterator[Load]:
    """Messages pushed over WebSockets, one by one, and acknowledged fifty at a time."""
    messages = scale.count(CONSUMED, multiple_of=100 * connections)
    batch = command("queue.publish_batch", queue=QUEUE, messages=[{"message": "x" * payload_bytes}] * 100)

    with _server(store) as endpoint:

        def prepare() -> None:
            _purge(endpoint)
            with connect(endpoint) as connection:
                keep_in_flight([connection], post(COMMAND, batch), messages // 100)

        yield Load(run=lambda: _drain(endpoint, connections, messages), operations=messages, prepare=prepare)


class _Consumer:
    """One connection that acknowledges what it gets, many messages at once."""

    def __init__(self, endpoint: str) -> None:
        self.client = WebSocket(endpoint, SOCKET)
        self.client.send(command("queue.subscribe", queue=QUEUE, prefetch=PREFETCH, ack_deadline=600))
        self._ids: list[str] = []
        self._leases: list[str] = []
        self._unanswered = 1

    def receive(self) -> int:
        """What has come. Answers how many messages that were."""
        count = 0
        for text in self.client.received():
            pushed = _decode(text)
            if pushed.type:
                self._ids.append(pushed.message_id)
                self._leases.append(pushed.lease_id)
                count += 1
            elif not pushed.success:
                raise RuntimeError(text.decode())
            else:
                self._unanswered -= 1
        if len(self._ids) >= ACKED_TOGETHER:
            self.acknowledge()
        return count

    def acknowledge(self) -> None:
        """What is not acknowledged yet."""
        if self._ids:
            self.client.send(command("queue.ack", queue=QUEUE, message_ids=self._ids, lease_ids=self._leases))
            self._ids, self._leases = [], []
            self._unanswered += 1

    def finish(self) -> None:
        """Until everything is answered."""
        self.acknowledge()
        while self._unanswered:
            self.receive()
        self.client.close()


def _drain(endpoint: str, connections: int, messages: int) -> None:
    """Be pushed `messages` on so many connections together, and acknowledge each."""
    consumers = [_Consumer(endpoint) for _ in range(connections)]
    with selectors.DefaultSelector() as selector:
        for consumer in consumers:
            selector.register(consumer.client.socket, selectors.EVENT_READ, consumer)
        while messages > 0:
            for key, _ in selector.select(WAIT_SECONDS_MAX):
                messages -= key.data.receive()
    for consumer in consumers:
        consumer.finish()


@suite.scenario(store=("memory",), rate=(RATE,))
def queue_latency(scale: Scale, *, store: str, rate: int) -> Iterator[Load]:
    """So many publishes, consumes and acknowledgements a second each, over HTTP: how long does an answer take?"""
    rounds = scale.count(rate * RATE_SECONDS)

    with _server(store) as endpoint, connect(endpoint) as publisher, connect(endpoint) as consumer:
        publish = post(COMMAND, command("queue.publish", queue=QUEUE, message="x" * 100))
        consume = post(COMMAND, command("queue.consume", queue=QUEUE, timeout=5))

        def run() -> Figures:
            took_ms: dict[str, list[float]] = {"publish": [], "consume": [], "ack": []}
            took: dict[str, Callable[[Any, bytes], bytes]] = {
                name: _timed(took_ms[name]) for name in ("publish", "consume", "ack")
            }

            def consume_all() -> None:
                for number in range(rounds):
                    _until(started + number / rate)
                    message_id = json.loads(took["consume"](consumer, consume))["payload"]["message_id"]
                    took["ack"](consumer, post(COMMAND, command("queue.ack", queue=QUEUE, message_id=message_id)))

            started = time.perf_counter() + 0.01
            consuming = threading.Thread(target=consume_all)
            consuming.start()
            for number in range(rounds):
                _until(started + (number - 0.5) / rate)
                took["publish"](publisher, publish)
            consuming.join()
            figures: dict[str, float] = {}
            for name, values in took_ms.items():
                values.sort()
                figures[f"{name} p50 ms"] = values[len(values) // 2]
                figures[f"{name} p99 ms"] = values[len(values) * 99 // 100]
            return figures

        yield Load(run, 3 * rounds)


def _timed(took_ms: list[float]) -> Callable[[Any, bytes], bytes]:
    def call(connection: Any, request: bytes) -> bytes:
        start = time.perf_counter()
        connection.sendall(request)
        answer = read_answer(connection)
        took_ms.append((time.perf_counter() - start) * 1000)
        return answer

    return call


def _until(instant: float) -> None:
    left = instant - time.perf_counter()
    if left > 0:
        time.sleep(left)


@suite.scenario(store=("memory",), queues=(QUEUES,))
def queue_many(scale: Scale, *, store: str, queues: int) -> Iterator[Load]:
    """Ten thousand queues at once: in each a message is published, consumed and acknowledged."""
    names = [f"queue-{number}" for number in range(scale.count(queues))]
    with running_server(store) as endpoint:
        connections = [connect(endpoint) for _ in range(32)]

        def each(make: Callable[[str], bytes]) -> list[Any]:
            answers: list[Any] = []
            for start in range(0, len(names), len(connections)):
                part = list(zip(connections, names[start : start + len(connections)], strict=False))
                for connection, name in part:
                    connection.sendall(post(COMMAND, make(name)))
                answers += [json.loads(read_answer(connection))["payload"] for connection, _ in part]
            return answers

        each(lambda name: command("queue.create", name=name))

        def run() -> None:
            each(lambda name: command("queue.publish", queue=name, message=name))
            consumed = each(lambda name: command("queue.consume", queue=name))
            ids = {answer["message"]: answer["message_id"] for answer in consumed}
            each(lambda name: command("queue.ack", queue=name, message_id=ids[name]))

        yield Load(run, 3 * len(names))
        for connection in connections:
            connection.close()
