"""What only a real Spark shows of tokens: how a query ends that has not got the right, and that no token is shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from heliograph.broker.broker import LocalBroker
from heliograph.engine.message import Draft
from heliograph.engine.settings import DAY_NS, TopicSettings
from heliograph.errors import FailedPrecondition
from heliograph.spark.door import Address
from heliograph.spark.failure import in_one_line
from heliograph.spark.pipeline.job import Place, runs
from heliograph.spark.pipeline.jobs import JobOptions, job_named, run_once
from tests.spark.fakes import ServerThread
from tests.spark.gateway import GOOD, READER, RIGHTS, Gateway

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TOPIC, SINK = "projects/p/topics/flights", "projects/p/topics/sink"
SUBSCRIPTION = "projects/p/subscriptions/flights"
MESSAGES = 300


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LocalBroker]:
    broker = LocalBroker.open(tmp_path / "broker", event_retention_ns=DAY_NS)
    for topic in (TOPIC, SINK):
        broker.create_topic(topic, TopicSettings(message_retention_ns=DAY_NS)).result()
    broker.create_subscription(SUBSCRIPTION, TOPIC).result()
    broker.publish(TOPIC, [Draft(b"%d" % number) for number in range(MESSAGES)]).result()
    yield broker
    broker.close()


@pytest.fixture
def gateway(broker: LocalBroker) -> Iterator[Gateway]:
    with ServerThread(broker) as server, Gateway(server.endpoint, rights=RIGHTS) as gateway:
        yield gateway


class Queries:
    """Streams from the queue into the topic `SINK`, with one checkpoint."""

    def __init__(self, spark: SparkSession, gateway: Gateway, directory: Path) -> None:
        self._spark = spark
        self._endpoint = gateway.endpoint
        self._checkpoint = str(directory / "checkpoint")

    def run(self, source: str, sink: str) -> StreamingQuery:
        """With these tokens."""
        read = {"endpoint": self._endpoint, "subscription": SUBSCRIPTION, "token": source}
        write = {"endpoint": self._endpoint, "topic": SINK, "token": sink, "checkpointLocation": self._checkpoint}
        messages = self._spark.readStream.format("heliograph").options(**read).load().select("data")
        writer = messages.writeStream.format("heliograph").options(**write)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return query


def posts(gateway: Gateway) -> list[tuple[str, int]]:
    return [(each.path.rpartition("/")[2], each.status) for each in gateway.passed if each.method == "POST"]


def state(broker: LocalBroker) -> tuple[int, int, int]:
    """Messages that are published by the sink, ready, and claimed."""
    found = broker.statistics(SUBSCRIPTION)
    return broker.log_bounds(SINK)[1], found.ready, found.outstanding


def lines(error: BaseException, status: int) -> list[str]:
    """Those of an exception of Spark's that are our words on this status."""
    return [line for line in str(error).splitlines() if f"answered {status} (" in line and "option token" in line]


def test_a_query_without_the_right_ends_with_a_line_and_goes_on_with_nothing_lost_once_it_has_it(
    spark: SparkSession, broker: LocalBroker, gateway: Gateway, tmp_path: Path
) -> None:
    queries = Queries(spark, gateway, tmp_path)
    said: list[str] = []
    for source, sink, status, left in (
        ("", GOOD, 401, (0, MESSAGES, 0)),
        (READER, GOOD, 403, (0, MESSAGES, 0)),
        (GOOD, READER, 403, (0, 0, MESSAGES)),  # claimed for this query
    ):
        with pytest.raises(PySparkException) as caught:
            queries.run(source, sink)
        assert lines(caught.value, status)
        assert state(broker) == left
        said.append(str(caught.value))
    assert len(posts(gateway)) < 12
    queries.run(GOOD, GOOD)
    assert state(broker) == (MESSAGES, 0, 0)
    found = [m.data for batch in broker.read_log(SINK, *broker.log_bounds(SINK)) for m in batch]
    assert sorted(found) == sorted(b"%d" % number for number in range(MESSAGES))
    assert not any("secret" in text for text in said)


def test_a_batch_query_without_the_right_is_one_line_and_changes_nothing(
    spark: SparkSession, broker: LocalBroker, gateway: Gateway
) -> None:
    options = {"endpoint": gateway.endpoint, "topic": TOPIC}
    with pytest.raises(FailedPrecondition, match=r"answered 401 .*option token"), in_one_line("Reading"):
        spark.read.format("heliograph").options(**options, token="secret-of-nobody").load().count()
    messages = spark.read.format("heliograph").options(**options, token=READER).load()
    assert messages.count() == MESSAGES
    written = messages.select("data").write.format("heliograph").mode("append")
    gateway.passed.clear()
    with pytest.raises(FailedPrecondition, match=r"answered 403 .*option token"), in_one_line("Writing"):
        written.options(endpoint=gateway.endpoint, topic=SINK, token=READER).save()
    assert {status for _, status in posts(gateway)} == {403}
    assert len(posts(gateway)) < 6
    assert state(broker) == (0, MESSAGES, 0)


def shown_by(query: StreamingQuery, frame: DataFrame) -> str:
    jvm: Any = frame.sparkSession._jvm  # type: ignore[attr-defined]
    plan: Any = frame._jdf.queryExecution()  # type: ignore[attr-defined]
    explained = [jvm.PythonSQLUtils.explainString(plan, mode) for mode in ("extended", "formatted")]
    query_plan: Any = query._jsq.explainInternal(True)  # type: ignore[attr-defined]
    return "\n".join([*(each.json for each in query.recentProgress), *explained, query_plan])


def test_a_token_is_in_no_plan_progress_offset_or_event_log(
    spark: SparkSession, broker: LocalBroker, gateway: Gateway, tmp_path: Path, event_log: Path
) -> None:
    query = Queries(spark, gateway, tmp_path).run(GOOD, GOOD)
    options = {"endpoint": gateway.endpoint, "topic": TOPIC, "token": READER}
    frame = spark.read.format("heliograph").options(**options).load().groupBy("topic").count()
    assert frame.collect()[0]["count"] == MESSAGES
    shown = shown_by(query, frame)
    assert "numInputRows" in shown
    written = [path for root in (tmp_path / "checkpoint", event_log) for path in root.rglob("*") if path.is_file()]
    texts = [path.read_bytes() for path in written]
    assert any(b"SparkListenerSQLExecutionStart" in text for text in texts)
    for token in (GOOD, READER):
        assert token not in shown
        assert [path for path, text in zip(written, texts, strict=True) if token.encode() in text] == []


def test_a_job_of_the_pipeline_brings_the_token_and_tells_what_it_lacks(
    spark: SparkSession, broker: LocalBroker, gateway: Gateway, tmp_path: Path
) -> None:
    def place(token: str) -> Place:
        return Place(Address(gateway.endpoint, token=token), tmp_path / "pipeline", (TOPIC,))

    archive = job_named("archive")
    for token in ("", "secret-of-nobody"):
        with pytest.raises(FailedPrecondition, match=r"answered 401 .*--token, or HELIOGRAPH_TOKEN"):
            run_once(spark, archive, place(token), JobOptions())
    assert run_once(spark, archive, place(READER), JobOptions()).rows == MESSAGES
    assert "answered 401" in runs(tmp_path / "pipeline", "archive")[0].error
    kept = [path for path in (tmp_path / "pipeline").rglob("*") if path.is_file() and b"secret" in path.read_bytes()]
    assert kept == []
