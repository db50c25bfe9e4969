"""What topics and messages cost in memory, in a broker without a file. The rates are those of a traced process."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Iterator

from benchmarks.harness import Figures, Load, Scale
from benchmarks.scenarios import suite
from heliograph import LocalBroker, PubSub
from heliograph.client.options import SubscriptionOptions, settings_of
from heliograph.engine.message import Draft, Extras, size_bytes
from heliograph.engine.settings import SubscriptionSettings

TOPICS = 10_000
MESSAGES = 10_000  # what a subscription in process holds at most
BATCH = 100
SETTINGS = {
    "plain": SubscriptionSettings(),
    "in_process": settings_of(SubscriptionOptions(), with_flow_control=False),
    "ordered": SubscriptionSettings(enable_message_ordering=True),
    "prioritised": SubscriptionSettings(prioritised=True),
}


@suite.scenario(target="less than 2,000 bytes apiece")
def memory_topics(scale: Scale) -> Iterator[Load]:
    """Topics with a subscription each, as PubSub makes them."""
    operations = scale.count(TOPICS)

    async def work() -> Figures:
        async with PubSub(broker=LocalBroker()) as pubsub:
            before = _traced_bytes()
            for number in range(operations):
                topic = await pubsub.create_topic(f"topic-{number}")
                await topic.create_subscription(f"subscription-{number}")
            return {"bytes": (_traced_bytes() - before) / operations}

    yield from _traced(Load(lambda: asyncio.run(work()), operations, unit="topics"))


@suite.scenario(target="at most 200 bytes beyond the payload", subscription=tuple(SETTINGS), payload_bytes=(100,))
def memory_waiting(scale: Scale, *, subscription: str, payload_bytes: int) -> Iterator[Load]:
    """Messages that wait, each with a payload of its own."""
    operations = scale.count(MESSAGES, multiple_of=BATCH)

    def run() -> Figures:
        broker = _broker(subscription)
        before = _traced_bytes()
        content_bytes = _publish(broker, subscription, operations, payload_bytes)
        size = (_traced_bytes() - before - content_bytes) / operations
        broker.close()
        return {"bytes": size}

    yield from _traced(Load(run, operations))


@suite.scenario(target="at most 200 bytes more than waiting", subscription=tuple(SETTINGS), payload_bytes=(100,))
def memory_unacknowledged(scale: Scale, *, subscription: str, payload_bytes: int) -> Iterator[Load]:
    """Messages that were pulled; what the consumer keeps of them does not count."""
    operations = scale.count(MESSAGES, multiple_of=BATCH)

    def run() -> Figures:
        broker = _broker(subscription)
        _publish(broker, subscription, operations, payload_bytes)
        before = _traced_bytes()
        for _ in range(operations // BATCH):
            assert len(broker.pull("s", BATCH).result()) == BATCH
        size = (_traced_bytes() - before) / operations
        broker.close()
        return {"bytes": size}

    yield from _traced(Load(run, operations))


def _broker(subscription: str) -> LocalBroker:
    broker = LocalBroker()
    broker.create_topic("t").result()
    broker.create_subscription("s", "t", SETTINGS[subscription]).result()
    return broker


def _publish(broker: LocalBroker, subscription: str, count: int, payload_bytes: int) -> int:
    """Returns the bytes of what was published, keys among it."""
    content_bytes = 0
    for start in range(0, count, BATCH):
        drafts = [_draft(subscription, number, payload_bytes) for number in range(start, start + BATCH)]
        broker.publish("t", drafts).result()
        content_bytes += sum([size_bytes(draft) for draft in drafts])
    return content_bytes


def _draft(subscription: str, number: int, payload_bytes: int) -> Draft:
    data = b"%0*d" % (payload_bytes, number)
    key = f"key-{number}" if subscription == "ordered" else ""
    return Draft(data, ordering_key=key, extras=Extras(number % 10) if subscription == "prioritised" else None)


def _traced(load: Load) -> Iterator[Load]:
    """Memory is counted from here on, until the scenario is over."""
    tracemalloc.start()
    try:
        yield load
    finally:
        tracemalloc.stop()


def _traced_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
