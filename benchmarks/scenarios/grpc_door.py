"""The Pub/Sub door, against `heliograph serve` as a process of its own on the same machine.

The raw stubs send requests that were serialized beforehand, so that what is measured is the server's side as far as
that goes on shared cores; the official client is what applications feel.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from google.cloud import pubsub_v1
from google.pubsub_v1 import types
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from benchmarks.harness import Figures, Load, Scale
from benchmarks.scenarios import suite
from benchmarks.server import running_server

TOPIC = "projects/bench/topics/orders"
SUBSCRIPTION = "projects/bench/subscriptions/billing"
WAIT_SECONDS_MAX = 60.0
CALLS = {1: 5_000, 100: 1_000}  # by messages per call, when something else goes on meanwhile
CALLS_ONE_BY_ONE = 500
STREAMED = 50_000
CLIENT_MESSAGES = 10_000
STORES = ("memory", "sqlite")

Serialized = Callable[..., Any]

_PullRequest = types.StreamingPullRequest.pb(types.StreamingPullRequest()).__class__  # without proto-plus around it


def _as_it_is(serialized: bytes) -> bytes:
    return serialized


class Stubs:
    """The methods that the scenarios call, with bytes in and out.

    Args:
        endpoint: HOST:PORT.
    """

    def __init__(self, endpoint: str) -> None:
        self.channel = grpc.insecure_channel(endpoint)
        self.create_topic = self._unary("Publisher/CreateTopic")
        self.publish = self._unary("Publisher/Publish")
        self.create_subscription = self._unary("Subscriber/CreateSubscription")
        self.streaming_pull: Serialized = self.channel.stream_stream(
            "/google.pubsub.v1.Subscriber/StreamingPull",
            request_serializer=_PullRequest.SerializeToString,
            response_deserializer=types.StreamingPullResponse.pb(types.StreamingPullResponse()).FromString,
        )

    def _unary(self, method: str) -> Any:
        return self.channel.unary_unary(f"/google.pubsub.v1.{method}", _as_it_is, _as_it_is)


@contextmanager
def _server(store: str, *, subscription: bool) -> Iterator[Stubs]:
    """A server with a topic, and a subscription to it if wanted."""
    with running_server(store) as endpoint:
        stubs = Stubs(endpoint)
        try:
            stubs.create_topic(types.Topic.serialize(types.Topic(name=TOPIC)), timeout=WAIT_SECONDS_MAX)
            if subscription:
                wanted = types.Subscription(name=SUBSCRIPTION, topic=TOPIC, ack_deadline_seconds=600)
                stubs.create_subscription(types.Subscription.serialize(wanted), timeout=WAIT_SECONDS_MAX)
            yield stubs
        finally:
            stubs.channel.close()


def _publish_request(batch: int, payload_bytes: int) -> bytes:
    message = types.PubsubMessage(data=b"x" * payload_bytes)
    return bytes(types.PublishRequest.serialize(types.PublishRequest(topic=TOPIC, messages=[message] * batch)))


def _publish(stubs: Stubs, request: bytes, calls: int, in_flight: int) -> None:
    waiting: deque[Any] = deque()
    for _ in range(calls):
        waiting.append(stubs.publish.future(request, timeout=WAIT_SECONDS_MAX))
        if len(waiting) >= in_flight:
            waiting.popleft().result()
    for call in waiting:
        call.result()


@suite.scenario(store=STORES, batch=(1, 100), in_flight=(100,), payload_bytes=(100,))
def grpc_publish(scale: Scale, *, store: str, batch: int, in_flight: int, payload_bytes: int) -> Iterator[Load]:
    """Unary Publish calls on one connection, many at a time."""
    request = _publish_request(batch, payload_bytes)
    calls = scale.count(CALLS[batch])
    with _server(store, subscription=False) as stubs:
        yield Load(lambda: _publish(stubs, request, calls, in_flight), calls * batch)


@suite.scenario(store=STORES, payload_bytes=(100,))
def grpc_publish_latency(scale: Scale, *, store: str, payload_bytes: int) -> Iterator[Load]:
    """Unary Publish calls of one message, one after the other: how long does an answer take?"""
    request = _publish_request(1, payload_bytes)
    calls = scale.count(CALLS_ONE_BY_ONE)
    with _server(store, subscription=False) as stubs:

        def run() -> Figures:
            took_ms: list[float] = []
            for _ in range(calls):
                start = time.perf_counter()
                stubs.publish(request, timeout=WAIT_SECONDS_MAX)
                took_ms.append((time.perf_counter() - start) * 1000)
            took_ms.sort()
            return {"p50 ms": took_ms[calls // 2], "p99 ms": took_ms[calls * 99 // 100]}

        yield Load(run, calls)


@suite.scenario(
    target=lambda store, payload_bytes: "150k a second" if store == "memory" else "", store=STORES, payload_bytes=(100,)
)
def grpc_streaming_pull(scale: Scale, *, store: str, payload_bytes: int) -> Iterator[Load]:
    """One StreamingPull over a backlog, every response acknowledged on the stream."""
    batch = 1_000
    request = _publish_request(batch, payload_bytes)
    messages = scale.count(STREAMED, multiple_of=batch)
    with _server(store, subscription=True) as stubs:
        yield Load(
            run=lambda: _drain(stubs, messages),
            operations=messages,
            prepare=lambda: _publish(stubs, request, messages // batch, in_flight=4),
        )


def _drain(stubs: Stubs, messages: int) -> None:
    """Pull and acknowledge `messages`, then close the stream."""
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    requests.put(_PullRequest(subscription=SUBSCRIPTION, stream_ack_deadline_seconds=600))
    stream = stubs.streaming_pull(iter(requests.get, None), timeout=WAIT_SECONDS_MAX)
    left = messages
    for response in stream:
        received = response.received_messages
        requests.put(_PullRequest(ack_ids=[each.ack_id for each in received]))
        left -= len(received)
        if left <= 0:
            break
    requests.put(None)
    for _ in stream:  # the server ends the stream when the acknowledgements are in
        pass


@suite.scenario(peer="grpc_publish", store=("sqlite",), batch=(100,), in_flight=(100,), payload_bytes=(100,))
def client_publish(scale: Scale, *, store: str, batch: int, in_flight: int, payload_bytes: int) -> Iterator[Load]:
    """The official client publishes, in batches of its own making."""
    data = b"x" * payload_bytes
    messages = scale.count(CLIENT_MESSAGES)
    with _server(store, subscription=False) as stubs:
        publisher = pubsub_v1.PublisherClient(
            batch_settings=pubsub_v1.types.BatchSettings(max_messages=batch),
            transport=PublisherGrpcTransport(channel=stubs.channel),
        )

        def run() -> None:
            for answer in [publisher.publish(TOPIC, data) for _ in range(messages)]:
                answer.result(WAIT_SECONDS_MAX)

        yield Load(run, messages)
        publisher.stop()


@suite.scenario(peer="grpc_streaming_pull", store=("sqlite",), payload_bytes=(100,))
def client_subscribe(scale: Scale, *, store: str, payload_bytes: int) -> Iterator[Load]:
    """The official client's `subscribe()` over a backlog, each message acknowledged in the callback."""
    batch = 1_000
    request = _publish_request(batch, payload_bytes)
    messages = scale.count(CLIENT_MESSAGES, multiple_of=batch)
    with _server(store, subscription=True) as stubs:
        subscriber = pubsub_v1.SubscriberClient(transport=SubscriberGrpcTransport(channel=stubs.channel))

        def run() -> None:
            left = messages
            lock = threading.Lock()
            done = threading.Event()

            def receive(message: Any) -> None:
                nonlocal left
                message.ack()
                with lock:
                    left -= 1
                    if left == 0:
                        done.set()

            pulling = subscriber.subscribe(SUBSCRIPTION, receive)
            try:
                if not done.wait(WAIT_SECONDS_MAX):
                    raise TimeoutError(f"{left} of {messages} messages did not come in {WAIT_SECONDS_MAX:.0f} s")
            finally:
                pulling.cancel()
                pulling.result(WAIT_SECONDS_MAX)

        yield Load(
            run=run,
            operations=messages,
            prepare=lambda: _publish(stubs, request, messages // batch, in_flight=4),
        )
