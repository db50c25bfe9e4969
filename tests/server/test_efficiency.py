"""What the Pub/Sub door costs, in counts: messages are encoded once, deadlines move in batches, idle streams do
nothing (1.7.10, 1.7.12)."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from types import FrameType
from typing import Any

import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.wire import pubsub
from tests.server.clients import Rpc
from tests.server.conftest import serving

TOPIC, SUBSCRIPTION = "projects/p/topics/topic-1", "projects/p/subscriptions/sub-1"


class CountingBroker:
    """A broker that counts what is asked of it."""

    def __init__(self) -> None:
        self._broker = LocalBroker()
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._broker, name)

        def counted(*arguments: Any, **more: Any) -> Any:
            self.calls[name] += 1
            return operation(*arguments, **more)

        return counted


@pytest.fixture
def counting() -> Iterator[tuple[CountingBroker, Rpc]]:
    broker = CountingBroker()
    with serving(broker) as server, Rpc(server.port) as rpc:  # type: ignore[arg-type]  # it has every operation
        rpc.create_topic(TOPIC)
        rpc.create_subscription(SUBSCRIPTION, TOPIC)
        yield broker, rpc


def test_a_message_is_encoded_once_however_often_it_is_delivered(
    counting: tuple[CountingBroker, Rpc], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, rpc = counting
    encoded: Counter[str] = Counter()
    encode = pubsub.encode_message

    def counted(message: Any, message_id: str) -> bytes:
        encoded[message_id] += 1
        return encode(message, message_id)

    monkeypatch.setattr(pubsub, "encode_message", counted)
    other = f"{SUBSCRIPTION}-other"
    rpc.create_subscription(other, TOPIC)
    ids = rpc.publish(TOPIC, *[b"x"] * 50)
    for _ in range(3):
        for subscription in (SUBSCRIPTION, other):
            received = rpc.pull(subscription)
            assert sorted(one.message.message_id for one in received) == ids
            rpc.nack(subscription, *[one.ack_id for one in received])
    with rpc.stream(SUBSCRIPTION) as stream:
        stream.messages(50)
    assert encoded == dict.fromkeys(ids, 1)


def test_1_7_10_the_receipts_of_a_thousand_messages_are_one_operation(counting: tuple[CountingBroker, Rpc]) -> None:
    broker, rpc = counting
    rpc.publish(TOPIC, *[b"x"] * 1000)
    with rpc.stream(SUBSCRIPTION) as stream:
        ack_ids = [one.ack_id for one in stream.messages(1000)]
        stream.send(modify_deadline_ack_ids=ack_ids, modify_deadline_seconds=[60] * 1000)
        stream.send(ack_ids=ack_ids)
        stream.half_close()
        stream.failure()
    assert (broker.calls["modify_ack_deadline"], broker.calls["acknowledge"]) == (1, 1)
    assert broker.calls["pull"] < 20  # a few responses' worth, not one for each message


def steps_of_one_receipt(outstanding: int) -> int:
    """Function calls that it takes to move the deadline of one message while so many are outstanding."""
    broker = LocalBroker()
    broker.create_topic(TOPIC)
    broker.create_subscription(SUBSCRIPTION, TOPIC)
    broker.publish(TOPIC, [pubsub.Draft(b"x")] * outstanding)
    ack_id = broker.pull(SUBSCRIPTION, outstanding).provisional[-1].ack_id
    steps = 0

    def count(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal steps
        steps += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        broker.modify_ack_deadline(SUBSCRIPTION, [ack_id], 60_000_000_000)
    finally:
        sys.setprofile(None)
    broker.close()
    return steps


def test_1_7_10_a_receipt_costs_the_same_whatever_is_outstanding() -> None:
    assert steps_of_one_receipt(10) == steps_of_one_receipt(5_000)


def test_1_7_12_one_message_wakes_one_of_many_idle_streams(counting: tuple[CountingBroker, Rpc]) -> None:
    broker, rpc = counting
    with ExitStack() as stack:
        streams = [stack.enter_context(rpc.stream(SUBSCRIPTION)) for _ in range(50)]
        for stream in streams:
            stream.response()
        rpc("GetTopic", topic=TOPIC)  # whatever the streams do at their beginning is done by now
        broker.calls.clear()
        rpc("GetTopic", topic=TOPIC)
        assert broker.calls == {"get_topic": 1}  # idle, they ask for nothing
        arrived = threading.Event()
        for stream in streams:
            stream.on_message(lambda _: arrived.set())
        rpc.publish(TOPIC, b"x")
        assert arrived.wait(30)
        assert broker.calls["pull"] <= 2
