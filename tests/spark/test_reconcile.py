"""Log, archive and acknowledgements are compared, and every difference is told."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from heliograph.broker.broker import LocalBroker
from heliograph.engine.dead_letter import DeadLetterPolicy
from heliograph.engine.message import Draft
from heliograph.engine.settings import DAY_NS, Capacity, SubscriptionSettings, TopicSettings
from heliograph.errors import FailedPrecondition
from heliograph.spark.door import Address
from heliograph.spark.pipeline.job import Outcome, Place, runs
from heliograph.spark.pipeline.jobs import JobOptions, job_named, run_once
from tests.spark.fakes import ServerThread

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

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
    before = datetime.now(UTC)
    found = pipeline.run("reconcile")
    until = datetime.fromisoformat(str(found.figures["settled until"]))
    assert before <= until <= datetime.now(UTC)
    assert (found.figures, found.remarks, found.is_good) == (
        {
            "topics": 1,
            "log": 500,
            "archive": 500,
            "subscriptions": 1,
            "settled until": found.figures["settled until"],
            "differences": 0,
        },
        (),
        True,
    )
    settled = pq.read_table(pipeline.place.table("reconcile") / "acknowledgements").to_pylist()
    assert sum(row["settled"] for row in settled) == 300
    assert sum(row["open"] for row in settled) == 220
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


def test_every_message_on_which_event_log_and_broker_disagree_is_listed(
    pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.publish(10)
    pipeline.acknowledge(4)
    pipeline.run("archive")
    read_events = pipeline.broker.read_events

    def tampered(fact: Any) -> Any:
        """Two acknowledgements are missing; two are of others, one of them of a message that never was."""
        name = type(fact).__name__
        return msgspec.structs.replace(fact, sequences=[1, 2, 7, 8]) if name == "MessagesAcknowledged" else fact

    monkeypatch.setattr(
        pipeline.broker,
        "read_events",
        lambda first, last: ((at, [tampered(fact) for fact in facts]) for at, facts in read_events(first, last)),
    )
    file = next(pipeline.place.table("archive").glob("topic=*/**/*.parquet"))
    found = pipeline.run("reconcile")
    assert [remark.removeprefix(f"{TOPIC} {SUBSCRIPTION}: ") for remark in found.remarks] == [
        "message 1000000000003 (sequence 3) is neither open nor settled",
        "message 1000000000004 (sequence 4) is neither open nor settled",
        "message 1000000000007 (sequence 7) is open, although it was acknowledged",
        "message 1000000000008 (sequence 8) is open, although it was acknowledged",
    ]
    assert not found.is_good
    assert file.exists()


def test_what_is_settled_and_does_not_exist_is_listed(pipeline: Pipeline) -> None:
    pipeline.publish(10)
    pipeline.acknowledge(10)
    pipeline.run("archive")
    file = next(pipeline.place.table("archive").glob("topic=*/**/*.parquet"))
    pq.write_table(pq.read_table(file, partitioning=None).slice(0, 5), file, coerce_timestamps="us")
    pipeline.broker._store.trim(pipeline.broker.get_topic(TOPIC).number, 9)
    found = pipeline.run("reconcile")
    assert [remark.partition(": ")[2] for remark in found.remarks if "acknowledged" in remark] == [
        f"message 100000000000{sequence} (sequence {sequence}) was acknowledged, but it does not exist"
        for sequence in (6, 7, 8)
    ]


class Traffic:
    """Whatever can happen to subscriptions, at random."""

    def __init__(self, broker: LocalBroker, seed: int) -> None:
        self.broker = broker
        self.chance = random.Random(seed)
        self.instants = [broker.now_ns()]
        self.snapshots = 0
        policy = DeadLetterPolicy(None, 2)
        for name, settings in {
            SUBSCRIPTION: SubscriptionSettings(),
            "projects/p/subscriptions/small": SubscriptionSettings(capacity=Capacity(30, 10**6)),
            "projects/p/subscriptions/filtered": SubscriptionSettings(filter='attributes.n = "1"'),
            "projects/p/subscriptions/fails": SubscriptionSettings(dead_letter_policy=policy),
        }.items():
            if name != SUBSCRIPTION:
                broker.create_subscription(name, TOPIC, settings).result()

    def step(self) -> None:
        names = [info.name for info in self.broker.list_subscriptions()]
        name, kind = self.chance.choice(names), self.chance.randrange(12)
        broker = self.broker
        if kind <= 2:
            count = self.chance.randint(1, 25)
            broker.publish(TOPIC, [Draft(b"{}", {"n": str(n % 3)}) for n in range(count)]).result()
            self.instants.append(broker.now_ns())
        elif kind <= 6:
            taken = [each.ack_id for each in broker.pull(name, self.chance.randint(1, 20)).result()]
            cut = self.chance.randint(0, len(taken))
            broker.acknowledge(name, taken[:cut]).result()
            broker.nack(name, taken[cut:]).result()
        elif kind == 7:
            broker.seek_to_time(name, self.chance.choice(self.instants)).result()
        elif kind == 8:
            broker.create_snapshot(f"projects/p/snapshots/{self.snapshots}", name).result()
            self.snapshots += 1
        elif kind == 9 and self.snapshots:
            broker.seek_to_snapshot(name, f"projects/p/snapshots/{self.chance.randrange(self.snapshots)}").result()
        elif kind == 10:
            broker.retry_dead_letters(name).result()
        elif self.chance.random() < 0.3:
            broker.purge(name).result()


@pytest.mark.parametrize("seed", range(2))
def test_whatever_happens_to_subscriptions_raises_no_false_alarm(pipeline: Pipeline, seed: int) -> None:
    traffic = Traffic(pipeline.broker, seed)
    for _ in range(200):
        traffic.step()
    pipeline.run("archive")
    stopped = threading.Event()

    def go_on() -> None:
        while not stopped.wait(0.05):  # a seek tells of every message that it opens: no more than can be read again
            traffic.step()

    busy = threading.Thread(target=go_on)
    busy.start()
    try:
        found = [pipeline.run("reconcile") for _ in range(2)]
    finally:
        stopped.set()
        busy.join()
    assert [each.remarks for each in found] == [(), ()]
    assert found[0].figures["subscriptions"] == 4


def test_without_an_archive_there_is_nothing_to_compare(pipeline: Pipeline) -> None:
    with pytest.raises(FailedPrecondition, match="run the job archive first"):
        pipeline.run("reconcile")
    assert "run the job archive first" in runs(pipeline.place.directory, "reconcile")[-1].error


def test_messages_whose_file_the_archive_has_lost_are_differences_and_the_others_are_none(pipeline: Pipeline) -> None:
    for count in (2, 3):
        pipeline.publish(count)
        pipeline.run("archive")
    lost = sorted(pipeline.place.table("archive").glob("topic=*/**/*.parquet"))[0]
    lost.unlink()
    found = pipeline.run("reconcile")
    assert (found.is_good, found.figures["differences"]) == (False, 2)
    assert found.remarks[0] == f"The archive has lost {lost}"
    assert [remark.partition(": ")[2] for remark in found.remarks[1:]] == [
        "message 1000000000001 (sequence 1) is not in the archive",
        "message 1000000000002 (sequence 2) is not in the archive",
    ]
