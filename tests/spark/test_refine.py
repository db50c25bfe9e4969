"""What only a real Spark shows of refining: duplicates over batches, schemas of the broker, runs that were killed."""

from __future__ import annotations

import base64
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from heliograph.broker.broker import LocalBroker
from heliograph.engine.dead_letter import DeadLetterPolicy
from heliograph.engine.message import Draft
from heliograph.engine.settings import DAY_NS, SECOND_NS, SubscriptionSettings, TopicSettings
from heliograph.spark.door import Address
from heliograph.spark.pipeline.archive import Limits
from heliograph.spark.pipeline.dead_letters import DeadLetterOptions
from heliograph.spark.pipeline.job import Outcome, Place
from heliograph.spark.pipeline.jobs import JobOptions, job_named, run_once
from heliograph.spark.pipeline.refine import RefineOptions, read_quarantine, read_refined
from heliograph.spark.pipeline.replay import Choice, ReplayOptions
from heliograph.spark.pipeline.table import Table
from heliograph.spark.stage_client import StageClient
from tests.spark.fakes import ServerThread

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

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
    broker = LocalBroker.open(tmp_path / "broker", event_retention_ns=DAY_NS)
    broker.create_topic(TOPIC, TopicSettings(message_retention_ns=DAY_NS)).result()
    with ServerThread(broker) as server:
        yield Refining(spark, broker, Place(Address(server.endpoint), tmp_path / "pipeline"))
    broker.close()


def test_a_job_tells_how_many_messages_wait_for_it_while_it_works(refining: Refining) -> None:
    refining.publish(*numbered(1, 2, 3, 4, 5, 6, 7, 8))
    told: list[tuple[int, int | None]] = []

    def tell(what: str, rows: int = 0, lag: int | None = None) -> None:
        told.append((rows, lag))

    def run(job: str, options: JobOptions) -> list[tuple[int, int | None]]:
        told.clear()
        run_once(refining.spark, job_named(job), refining.place, options, tell)
        return list(told)

    assert run("archive", JobOptions(limits=Limits(batch_messages=5))) == [(0, 8), (5, 3), (3, 0)]
    assert run("refine", JobOptions(refine=BY_NUMBER)) == [(0, 8), (6, 2), (0, 2), (2, 0)]
    refining.publish(*numbered(9))
    assert run("archive", JobOptions()) == [(0, 1), (1, 0)]
    assert run("refine", JobOptions(refine=BY_NUMBER)) == [(0, 1), (1, 0)]


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


DEAD = "projects/p/topics/dead"


def test_what_is_wrong_goes_to_a_dead_letter_topic_once_whenever_the_job_is_killed(
    refining: Refining, monkeypatch: pytest.MonkeyPatch
) -> None:
    refining.broker.create_topic(DEAD, TopicSettings(message_retention_ns=DAY_NS)).result()
    options = BY_NUMBER._replace(dead_letter_topic=DEAD)
    many = {f"a{n}": str(n) for n in range(100)}
    refining.publish(*numbered(1, 1))  # a duplicate is not wrong
    refining.broker.publish(TOPIC, [Draft(b"{", many, "key"), Draft(b"\xff")]).result()

    class Killed(BaseException):
        pass

    write, publish = Table.write, StageClient.publish

    def killed_before_refined(table: Table, *arguments: Any) -> Any:
        if table.directory.name == "refined":
            raise Killed
        return write(table, *arguments)

    def killed_in_the_middle(client: StageClient, writer: str, batch: int, parts: Any, max_messages: int) -> Any:
        publish(client, writer, batch, parts, 1)
        raise Killed

    for owner, name, replacement in (
        (StageClient, "publish", killed_in_the_middle),
        (Table, "write", killed_before_refined),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, replacement)
            with pytest.raises(Killed):
                refining.run(options)
    refining.run(options)
    refining.run(options)  # which archives and refines the dead letter topic as well: nothing there goes round
    found = [
        message for batch in refining.broker.read_log(DEAD, 1, refining.broker.log_bounds(DEAD)[1]) for message in batch
    ]
    assert [(message.data, message.ordering_key) for message in found] == [(b"{", "key"), (b"\xff", "")]
    told = [{name: value for name, value in each.attributes.items() if name.startswith("x-")} for each in found]
    assert [(each["x-quarantined-reason"], each["x-quarantined-sequence"]) for each in told] == [
        ("not_json", "3"),
        ("not_utf8", "4"),
    ]
    assert [len(each.attributes) for each in found] == [95, 5]
    assert {each["x-quarantined-topic"] for each in told} == {TOPIC}


def test_dead_letters_are_told_by_the_version_of_their_producer_and_what_may_be_redriven(refining: Refining) -> None:
    broker, queue = refining.broker, "queues/tasks"
    broker.create_topic(queue, TopicSettings(message_retention_ns=DAY_NS)).result()
    settings = SubscriptionSettings(dead_letter_policy=DeadLetterPolicy(None, 1))
    broker.create_subscription(queue, queue, settings).result()
    ids = broker.publish(queue, [Draft(b"1", {"build": "1.2"}), Draft(b"2", {"build": "1.3"}), Draft(b"3")]).result()
    broker.nack(queue, [each.ack_id for each in broker.pull(queue, 3).result()]).result()
    broker.publish(TOPIC, [Draft(b"{", {"build": "1.2"})]).result()
    refining.run()
    options = JobOptions(dead_letters=DeadLetterOptions(("none", "build")))
    found = run_once(refining.spark, job_named("dead-letters"), refining.place, options)
    assert found.figures == {"dead letters": 4, "kinds": 4, "given up": 3, "quarantine": 1, "redrive candidates": 3}
    kinds = pq.read_table(refining.place.table("dead-letters")).to_pylist()
    assert sorted((kind["source"], kind["version"]) for kind in kinds) == [
        ("given up", ""),
        ("given up", "1.2"),
        ("given up", "1.3"),
        ("quarantine", "1.2"),
    ]
    candidates = pq.read_table(refining.place.table("redrive-candidates"))
    assert sorted(candidates["message_id"].to_pylist()) == ids
    assert "heliograph dead-letter retry tasks" in (refining.place.directory / "dead-letters.html").read_text()
