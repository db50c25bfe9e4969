"""The whole pipeline on the flights of New York City: every figure is held against pandas on the original file.

All 336,776 flights with HELIOGRAPH_ALL_FLIGHTS=1; else the first 20,000.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from heliograph.broker.broker import LocalBroker
from heliograph.engine.message import Draft, message_id
from heliograph.engine.settings import DAY_NS, TopicSettings
from heliograph.spark.door import Address
from heliograph.spark.pipeline.archive import Limits
from heliograph.spark.pipeline.dead_letters import dead_letters
from heliograph.spark.pipeline.job import Outcome, Place, runs
from heliograph.spark.pipeline.jobs import JobOptions, job_named, run_once
from heliograph.spark.pipeline.maintain import MaintainOptions
from heliograph.spark.pipeline.refine import RefineOptions, read_quarantine, read_refined
from heliograph.spark.pipeline.replay import Choice, ReplayOptions
from tests.spark.fakes import ServerThread
from tests.spark.test_on_spark import flight_json, flights

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

TOPIC, AGAIN = "projects/p/topics/flights", "projects/p/topics/flights-again"
SUBSCRIPTION = "projects/p/subscriptions/workers"
FLIGHTS = 400_000 if os.environ.get("HELIOGRAPH_ALL_FLIGHTS") else 20_000
CORRUPTED, TWICE, PUBLISH_SIZE, ACKNOWLEDGED, NACKED = 100, 50, 10_000, 12_000, 300

NUMBERS = ("row", "year", "month", "day", "hour", "minute", "flight", "distance", "sched_dep_time", "sched_arr_time")
TEXTS = ("carrier", "origin", "dest", "time_hour")
PERHAPS = ("dep_time", "dep_delay", "arr_time", "arr_delay", "air_time")
SCHEMA = {
    "type": "record",
    "name": "Flight",
    "fields": [
        *({"name": name, "type": "int"} for name in NUMBERS),
        *({"name": name, "type": "string"} for name in TEXTS),
        {"name": "tailnum", "type": ["null", "string"]},
        *({"name": name, "type": ["null", "int"]} for name in PERHAPS),
    ],
}


def avro_json(data: bytes) -> bytes:
    """As Avro's JSON encoding has it: a value of a union names its type."""
    flight = json.loads(data)
    for name, kind in (("tailnum", "string"), *((each, "int") for each in PERHAPS)):
        if flight[name] is not None:
            flight[name] = {kind: flight[name]}
    return json.dumps(flight).encode()


def corrupted(data: bytes, number: int) -> bytes:
    """Wrong in one of four ways."""
    flight = json.loads(data)
    match number % 4:
        case 0:
            return data[: len(data) // 2]
        case 1:
            return b"\xff" + data
        case 2:
            return json.dumps(flight | {"hour": "noon"}).encode()
        case _:
            del flight["carrier"]
            return json.dumps(flight).encode()


def corrupted_sequences(good: int) -> list[int]:
    """Where `World.publish` puts them among so many good messages."""
    return [number * (good // CORRUPTED + 1) + 1 for number in range(CORRUPTED)]


class World:
    """A broker with the flights, and a pipeline on it."""

    def __init__(self, spark: SparkSession, broker: LocalBroker, place: Place) -> None:
        self.spark = spark
        self.broker = broker
        self.place = place

    def run(self, job: str, **options: object) -> Outcome:
        return run_once(self.spark, job_named(job), self.place, JobOptions()._replace(**options))

    def publish(self, rows: list[dict[str, str]]) -> None:
        good = [avro_json(flight_json(number, flight)) for number, flight in enumerate(rows, 1)]
        drafts = [
            Draft(data, {"carrier": flight["carrier"]}, flight["tailnum"])
            for data, flight in zip(good, rows, strict=True)
        ]
        step = len(drafts) // CORRUPTED
        for number in range(CORRUPTED):
            drafts.insert(number * (step + 1), Draft(corrupted(good[number * step], number), {"carrier": "?"}))
        drafts += [draft for draft in drafts if draft.attributes["carrier"] != "?"][:TWICE]
        for start in range(0, len(drafts), PUBLISH_SIZE):
            self.broker.publish(TOPIC, drafts[start : start + PUBLISH_SIZE]).result()

    def consume(self, count: int) -> None:
        """Acknowledge so many messages, some of them at their second delivery."""
        taken = self.broker.pull(SUBSCRIPTION, NACKED).result()
        self.broker.nack(SUBSCRIPTION, [each.ack_id for each in taken]).result()
        while count:
            taken = self.broker.pull(SUBSCRIPTION, min(count, 1000)).result()
            self.broker.acknowledge(SUBSCRIPTION, [each.ack_id for each in taken]).result()
            count -= len(taken)


@pytest.fixture
def world(spark: SparkSession, tmp_path: Path) -> Iterator[World]:
    broker = LocalBroker.open(tmp_path / "broker", event_retention_ns=DAY_NS)
    for topic in (TOPIC, AGAIN):
        broker.create_topic(topic, TopicSettings(message_retention_ns=DAY_NS)).result()
    broker.create_subscription(SUBSCRIPTION, TOPIC).result()
    with ServerThread(broker) as server:
        yield World(spark, broker, Place(Address(server.endpoint), tmp_path / "pipeline"))
    broker.close()


def test_the_whole_pipeline_on_the_flights(world: World, tmp_path: Path) -> None:
    rows = flights(FLIGHTS)
    frame = pd.DataFrame(rows)
    published = len(rows) + CORRUPTED + TWICE
    world.publish(rows)
    world.consume(ACKNOWLEDGED)
    schema = tmp_path / "flight.avsc"
    schema.write_text(json.dumps(SCHEMA))

    limits = Limits(batch_messages=published // 3 + 1)
    assert world.run("archive", limits=limits, delta=True).figures["messages"] == published
    options = RefineOptions({TOPIC: str(schema)}, unique_by="value.row")
    refined = world.run("refine", refine=options, delta=True)
    assert refined.figures == {"topics": 1, "refined": len(rows), "quarantined": CORRUPTED, "duplicates": TWICE}
    assert world.run("refine", refine=options).rows == 0
    check_refined(world, frame)
    check_metrics(world, published)
    check_dead_letters(world, frame)
    check_replay(world, frame)

    world.run("archive")
    found = world.run("reconcile")
    assert (found.figures["differences"], found.remarks, found.lag) == (0, (), 0)
    before = world.run("maintain", maintain=MaintainOptions(closed_seconds=-7200)).figures
    assert (before["batches before"], before["batches"]) == (7, 5)
    check_refined(world, frame)
    assert world.run("reconcile").figures["differences"] == 0
    delta = DeltaTable(str(world.place.table("archive"))).to_pyarrow_dataset()
    for table, count in (("refined", len(rows)), ("quarantine", CORRUPTED + TWICE)):
        made = DeltaTable(str(world.place.table(table))).to_pyarrow_dataset()
        assert (table, made.count_rows()) == (table, count)
    assert delta.count_rows() == published + world.broker.log_bounds(AGAIN)[1]
    assert [run.error for job in ("archive", "refine", "metrics") for run in runs(world.place.directory, job)] == [
        ""
    ] * 5


def check_refined(world: World, frame: pd.DataFrame) -> None:
    columns = "carrier STRING, hour INT, dep_delay INT, distance INT"
    found = (
        read_refined(world.spark, world.place.directory, TOPIC, columns)
        .groupBy("carrier", "hour")
        .agg({"*": "count", "dep_delay": "avg", "distance": "sum"})
        .toPandas()
        .set_index(["carrier", "hour"])
        .sort_index()
    )
    numbers = frame.assign(
        hour=frame["hour"].astype(int),
        dep_delay=pd.to_numeric(frame["dep_delay"], errors="coerce"),
        distance=frame["distance"].astype(float),
    )
    expected = numbers.groupby(["carrier", "hour"]).agg(
        count=("distance", "size"), delay=("dep_delay", "mean"), distance=("distance", "sum")
    )
    assert found["count(1)"].tolist() == expected["count"].tolist()
    assert found["sum(distance)"].tolist() == expected["distance"].tolist()
    assert found["avg(dep_delay)"].tolist() == pytest.approx(expected["delay"].tolist(), nan_ok=True)
    put_aside = read_quarantine(world.spark, world.place.directory, TOPIC).select("reason", "sequence").collect()
    wrong = corrupted_sequences(len(frame))
    last = len(frame) + CORRUPTED
    assert {(row.reason, row.sequence) for row in put_aside} == {
        *(("schema_violation", sequence) for sequence in wrong),
        *(("duplicate", sequence) for sequence in range(last + 1, last + TWICE + 1)),
    }


def check_metrics(world: World, published: int) -> None:
    measured = world.run("metrics", window_seconds=3600.0)
    assert measured.figures["backlog"] == published - ACKNOWLEDGED
    figures = pd.read_parquet(world.place.table("metrics-by-window"))
    assert set(figures["subscription"]) == {SUBSCRIPTION}
    sums = figures[["published", "delivered", "acknowledged", "nacked", "redelivered", "dead_lettered"]].sum()
    assert sums.tolist() == [published, ACKNOWLEDGED + NACKED, ACKNOWLEDGED, NACKED, NACKED, 0]
    columns = ["position", "event", "attempt", "wait_us", "processing_us"]
    events = pd.concat(batch.to_pandas() for batch in world.place.events.read(*world.place.events.bounds(), columns))
    waits = events[(events["event"] == "delivered") & (events["attempt"] == 1)]["wait_us"] / 1e3
    processings = events[events["event"] == "acknowledged"]["processing_us"] / 1e3
    if len(figures) == 1:  # the hour did not turn meanwhile
        window = figures.iloc[0]
        assert window["redelivery_ratio"] == pytest.approx(NACKED / (ACKNOWLEDGED + NACKED))
        assert window["published_per_second"] == pytest.approx(published / 3600)
        for name, times in (("wait", waits), ("processing", processings)):
            for share in (50, 95, 99):
                found_ms = window[f"{name}_ms_p{share}"]
                assert (times < found_ms).mean() - 0.03 <= share / 100 <= (times <= found_ms).mean() + 0.03


def check_dead_letters(world: World, frame: pd.DataFrame) -> None:
    found = dead_letters(world.spark, world.place)
    assert found.figures["dead letters"] == CORRUPTED
    groups = pd.read_parquet(world.place.table("dead-letters"))
    assert groups["count"].sum() == CORRUPTED
    assert groups["count"].max() == CORRUPTED // 4
    number = world.broker.get_topic(TOPIC).number
    wrong = {message_id(number, sequence) for sequence in corrupted_sequences(len(frame))}
    assert set(groups["sample_ids"].explode()) <= wrong
    assert (groups["first_seen"] <= groups["last_seen"]).all()
    assert "schema_violation" in (world.place.directory / "dead-letters.html").read_text()


def check_replay(world: World, frame: pd.DataFrame) -> None:
    expected = int((frame["carrier"] == "UA").sum()) + int((frame["carrier"][:TWICE] == "UA").sum())
    choice = Choice((TOPIC,), AGAIN, where="attributes['carrier'] = 'UA'")
    counted = world.run("replay", replay=ReplayOptions(choice, dry_run=True))
    assert (counted.figures["would publish"], world.broker.log_bounds(AGAIN)) == (expected, (1, 0))
    assert world.run("replay", replay=ReplayOptions(choice)).figures["published"] == expected
    assert world.run("replay", replay=ReplayOptions(choice)).figures["published"] == 0
    assert world.broker.log_bounds(AGAIN) == (1, expected)
    again = [message for batch in world.broker.read_log(AGAIN, 1, expected) for message in batch]
    ids = [message.attributes["x-replayed-from"] for message in again]
    assert ids == sorted(set(ids), key=int)
    assert {message.attributes["carrier"] for message in again} == {"UA"}
