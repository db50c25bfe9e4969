"""The unmodified official Python client, as an application uses it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.subscriber.exceptions import AcknowledgeStatus

from heliograph.server.app import Serving

WAIT_SECONDS = 30


@pytest.fixture(scope="module")
def clients(server: Serving) -> Iterator[tuple[Any, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PUBSUB_EMULATOR_HOST", f"127.0.0.1:{server.port}")
        options = pubsub_v1.types.PublisherOptions(enable_message_ordering=True)
        publisher = pubsub_v1.PublisherClient(publisher_options=options)
        subscriber = pubsub_v1.SubscriberClient()
    yield publisher, subscriber
    publisher.stop()
    subscriber.close()


@pytest.fixture
def publisher(clients: tuple[Any, Any]) -> Any:
    return clients[0]


@pytest.fixture
def subscriber(clients: tuple[Any, Any]) -> Any:
    return clients[1]


class Received:
    """Collects messages until there are as many as expected."""

    def __init__(self, expected: int) -> None:
        self.messages: list[Any] = []
        self._expected = expected
        self._all = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, message: Any) -> None:
        with self._lock:
            self.messages.append(message)
            if len(self.messages) >= self._expected:
                self._all.set()

    def wait(self) -> list[Any]:
        assert self._all.wait(WAIT_SECONDS), f"{len(self.messages)} of {self._expected}"
        return self.messages


def stop(future: Any) -> None:
    future.cancel()
    future.result(timeout=WAIT_SECONDS)


def test_publish_and_subscribe(publisher: Any, subscriber: Any, topic: str, subscription: str) -> None:
    received = Received(500)

    def callback(message: Any) -> None:
        message.ack()
        received(message)

    future = subscriber.subscribe(subscription, callback)
    ids = [publisher.publish(topic, b"x", number=str(number)) for number in range(500)]
    published = {one.result(WAIT_SECONDS) for one in ids}
    assert {message.message_id for message in received.wait()} == published
    assert {message.attributes["number"] for message in received.messages} == {str(n) for n in range(500)}
    stop(future)


def test_messages_of_a_key_arrive_in_order(publisher: Any, subscriber: Any, topic: str, project: str) -> None:
    name = f"{project}/subscriptions/ordered"
    subscriber.create_subscription({"name": name, "topic": topic, "enable_message_ordering": True})
    for number in range(60):
        publisher.publish(topic, str(number).encode(), ordering_key=f"key-{number % 3}")
    received = Received(60)

    def callback(message: Any) -> None:
        received(message)
        message.ack()

    future = subscriber.subscribe(name, callback)
    by_key: dict[str, list[int]] = {}
    for message in received.wait():
        by_key.setdefault(message.ordering_key, []).append(int(message.data))
    assert by_key == {f"key-{first}": list(range(first, 60, 3)) for first in range(3)}
    stop(future)


def test_1_7_3_max_messages_bounds_what_is_processed_at_once(
    publisher: Any, subscriber: Any, topic: str, subscription: str
) -> None:
    for number in range(25):
        publisher.publish(topic, str(number).encode()).result(WAIT_SECONDS)
    lock = threading.Lock()
    now = [0]
    most = [0]
    received = Received(25)

    def callback(message: Any) -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        threading.Event().wait(0.005)
        with lock:
            now[0] -= 1
        message.ack()
        received(message)

    flow = pubsub_v1.types.FlowControl(max_messages=5)
    future = subscriber.subscribe(subscription, callback, flow_control=flow)
    received.wait()
    assert most[0] <= 5
    stop(future)


def test_1_7_9_what_a_closing_client_gives_back_is_delivered_to_the_next(
    publisher: Any, subscriber: Any, topic: str, subscription: str
) -> None:
    for _ in range(10):
        publisher.publish(topic, b"x").result(WAIT_SECONDS)
    first = Received(1)

    def nack(message: Any) -> None:
        message.nack()
        first(message)

    future = subscriber.subscribe(subscription, nack, await_callbacks_on_shutdown=True)
    first.wait()
    stop(future)
    received = Received(10)

    def callback(message: Any) -> None:
        message.ack()
        received(message)

    future = subscriber.subscribe(subscription, callback)
    assert len({message.message_id for message in received.wait()}) == 10
    stop(future)


def test_a_large_backlog_does_not_hold_up_the_clients_own_calls(
    publisher: Any, subscriber: Any, topic: str, subscription: str
) -> None:
    """The client confirms what it received by a call on the same connection before it reads its stream on."""
    for one in [publisher.publish(topic, bytes(20_000)) for _ in range(1_000)]:
        one.result(WAIT_SECONDS)
    received = Received(1_000)

    def callback(message: Any) -> None:
        message.ack()
        received(message)

    future = subscriber.subscribe(subscription, callback)
    received.wait()
    stop(future)


def test_1_8_exactly_once_tells_the_first_ack_from_the_second(
    publisher: Any, subscriber: Any, topic: str, project: str
) -> None:
    name = f"{project}/subscriptions/exactly-once"
    subscriber.create_subscription({"name": name, "topic": topic, "enable_exactly_once_delivery": True})
    publisher.publish(topic, b"x").result(WAIT_SECONDS)
    received = Received(1)
    future = subscriber.subscribe(name, received)
    (message,) = received.wait()
    assert message.ack_with_response().result(WAIT_SECONDS) is AcknowledgeStatus.SUCCESS
    with pytest.raises(Exception, match="INVALID_ACK_ID"):
        message.ack_with_response().result(WAIT_SECONDS)
    stop(future)


def test_1_6_1_a_pull_without_messages_is_no_error(
    subscriber: Any, subscription: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heliograph.server.pubsub.subscriber.PULL_WAIT_SECONDS_MAX", 0.2)
    response = subscriber.pull(subscription=subscription, max_messages=2, timeout=WAIT_SECONDS, retry=None)
    assert list(response.received_messages) == []


def test_errors_are_the_exceptions_that_applications_catch(publisher: Any, subscriber: Any, project: str) -> None:
    with pytest.raises(exceptions.NotFound):
        publisher.get_topic(topic=f"{project}/topics/missing")
    with pytest.raises(exceptions.NotFound):
        publisher.publish(f"{project}/topics/missing", b"x").result(WAIT_SECONDS)
    with pytest.raises(exceptions.InvalidArgument):
        publisher.create_topic(name=f"{project}/topics/a")


def test_1_7_8_subscribing_to_a_missing_subscription_ends_with_not_found(subscriber: Any, project: str) -> None:
    future = subscriber.subscribe(f"{project}/subscriptions/missing", lambda message: None)
    with pytest.raises(exceptions.NotFound):
        future.result(timeout=WAIT_SECONDS)


def test_1_5_5_listing_gives_what_creating_gave(publisher: Any, subscriber: Any, topic: str, project: str) -> None:
    created = subscriber.create_subscription(
        request={"name": f"{project}/subscriptions/sub-1", "topic": topic, "ack_deadline_seconds": 30}
    )
    assert list(subscriber.list_subscriptions(project=project)) == [created]
    assert list(publisher.list_topic_subscriptions(topic=topic)) == [created.name]
    assert [one.name for one in publisher.list_topics(project=project)] == [topic]


def test_the_stream_survives_being_idle(publisher: Any, subscriber: Any, topic: str, subscription: str) -> None:
    received = Received(1)
    future = subscriber.subscribe(subscription, received)
    with pytest.raises(FutureTimeout):
        future.result(timeout=0.3)
    publisher.publish(topic, b"x").result(WAIT_SECONDS)
    received.wait()[0].ack()
    stop(future)
