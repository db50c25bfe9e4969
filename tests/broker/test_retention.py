"""How long messages stay: a broker on its file, with a clock that is told to go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from heliograph.broker import housekeeping
from heliograph.broker.broker import LocalBroker
from heliograph.broker.clock import SimulatedClock
from heliograph.engine.dead_letter import DeadLetterPolicy
from heliograph.engine.message import Draft
from heliograph.engine.settings import DAY_NS, SECOND_NS, SubscriptionSettings, TopicSettings
from heliograph.store.sqlite import SqliteStore

MINUTE = 60
HOUR = 60 * MINUTE
DAY = 24 * HOUR

Restart = Callable[[], LocalBroker]


@pytest.fixture(autouse=True)
def _no_wait_between_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are a share of the machine's time, of which a simulated clock needs none. A trim comes with one."""
    monkeypatch.setattr(housekeeping, "CHECKPOINT_SHARE", 1e9)


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def restart(tmp_path: Path, clock: SimulatedClock) -> Iterator[Restart]:
    """Starts a broker on the same directory, after closing the one before."""
    brokers: list[LocalBroker] = []

    def start() -> LocalBroker:
        if brokers:
            brokers[-1].close()
        brokers.append(LocalBroker(SqliteStore(tmp_path, durability="none"), clock, memory_budget_bytes=1))
        return brokers[-1]

    yield start
    if brokers:
        brokers[-1].close()


@pytest.fixture
def broker(restart: Restart) -> LocalBroker:
    return restart()


def jump(clock: SimulatedClock, seconds: float) -> None:
    """Let much time pass at once, as when the machine sleeps: without a stop at each minute between."""
    clock._now_ns += round(seconds * SECOND_NS)
    clock.advance(0)


def publish(broker: LocalBroker, count: int = 1, topic: str = "t") -> None:
    broker.publish(topic, [Draft(b"message")] * count).result()


def consume(broker: LocalBroker, subscription: str = "s") -> int:
    """Pull all that waits and acknowledge it."""
    deliveries = broker.pull(subscription, 1_000).result()
    broker.acknowledge(subscription, [delivery.ack_id for delivery in deliveries]).result()
    return len(deliveries)


def readable(broker: LocalBroker, topic: str = "t") -> list[int]:
    """The sequences that the topic's log gives."""
    return [message.sequence for batch in broker.read_log(topic, 1, 10**6) for message in batch]


def test_what_nobody_acknowledges_is_gone_after_seven_days(broker: LocalBroker, clock: SimulatedClock) -> None:
    broker.create_topic("t")
    broker.create_subscription("s", "t")
    publish(broker, 3)
    jump(clock, 7 * DAY - MINUTE)
    assert (broker.statistics("s").ready, readable(broker)) == (3, [1, 2, 3])
    jump(clock, 2 * MINUTE)
    assert (broker.statistics("s").ready, broker.pull("s", 10).result(), readable(broker)) == (0, [], [])


def test_what_came_later_stays_longer(broker: LocalBroker, clock: SimulatedClock) -> None:
    broker.create_topic("t")
    broker.create_subscription("s", "t")
    publish(broker, 3)
    jump(clock, DAY)
    publish(broker, 2)
    jump(clock, 6 * DAY + MINUTE)
    assert (broker.statistics("s").ready, readable(broker)) == (2, [4, 5])


def test_days_count_also_while_no_broker_runs(broker: LocalBroker, restart: Restart, clock: SimulatedClock) -> None:
    broker.create_topic("t")
    broker.create_subscription("s", "t")
    publish(broker, 3)
    broker.close()
    jump(clock, 8 * DAY)
    again = restart()
    assert (again.statistics("s").ready, readable(again)) == (0, [])


def test_what_is_leased_at_its_end_goes_when_it_comes_back(broker: LocalBroker, clock: SimulatedClock) -> None:
    broker.create_topic("t")
    broker.create_subscription("s", "t", SubscriptionSettings(ack_deadline_ns=600 * SECOND_NS))
    publish(broker)
    jump(clock, 7 * DAY - MINUTE)
    assert len(broker.pull("s", 1).result()) == 1
    jump(clock, 2 * MINUTE)
    assert broker.statistics("s").outstanding == 1
    jump(clock, 10 * MINUTE)
    assert (broker.statistics("s").outstanding, broker.statistics("s").ready, readable(broker)) == (0, 0, [])


def test_each_subscription_has_its_own_retention(broker: LocalBroker, clock: SimulatedClock) -> None:
    broker.create_topic("t")
    broker.create_subscription("short", "t", SubscriptionSettings(message_retention_ns=600 * SECOND_NS))
    broker.create_subscription("long", "t", SubscriptionSettings(message_retention_ns=31 * DAY_NS))
    publish(broker)
    jump(clock, 12 * MINUTE)
    assert (broker.statistics("short").ready, broker.statistics("long").ready) == (0, 1)
    jump(clock, 30 * DAY)
    assert (broker.statistics("long").ready, readable(broker)) == (1, [1])
    jump(clock, DAY)
    assert (broker.statistics("long").ready, readable(broker)) == (0, [])


def test_a_work_queue_keeps_its_messages_for_ever(broker: LocalBroker, clock: SimulatedClock) -> None:
    broker.create_queue("q", SubscriptionSettings(message_retention_ns=0, prioritised=True))
    publish(broker, topic="queues/q")
    jump(clock, 400 * DAY)
    assert consume(broker, "queues/q") == 1


def test_what_everybody_has_acknowledged_goes_within_a_minute(broker: LocalBroker, clock: SimulatedClock) -> None:
    broker.create_topic("t")
    broker.create_subscription("s", "t")
    broker.create_subscription("slow", "t")
    publish(broker, 5)
    consume(broker)
    jump(clock, MINUTE + 1)
    assert readable(broker) == [1, 2, 3, 4, 5]
    consume(broker, "slow")
    jump(clock, MINUTE + 1)
    assert readable(broker) == []


def test_acknowledged_messages_stay_readable_when_a_subscription_retains_them(
    broker: LocalBroker, restart: Restart, clock: SimulatedClock
) -> None:
    broker.create_topic("t")
    broker.create_subscription("s", "t", SubscriptionSettings(retain_acked_messages=True))
    publish(broker, 3)
    consume(broker)
    jump(clock, 6 * DAY)
    broker = restart()
    assert (broker.statistics("s").ready, readable(broker)) == (0, [1, 2, 3])
    jump(clock, DAY + MINUTE)
    assert readable(broker) == []


def test_a_topic_keeps_what_it_received_as_long_as_it_is_told_to(
    broker: LocalBroker, restart: Restart, clock: SimulatedClock
) -> None:
    broker.create_topic("t", TopicSettings(message_retention_ns=DAY_NS))
    publish(broker, 2)  # nobody subscribes
    broker.create_subscription("s", "t")
    publish(broker, 3)
    consume(broker)
    jump(clock, DAY - MINUTE)
    broker = restart()
    assert readable(broker) == [1, 2, 3, 4, 5]
    jump(clock, 2 * MINUTE)
    assert readable(broker) == []


def test_a_topic_with_a_retention_keeps_what_is_published_at_the_moment_of_the_sweep(
    broker: LocalBroker, clock: SimulatedClock
) -> None:
    broker.create_topic("t", TopicSettings(message_retention_ns=DAY_NS))
    publish(broker)
    for _ in range(50):
        reply = broker.publish("t", [Draft(b"message")])
        clock.advance(MINUTE)  # it may be on its way to the file still
        reply.result()
    assert readable(broker) == list(range(1, 52))


@pytest.mark.parametrize("restarts", [False, True])
def test_a_deleted_topic_leaves_the_file(
    broker: LocalBroker, restart: Restart, clock: SimulatedClock, tmp_path: Path, restarts: bool
) -> None:
    broker.create_topic("t", TopicSettings(message_retention_ns=DAY_NS))
    publish(broker, 100)
    broker.delete_topic("t").result()
    if restarts:
        broker = restart()
    jump(clock, MINUTE + 1)
    first, last = broker._store.log_bounds(1)
    assert last == first - 1


def test_dead_letters_are_kept_beyond_the_retention(broker: LocalBroker, clock: SimulatedClock) -> None:
    policy = DeadLetterPolicy(None, 1)
    broker.create_topic("t")
    broker.create_subscription("s", "t", SubscriptionSettings(dead_letter_policy=policy))
    publish(broker)
    broker.reject("s", [delivery.ack_id for delivery in broker.pull("s", 1).result()]).result()
    jump(clock, 30 * DAY)
    assert [message.data for _, message in broker.dead_letters("s")] == [b"message"]
