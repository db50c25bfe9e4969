"""Spark on two cores and a broker as a process of its own: reading a topic, streaming it to Parquet, publishing, and
how long a message takes to be seen. The session is started once; whoever has no Spark has none of these."""

from __future__ import annotations

import functools
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf import duration_pb2
from google.pubsub_v1 import types

from benchmarks.harness import Figures, Load, Scale
from benchmarks.scenarios import suite
from benchmarks.scenarios.grpc_door import WAIT_SECONDS_MAX, Stubs
from benchmarks.server import running_server

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TOPIC, SINK = "projects/bench/topics/spark", "projects/bench/topics/sink"
SUBSCRIPTION = "projects/bench/subscriptions/spark"
MESSAGES = 1_000_000
STREAMED = (1_000_000, 4_000_000)
PER_TRIGGER = 500_000
BATCH = 1_000
PAYLOAD = b"x" * 100
DRAFTS = (types.PubsubMessage(data=PAYLOAD),) * BATCH
CALLS_PER_SECOND = 40
WARM_UP_BATCHES = 10
WARM_UP_READS = 5


@functools.cache
def session() -> SparkSession:
    """The one of this process."""
    from heliograph.spark.session import create_session

    return create_session("heliograph benchmarks", master="local[2]")


class Bench:
    """A topic with messages, another one for a sink, and a subscription.

    Args:
        endpoint: of the broker.
        messages: to fill the topic with.
    """

    def __init__(self, endpoint: str, messages: int) -> None:
        self.endpoint = endpoint
        self.stubs = Stubs(endpoint)
        retention = duration_pb2.Duration(seconds=86_400)
        for name in (TOPIC, SINK):
            topic = types.Topic(name=name, message_retention_duration=retention)
            self.stubs.create_topic(types.Topic.serialize(topic), timeout=WAIT_SECONDS_MAX)
        request = types.Subscription.serialize(types.Subscription(name=SUBSCRIPTION, topic=TOPIC))
        self.stubs.create_subscription(request, timeout=WAIT_SECONDS_MAX)
        self.publish(messages)

    def publish(self, messages: int, drafts: Sequence[types.PubsubMessage] = DRAFTS) -> None:
        """Messages to the topic, a call for all `drafts`, again and again."""
        request = types.PublishRequest.serialize(types.PublishRequest(topic=TOPIC, messages=drafts))
        for _ in range(messages // len(drafts)):
            self.stubs.publish(request, timeout=WAIT_SECONDS_MAX)

    def frame(self, **options: Any) -> DataFrame:
        """The whole topic."""
        return session().read.format("heliograph").options(endpoint=self.endpoint, topic=TOPIC, **options).load()

    def stream(self, **options: Any) -> DataFrame:
        """The topic, or with `subscription` the queue, as a stream."""
        return session().readStream.format("heliograph").options(endpoint=self.endpoint, **options).load()


@suite.scenario()
def spark_parquet_read(scale: Scale) -> Iterator[Load]:
    """A batch query reads the same rows from Parquet files: as fast as Spark is without a broker and without Python."""
    messages = scale.count(MESSAGES, multiple_of=BATCH)
    with _as_parquet(messages, files=2) as files:
        yield Load(lambda: _drop(session().read.parquet(str(files))), messages)


@suite.scenario(peer="spark_parquet_read", store=("sqlite", "memory"), target="800,000 messages/s")
def spark_batch_read(scale: Scale, *, store: str) -> Iterator[Load]:
    """A batch query reads every column of a topic, and drops them."""
    messages = scale.count(MESSAGES, multiple_of=BATCH)
    with running_server(store) as endpoint:
        bench = Bench(endpoint, messages)
        yield Load(lambda: _drop(bench.frame()), messages)


@suite.scenario(messages=STREAMED)
def spark_files_to_parquet(scale: Scale, *, messages: int) -> Iterator[Load]:
    """A stream takes the same rows in as many micro-batches from Parquet files to Parquet files: Spark by itself."""
    count = scale.count(messages, multiple_of=BATCH)
    triggers = messages // PER_TRIGGER
    with _as_parquet(count, files=2 * triggers) as files, tempfile.TemporaryDirectory() as directory:
        reader = session().readStream.schema(session().read.parquet(str(files)).schema)
        frame = reader.option("maxFilesPerTrigger", 2).parquet(str(files))
        yield Load(lambda: _to_parquet(frame, Path(directory), count), count)


@suite.scenario(peer="spark_files_to_parquet", messages=STREAMED, target="400,000 messages/s")
def spark_stream_to_parquet(scale: Scale, *, messages: int) -> Iterator[Load]:
    """A stream takes a topic to Parquet files, 500,000 messages a micro-batch; the start of the query counts, too."""
    count = scale.count(messages, multiple_of=BATCH)
    per_trigger = count * PER_TRIGGER // messages
    with running_server("sqlite") as endpoint, tempfile.TemporaryDirectory() as directory:
        bench = Bench(endpoint, count)
        frame = bench.stream(topic=TOPIC, startingOffsets="earliest", maxMessagesPerTrigger=per_trigger)
        yield Load(lambda: _to_parquet(frame, Path(directory), count), count)


def _drop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


@contextmanager
def _as_parquet(messages: int, files: int) -> Iterator[Path]:
    """A directory of Parquet files with the rows of a topic of so many messages."""
    with tempfile.TemporaryDirectory() as directory:
        with running_server("memory") as endpoint:
            frame = Bench(endpoint, messages).frame(minPartitions=files)
            frame.write.parquet(str(Path(directory) / "rows"))
        yield Path(directory) / "rows"


def _to_parquet(frame: DataFrame, directory: Path, messages: int) -> Figures:
    for each in directory.iterdir():
        shutil.rmtree(each)
    writer = frame.writeStream.format("parquet").option("path", str(directory / "out"))
    query = writer.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    triggers = [each["durationMs"]["triggerExecution"] for each in query.recentProgress if each["numInputRows"]]
    return {"ms a trigger": statistics.median(triggers), "messages/s in triggers": messages * 1_000 / sum(triggers)}


@suite.scenario(target="150,000 messages/s")
def spark_sink(scale: Scale) -> Iterator[Load]:
    """A batch query publishes rows that Spark makes, staged and committed."""
    messages = scale.count(MESSAGES // 2, multiple_of=BATCH)
    with running_server("sqlite") as endpoint:
        Bench(endpoint, 0)
        rows = session().range(messages, numPartitions=2).selectExpr(f"CAST('{PAYLOAD.decode()}' AS BINARY) AS data")
        writer = rows.write.format("heliograph").mode("append").options(endpoint=endpoint, topic=SINK)
        yield Load(writer.save, messages)


@suite.scenario(rate=(400,), target="p50 of 300 ms")
def spark_publish_to_visible(scale: Scale, *, rate: int) -> Iterator[Load]:
    """How long a message takes from its publication until `foreachBatch` has it, at a steady rate."""
    messages = scale.count(8_000, multiple_of=rate)
    with running_server("sqlite") as endpoint, tempfile.TemporaryDirectory() as directory:
        bench = Bench(endpoint, 0)
        yield Load(lambda: _publish_to_visible(bench, Path(directory), messages, rate), messages, once=True)


def _publish_to_visible(bench: Bench, directory: Path, messages: int, rate: int) -> Figures:
    delays_ms: list[float] = []
    seen = threading.Event()

    def look(batch: DataFrame, _number: int) -> None:
        published = [row.publish_time_ns for row in batch.select("publish_time_ns").collect()]
        now_ns = time.time_ns()
        delays_ms.extend((now_ns - each) / 1e6 for each in published)
        seen.set()

    writer = bench.stream(subscription=SUBSCRIPTION, includePayload="false").writeStream.foreachBatch(look)
    query = writer.option("checkpointLocation", str(directory)).trigger(processingTime="0 seconds").start()
    message = types.PubsubMessage(data=PAYLOAD)
    size = rate // CALLS_PER_SECOND
    request = types.PublishRequest.serialize(types.PublishRequest(topic=TOPIC, messages=[message] * size))
    for _ in range(WARM_UP_BATCHES):
        seen.clear()
        bench.stubs.publish(request, timeout=WAIT_SECONDS_MAX)
        seen.wait(WAIT_SECONDS_MAX)
    delays_ms.clear()
    began = time.monotonic()
    for call in range(messages // size):
        time.sleep(max(began + call / CALLS_PER_SECOND - time.monotonic(), 0))
        bench.stubs.publish(request, timeout=WAIT_SECONDS_MAX)
    while len(delays_ms) < messages and seen.wait(WAIT_SECONDS_MAX):
        seen.clear()
    query.stop()
    found = sorted(delays_ms)
    return {f"p{percent} ms": found[len(found) * percent // 100] for percent in (50, 95, 99)}


@suite.scenario(spark=("idle", "catching up"), target=lambda spark: "" if spark == "idle" else "80 % of idle's")
def spark_live_publish(scale: Scale, *, spark: str) -> Iterator[Load]:
    """One publisher, a hundred messages of 100 bytes a call, while Spark catches up with a topic or does nothing."""
    calls = scale.count(2_000)
    with running_server("sqlite") as endpoint:
        bench = Bench(endpoint, scale.count(MESSAGES, multiple_of=BATCH))
        message = types.PubsubMessage(data=PAYLOAD)
        request = types.PublishRequest.serialize(types.PublishRequest(topic=SINK, messages=[message] * 100))
        session()
        stop = threading.Event()

        def catch_up() -> None:
            while not stop.is_set():
                _drop(bench.frame())

        thread = threading.Thread(target=catch_up)
        if spark != "idle":
            for _ in range(WARM_UP_READS):  # what a JVM compiles at first is not what catching up costs
                _drop(bench.frame())
            thread.start()
        try:
            yield Load(lambda: _publish(bench, request, calls), calls * 100)
        finally:
            stop.set()
            if spark != "idle":
                thread.join()


def _publish(bench: Bench, request: bytes, calls: int) -> None:
    for _ in range(calls):
        bench.stubs.publish(request, timeout=WAIT_SECONDS_MAX)
