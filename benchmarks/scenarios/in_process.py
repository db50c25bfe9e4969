"""The broker without a network or a disk: what the rules themselves cost."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.harness import Load, Scale
from benchmarks.scenarios import suite
from heliograph.broker.broker import LocalBroker
from heliograph.engine.engine import Engine
from heliograph.engine.message import Draft
from heliograph.engine.settings import SubscriptionSettings, TopicSettings
from heliograph.store.memory import MemoryStore

MESSAGES = 100_000
TOPIC = "projects/bench/topics/orders"
SUBSCRIPTION = "projects/bench/subscriptions/billing"
NOW_NS = 1_700_000_000_000_000_000


@suite.scenario(batch=(1, 100), payload_bytes=(100,))
def engine_publish(scale: Scale, *, batch: int, payload_bytes: int) -> Iterator[Load]:
    """The engine alone: publish, with one subscription that nobody reads."""
    drafts = [Draft(b"x" * payload_bytes)] * batch
    operations = scale.count(MESSAGES, multiple_of=batch)
    engine = Engine()

    def prepare() -> None:
        nonlocal engine
        engine = _engine()

    def run() -> None:
        publish, take_facts = engine.publish, engine.take_facts
        for _ in range(operations // batch):
            publish(TOPIC, drafts, NOW_NS)
            take_facts()

    yield Load(run, operations, prepare=prepare)


@suite.scenario(batch=(1, 100), payload_bytes=(100,))
def engine_publish_pull_acknowledge(scale: Scale, *, batch: int, payload_bytes: int) -> Iterator[Load]:
    """The engine alone: publish a batch, pull it, acknowledge it."""
    drafts = [Draft(b"x" * payload_bytes)] * batch
    operations = scale.count(MESSAGES, multiple_of=batch)
    engine = Engine()

    def prepare() -> None:
        nonlocal engine
        engine = _engine()

    def run() -> None:
        publish, pull, acknowledge, take_facts = engine.publish, engine.pull, engine.acknowledge, engine.take_facts
        for _ in range(operations // batch):
            publish(TOPIC, drafts, NOW_NS)
            deliveries = pull(SUBSCRIPTION, batch, NOW_NS)
            acknowledge(SUBSCRIPTION, [delivery.ack_id for delivery in deliveries], NOW_NS)
            take_facts()

    yield Load(run, operations, prepare=prepare)


@suite.scenario(peer="engine_publish_pull_acknowledge", batch=(1, 100), payload_bytes=(100,))
def broker_publish_pull_acknowledge(scale: Scale, *, batch: int, payload_bytes: int) -> Iterator[Load]:
    """The same through the broker with its lock, its clock and a memory store."""
    drafts = [Draft(b"x" * payload_bytes)] * batch
    operations = scale.count(MESSAGES, multiple_of=batch)
    broker = LocalBroker(MemoryStore())
    broker.create_topic(TOPIC).result()
    broker.create_subscription(SUBSCRIPTION, TOPIC).result()

    def run() -> None:
        for _ in range(operations // batch):
            broker.publish(TOPIC, drafts).result()
            deliveries = broker.pull(SUBSCRIPTION, batch).result()
            broker.acknowledge(SUBSCRIPTION, [delivery.ack_id for delivery in deliveries]).result()

    try:
        yield Load(run, operations)
    finally:
        broker.close()


def _engine() -> Engine:
    engine = Engine()
    engine.create_topic(TOPIC, TopicSettings(), NOW_NS)
    engine.create_subscription(SUBSCRIPTION, TOPIC, SubscriptionSettings(), NOW_NS)
    engine.take_facts()
    return engine
