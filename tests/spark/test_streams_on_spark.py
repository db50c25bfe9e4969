"""What only a real Spark can show of streams and sinks: its progress, its schemas, its tasks."""

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
from pyspark.sql.streaming import StreamingQuery

from heliograph.broker.broker import LocalBroker
from heliograph.engine.message import Draft, Extras
from heliograph.engine.settings import DAY_NS, TopicSettings
from heliograph.store.sqlite import SqliteStore
from tests.spark.fakes import ServerThread

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TOPIC, SINK = "projects/p/topics/flights", "projects/p/topics/sink"
SUBSCRIPTION = "projects/p/subscriptions/flights"


@pytest.fixture
def broker(tmp_path: Path) -> LocalBroker:
    store = SqliteStore(tmp_path / "broker", events_bytes_max=10**7)
    broker = LocalBroker(store, event_retention_ns=DAY_NS)
    for topic in (TOPIC, SINK):
        broker.create_topic(topic, TopicSettings(message_retention_ns=DAY_NS)).result()
    broker.create_subscription(SUBSCRIPTION, TOPIC).result()
    return broker


@pytest.fixture
def endpoint(broker: LocalBroker) -> Iterator[str]:
    with ServerThread(broker) as server:
        yield server.endpoint


def publish(broker: LocalBroker, count: int) -> list[str]:
    drafts = [Draft(b"%d" % n, {"n": str(n)}, f"key {n % 5}", Extras(priority=n % 10)) for n in range(count)]
    return broker.publish(TOPIC, drafts).result()


def stream(spark: SparkSession, endpoint: str, **options: str) -> DataFrame:
    return spark.readStream.format("heliograph").options(endpoint=endpoint, **options).load()


def run(frame: DataFrame, checkpoint: Path, sink: str = "noop", **options: str) -> StreamingQuery:
    writer = frame.writeStream.format(sink).options(checkpointLocation=str(checkpoint), **options)
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def test_a_stream_of_a_log_reports_where_it_is_and_what_there_is(
    spark: SparkSession, broker: LocalBroker, endpoint: str, tmp_path: Path
) -> None:
    ids = publish(broker, 3_000)
    frame = stream(spark, endpoint, topic=TOPIC, startingOffsets="earliest", maxMessagesPerTrigger="1000")
    query = run(frame, tmp_path / "checkpoint", "parquet", path=str(tmp_path / "out"))
    progress = [each for each in query.recentProgress if each["numInputRows"]]
    assert [each["numInputRows"] for each in progress] == [1_000] * 3
    source = progress[1]["sources"][0]
    assert [json.loads(source[name])[TOPIC]["next"] for name in ("startOffset", "endOffset", "latestOffset")] == [
        1_001,
        2_001,
        3_001,
    ]
    found = spark.read.parquet(str(tmp_path / "out")).select("message_id").collect()
    assert sorted(row.message_id for row in found) == sorted(ids)


def test_from_a_queue_through_spark_into_a_topic(
    spark: SparkSession, broker: LocalBroker, endpoint: str, tmp_path: Path
) -> None:
    publish(broker, 2_000)
    frame = stream(spark, endpoint, subscription=SUBSCRIPTION, claimSize="300", maxMessagesPerTrigger="1000")
    columns = frame.filter("priority > 4").select("data", "attributes", "ordering_key", "priority")
    run(columns, tmp_path / "checkpoint", "heliograph", endpoint=endpoint, topic=SINK)
    found = [m for batch in broker.read_log(SINK, *broker.log_bounds(SINK)) for m in batch]
    expected = {(b"%d" % n, f"key {n % 5}", n % 10) for n in range(2_000) if n % 10 > 4}
    assert len(found) == len(expected)
    assert {(m.data, m.ordering_key, m.extras.priority) for m in found if m.extras is not None} == expected
    statistics = broker.statistics(SUBSCRIPTION)
    assert (statistics.ready, statistics.outstanding) == (0, 0)


def test_a_dataframe_is_published_and_its_keys_keep_their_order(
    spark: SparkSession, broker: LocalBroker, endpoint: str
) -> None:
    frame = spark.range(5_000).selectExpr(
        "CAST(id AS STRING) AS value", "CONCAT('key ', id % 7) AS key", "map('n', CAST(id AS STRING)) AS attributes"
    )
    ordered = frame.repartition(3, "key").sortWithinPartitions(sf.col("value").cast("long"))
    ordered.write.format("heliograph").mode("append").options(endpoint=endpoint, topic=SINK).save()
    found = [m for batch in broker.read_log(SINK, *broker.log_bounds(SINK)) for m in batch]
    assert sorted(int(m.data) for m in found) == list(range(5_000))
    for key in {m.ordering_key for m in found}:
        values = [int(m.data) for m in found if m.ordering_key == key]
        assert values == sorted(values)


def test_the_event_log_is_a_table(spark: SparkSession, broker: LocalBroker, endpoint: str) -> None:
    publish(broker, 100)
    broker.acknowledge(SUBSCRIPTION, [d.ack_id for d in broker.pull(SUBSCRIPTION, 60).result()]).result()
    broker._store.append([]).wait(30)
    events = spark.read.format("heliograph").options(endpoint=endpoint, mode="events").load()
    counts = {row.event: row["count"] for row in events.groupBy("event").count().collect()}
    assert counts == {"published": 100, "delivered": 60, "acknowledged": 60}
    settled = events.filter("event = 'acknowledged'")
    row = settled.selectExpr("max(processing_us) AS most", "min(attempt) AS least").first()
    assert row is not None
    assert (row.most >= 0, row.least) == (True, 1)


CONDITIONS = (
    "sequence > 100 AND sequence <= 300 AND priority = 3",
    "sequence IN (1, 2, 500, 2000, NULL)",
    "sequence NOT IN (1, 2)",
    "sequence = 5 OR sequence = 900",
    "sequence <=> 7",
    "sequence > 10.5 AND sequence < 12.5",
    "topic IN ('{topic}', 'other') AND sequence < 3",
    "topic = 'other'",
    "topic LIKE '%flights' AND sequence BETWEEN 5 AND 9",
    "publish_time >= '{middle}'",
    "publish_time < '{middle}' AND sequence > 990",
    "publish_time_ns <= {middle_ns} AND priority IN (1, 2)",
    "publish_time = '{middle}'",
    "publish_time > '2200-01-01' OR sequence = 1",
    "publish_time < '1900-01-01'",
)


def test_filters_find_the_same_whether_the_broker_or_spark_applies_them(
    spark: SparkSession, broker: LocalBroker, endpoint: str
) -> None:
    publish(broker, 500)
    broker.publish(TOPIC, [Draft(b"x", publish_time_ns=10**18)]).result()  # as of a dead letter: not in order
    publish(broker, 500)
    middle_ns = next(broker.read_log(TOPIC, 400, 400))[0].publish_time_ns
    middle = f"{datetime.fromtimestamp(middle_ns // 10**9, UTC):%Y-%m-%dT%H:%M:%S}.{middle_ns // 1000 % 10**6:06d}Z"

    def found(condition: str, **options: str) -> list[int]:
        frame = spark.read.format("heliograph").options(endpoint=endpoint, topic=TOPIC, **options).load()
        rows = frame.where(condition.format(topic=TOPIC, middle=middle, middle_ns=middle_ns))
        return sorted(row.sequence for row in rows.select("sequence").collect())

    plain = [found(condition, pushdown="false") for condition in CONDITIONS]
    assert [found(condition) for condition in CONDITIONS] == plain
    frame = spark.read.format("heliograph").options(endpoint=endpoint, topic=TOPIC).load().where(CONDITIONS[0])
    plan = frame._sc._jvm.PythonSQLUtils.explainString(frame._jdf.queryExecution(), "formatted")  # type: ignore
    assert "GreaterThan(sequence,100)" in plan
    conf = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(conf, "false")  # a session that is not ours
    try:
        assert found(CONDITIONS[0]) == plain[0]
    finally:
        spark.conf.set(conf, "true")


def test_what_our_code_refuses_is_told_by_spark(
    spark: SparkSession, broker: LocalBroker, endpoint: str, tmp_path: Path
) -> None:
    publish(broker, 10)
    messages = stream(spark, endpoint, topic=TOPIC, startingOffsets="earliest")
    frame = messages.selectExpr("data", "'nowhere/at/all' AS topic")
    with pytest.raises(StreamingQueryException, match="nowhere/at/all"):
        run(frame, tmp_path / "checkpoint", "heliograph", endpoint=endpoint)


def test_the_source_works_in_a_temporary_view_with_options(
    spark: SparkSession, broker: LocalBroker, endpoint: str
) -> None:
    publish(broker, 10)
    options: dict[str, Any] = {"endpoint": endpoint, "topic": TOPIC, "startingOffsets": "6"}
    text = ", ".join(f"{name} '{value}'" for name, value in options.items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW part USING heliograph OPTIONS ({text})")
    assert spark.sql("SELECT count(*) AS n FROM part").collect()[0].n == 5
