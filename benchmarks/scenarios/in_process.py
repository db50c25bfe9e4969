"""The broker without a network or a disk: what the rules themselves cost."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.harness import Load, Scale
from benchmarks.scenarios import suite
from heliograph.broker.broker import LocalBroker
from heliograph.engine.engine import Engine
from heliograph.engine.message import Draft, Extras
from heliograph.engine.settings import SUBSCRIPTION_DEFAULTS, SubscriptionSettings, TopicSettings
from heliograph.store.memory import MemoryStore

MESSAGES = 100_000
TOPIC = "projects/bench/topics/orders"
SUBSCRIPTION = "projects/bench/subscriptions/billing"
NOW_NS = 1_700_000_000_000_000_000
PRIORITISED = SubscriptionSettings(prioritised=True)


@suite.scenario(target="400k a second in batches of 100", batch=(1, 100), payload_bytes=(100,))
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


@suite.scenario(target="400k a second in batches of 100", batch=(1, 100), payload_bytes=(100,))
def engine_pull_acknowledge(scale: Scale, *, batch: int, payload_bytes: int) -> Iterator[Load]:
    """The engine alone: pull what waits, and acknowledge it."""
    drafts = [Draft(b"x" * payload_bytes)] * batch
    operations = scale.count(MESSAGES, multiple_of=batch)
    engine = Engine()

    def prepare() -> None:
        nonlocal engine
        engine = _engine()
        for _ in range(operations // batch):
            engine.publish(TOPIC, drafts, NOW_NS)
        engine.take_facts()

    def run() -> None:
        pull, acknowledge, take_facts = engine.pull, engine.acknowledge, engine.take_facts
        for _ in range(operations // batch):
            deliveries = pull(SUBSCRIPTION, batch, NOW_NS)
            acknowledge(SUBSCRIPTION, [delivery.ack_id for delivery in deliveries], NOW_NS)
            take_facts()

    yield Load(run, operations, prepare=prepare)


@suite.scenario(batch=(1, 100), payload_bytes=(100,))
def engine_publish_priorities(scale: Scale, *, batch: int, payload_bytes: int) -> Iterator[Load]:
    """The engine alone: publish with mixed priorities into a queue that is empty."""
    drafts = _of_all_priorities(batch, payload_bytes)
    operations = scale.count(MESSAGES, multiple_of=batch)
    engines: list[Engine] = []  # all are kept: none takes the memory that another left, as the deep one cannot either

    def prepare() -> None:
        engines.append(_engine(PRIORITISED))

    yield Load(lambda: _publish(engines[-1], drafts, operations // batch), operations, prepare=prepare)


@suite.scenario(
    peer="engine_publish_priorities",
    target="no slower than into an empty one",
    batch=(1, 100),
    payload_bytes=(100,),
    waiting=(1_000_000,),
)
def engine_publish_priorities_deep(scale: Scale, *, batch: int, payload_bytes: int, waiting: int) -> Iterator[Load]:
    """The same into a queue in which so many messages wait, and a few more with every run."""
    drafts = _of_all_priorities(batch, payload_bytes)
    operations = scale.count(MESSAGES, multiple_of=batch)
    engine = _engine(PRIORITISED)
    _publish(engine, _of_all_priorities(1_000, payload_bytes), scale.count(waiting) // 1_000)
    yield Load(lambda: _publish(engine, drafts, operations // batch), operations)


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


def _of_all_priorities(count: int, payload_bytes: int) -> list[list[Draft]]:
    """Ten batches, so that small ones too have every priority in turn."""
    data = b"x" * payload_bytes
    return [[Draft(data, extras=Extras((start + number) % 10)) for number in range(count)] for start in range(10)]


def _publish(engine: Engine, batches: list[list[Draft]], count: int) -> None:
    """So many batches, the given ones in turn."""
    publish, take_facts = engine.publish, engine.take_facts
    for number in range(count):
        publish(TOPIC, batches[number % len(batches)], NOW_NS)
        take_facts()


def _engine(settings: SubscriptionSettings = SUBSCRIPTION_DEFAULTS) -> Engine:
    engine = Engine()
    engine.create_topic(TOPIC, TopicSettings(), NOW_NS)
    engine.create_subscription(SUBSCRIPTION, TOPIC, settings, NOW_NS)
    engine.take_facts()
    return engine
