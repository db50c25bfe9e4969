"""The latency of a broker at rest: one message at a time, from `publish()` to the subscriber's callback."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable

from google.cloud import pubsub_v1
from google.cloud.pubsub_v1.subscriber.message import Message
from google.cloud.pubsub_v1.types import BatchSettings

from heliograph.demo.latency import Percentiles, percentiles
from heliograph.demo.stream import Stream
from heliograph.demo.topics import PROJECT
from heliograph.errors import Unavailable

TOPIC = f"projects/{PROJECT}/topics/probe"
SUBSCRIPTION = f"projects/{PROJECT}/subscriptions/probe"
WARM_UP = 10
COUNT = 100
ARRIVAL_SECONDS_MAX = 30.0


def measure(count: int = COUNT, on_arrival: Callable[[], None] | None = None) -> Percentiles:
    """Publish messages, each when the one before has arrived: a few to warm up, then `count` that are measured.

    Args:
        count: how many.
        on_arrival: called after each.

    Raises:
        Unavailable: one did not arrive in half a minute.
    """
    publisher = pubsub_v1.PublisherClient(batch_settings=BatchSettings(max_messages=1))
    publisher.create_topic(request={"name": TOPIC})
    with pubsub_v1.SubscriberClient() as subscriber:
        subscriber.create_subscription(request={"name": SUBSCRIPTION, "topic": TOPIC})
    arrivals: queue.SimpleQueue[int] = queue.SimpleQueue()

    def receive(message: Message) -> None:
        arrived_ns = time.perf_counter_ns()
        message.ack()
        arrivals.put(arrived_ns)

    stream = Stream(SUBSCRIPTION, receive)
    durations = []
    try:
        for number in range(WARM_UP + count):
            published_ns = time.perf_counter_ns()
            publisher.publish(TOPIC, str(number).encode())
            durations.append(arrivals.get(timeout=ARRIVAL_SECONDS_MAX) - published_ns)
            if on_arrival is not None:
                on_arrival()
    except queue.Empty:
        raise Unavailable(f"A message did not arrive within {ARRIVAL_SECONDS_MAX:.0f} s") from None
    finally:
        stream.close()
        publisher.stop()
        publisher.transport.close()
    return percentiles(durations[WARM_UP:])
