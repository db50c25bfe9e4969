"""Dead letters whose publication to their topic is not durable yet: whatever happens meanwhile, they go there once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.engine.dead_letter import DeadLetterPolicy
from heliograph.engine.message import Draft, message_id
from heliograph.engine.settings import SubscriptionSettings
from heliograph.errors import MessageNotFound
from heliograph.store.memory import MemoryStore
from heliograph.testing.faulty_store import FaultyStore


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore())


@pytest.fixture
def broker(store: FaultyStore) -> Iterator[LocalBroker]:
    """With a message that was just given up, on its way to the topic `dead`."""
    broker = LocalBroker(store)
    for topic in ("t", "dead", "other"):
        broker.create_topic(topic)
        broker.create_subscription(topic, topic)
    broker.create_subscription("s", "t", SubscriptionSettings(dead_letter_policy=DeadLetterPolicy("dead", 1)))
    broker.publish("t", [Draft(b"x")])
    (delivery,) = broker.pull("s", 1).result()
    store.hold()
    broker.nack("s", [delivery.ack_id])
    yield broker
    broker.close()


def datas(broker: LocalBroker, subscription: str) -> list[bytes]:
    return [delivery.message.data for delivery in broker.pull(subscription, 10).result()]


@pytest.mark.parametrize("policy", [None, DeadLetterPolicy("other", 1)])
def test_a_changed_policy_does_not_send_them_elsewhere_as_well(
    broker: LocalBroker, store: FaultyStore, policy: DeadLetterPolicy | None
) -> None:
    broker.update_subscription("s", SubscriptionSettings(dead_letter_policy=policy))
    store.release()
    assert [datas(broker, name) for name in ("s", "dead", "other")] == [[], [b"x"], []]
    assert broker.dead_letters("s") == []


def test_they_are_not_retried_as_well(broker: LocalBroker, store: FaultyStore) -> None:
    ((_, message),) = broker.dead_letters("s")
    assert broker.retry_dead_letters("s").provisional == 0
    id_of_message = message_id(broker.get_topic("t").number, message.sequence)
    with pytest.raises(MessageNotFound):
        broker.retry_dead_letters("s", [id_of_message])
    store.release()
    assert [datas(broker, name) for name in ("s", "dead")] == [[], [b"x"]]


def test_after_them_everything_goes_on(broker: LocalBroker, store: FaultyStore) -> None:
    store.release()
    broker.update_subscription("s", SubscriptionSettings(dead_letter_policy=DeadLetterPolicy("other", 1)))
    broker.publish("t", [Draft(b"y")])
    (delivery,) = broker.pull("s", 1).result()
    broker.nack("s", [delivery.ack_id])
    assert [datas(broker, name) for name in ("s", "dead", "other")] == [[], [b"x"], [b"y"]]
