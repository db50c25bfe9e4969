"""What `violations` notices in a state that cannot be."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from heliograph.engine.engine import Engine
from heliograph.engine.message import Draft
from heliograph.engine.settings import SubscriptionSettings, TopicSettings
from heliograph.engine.subscription import Subscription
from heliograph.store.soundness import violations


@pytest.fixture
def engine() -> Engine:
    """Two subscriptions of a topic; `s` has waiting, leased and failed messages, and dead letters."""
    engine = Engine()
    engine.create_topic("t", TopicSettings(), 1)
    engine.create_subscription("s", "t", SubscriptionSettings(), 1)
    engine.create_subscription("other", "t", SubscriptionSettings(), 1)
    engine.publish("t", [Draft(b"message")] * 5_000, 2)
    ack_ids = [delivery.ack_id for delivery in engine.pull("s", 50, 3)]
    engine.acknowledge("s", ack_ids[:10], 3)
    engine.modify_ack_deadline("s", ack_ids[10:20], 0, 3)
    return engine


def test_a_state_as_it_comes_about_is_sound(engine: Engine) -> None:
    assert list(violations(engine)) == []


def _hold_twice(subscription: Subscription) -> None:
    subscription.backlog.add(25, 0)  # it is leased


def _lose_one(subscription: Subscription) -> None:
    subscription.next_sequence += 1


def _count_bytes_wrongly(subscription: Subscription) -> None:
    subscription.outstanding_bytes += 1


def _remember_a_failure(subscription: Subscription) -> None:
    subscription.failures[5] = 1  # it is acknowledged


def _forget_a_holder(subscription: Subscription) -> None:
    subscription.topic.log.release([4_000])


@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        (_hold_twice, "subscription s has 1 messages in two places at once, the first is 25"),
        (_lose_one, "topic t has 1 messages with a wrong count of holders, the first is 51"),
        (_count_bytes_wrongly, "subscription s counts 211 bytes outstanding, they are 210"),
        (_remember_a_failure, "subscription s counts failures of 1 messages that it does not hold"),
        (_forget_a_holder, "topic t has 1 messages with a wrong count of holders, the first is 4000"),
    ],
)
def test_what_cannot_be_is_told(engine: Engine, harm: Callable[[Subscription], None], problem: str) -> None:
    harm(engine.subscriptions["s"])
    assert problem in list(violations(engine))
