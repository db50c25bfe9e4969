"""The in-process API: `PubSub` with a plain callback, from publishing to the callback and back."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator

from benchmarks.harness import Figures, Load, Scale
from benchmarks.scenarios import suite
from heliograph import LocalBroker, Message, PubSub

MESSAGES = 100_000
IN_FLIGHT_MAX = 5_000  # half of what a subscription holds: none may be dropped
LATENCIES = 2_000
TOPICS = 10_000


@suite.scenario(
    target="100k a second with publish_nowait",
    publishing=("publish_nowait", "publish_message"),
    batch=(100,),
    payload_bytes=(100,),
)
def pubsub_end_to_end(scale: Scale, *, publishing: str, batch: int, payload_bytes: int) -> Iterator[Load]:
    """Publish so many at a time, receive and acknowledge each in a callback."""
    operations = scale.count(MESSAGES, multiple_of=batch)

    async def work() -> None:
        async with PubSub(broker=LocalBroker()) as pubsub:
            topic = await pubsub.create_topic("orders")
            subscription = await topic.create_subscription("billing")
            received = 0

            def receive(message: Message) -> None:
                nonlocal received
                received += 1
                message.ack()

            subscription.on("message", receive).open()
            publish, data, published = getattr(topic, publishing), b"x" * payload_bytes, 0
            while received < operations:
                if published < operations and published - received < IN_FLIGHT_MAX:
                    await asyncio.gather(*[publish(data) for _ in range(batch)])
                    published += batch
                else:
                    await asyncio.sleep(0)

    yield Load(lambda: asyncio.run(work()), operations)


@suite.scenario(target="median below 0.3 ms", payload_bytes=(100,))
def pubsub_latency(scale: Scale, *, payload_bytes: int) -> Iterator[Load]:
    """Publish one message, wait for the callback, publish the next."""
    operations = scale.count(LATENCIES)

    async def work() -> Figures:
        async with PubSub(broker=LocalBroker()) as pubsub:
            topic = await pubsub.create_topic("orders")
            subscription = await topic.create_subscription("billing")
            seconds: list[float] = []
            received = asyncio.Event()

            def receive(message: Message) -> None:
                seconds.append(time.perf_counter() - began)
                message.ack()
                received.set()

            subscription.on("message", receive).open()
            for _ in range(operations):
                received.clear()
                began = time.perf_counter()
                await topic.publish_message(b"x" * payload_bytes)
                await received.wait()
            return {"latency_ms": statistics.median(seconds) * 1_000}

    yield Load(lambda: asyncio.run(work()), operations)


@suite.scenario(target="10,000 in less than 2 s: 5k a second")
def pubsub_create_topics(scale: Scale) -> Iterator[Load]:
    """Create topics with a subscription each."""
    operations = scale.count(TOPICS)

    async def work() -> None:
        async with PubSub(broker=LocalBroker()) as pubsub:
            for number in range(operations):
                topic = await pubsub.create_topic(f"topic-{number}")
                await topic.create_subscription(f"subscription-{number}")

    yield Load(lambda: asyncio.run(work()), operations, unit="topics")
