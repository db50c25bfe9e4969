"""A topic's log over HTTP: which sequences it holds, and ranges of it as an Arrow stream.

::

    GET /api/v1/log/bounds?topic=projects/p/topics/t
        → {"topic": …, "topic_number": 3, "first": 1, "last": 20000, "in_time_order": true}
    GET /api/v1/log/read?topic=projects/p/topics/t&first=1&last=10000&columns=sequence,data
        → application/vnd.apache.arrow.stream
    GET /api/v1/log/read?topic=projects/p/topics/t&ranges=1-10000,30001-40000
    GET /api/v1/log/offset?topic=projects/p/topics/t&time_ns=1372680000000000000
        → {"topic": …, "topic_number": 3, "sequence": 1042}
    GET /api/v1/log/extent?topic=projects/p/topics/t&first=1042&bytes_max=100000000       → {"last": 731042}
    GET /api/v1/log/topics
        → {"topics": [{"topic": …, "topic_number": 3, "first": 1, "last": 20000}, …]}
    POST /api/v1/log/cursor    {"consumer": C, "topic": T, "topic_number": 3, "next": 1042}     → {}
    GET /api/v1/log/cursors
        → {"cursors": [{"consumer": C, "topic": T, "topic_number": 3, "next": 1042, "lag": 18959, …}, …]}

Bounds of `first` 1 and `last` 0 say that there is nothing to read; `in_time_order`, that publish times grow with the
sequences. `first` and `last` are sequences, both inclusive, by default the log's own; `ranges` are several of them, in
growing order, in place of these two. `columns` is a list of names of `heliograph.wire.arrow.SCHEMA`, by default all.
With `topic_number` a read is refused when the topic is not the one that had this number: it was deleted and created
again. Messages of the range that are trimmed already are missing from the stream. A stream is whole only if it ends
with `arrow.END_OF_STREAM`.

An extent is the last sequence of a range with about `bytes_max` of messages. A cursor is how far a reader of the log
has come, for people to see: messages do not wait for it. `next` is the sequence that it reads next, `lag` how many
messages there are from there on.

An offset by time is the sequence of the first message that was published then or later; one behind the last if none
was. With `snapshot` in place of `time_ns` it is the first message that the snapshot had not acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator
from typing import NamedTuple

import msgspec

from heliograph.broker.protocol import Broker
from heliograph.engine.topic import STAGING_PREFIX
from heliograph.errors import FailedPrecondition, InvalidArgument, TopicNotFound
from heliograph.server.arrow_stream import (
    PAYLOAD_BYTES_MAX,
    ROWS_MAX,
    columns_of,
    is_number,
    number_of,
    resized,
    send_stream,
)
from heliograph.server.http import answer_json, query, read_json, required
from heliograph.server.routing import Receive, Route, Scope, Send
from heliograph.wire import arrow

CURSORS = "cursors"
"""The collection of documents that cursors are kept in."""

RANGES_MAX = 10_000
"""Ranges of one request."""


class LogRanges(NamedTuple):
    """What a request wants read: of a topic, ranges of sequences (first, last), inclusive, in growing order."""

    topic: str
    topic_number: int
    ranges: list[tuple[int, int]]
    columns: list[str]


async def bounds(scope: Scope, _receive: Receive, send: Send, broker: Broker) -> None:
    """`GET /api/v1/log/bounds`, see the module. Raises: TopicNotFound, InvalidArgument (no topic named)."""
    topic = required(scope, "topic")
    number = broker.get_topic(topic).number
    await answer_json(send, await asyncio.to_thread(_bounds, broker, topic, number))


async def read(scope: Scope, receive: Receive, send: Send, broker: Broker) -> None:
    """`GET /api/v1/log/read`, see the module.

    Raises:
        TopicNotFound: no such topic.
        InvalidArgument: a range or a column that does not exist.
        FailedPrecondition: the topic is another one than that of `topic_number`.
    """
    wanted = await asyncio.to_thread(_wanted, query(scope), required(scope, "topic"), broker)
    await send_stream(receive, send, _stream(wanted, broker))


async def offset(scope: Scope, _receive: Receive, send: Send, broker: Broker) -> None:
    """`GET /api/v1/log/offset`, see the module. Raises: TopicNotFound, InvalidArgument."""
    topic = required(scope, "topic")
    number, snapshot = broker.get_topic(topic).number, query(scope).get("snapshot", "")
    if snapshot:
        sequence = broker.snapshot_offset(topic, snapshot)
    else:
        required(scope, "time_ns")
        time_ns = number_of(query(scope), "time_ns", 0)
        sequence = await asyncio.to_thread(broker.log_offset, topic, time_ns)
    await answer_json(send, {"topic": topic, "topic_number": number, "sequence": sequence})


async def extent(scope: Scope, _receive: Receive, send: Send, broker: Broker) -> None:
    """`GET /api/v1/log/extent`, see the module. Raises: TopicNotFound, InvalidArgument."""
    topic, parameters = required(scope, "topic"), query(scope)
    first, bytes_max = number_of(parameters, "first", 1), number_of(parameters, "bytes_max", PAYLOAD_BYTES_MAX)
    await answer_json(send, {"last": await asyncio.to_thread(broker.log_extent, topic, first, bytes_max)})


async def topics(_scope: Scope, _receive: Receive, send: Send, broker: Broker) -> None:
    """`GET /api/v1/log/topics`, see the module."""

    def all_bounds() -> list[dict[str, object]]:
        found: list[dict[str, object]] = []
        for info in broker.list_topics():
            if info.name.startswith(STAGING_PREFIX):
                continue
            with contextlib.suppress(TopicNotFound):  # deleted just now
                found.append(_bounds(broker, info.name, info.number))
        return found

    await answer_json(send, {"topics": await asyncio.to_thread(all_bounds)})


class Cursor(msgspec.Struct, omit_defaults=True):
    """How far a reader of a log has come; `committed_ns` is set by the broker."""

    consumer: str
    topic: str
    topic_number: int
    next: int
    committed_ns: int = 0


_decode_cursor = msgspec.json.Decoder(Cursor).decode


async def commit_cursor(_scope: Scope, receive: Receive, send: Send, broker: Broker) -> None:
    """`POST /api/v1/log/cursor`, see the module. Raises: TopicNotFound, InvalidArgument."""
    cursor = await read_json(receive, _decode_cursor)
    if not cursor.consumer:
        raise InvalidArgument("A cursor needs a consumer: the name under which it is shown")
    broker.get_topic(cursor.topic)
    cursor.committed_ns = broker.now_ns()
    name = f"{cursor.consumer} {cursor.topic}"
    await broker.put_document(CURSORS, name, msgspec.json.encode(cursor))
    await answer_json(send, {})


async def cursors(_scope: Scope, _receive: Receive, send: Send, broker: Broker) -> None:
    """`GET /api/v1/log/cursors`, see the module."""
    ends = {info.number: info.next_sequence for info in broker.list_topics()}
    found = []
    for _, document in broker.list_documents(CURSORS):
        cursor = _decode_cursor(document)
        if cursor.topic_number in ends:  # else its topic was deleted
            lag = max(ends[cursor.topic_number] - cursor.next, 0)
            found.append(msgspec.to_builtins(cursor) | {"lag": lag})
    await answer_json(send, {"cursors": found})


ROUTES = (
    Route("GET", "/api/v1/log/extent", extent),
    Route("GET", "/api/v1/log/topics", topics),
    Route("GET", "/api/v1/log/cursors", cursors),
    Route("POST", "/api/v1/log/cursor", commit_cursor),
    Route("GET", "/api/v1/log/bounds", bounds),
    Route("GET", "/api/v1/log/offset", offset),
    Route("GET", "/api/v1/log/read", read),
)


def _bounds(broker: Broker, topic: str, number: int) -> dict[str, object]:
    first, last = broker.log_bounds(topic)
    after = broker.get_topic(topic)  # what came out of order by `last` shows by now
    ordered = after.in_time_order and after.number == number
    return {"topic": topic, "topic_number": number, "first": first, "last": last, "in_time_order": ordered}


def _wanted(parameters: dict[str, str], topic: str, broker: Broker) -> LogRanges:
    columns = columns_of(parameters, arrow.SCHEMA.names)
    number = broker.get_topic(topic).number
    if number_of(parameters, "topic_number", number) != number:
        raise FailedPrecondition(f"Topic {topic} was deleted and created again; its log is another one now")
    first_readable, last_readable = broker.log_bounds(topic)
    if "ranges" in parameters:
        ranges = _ranges(parameters["ranges"])
    else:
        first = number_of(parameters, "first", first_readable)
        ranges = [(first, number_of(parameters, "last", last_readable))]
    before = 0
    for first, last in ranges:
        if first <= before or last < first - 1:
            raise InvalidArgument(f"There is no range of sequences from {first} to {last}, or not in this place")
        if last > last_readable and last >= first:
            raise InvalidArgument(f"The log of {topic} ends at sequence {last_readable}, before {last}")
        before = last
    return LogRanges(topic, number, ranges, columns)


def _ranges(text: str) -> list[tuple[int, int]]:
    parts = text.split(",")
    if len(parts) > RANGES_MAX:
        raise InvalidArgument(f"At most {RANGES_MAX} ranges are read at once, not {len(parts)}")
    ranges = []
    for part in parts:
        first, _, last = part.partition("-")
        if not (is_number(first) and is_number(last)):
            raise InvalidArgument(f"ranges must look like 1-1000,2001-3000, not {part[:40]!r}")
        ranges.append((int(first), int(last)))
    return ranges


def _stream(wanted: LogRanges, broker: Broker) -> Generator[bytes | memoryview]:
    schema = arrow.schema_of(wanted.columns)
    yield arrow.stream_start(schema)
    batches = (batch for first, last in wanted.ranges for batch in broker.read_log(wanted.topic, first, last))
    for messages in resized(batches, ROWS_MAX, PAYLOAD_BYTES_MAX):
        yield arrow.stream_part(arrow.record_batch(wanted.topic, wanted.topic_number, messages, schema))
    yield arrow.END_OF_STREAM
