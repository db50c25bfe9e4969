"""What was published, read off the facts."""

from __future__ import annotations

from heliograph.broker.broker import LocalBroker
from heliograph.engine.message import Draft
from heliograph.store.memory import MemoryStore
from heliograph.testing.ledger import Ledger, recording


def test_of_very_many_messages_it_forgets_the_oldest() -> None:
    ledger = Ledger(messages_max=3)
    broker = LocalBroker(recording(MemoryStore(), ledger))
    broker.create_topic("t")
    broker.create_subscription("s", "t")
    broker.publish("t", [Draft(bytes([number])) for number in range(5)])
    broker.pull("s", 10)
    assert [(message.data, message.deliveries) for message in ledger.messages("t")] == [
        (b"\2", 1),
        (b"\3", 1),
        (b"\4", 1),
    ]
    broker.close()


def test_what_it_gives_is_a_copy() -> None:
    ledger = Ledger()
    broker = LocalBroker(recording(MemoryStore(), ledger))
    broker.create_topic("t")
    broker.create_subscription("s", "t")
    broker.publish("t", [Draft(b"x", {"colour": "red"})])
    (before,) = ledger.messages()
    broker.pull("s", 1)
    before.attributes["colour"] = "blue"
    (after,) = ledger.messages()
    assert (before.deliveries, after.deliveries, after.attributes) == (0, 1, {"colour": "red"})
    broker.close()


def test_a_topic_that_takes_the_name_of_a_deleted_one_is_another() -> None:
    ledger = Ledger()
    broker = LocalBroker(recording(MemoryStore(), ledger))
    for data in (b"first", b"second"):
        broker.create_topic("t")
        broker.create_subscription("s", "t")
        broker.publish("t", [Draft(data)])
        broker.pull("s", 1)
        broker.delete_subscription("s")
        broker.delete_topic("t")
    assert [(message.data, message.deliveries) for message in ledger.messages("t")] == [(b"first", 1), (b"second", 1)]
    broker.close()
