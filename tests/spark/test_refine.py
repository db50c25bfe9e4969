"""What only a real Spark shows of refining: duplicates over batches, schemas of the broker, runs that were killed."""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from pyspark.sql import SparkSession

from heliograph.broker.broker import LocalBroker
from heliograph.engine.message import Draft
from heliograph.engine.settings import DAY_NS, SECOND_NS, TopicSettings
from heliograph.spark.door import Address
from heliograph.spark.pipeline.job import Outcome, Place
from heliograph.spark.pipeline.jobs import JobOptions, job_named, run_once
from heliograph.spark.pipeline.refine import RefineOptions, read_quarantine, read_refined
from heliograph.spark.pipeline.replay import Choice, ReplayOptions
from heliograph.spark.pipeline.table import Table
from tests.spark.fakes import ServerThread

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TOPIC, AGAIN = "projects/p/topics/t", "projects/p/topics/again"
BY_NUMBER = RefineOptions(unique_by="value.n", batch_messages=6)


class Refining:
    """A broker and a pipeline of archive and refine."""

    def __init__(self, spark: SparkSession, broker: LocalBroker, place: Place) -> None:
        self.spark = spark
        self.broker = broker
        self.place = place

    def publish(self, *data: bytes) -> None:
        self.broker.publish(TOPIC, [Draft(each) for each in data]).result()

    def run(self, options: RefineOptions = BY_NUMBER) -> Outcome:
        run_once(self.spark, job_named("archive"), self.place, JobOptions())
        return run_once(self.spark, job_named("refine"), self.place, JobOptions(refine=options))

    def numbers(self) -> list[int]:
        rows = read_refined(self.spark, self.place.directory, TOPIC, "n INT").orderBy("sequence").collect()
        return [row.n for row in rows]

    def reasons(self) -> list[tuple[int, str]]:
        rows = read_quarantine(self.spark, self.place.directory, TOPIC).orderBy("sequence").collect()
        return [(row.sequence, row.reason) for row in rows]


def numbered(*numbers: int) -> list[bytes]:
    return [json.dumps({"n": number}).encode() for number in numbers]


@pytest.fixture
def refining(spark: SparkSession, tmp_path: Path) -> Iterator[Refining]:
    broker = LocalBroker.open(tmp_path / "broker")
    broker.create_topic(TOPIC, TopicSettings(message_retention_ns=DAY_NS)).result()
    with ServerThread(broker) as server:
        yield Refining(spark, broker, Place(Address(server.endpoint), tmp_path / "pipeline"))
    broker.close()


def test_duplicates_are_found_within_a_batch_between_batches_and_between_runs(refining: Refining) -> None:
    refining.publish(*numbered(1, 2, 1, 3, 4, 5), *numbered(2, 6))
    refining.publish(b"{")
    assert refining.run().figures == {"topics": 1, "refined": 6, "quarantined": 1, "duplicates": 2}
    refining.publish(*numbered(6, 7))
    assert refining.run().figures == {"topics": 1, "refined": 1, "quarantined": 0, "duplicates": 1}
    assert refining.numbers() == [1, 2, 3, 4, 5, 6, 7]
    assert refining.reasons() == [(3, "duplicate"), (7, "duplicate"), (9, "not_json"), (10, "duplicate")]
    again = Choice((TOPIC,), AGAIN, where="reason = 'not_json'", table="quarantine")
    refining.broker.create_topic(AGAIN, TopicSettings()).result()
    options = JobOptions(replay=ReplayOptions(again))
    assert run_once(refining.spark, job_named("replay"), refining.place, options).figures["published"] == 1


@pytest.mark.parametrize("batch_messages", [2, 100])
def test_late_and_out_of_order_messages_are_judged_by_the_log_however_it_is_cut(
    refining: Refining, batch_messages: int
) -> None:
    published = [  # seconds, number; duplicates come within ten seconds of one another, whichever is published first
        (100, 1),
        (104, 2),
        (97, 1),  # a duplicate that comes late
        (120, 1),  # beyond the watermark
        (111, 2),  # a duplicate of the one at 104
        (103, 3),
        (112, 1),  # of the one at 120
        (90, 2),
        (96, 2),  # of the ones at 90 and at 104
    ]
    begin_ns = refining.broker.now_ns() - 1000 * SECOND_NS
    drafts = [
        Draft(numbered(number)[0], publish_time_ns=begin_ns + seconds * SECOND_NS) for seconds, number in published
    ]
    refining.broker.publish(TOPIC, drafts).result()
    refining.run(RefineOptions(unique_by="value.n", watermark_seconds=10, batch_messages=batch_messages))
    rows = read_quarantine(refining.spark, refining.place.directory, TOPIC).orderBy("sequence").collect()
    assert [(row.sequence, row.error) for row in rows] == [
        (3, "the same as the message of sequence 1"),
        (5, "the same as the message of sequence 2"),
        (7, "the same as the message of sequence 4"),
        (9, "the same as the message of sequence 2"),
    ]
    assert refining.numbers() == [1, 2, 1, 3, 2]


def test_killed_between_quarantine_and_refined_the_same_range_is_repeated(
    refining: Refining, monkeypatch: pytest.MonkeyPatch
) -> None:
    refining.publish(*numbered(1, 1, 2), b"{")

    class Killed(BaseException):
        pass

    write = Table.write

    def killed(table: Table, *arguments: Any) -> Any:
        if table.directory.name == "refined":
            raise Killed
        return write(table, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Table, "write", killed)
        with pytest.raises(Killed):
            refining.run()
    refining.publish(*numbered(2, 3))
    refining.run()
    assert refining.numbers() == [1, 2, 3]
    assert refining.reasons() == [(2, "duplicate"), (4, "not_json"), (5, "duplicate")]


def rest(endpoint: str, method: str, path: str, body: Any = None) -> Any:
    request = urllib.request.Request(f"{endpoint}/v1/{path}", json.dumps(body or {}).encode(), method=method)
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read())


def definition(*fields: str) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": [{"name": name, "type": "int"} for name in fields]})


def test_each_message_is_read_by_the_revision_it_was_published_under_also_when_the_schema_is_gone(
    refining: Refining,
) -> None:
    endpoint, name, topic = refining.place.address.endpoint, "projects/p/schemas/flights", "projects/p/topics/binary"
    made = {"type": "AVRO", "definition": definition("n")}
    rest(endpoint, "POST", "projects/p/schemas?schemaId=flights", made)
    settings = {"schema": name, "encoding": "BINARY"}
    rest(endpoint, "PUT", topic, {"schemaSettings": settings, "messageRetentionDuration": "3600s"})

    def publish(*data: bytes) -> None:
        messages = [{"data": base64.b64encode(each).decode()} for each in data]
        rest(endpoint, "POST", f"{topic}:publish", {"messages": messages})

    publish(b"\x02")
    rest(endpoint, "POST", f"{name}:commit", {"schema": made | {"name": name, "definition": definition("n", "m")}})
    publish(b"\x04\x06")
    assert refining.run(RefineOptions()).figures["refined"] == 2
    publish(b"\x08\x0a")
    rest(endpoint, "DELETE", name)
    assert refining.run(RefineOptions()).figures["refined"] == 1
    rows = read_refined(refining.spark, refining.place.directory, topic, "n INT, m INT").orderBy("sequence").collect()
    assert [(row.n, row.m) for row in rows] == [(1, None), (2, 3), (4, 5)]
    assert len({row.schema for row in rows}) == 2


def test_a_schema_that_cannot_be_had_puts_messages_aside_and_says_so(refining: Refining) -> None:
    held = {"googclient_schemaname": "projects/p/schemas/gone", "googclient_schemarevisionid": "0123abcd"}
    draft = msgspec.structs.replace(Draft(b'{"n": 1}'), service_attributes=held)
    refining.broker.publish(TOPIC, [draft]).result()
    found = refining.run(RefineOptions())
    assert refining.reasons() == [(1, "schema_unknown")]
    assert "projects/p/schemas/gone@0123abcd cannot be had" in found.remarks[0]
