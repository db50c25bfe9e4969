"""The log door: a topic's log as Arrow over HTTP, asked without a network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pyarrow as pa
import pytest

from heliograph.engine.message import Extras, Message, message_id
from heliograph.errors import FailedPrecondition, HeliographError, InvalidArgument, TopicNotFound
from heliograph.server import arrow_stream, log
from heliograph.wire import arrow
from tests.spark.fakes import NOON_NS, SECOND_NS, TOPIC, LogBroker, ask, messages


def read(broker: LogBroker, query: str = "") -> pa.Table:
    answer = asyncio.run(ask(broker, "/api/v1/log/read", f"topic={TOPIC}&{query}"))
    assert answer.status == 200
    assert answer.headers[b"content-type"] == b"application/vnd.apache.arrow.stream"
    assert answer.body.endswith(arrow.END_OF_STREAM)
    with pa.ipc.open_stream(answer.body) as stream:
        return stream.read_all()


def test_bounds_tell_what_the_log_holds() -> None:
    broker = LogBroker({TOPIC: messages(5, first=3)})
    answer = asyncio.run(ask(broker, "/api/v1/log/bounds", f"topic={TOPIC}"))
    expected = {"topic": TOPIC, "topic_number": 1, "first": 3, "last": 7, "in_time_order": False}
    assert json.loads(answer.body) == expected


def test_a_read_gives_every_column_of_every_message() -> None:
    sent = messages(3)
    table = read(LogBroker({TOPIC: sent}))
    assert table.schema == arrow.SCHEMA
    assert table.drop_columns(["publish_time"]).to_pylist() == [
        {
            "topic": TOPIC,
            "sequence": message.sequence,
            "message_id": message_id(1, message.sequence),
            "ordering_key": message.ordering_key,
            "attributes": list(message.attributes.items()),
            "data": message.data,
            "publish_time_ns": message.publish_time_ns,
            "priority": None if message.extras is None else message.extras.priority,
        }
        for message in sent
    ]


def test_publish_time_is_an_instant_in_whole_microseconds() -> None:
    table = read(LogBroker({TOPIC: messages(1)}), "columns=publish_time")
    microseconds = (NOON_NS + SECOND_NS) // 1000 + 123_456
    assert table.column("publish_time").cast(pa.int64()).to_pylist() == [microseconds]


def test_columns_come_as_chosen_and_in_that_order() -> None:
    table = read(LogBroker({TOPIC: messages(2)}), "columns=data,sequence")
    assert table.column_names == ["data", "sequence"]


def test_a_range_is_inclusive_at_both_ends() -> None:
    table = read(LogBroker({TOPIC: messages(9)}), "first=3&last=6")
    assert table.column("sequence").to_pylist() == [3, 4, 5, 6]


def test_several_ranges_are_read_at_once() -> None:
    table = read(LogBroker({TOPIC: messages(9)}), "ranges=1-2,5-5,8-9")
    assert table.column("sequence").to_pylist() == [1, 2, 5, 8, 9]
    assert table.column("message_id").to_pylist() == [message_id(1, sequence) for sequence in (1, 2, 5, 8, 9)]


def test_priorities_are_those_that_publishers_named() -> None:
    sent = [
        *messages(2),
        Message(3, NOON_NS, b"urgent", extras=Extras(priority=9)),
        Message(4, NOON_NS, b"later", extras=Extras(available_at_ns=NOON_NS)),
    ]
    table = read(LogBroker({TOPIC: sent}), "columns=priority")
    assert table.column("priority").to_pylist() == [None, None, 9, 0]


def test_topic_numbers_of_any_size_make_whole_message_ids() -> None:
    batch = arrow.record_batch(TOPIC, 10**7, messages(2, first=41), arrow.schema_of(["message_id"]))
    assert batch.column("message_id").to_pylist() == [message_id(10**7, 41), message_id(10**7, 42)]


def test_an_offset_by_time_is_the_first_message_from_then_on() -> None:
    broker = LogBroker({TOPIC: messages(5)})
    query = f"topic={TOPIC}&time_ns={messages(3)[2].publish_time_ns}"
    answer = asyncio.run(ask(broker, "/api/v1/log/offset", query))
    assert json.loads(answer.body) == {"topic": TOPIC, "topic_number": 1, "sequence": 3}


def test_an_empty_topic_gives_an_empty_stream_of_the_same_schema() -> None:
    table = read(LogBroker({TOPIC: []}))
    assert (table.num_rows, table.schema) == (0, arrow.SCHEMA)


def test_trimmed_messages_of_a_range_are_missing() -> None:
    table = read(LogBroker({TOPIC: messages(5, first=4)}), "first=1&last=6")
    assert table.column("sequence").to_pylist() == [4, 5, 6]


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("topic=projects/p/topics/other", TopicNotFound),
        ("", InvalidArgument),
        (f"topic={TOPIC}&first=0&last=3", InvalidArgument),
        (f"topic={TOPIC}&first=3&last=1", InvalidArgument),
        (f"topic={TOPIC}&first=1&last=6", InvalidArgument),
        (f"topic={TOPIC}&first=one", InvalidArgument),
        (f"topic={TOPIC}&last=%F0%9F%98%80", InvalidArgument),
        (f"topic={TOPIC}&ranges=1-2,2-3", InvalidArgument),
        (f"topic={TOPIC}&ranges=4-5,1-2", InvalidArgument),
        (f"topic={TOPIC}&ranges=1-", InvalidArgument),
        (f"topic={TOPIC}&columns=data,data", InvalidArgument),
        (f"topic={TOPIC}&columns=payload", InvalidArgument),
        (f"topic={TOPIC}&topic_number=2", FailedPrecondition),
    ],
)
def test_a_bad_request_is_refused_before_anything_is_sent(query: str, error: type[HeliographError]) -> None:
    with pytest.raises(error):
        asyncio.run(ask(LogBroker({TOPIC: messages(5)}), "/api/v1/log/read", query))


def sizes(batches: list[list[Message]], rows_max: int, bytes_max: int) -> list[int]:
    pieces = list(arrow_stream.resized(iter(batches), rows_max, bytes_max))
    assert [message for piece in pieces for message in piece] == [message for batch in batches for message in batch]
    return [len(piece) for piece in pieces]


def test_small_batches_are_joined() -> None:
    assert sizes([messages(3, first) for first in (1, 4, 7, 10)], 5, 10**6) == [5, 5, 2]


def test_large_batches_are_cut() -> None:
    assert sizes([messages(12)], 5, 10**6) == [5, 5, 2]


def test_a_piece_keeps_within_the_bytes_unless_one_message_is_larger() -> None:
    assert sizes([messages(4, data=b"x" * 100)], 10, 250) == [2, 2]
    assert sizes([messages(3, data=b"x" * 1000)], 10, 250) == [1, 1, 1]


def test_joining_does_not_change_the_batches_of_the_store() -> None:
    kept = messages(3)
    list(arrow_stream.resized(iter([kept, messages(3, 4)]), 5, 10**6))
    assert len(kept) == 3


class Unread:
    """A client that takes the start of the answer and nothing more."""

    def __init__(self, leaves: bool) -> None:
        self.bodies = 0
        self.leaves = asyncio.Event()
        if leaves:
            self.leaves.set()

    async def receive(self) -> dict[str, str]:
        await self.leaves.wait()
        return {"type": "http.disconnect"}

    async def send(self, event: dict[str, object]) -> None:
        if event["type"] == "http.response.body":
            self.bodies += 1
            await asyncio.sleep(3600 if not self.leaves.is_set() else 0)


class CountingBroker(LogBroker):
    def __init__(self, count: int) -> None:
        super().__init__({TOPIC: messages(count)}, batch=arrow_stream.ROWS_MAX)
        self.taken = 0
        self.closed = False

    def read_log(self, topic: str, first: int, last: int) -> Iterator[list[Message]]:
        try:
            for batch in super().read_log(topic, first, last):
                self.taken += 1
                yield batch
        finally:
            self.closed = True


async def answer(broker: CountingBroker, client: Unread, seconds: float) -> None:
    scope = {"type": "http", "method": "GET", "path": "/api/v1/log/read", "query_string": f"topic={TOPIC}".encode()}
    await asyncio.wait_for(log.read(scope, client.receive, client.send, broker), seconds)  # type: ignore[arg-type]


def test_a_client_that_does_not_read_stops_the_reading_and_a_cancelled_answer_lets_go_of_the_log() -> None:
    broker = CountingBroker(5 * arrow_stream.ROWS_MAX)
    with pytest.raises(TimeoutError):
        asyncio.run(answer(broker, Unread(leaves=False), 0.5))
    assert broker.taken <= 1
    assert broker.closed or broker.taken == 0


def test_a_client_that_leaves_ends_the_answer() -> None:
    broker = CountingBroker(5 * arrow_stream.ROWS_MAX)
    asyncio.run(answer(broker, Unread(leaves=True), 10))
    assert broker.taken < 5
