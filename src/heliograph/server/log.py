"""A topic's log over HTTP: which sequences it holds, and ranges of it as an Arrow stream.

::

    GET /api/v1/log/bounds?topic=projects/p/topics/t
        → {"topic": …, "topic_number": 3, "first": 1, "last": 20000}      first 1, last 0: nothing to read
    GET /api/v1/log/read?topic=projects/p/topics/t&first=1&last=10000&columns=sequence,data
        → application/vnd.apache.arrow.stream

`first` and `last` are sequences, both inclusive, by default the log's own; `columns` is a list of names of
`heliograph.wire.arrow.SCHEMA`, by default all. With `topic_number` a read is refused when the topic is not the one that
had this number: it was deleted and created again. Messages of the range that are trimmed already are missing from the
stream. A stream is whole only if it ends with `arrow.END_OF_STREAM`.

Reading goes batch by batch in worker threads, the next one while the last is being sent; a client that does not read
stops it there, so that a slow reader costs the broker a few megabytes and no work.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator, Iterable, Iterator
from operator import attrgetter
from typing import NamedTuple

from heliograph.broker.protocol import Broker
from heliograph.engine.message import Message
from heliograph.errors import FailedPrecondition, InvalidArgument
from heliograph.server.http import answer_json, query, required
from heliograph.server.routing import Receive, Route, Scope, Send
from heliograph.server.waiting import until_gone
from heliograph.wire import arrow

ROWS_MAX = 5_000
"""Rows of one record batch. Fewer cost more calls, more no longer fit the processor's caches; both only a little."""

PAYLOAD_BYTES_MAX = 4 * 1024 * 1024
"""Payload of one record batch, about; a batch with one larger message is larger."""

SEND_BYTES = 128 * 1024
"""Bytes given to the HTTP server at a time. It counts pieces, not bytes, and holds some fifty of them for a client that
does not read, so their size decides what such a client costs: 8 MB, where whole record batches would be 100 MB."""


class LogRange(NamedTuple):
    """What a request wants read: sequences `first` to `last` of a topic, inclusive; none if `last` is `first` - 1."""

    topic: str
    topic_number: int
    first: int
    last: int
    columns: list[str]


async def bounds(scope: Scope, _receive: Receive, send: Send, broker: Broker) -> None:
    """`GET /api/v1/log/bounds`, see the module. Raises: TopicNotFound, InvalidArgument (no topic named)."""
    topic = required(scope, "topic")
    number = broker.get_topic(topic).number
    first, last = await asyncio.to_thread(broker.log_bounds, topic)
    await answer_json(send, {"topic": topic, "topic_number": number, "first": first, "last": last})


async def read(scope: Scope, receive: Receive, send: Send, broker: Broker) -> None:
    """`GET /api/v1/log/read`, see the module.

    Raises:
        TopicNotFound: no such topic.
        InvalidArgument: a range or a column that does not exist.
        FailedPrecondition: the topic is another one than that of `topic_number`.
    """
    wanted = await asyncio.to_thread(_range, query(scope), required(scope, "topic"), broker)
    parts = _Parts(wanted, broker.read_log(wanted.topic, wanted.first, wanted.last))
    headers = [(b"content-type", arrow.MEDIA_TYPE.encode()), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await _send_parts(receive, send, parts)


ROUTES = (
    Route("GET", "/api/v1/log/bounds", bounds),
    Route("GET", "/api/v1/log/read", read),
)


def _range(parameters: dict[str, str], topic: str, broker: Broker) -> LogRange:
    columns = [name for name in parameters.get("columns", "").split(",") if name] or arrow.SCHEMA.names
    unknown = [name for name in columns if name not in arrow.SCHEMA.names]
    if unknown or len(set(columns)) < len(columns):
        raise InvalidArgument(f"columns must be different ones of {', '.join(arrow.SCHEMA.names)}")
    number = broker.get_topic(topic).number
    if _number(parameters, "topic_number", number) != number:
        raise FailedPrecondition(f"Topic {topic} was deleted and created again; its log is another one now")
    first_readable, last_readable = broker.log_bounds(topic)
    first = _number(parameters, "first", first_readable)
    last = _number(parameters, "last", last_readable)
    if first < 1 or last < first - 1:
        raise InvalidArgument(f"There is no range of sequences from {first} to {last}")
    if last > last_readable and last >= first:
        raise InvalidArgument(f"The log of {topic} ends at sequence {last_readable}, before {last}")
    return LogRange(topic, number, first, last, columns)


def _number(parameters: dict[str, str], name: str, default: int) -> int:
    text = parameters.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise InvalidArgument(f"{name} must be a whole number, not {text[:40]!r}")
    return int(text)


class _Parts:
    """The bytes of the stream, piece by piece, for worker threads: one call at a time, from whatever thread."""

    def __init__(self, wanted: LogRange, batches: Iterator[list[Message]]) -> None:
        self._lock = threading.Lock()
        self._parts = self._generate(wanted, batches)

    @staticmethod
    def _generate(wanted: LogRange, batches: Iterator[list[Message]]) -> Generator[bytes]:
        schema = arrow.schema_of(wanted.columns)
        yield arrow.stream_start(schema)
        for messages in resized(batches, ROWS_MAX, PAYLOAD_BYTES_MAX):
            yield arrow.stream_part(arrow.record_batch(wanted.topic, wanted.topic_number, messages, schema))
        yield arrow.END_OF_STREAM

    def next(self) -> bytes:
        """The next piece; b"" after the last."""
        with self._lock:
            return next(self._parts, b"")

    def close(self) -> None:
        """Let go of the log; waits for a call of `next` that is under way."""
        with self._lock:
            self._parts.close()


def resized(batches: Iterable[list[Message]], rows_max: int, bytes_max: int) -> Iterator[list[Message]]:
    """The same messages in the same order, in pieces that suit a stream.

    Small batches are joined up to `rows_max` messages, large ones are cut. A piece carries at most about `bytes_max` of
    payload, unless a single message is larger.
    """
    held: list[Message] = []
    held_bytes = 0
    for batch in batches:
        held.extend(batch)
        held_bytes += _payload_bytes(batch)
        if len(held) < rows_max and held_bytes < bytes_max:
            continue
        if held_bytes < bytes_max:
            whole = len(held) - len(held) % rows_max
            yield from (held[start : start + rows_max] for start in range(0, whole, rows_max))
        else:
            whole = len(held)
            for start in range(0, whole, rows_max):
                yield from _halved(held[start : start + rows_max], bytes_max)
        held = held[whole:]
        held_bytes = _payload_bytes(held)
    if held:
        yield held


def _payload_bytes(messages: list[Message]) -> int:
    return sum(map(len, map(attrgetter("data"), messages)))


def _halved(messages: list[Message], bytes_max: int) -> Iterator[list[Message]]:
    if len(messages) == 1 or _payload_bytes(messages) <= bytes_max:
        yield messages
        return
    middle = len(messages) // 2
    yield from _halved(messages[:middle], bytes_max)
    yield from _halved(messages[middle:], bytes_max)


async def _send_parts(receive: Receive, send: Send, parts: _Parts) -> None:
    """Send all parts as one body, making the next while the last is sent. Ends quietly when the client goes away."""
    gone = asyncio.ensure_future(until_gone(receive))
    ahead = asyncio.ensure_future(asyncio.to_thread(parts.next))
    try:
        while part := await ahead:
            ahead = asyncio.ensure_future(asyncio.to_thread(parts.next))
            for start in range(0, len(part), SEND_BYTES):
                body = part[start : start + SEND_BYTES]
                await send({"type": "http.response.body", "body": body, "more_body": True})
                if gone.done():
                    return
        await send({"type": "http.response.body", "body": b""})
    finally:
        gone.cancel()
        ahead.cancel()
        await asyncio.to_thread(parts.close)
