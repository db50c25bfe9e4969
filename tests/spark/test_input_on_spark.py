"""What comes late, twice, out of order or not at all: through Spark, and through the pipeline."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from heliograph.broker.broker import LocalBroker
from heliograph.engine.message import Draft
from heliograph.engine.settings import DAY_NS, TopicSettings
from heliograph.errors import FailedPrecondition
from heliograph.spark.door import Address
from heliograph.spark.pipeline.job import Outcome, Place, runs
from heliograph.spark.pipeline.jobs import JobOptions, job_named, run_once
from tests.spark.fakes import ServerThread

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TOPIC, EMPTY = "projects/p/topics/flights", "projects/p/topics/empty"
KEPT = TopicSettings(message_retention_ns=DAY_NS)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    broker = LocalBroker.open(tmp_path / "broker", event_retention_ns=DAY_NS)
    broker.create_topic(TOPIC, KEPT).result()
    yield broker
    broker.close()


@pytest.fixture
def endpoint(broker: LocalBroker) -> Iterator[str]:
    with ServerThread(broker) as server:
        yield server.endpoint


class Input:
    """A topic as a stream into Parquet, with one checkpoint."""

    def __init__(self, spark: SparkSession, endpoint: str, directory: Path) -> None:
        self._spark = spark
        self._endpoint = endpoint
        self._directory = directory

    def run(self, work: Any = lambda messages: messages, **options: str) -> None:
        given = {"endpoint": self._endpoint, "topic": TOPIC, "startingOffsets": "earliest"} | options
        messages = self._spark.readStream.format("heliograph").options(**given).load()
        places = {"checkpointLocation": str(self._directory / "checkpoint"), "path": str(self._directory / "out")}
        writer = work(messages).writeStream.format("parquet").options(**places)
        writer.trigger(availableNow=True).start().awaitTermination()

    def rows(self) -> DataFrame:
        return self._spark.read.parquet(str(self._directory / "out"))

    def ids(self) -> list[str]:
        return [row.message_id for row in self.rows().orderBy("publish_time", "sequence").collect()]


def publish(broker: LocalBroker, count: int) -> list[str]:
    return broker.publish(TOPIC, [Draft(b'{"n": 1}')] * count).result()


@pytest.fixture
def stream(spark: SparkSession, endpoint: str, tmp_path: Path) -> Input:
    return Input(spark, endpoint, tmp_path / "stream")


def test_events_that_come_late_twice_and_out_of_order_are_counted_in_their_windows(
    broker: LocalBroker, stream: Input
) -> None:
    events = [(5, "a"), (65, "b"), (12, "c"), (65, "b"), (130, "d"), (61, "e"), (5, "a"), (400, "f")]
    events += [(401, "g"), (402, "h"), (7, "later than the watermark"), (400, "f")]  # two in a micro-batch
    drafts = [
        Draft(b"", {"id": name, "at": f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}"}) for at, name in events
    ]
    broker.publish(TOPIC, drafts).result()

    def windows(messages: DataFrame) -> DataFrame:
        told = messages.selectExpr("attributes['id'] AS id", "CAST(attributes['at'] AS TIMESTAMP) AS at")
        once = told.withWatermark("at", "5 minutes").dropDuplicatesWithinWatermark(["id"])
        counts = once.groupBy(sf.window("at", "1 minute").alias("window")).agg(sf.count("*").alias("events"))
        return counts.selectExpr("window.start AS minute", "events")

    stream.run(windows, maxMessagesPerTrigger="2")
    broker.publish(TOPIC, [Draft(b"", {"id": "end", "at": "1970-01-02T00:00:00Z"})]).result()
    stream.run(windows, maxMessagesPerTrigger="2")
    found = {row.minute.timestamp(): row.events for row in stream.rows().collect()}
    assert found == {0: 2, 60: 2, 120: 1, 360: 3}


def test_an_empty_topic_is_no_micro_batch_and_what_comes_later_is_read(broker: LocalBroker, stream: Input) -> None:
    stream.run()
    ids = publish(broker, 3)
    stream.run()
    assert stream.ids() == ids


def test_retention_that_has_passed_a_stream_is_a_clear_error_or_skipped(broker: LocalBroker, stream: Input) -> None:
    ids = publish(broker, 10)
    stream.run()
    publish(broker, 5)
    ids += publish(broker, 5)
    broker._store.trim(broker.get_topic(TOPIC).number, 16)
    with pytest.raises(StreamingQueryException, match=r"before sequence 16 are gone.* set failOnDataLoss to false"):
        stream.run()
    stream.run(failOnDataLoss="false")
    assert stream.ids() == ids


def test_a_topic_that_is_deleted_and_created_again_is_a_clear_error_or_read_anew(
    broker: LocalBroker, stream: Input
) -> None:
    ids = publish(broker, 10)
    stream.run()
    broker.delete_topic(TOPIC).result()
    with pytest.raises(StreamingQueryException, match=f"Topic not found: {TOPIC}"):
        stream.run()
    broker.create_topic(TOPIC, KEPT).result()
    ids += publish(broker, 3)
    with pytest.raises(StreamingQueryException, match=r"deleted and created again.* set failOnDataLoss to false"):
        stream.run()
    stream.run(failOnDataLoss="false")
    assert stream.ids() == ids


# ── the pipeline ────────────────────────────────────────────────────────────────────────────────────────────────────


class Pipeline:
    """On the same broker."""

    def __init__(self, spark: SparkSession, endpoint: str, directory: Path) -> None:
        self._spark = spark
        self.place = Place(Address(endpoint), directory)

    def run(self, job: str, **options: object) -> Outcome:
        return run_once(self._spark, job_named(job), self.place, JobOptions()._replace(**options))

    def agrees(self) -> bool:
        found = self.run("reconcile")
        return (found.is_good, found.figures["differences"]) == (True, 0)


@pytest.fixture
def pipeline(spark: SparkSession, endpoint: str, tmp_path: Path) -> Pipeline:
    return Pipeline(spark, endpoint, tmp_path / "pipeline")


def test_the_pipeline_bears_an_empty_topic(broker: LocalBroker, pipeline: Pipeline) -> None:
    broker.create_topic(EMPTY, KEPT).result()
    publish(broker, 4)
    assert pipeline.run("archive").figures["messages"] == 4
    assert pipeline.run("refine").figures["refined"] == 4
    assert pipeline.run("metrics").figures["subscriptions"] == 0
    assert pipeline.run("dead-letters").figures["dead letters"] == 0
    assert pipeline.agrees()
    assert pipeline.run("maintain").is_good


def test_retention_that_has_passed_the_archive_is_a_clear_error_or_skipped(
    broker: LocalBroker, pipeline: Pipeline
) -> None:
    publish(broker, 10)
    pipeline.run("archive")
    pipeline.run("refine")
    publish(broker, 10)
    broker._store.trim(broker.get_topic(TOPIC).number, 16)
    with pytest.raises(
        FailedPrecondition, match=rf"has trimmed {TOPIC} up to sequence 15.*up to 10 only.*--allow-data-loss"
    ):
        pipeline.run("archive")
    assert "up to sequence 15" in runs(pipeline.place.directory, "archive")[-1].error
    assert pipeline.run("archive", allow_data_loss=True).figures["messages"] == 5
    assert pipeline.run("archive").figures == {"topics": 1, "messages": 0, "bytes": 0, "in the archive": 15}
    assert pipeline.run("refine").figures["refined"] == 5
    assert pipeline.agrees()


def test_the_pipeline_goes_on_with_a_topic_that_was_deleted_and_created_again(
    broker: LocalBroker, pipeline: Pipeline
) -> None:
    publish(broker, 10)
    pipeline.run("archive")
    pipeline.run("refine")
    pipeline.run("metrics")
    broker.delete_topic(TOPIC).result()
    assert pipeline.run("archive").figures["topics"] == 0
    broker.create_topic(TOPIC, KEPT).result()
    broker.publish(TOPIC, [Draft(json.dumps({"n": 2}).encode())] * 3).result()
    assert pipeline.run("archive").figures == {
        "topics": 1,
        "messages": 3,
        "bytes": pytest.approx(3_000, abs=3_000),
        "in the archive": 13,
    }
    assert pipeline.run("refine").figures["refined"] == 3
    pipeline.run("metrics")
    assert pipeline.agrees()
