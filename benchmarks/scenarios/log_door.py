"""The log door: a topic's log as an Arrow stream, from `heliograph serve` as a process of its own."""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf import duration_pb2
from google.pubsub_v1 import types

from benchmarks.harness import Load, Scale
from benchmarks.scenarios import suite
from benchmarks.scenarios.grpc_door import STORES, WAIT_SECONDS_MAX, Stubs
from benchmarks.server import running_server
from heliograph.spark.log_client import LogClient
from heliograph.wire.arrow import SCHEMA

TOPIC = "projects/bench/topics/log"
MESSAGES = 200_000
BATCH = 1_000


@suite.scenario(store=STORES, payload_bytes=(100,), attributes=(0, 2))
def log_read(scale: Scale, *, store: str, payload_bytes: int, attributes: int) -> Iterator[Load]:
    """One client reads a whole topic, every column."""
    messages = scale.count(MESSAGES, multiple_of=BATCH)
    message = types.PubsubMessage(
        data=b"x" * payload_bytes, attributes={f"name{n}": "value" for n in range(attributes)}
    )
    request = types.PublishRequest.serialize(types.PublishRequest(topic=TOPIC, messages=[message] * BATCH))
    with running_server(store) as endpoint:
        stubs = Stubs(endpoint)
        # nobody is subscribed, so only retention keeps the messages
        topic = types.Topic(name=TOPIC, message_retention_duration=duration_pb2.Duration(seconds=3600))
        stubs.create_topic(types.Topic.serialize(topic), timeout=WAIT_SECONDS_MAX)
        for _ in range(messages // BATCH):
            stubs.publish(request, timeout=WAIT_SECONDS_MAX)
        stubs.channel.close()
        yield Load(lambda: _read(endpoint, messages), messages)


def _read(endpoint: str, messages: int) -> None:
    client = LogClient(endpoint)
    bounds = client.bounds(TOPIC)
    batches = client.read(TOPIC, bounds.topic_number, bounds.first, bounds.last, SCHEMA.names)
    rows = sum(batch.num_rows for batch in batches)
    if rows != messages:
        raise RuntimeError(f"{rows} of {messages} messages were read")
