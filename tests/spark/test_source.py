"""The Spark source without Spark: its reader called directly, against a server in this process."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

import pyspark_heliograph
from heliograph.engine.message import Message
from heliograph.errors import FailedPrecondition, HeliographError, InvalidArgument, TopicNotFound, Unavailable
from heliograph.server.http import answer
from heliograph.server.routing import Send
from heliograph.spark import door, source
from heliograph.spark.columns import CLAIM_COLUMNS, EVENT_COLUMNS
from heliograph.spark.log_reader import LogReader, split
from heliograph.spark.source import HeliographDataSource
from heliograph.wire import arrow, arrow_events
from tests.spark.fakes import TOPIC, LogBroker, ServerThread, messages


def data_source(endpoint: str, /, **options: str) -> HeliographDataSource:
    return HeliographDataSource(CaseInsensitiveDict({"endpoint": endpoint, "topic": TOPIC, **options}))


def reader(endpoint: str, /, **options: str) -> LogReader:
    made = data_source(endpoint, **options).reader(StructType())
    assert isinstance(made, LogReader)
    return made


def read_all(log_reader: LogReader) -> list[list[int]]:
    """The sequences that each part gives. A reader and its parts are pickled on their way, as Spark does it."""
    parts = pickle.loads(pickle.dumps(log_reader.partitions()))
    executor: LogReader = pickle.loads(pickle.dumps(log_reader))
    return [
        [sequence for batch in executor.read(part) for sequence in batch.column("sequence").to_pylist()]
        for part in parts
    ]


@pytest.fixture
def broker() -> LogBroker:
    return LogBroker({TOPIC: messages(1000), "projects/p/topics/empty": []}, batch=100)


@pytest.fixture
def endpoint(broker: LogBroker) -> Iterator[str]:
    with ServerThread(broker) as server:
        yield server.endpoint


def test_the_parts_together_are_all_messages_once(endpoint: str) -> None:
    parts = read_all(reader(endpoint, minPartitions="3"))
    assert len(parts) == 3
    assert [sequence for part in parts for sequence in part] == list(range(1, 1001))


def test_offsets_choose_a_range_with_its_end_left_out(endpoint: str) -> None:
    assert read_all(reader(endpoint, startingOffsets="5", endingOffsets="8")) == [[5, 6, 7]]


def test_the_names_of_options_are_as_spark_hands_them_over(endpoint: str) -> None:
    assert read_all(reader(endpoint, startingoffsets="1000")) == [[1000]]


def test_from_the_latest_on_there_is_nothing_yet(endpoint: str) -> None:
    assert read_all(reader(endpoint, startingOffsets="latest")) == [[]]


def test_an_empty_topic_has_one_empty_part(endpoint: str) -> None:
    assert read_all(reader(endpoint, topic="empty", project="p")) == [[]]


def test_parts_are_fixed_when_planned_so_that_later_messages_do_not_slip_in(broker: LogBroker, endpoint: str) -> None:
    planned = reader(endpoint, minPartitions="1")
    part = planned.partitions()[0]
    broker.logs[TOPIC] = messages(1500)
    assert sum(batch.num_rows for batch in planned.read(part)) == 1000


@pytest.mark.parametrize("options", [{}, {"includePayload": "false"}, {"includeAttributes": "FALSE"}])
def test_batches_have_exactly_the_arrow_schema_that_spark_expects(endpoint: str, options: dict[str, str]) -> None:
    declared = data_source(endpoint, **options).schema()
    part_reader = reader(endpoint, **options)
    batch = next(iter(part_reader.read(part_reader.partitions()[0])))
    assert batch.schema == to_arrow_schema(declared, timezone="UTC")


def test_the_source_knows_every_column_of_the_door() -> None:
    assert list(source.COLUMNS) == arrow.SCHEMA.names
    assert list(CLAIM_COLUMNS) == arrow.CLAIM_SCHEMA.names
    assert list(EVENT_COLUMNS) == arrow_events.SCHEMA.names


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"topic": ""}, "topic"),
        ({"topic": "flights"}, "project"),
        ({"startingOffsets": "first"}, "startingOffsets"),
        ({"startingOffsets": "0"}, "startingOffsets"),
        ({"endingOffsets": "-1"}, "endingOffsets"),
        ({"minPartitions": "0"}, "minPartitions"),
        ({"includePayload": "no"}, "includePayload"),
        ({"endpoint": "http://localhost"}, "endpoint"),
        ({"endpoint": "ftp://localhost:21"}, "endpoint"),
        ({"endpoint": "localhost:port"}, "endpoint"),
    ],
)
def test_a_wrong_option_is_named(options: dict[str, str], named: str) -> None:
    with pytest.raises(InvalidArgument, match=named):
        reader("localhost:1", **options)


def test_a_topic_that_does_not_exist_is_an_error(endpoint: str) -> None:
    with pytest.raises(TopicNotFound, match="projects/p/topics/other"):
        reader(endpoint, topic="projects/p/topics/other").partitions()


def test_offsets_beyond_the_end_are_an_error(endpoint: str) -> None:
    with pytest.raises(InvalidArgument, match="ends before sequence 1001"):
        reader(endpoint, endingOffsets="1002").partitions()


def test_trimmed_messages_are_an_error_unless_data_loss_is_allowed(broker: LogBroker, endpoint: str) -> None:
    broker.logs[TOPIC] = messages(10, first=91)
    with pytest.raises(FailedPrecondition, match="before sequence 91 are gone"):
        reader(endpoint, startingOffsets="1").partitions()
    assert read_all(reader(endpoint, startingOffsets="1", failOnDataLoss="false")) == [list(range(91, 101))]


def test_earliest_begins_where_the_log_begins(broker: LogBroker, endpoint: str) -> None:
    broker.logs[TOPIC] = messages(10, first=91)
    assert read_all(reader(endpoint)) == [list(range(91, 101))]


def test_messages_trimmed_after_planning_are_an_error_unless_data_loss_is_allowed(
    broker: LogBroker, endpoint: str
) -> None:
    strict, lenient = reader(endpoint), reader(endpoint, failOnDataLoss="false")
    strict_parts, lenient_parts = strict.partitions(), lenient.partitions()
    broker.logs[TOPIC] = messages(900, first=101)
    with pytest.raises(FailedPrecondition, match="100 messages"):
        list(strict.read(strict_parts[0]))
    assert sum(batch.num_rows for batch in lenient.read(lenient_parts[0])) == 900


def test_a_topic_that_was_deleted_and_created_again_is_not_read_for_the_old_one(
    broker: LogBroker, endpoint: str
) -> None:
    planned = reader(endpoint)
    parts = planned.partitions()
    broker.numbers[TOPIC] = 7
    with pytest.raises(FailedPrecondition, match="deleted and created again"):
        list(planned.read(parts[0]))


def test_parts_are_even_and_without_gaps() -> None:
    assert [(part.first, part.last) for part in split(TOPIC, 1, 5, 15, 3)] == [(5, 7), (8, 10), (11, 14)]
    assert [(part.first, part.last) for part in split(TOPIC, 1, 5, 7, 9)] == [(5, 5), (6, 6)]


class FaultyBroker(LogBroker):
    """Its log cannot be read beyond some sequence for the first few times."""

    def __init__(self, failures: int) -> None:
        super().__init__({TOPIC: messages(1000)}, batch=100)
        self.failures = failures

    def read_log(self, topic: str, first: int, last: int) -> Iterator[list[Message]]:
        for batch in super().read_log(topic, first, last):
            if self.failures and batch[0].sequence >= 501:
                self.failures -= 1
                raise Unavailable("The store cannot be read")
            yield batch


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door, "FIRST_PAUSE_SECONDS", 0.0)


@pytest.mark.usefixtures("no_pauses")
def test_a_read_that_breaks_is_taken_up_where_it_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heliograph.server.log.ROWS_MAX", 100)
    broker = FaultyBroker(failures=2)
    with ServerThread(broker) as server:
        assert read_all(reader(server.endpoint, minPartitions="1")) == [list(range(1, 1001))]
    assert len(broker.reads) == 3


@pytest.mark.usefixtures("no_pauses")
def test_a_read_that_breaks_again_and_again_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heliograph.server.log.ROWS_MAX", 100)
    with ServerThread(FaultyBroker(failures=100)) as server, pytest.raises(Unavailable):
        read_all(reader(server.endpoint, minPartitions="1"))


@pytest.mark.usefixtures("no_pauses")
def test_no_broker_is_one_line() -> None:
    with pytest.raises(Unavailable, match=r"http://127\.0\.0\.1:1") as caught:
        reader("127.0.0.1:1").partitions()
    assert "\n" not in str(caught.value)


class HalvingBroker(LogBroker):
    """Its first answer just stops, without an error."""

    def read_log(self, topic: str, first: int, last: int) -> Iterator[list[Message]]:
        return super().read_log(topic, first, last if self.reads else 500)


@pytest.mark.usefixtures("no_pauses")
def test_a_stream_that_just_ends_is_not_taken_for_a_whole_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "END_OF_STREAM", b"")  # the server's; the client has its own copy
    broker = HalvingBroker({TOPIC: messages(1000)})
    with ServerThread(broker) as server:
        assert read_all(reader(server.endpoint, minPartitions="1")) == [list(range(1, 1001))]
    assert broker.reads == [(1, 500), (501, 1000)]


def test_a_server_of_another_kind_is_recognised(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heliograph.server.app.answer_error", plain_text)
    with pytest.raises(FailedPrecondition, match="is a Heliograph broker there"):
        reader(endpoint, topic="projects/p/topics/other").partitions()


async def plain_text(send: Send, _error: HeliographError) -> None:
    await answer(send, b"<html>Not found</html>", status=404, headers=())


def test_spark_finds_the_source_by_itself() -> None:
    assert pyspark_heliograph.DefaultSource.name() == "heliograph"
