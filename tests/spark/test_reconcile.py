"""Log, archive and acknowledgements are compared, and every difference is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from heliograph.broker.broker import LocalBroker
from heliograph.engine.message import Draft
from heliograph.engine.settings import DAY_NS, TopicSettings
from heliograph.errors import FailedPrecondition
from heliograph.spark.door import Address
from heliograph.spark.pipeline.job import Outcome, Place, runs
from heliograph.spark.pipeline.jobs import JobOptions, job_named, run_once
from tests.spark.fakes import ServerThread

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TOPIC, SUBSCRIPTION = "projects/p/topics/t", "projects/p/subscriptions/s"


class Pipeline:
    """A broker with an event log, and a pipeline on it."""

    def __init__(self, spark: SparkSession, broker: LocalBroker, place: Place) -> None:
        self.spark = spark
        self.broker = broker
        self.place = place

    def run(self, job: str, **options: object) -> Outcome:
        return run_once(self.spark, job_named(job), self.place, JobOptions()._replace(**options))

    def publish(self, count: int) -> None:
        drafts = [Draft(json.dumps({"n": number}).encode(), {"n": str(number)}) for number in range(count)]
        self.broker.publish(TOPIC, drafts).result()

    def acknowledge(self, count: int) -> None:
        taken = self.broker.pull(SUBSCRIPTION, count).result()
        self.broker.acknowledge(SUBSCRIPTION, [each.ack_id for each in taken]).result()


@pytest.fixture
def pipeline(spark: SparkSession, tmp_path: Path) -> Iterator[Pipeline]:
    broker = LocalBroker.open(tmp_path / "broker", event_retention_ns=DAY_NS)
    broker.create_topic(TOPIC, TopicSettings(message_retention_ns=DAY_NS)).result()
    broker.create_subscription(SUBSCRIPTION, TOPIC).result()
    with ServerThread(broker) as server:
        yield Pipeline(spark, broker, Place(Address(server.endpoint), tmp_path / "pipeline"))


def test_what_agrees_has_no_difference_and_what_is_not_archived_yet_is_lag(pipeline: Pipeline) -> None:
    pipeline.publish(500)
    pipeline.acknowledge(300)
    assert pipeline.run("archive").rows == 500
    pipeline.publish(20)
    found = pipeline.run("reconcile")
    assert (found.figures, found.remarks, found.is_good) == (
        {"topics": 1, "log": 500, "archive": 500, "differences": 0},
        (),
        True,
    )
    assert found.lag == 20
    assert [run.lag for run in runs(pipeline.place.directory, "reconcile")] == [20]


def test_every_difference_between_log_and_archive_is_listed(pipeline: Pipeline) -> None:
    pipeline.publish(10)
    pipeline.run("archive")
    file = next(pipeline.place.table("archive").glob("topic=*/**/*.parquet"))
    rows = pq.read_table(file, partitioning=None)
    changed = rows.slice(4, 1).set_column(
        rows.schema.get_field_index("data"), "data", pa.array([b"changed"], pa.binary())
    )
    tampered = file.with_name("tampered")
    pq.write_table(
        pa.concat_tables([rows.slice(2, 2), rows.slice(2, 1), changed, rows.slice(5)]), tampered, coerce_timestamps="us"
    )
    tampered.replace(file)
    found = pipeline.run("reconcile")
    assert not found.is_good
    assert [remark.partition(": ")[2] for remark in found.remarks] == [
        "message 1000000000001 (sequence 1) is not in the archive",
        "message 1000000000002 (sequence 2) is not in the archive",
        "message 1000000000003 (sequence 3) is archived 2 times",
        "message 1000000000005 (sequence 5) is archived with other contents",
    ]
    listed = pq.read_table(pipeline.place.table("reconcile") / "differences")
    assert sorted(listed["sequence"].to_pylist()) == [1, 2, 3, 5]


def test_what_the_broker_says_is_open_must_be_what_its_event_log_leaves_open(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.publish(10)
    pipeline.acknowledge(4)
    pipeline.run("archive")
    read_events = pipeline.broker.read_events
    monkeypatch.setattr(
        pipeline.broker,
        "read_events",
        lambda first, last: (
            (position, facts)
            for position, facts in read_events(first, last)
            if not any(type(fact).__name__ == "MessagesAcknowledged" for fact in facts)
        ),
    )
    found = pipeline.run("reconcile")
    assert found.remarks == (
        f"{TOPIC} {SUBSCRIPTION}: the broker says that 6 messages are open, its event log that 10 are",
    )


def test_without_an_archive_there_is_nothing_to_compare(pipeline: Pipeline) -> None:
    with pytest.raises(FailedPrecondition, match="run the job archive first"):
        pipeline.run("reconcile")
    assert "run the job archive first" in runs(pipeline.place.directory, "reconcile")[-1].error
