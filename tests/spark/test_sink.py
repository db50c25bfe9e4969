"""The Spark sink without Spark: its writers called as Spark calls them, against a broker in this process."""

from __future__ import annotations

import contextlib
import pickle
import random
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from heliograph.broker.broker import LocalBroker
from heliograph.engine.message import Extras, Message
from heliograph.engine.settings import DAY_NS, TopicSettings
from heliograph.errors import FailedPrecondition, InvalidArgument, TopicNotFound
from heliograph.spark import sink
from heliograph.spark.sink import Pacer, pieces
from heliograph.spark.source import HeliographDataSource
from heliograph.spark.stage_client import StageClient
from tests.spark.fakes import ServerThread
from tests.spark.micro_batches import Killed

TOPIC, OTHER = "projects/p/topics/t", "projects/p/topics/u"
DATA = StructType([StructField("data", StringType())])


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[LocalBroker, str]]:
    broker = LocalBroker()
    with ServerThread(broker) as server:
        yield broker, server.endpoint


@pytest.fixture
def broker(served: tuple[LocalBroker, str]) -> Iterator[LocalBroker]:
    broker, _ = served
    for topic in (TOPIC, OTHER):
        broker.create_topic(topic, TopicSettings(message_retention_ns=DAY_NS)).result(30)
    yield broker
    for info in broker.list_topics():
        broker.delete_topic(info.name).result(30)


@pytest.fixture
def endpoint(served: tuple[LocalBroker, str]) -> str:
    return served[1]


class Task:
    """What Spark tells a task."""

    def __init__(self, partition: int, batch: int, query: str = "query") -> None:
        self.partition = partition
        self.properties = {"sql.streaming.queryId": query, "streaming.sql.batchId": str(batch)}

    def partitionId(self) -> int:  # noqa: N802
        return self.partition

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802
        return self.properties.get(name)


class Job:
    """Writes partitions of rows as Spark does: pickled writers in tasks, another one for the commit."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, endpoint: str, schema: StructType = DATA, **options: str):
        self.monkeypatch = monkeypatch
        self.options = {"endpoint": endpoint, "topic": TOPIC} | options
        self.schema = schema
        self.query = uuid.uuid4().hex

    def writer(self, *, stream: bool) -> Any:
        source = HeliographDataSource(CaseInsensitiveDict(self.options))
        made = source.streamWriter(self.schema, False) if stream else source.writer(self.schema, False)
        return pickle.loads(pickle.dumps(made))

    def task(self, writer: Any, rows: list[dict[str, Any]], partition: int, batch: int = 0, query: str = "") -> Any:
        self.monkeypatch.setattr(sink, "_task", lambda: Task(partition, batch, query or self.query))
        batches = [pa.RecordBatch.from_pylist(rows, self.arrow_schema(rows))] if rows else []
        return pickle.loads(pickle.dumps(writer.write(iter(batches))))

    def arrow_schema(self, rows: list[dict[str, Any]]) -> pa.Schema | None:
        kinds = {"attributes": pa.map_(pa.string(), pa.string())}
        names = list(rows[0])
        return pa.schema([(name, kinds.get(name, pa.array([row[name] for row in rows]).type)) for name in names])

    def run_batch(self, *partitions: list[dict[str, Any]]) -> None:
        writer = self.writer(stream=False)
        writer.commit([self.task(writer, rows, number) for number, rows in enumerate(partitions)])

    def run_micro_batch(self, batch: int, *partitions: list[dict[str, Any]], query: str = "") -> None:
        writer = self.writer(stream=True)
        staged = [self.task(writer, rows, number, batch, query) for number, rows in enumerate(partitions)]
        self.writer(stream=True).commit(staged, batch)


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, endpoint: str) -> Job:
    return Job(monkeypatch, endpoint)


def data(*payloads: str) -> list[dict[str, Any]]:
    return [{"data": payload} for payload in payloads]


def log(broker: LocalBroker, topic: str = TOPIC) -> list[Message]:
    return [message for batch in broker.read_log(topic, *broker.log_bounds(topic)) for message in batch]


def payloads(broker: LocalBroker, topic: str = TOPIC) -> list[str]:
    return [message.data.decode() for message in log(broker, topic)]


def test_a_task_that_is_not_told_its_query_stages_nothing(
    broker: LocalBroker, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task(0, 0)
    task.properties.clear()
    monkeypatch.setattr(sink, "_task", lambda: task)
    with pytest.raises(FailedPrecondition, match="does not tell the task its query and batch"):
        job.writer(stream=True).write(iter([]))
    assert log(broker) == []


def test_a_batch_publishes_all_partitions_in_their_order(broker: LocalBroker, job: Job) -> None:
    job.run_batch(data("a", "b"), [], data("c"))
    assert payloads(broker) == ["a", "b", "c"]


def test_two_batch_queries_publish_twice(broker: LocalBroker, job: Job) -> None:
    job.run_batch(data("a"))
    job.run_batch(data("a"))
    assert payloads(broker) == ["a", "a"]


def test_an_empty_dataframe_publishes_nothing(broker: LocalBroker, job: Job) -> None:
    job.run_batch([], [])
    job.run_micro_batch(0, [])
    assert log(broker) == []


def test_a_micro_batch_that_is_repeated_is_published_once(broker: LocalBroker, job: Job) -> None:
    job.run_micro_batch(0, data("a"), data("b"))
    job.run_micro_batch(1, data("c"))
    job.run_micro_batch(1, data("c"))
    job.run_micro_batch(2, data("d"))
    assert payloads(broker) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("seed", range(8))
def test_wherever_a_commit_is_killed_each_row_is_published_once_and_in_order(
    broker: LocalBroker, job: Job, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    chance, calls_left = random.Random(seed), 0
    publish = StageClient.publish

    def publish_or_die(client: StageClient, *arguments: Any) -> tuple[int, int]:
        nonlocal calls_left
        calls_left -= 1
        if calls_left < 0:
            raise Killed
        answer = publish(client, *arguments)
        if chance.random() < 0.2:
            raise Killed  # its answer is lost
        return answer

    monkeypatch.setattr(sink, "PUBLISHED_AT_ONCE", 3)
    monkeypatch.setattr(StageClient, "publish", publish_or_die)
    for batch in range(4):
        rows = [data(*[f"{batch}-{part}-{n}" for n in range(chance.randint(0, 6))]) for part in range(3)]
        for attempt in range(20):
            calls_left = chance.randint(0, 4) if attempt < 19 else 100
            with contextlib.suppress(Killed):
                job.run_micro_batch(batch, *rows)
                break
        expected = [row["data"] for part in rows for row in part]
        assert payloads(broker)[-len(expected) :] == expected or not expected
    assert len(payloads(broker)) == len(set(payloads(broker)))


def test_queries_are_told_apart(broker: LocalBroker, job: Job) -> None:
    job.run_micro_batch(0, data("a"), query="one")
    job.run_micro_batch(0, data("a"), query="two")
    assert payloads(broker) == ["a", "a"]


def test_a_task_that_failed_and_ran_again_counts_once(broker: LocalBroker, job: Job) -> None:
    writer = job.writer(stream=True)
    job.task(writer, data("a", "b"), 0)
    writer.commit([job.task(writer, data("a", "b"), 0), job.task(writer, data("c"), 1)], 0)
    assert payloads(broker) == ["a", "b", "c"]


def test_a_batch_that_is_aborted_publishes_nothing_and_leaves_nothing(broker: LocalBroker, job: Job) -> None:
    writer = job.writer(stream=False)
    writer.abort([job.task(writer, data("a"), 0), None])
    assert (log(broker), [info.name for info in broker.list_topics()]) == ([], [TOPIC, OTHER])


def test_a_message_has_what_its_row_says(broker: LocalBroker, monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    from pyspark.sql.types import BinaryType, MapType

    schema = StructType(
        [
            StructField("value", BinaryType()),
            StructField("key", StringType()),
            StructField("attributes", MapType(StringType(), StringType())),
            StructField("priority", LongType()),
        ]
    )
    rows = [
        {"value": b"a", "key": "k", "attributes": {"x": "1", "y": "2"}, "priority": 9},
        {"value": None, "key": None, "attributes": None, "priority": None},
    ]
    Job(monkeypatch, endpoint, schema).run_batch(rows)
    assert [(m.data, m.ordering_key, dict(m.attributes), m.extras) for m in log(broker)] == [
        (b"a", "k", {"x": "1", "y": "2"}, Extras(priority=9)),
        (b"", "", {}, None),
    ]


def test_rows_go_to_the_topics_that_they_name(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    schema = StructType([StructField("data", StringType()), StructField("topic", StringType())])
    rows = [{"data": str(number), "topic": (None, "u", OTHER)[number % 3]} for number in range(9)]
    Job(monkeypatch, endpoint, schema, project="p").run_batch(rows)
    assert payloads(broker) == ["0", "3", "6"]
    assert sorted(payloads(broker, OTHER)) == ["1", "2", "4", "5", "7", "8"]


def test_many_rows_are_staged_in_pieces(broker: LocalBroker, job: Job) -> None:
    numbers = [str(number) for number in range(2 * sink.ROWS_MAX + 1)]
    job.run_batch(data(*numbers))
    assert payloads(broker) == numbers


def test_pieces_keep_within_rows_and_bytes_and_lose_nothing() -> None:
    batch = pa.RecordBatch.from_pylist([{"data": b"x" * 300_000, "n": number} for number in range(40)])
    found = list(pieces(batch))
    assert [number for piece in found for number in piece.column("n").to_pylist()] == list(range(40))
    assert max(piece.nbytes for piece in found) <= sink.BYTES_MAX
    assert list(pieces(batch.slice(0, 0))) == []


@pytest.mark.parametrize(
    ("fields", "options", "named"),
    [
        ([("data", IntegerType())], {}, "data"),
        ([("key", StringType())], {}, "data"),
        ([("data", StringType()), ("size", LongType())], {}, "size"),
        ([("data", StringType()), ("value", StringType())], {}, "value"),
        ([("data", StringType())], {"topic": ""}, "topic"),
        ([("data", StringType())], {"topic": "short"}, "project"),
        ([("data", StringType())], {"ratePerSecond": "fast"}, "ratePerSecond"),
    ],
)
def test_what_cannot_be_written_is_named(
    fields: list[tuple[str, Any]],
    options: dict[str, str],
    named: str,
    monkeypatch: pytest.MonkeyPatch,
    endpoint: str,
) -> None:
    schema = StructType([StructField(name, kind) for name, kind in fields])
    with pytest.raises(InvalidArgument, match=named):
        Job(monkeypatch, endpoint, schema, **options).writer(stream=True)


def test_a_topic_that_does_not_exist_is_told_before_any_task_runs(
    monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    with pytest.raises(TopicNotFound, match="nowhere"):
        Job(monkeypatch, endpoint, topic="projects/p/topics/nowhere").writer(stream=False)


def test_rows_are_held_against_the_schema_of_their_topic(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    definition = '{"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}'
    schema, topic = "projects/p/schemas/numbers", "projects/p/topics/numbers"
    url = f"{endpoint}/v1/projects/p/schemas?schemaId=numbers"
    httpx.post(url, json={"type": "AVRO", "definition": definition}).raise_for_status()
    settings = {"schema": schema, "encoding": "JSON"}
    httpx.put(f"{endpoint}/v1/{topic}", json={"schemaSettings": settings}).raise_for_status()
    job = Job(monkeypatch, endpoint, topic=topic)
    with pytest.raises(InvalidArgument, match="n"):
        job.run_batch(data('{"n": "one"}'))
    job.run_batch(data('{"n": 1}'))
    assert payloads(broker, topic) == ['{"n": 1}']
    assert log(broker, topic)[0].attributes["googclient_schemaencoding"] == "JSON"


def test_a_topic_is_not_overwritten(endpoint: str) -> None:
    source = HeliographDataSource(CaseInsensitiveDict({"endpoint": endpoint, "topic": TOPIC}))
    with pytest.raises(InvalidArgument, match="append"):
        source.writer(DATA, True)


def test_a_rate_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr("heliograph.spark.sink.time.monotonic", lambda: now)
    monkeypatch.setattr("heliograph.spark.sink.time.sleep", sleep)
    pacer = Pacer(100)
    published = 0
    while now < 10:
        published += (count := pacer.allowance())
        pacer.took(count)
    assert published == pytest.approx(1000, abs=20)
