"""The classes that work on a broker in this process work on that of a server."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import heliograph
from heliograph import InvalidArgument, MessageNotFound, PriorityPubSub, PubSub, RetryPolicy, Unavailable
from heliograph.broker.broker import LocalBroker
from heliograph.broker.clock import SimulatedClock
from heliograph.client.priority_message import PriorityMessage
from tests.client.extensions import Extensions
from tests.remote.conftest import Pair
from tests.server.clients import wait_until
from tests.server.conftest import serving

AT_ONCE = RetryPolicy(minimum_backoff=0, maximum_backoff=0)


@pytest.fixture
def url(pair: Pair) -> str:
    return f"http://127.0.0.1:{pair.server.port}"


@pytest.fixture
def pubsub(url: str) -> Iterator[PriorityPubSub]:
    with heliograph.connect(url, retry_policy=AT_ONCE) as connected:
        yield connected


@pytest.fixture
def other(url: str) -> Iterator[PriorityPubSub]:
    """As another process would have it."""
    with heliograph.connect(url, retry_policy=AT_ONCE) as connected:
        yield connected


class Seen:
    """What a callback got."""

    def __init__(self) -> None:
        self.messages: list[PriorityMessage] = []

    def __call__(self, message: PriorityMessage) -> None:
        self.messages.append(message)

    @property
    def values(self) -> list[object]:
        return [message.message for message in self.messages]


# ── priorities ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_one_publishes_another_gets_the_higher_priority_first(
    pubsub: PriorityPubSub, other: PriorityPubSub
) -> None:
    for number, priority in enumerate((3, 1, 2, 1)):
        pubsub.publish("orders", number, priority=priority)
    seen = Seen()
    other.subscribe("orders", seen)
    assert other.join(30)
    assert seen.values == [1, 3, 2, 0]


def test_subscribers_of_several_processes_share_a_topic(pubsub: PriorityPubSub, other: PriorityPubSub) -> None:
    one, two = Seen(), Seen()
    pubsub.subscribe("orders", one)
    other.subscribe("orders", two)
    ids = pubsub.publish_many("orders", list(range(50)))
    wait_until(lambda: len(one.messages) + len(two.messages) == 50)
    assert sorted([message.id for message in (*one.messages, *two.messages)]) == sorted(ids)


def test_what_fails_is_retried_and_then_a_dead_letter_and_may_be_put_back(
    pubsub: PriorityPubSub, other: PriorityPubSub
) -> None:
    def fail(_message: PriorityMessage) -> None:
        raise ValueError("poison")

    subscription = pubsub.subscribe("orders", fail)
    pubsub.publish("orders", "poison")
    assert pubsub.join(30)
    subscription.close()
    (letter,) = other.dead_letters("orders")
    assert (letter.message, letter.retries, letter.reason) == ("poison", 3, "MaxRetriesExceeded")
    assert other.retry_dead_letters("orders") == 1
    seen = Seen()
    other.subscribe("orders", seen)
    assert other.join(30)
    assert seen.values == ["poison"]


def test_what_is_acknowledged_later_by_id_is_gone(pubsub: PriorityPubSub, other: PriorityPubSub) -> None:
    seen = Seen()
    pubsub.subscribe("orders", seen, auto_acknowledge=False)
    message_id = pubsub.publish("orders", 1)
    wait_until(lambda: bool(seen.messages))
    other.acknowledge(message_id)
    with pytest.raises(MessageNotFound):
        pubsub.acknowledge(message_id)


def test_a_pattern_of_another_process_gets_its_copy(pubsub: PriorityPubSub, other: PriorityPubSub) -> None:
    pubsub.publish("orders.new", "kept")
    pattern, exact = Seen(), Seen()
    other.subscribe("orders.*", pattern)
    wait_until(lambda: pattern.values == ["kept"])
    pubsub.publish("orders.new", "copied")
    wait_until(lambda: pattern.values == ["kept", "copied"])
    pubsub.subscribe("orders.new", exact)
    other.publish("orders.new", "both")
    wait_until(lambda: pattern.values == ["kept", "copied", "both"] and exact.values == ["both"])


def test_messages_of_a_subscriber_that_dies_go_to_others_at_once(
    pair: Pair, pubsub: PriorityPubSub, other: PriorityPubSub
) -> None:
    taken = pubsub.broker
    pubsub.publish("orders", 1)
    assert taken.dequeue("orders") is not None
    pubsub._backing.close()  # as when the process is killed: the connection ends, and nothing is said
    seen = Seen()
    other.subscribe("orders", seen)
    wait_until(lambda: seen.values == [1])
    assert seen.messages[0].retries == 0


def test_a_lease_is_kept_as_long_as_the_callback_runs() -> None:
    calls: list[object] = []
    clock = SimulatedClock()
    broker = LocalBroker(clock=clock)
    extensions = Extensions(broker, clock, 0.3)

    def slow(message: PriorityMessage) -> None:
        calls.append(message.message)
        extensions.wait()

    with (
        serving(broker) as server,
        heliograph.connect(f"http://127.0.0.1:{server.port}", ack_deadline_seconds=0.3) as connected,
    ):
        connected.subscribe("orders", slow, workers=2)
        connected.publish("orders", 1)
        assert connected.join(30)
    assert calls == [1]


def test_a_subscriber_goes_on_when_its_server_was_started_again(tmp_path: Path) -> None:
    seen = Seen()
    with ExitStack() as opened:
        with serving(LocalBroker.open(tmp_path)) as server:
            url = f"http://127.0.0.1:{server.port}"
            pubsub = opened.enter_context(heliograph.connect(url))
            pubsub.subscribe("orders", seen)
            pubsub.subscribe("#", seen)
            pubsub.publish("orders", "before")
            assert pubsub.join(30)
        with pytest.raises(Unavailable):
            pubsub.publish("orders", "nobody hears this")
        with serving(LocalBroker.open(tmp_path), port=server.port):
            with heliograph.connect(url) as other:
                other.publish("orders", "after")
            wait_until(lambda: sorted(map(str, seen.values)) == ["after", "after", "before", "before"])
            pubsub.close()


def test_where_no_server_is_the_first_use_says_so() -> None:
    with pytest.raises(Unavailable, match="No broker answers"):
        heliograph.connect("http://127.0.0.1:9")


def test_a_server_is_one_choice_of_several() -> None:
    with pytest.raises(InvalidArgument):
        PriorityPubSub(url="http://127.0.0.1:9", data_dir="somewhere")


# ── PubSub ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_pubsub_works_on_an_endpoint(url: str) -> None:
    async def story() -> list[bytes]:
        received: list[bytes] = []
        done = asyncio.Event()
        async with PubSub(endpoint=url) as pubsub:
            topic = await pubsub.create_topic("orders")
            subscription = await pubsub.create_subscription(topic, "billing", enable_message_ordering=True)

            @subscription.on("message")
            def on_message(message: heliograph.Message) -> None:
                received.append(message.data)
                message.ack()
                if len(received) == 20:
                    done.set()

            subscription.open()
            for number in range(20):
                await topic.publish_message(str(number).encode(), ordering_key="k")
            await asyncio.wait_for(done.wait(), 30)
        return received

    assert asyncio.run(story()) == [str(number).encode() for number in range(20)]


def test_two_pubsubs_share_a_servers_subscription(url: str) -> None:
    async def story() -> int:
        async with PubSub(endpoint=url) as one, PubSub(endpoint=url) as two:
            topic = await one.create_topic("orders")
            await topic.create_subscription("billing")
            await two.topic("orders").publish_message(b"1")
            messages = await two.subscription("billing").pull()
            return len(messages)

    assert asyncio.run(story()) == 1


def test_an_endpoint_is_one_choice_of_several() -> None:
    with pytest.raises(InvalidArgument):
        PubSub(endpoint="http://127.0.0.1:9", data_dir="somewhere")


def test_many_threads_publish_through_one_connection(pubsub: PriorityPubSub) -> None:
    threads = [threading.Thread(target=lambda: [pubsub.publish("orders", 1) for _ in range(20)]) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen = Seen()
    pubsub.subscribe("orders", seen, workers=4)
    assert pubsub.join(20)
    assert len(seen.messages) == 100
