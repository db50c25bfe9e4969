"""The event log over HTTP: what happened to which message, as an Arrow stream.

::

    GET /api/v1/events/bounds
        → {"first": 1, "last": 20000}      first 1, last 0: nothing to read
    GET /api/v1/events/offset?time_ns=1372680000000000000
        → {"position": 1042}
    GET /api/v1/events/extent?first=1042&rows_max=10000&bytes_max=100000000
        → {"last": 1641, "rows": 9997}
    GET /api/v1/events/read?first=1&last=1000&columns=event,message_id
        → application/vnd.apache.arrow.stream

`first` and `last` are positions, both inclusive, by default the log's own. A position has as many rows as there were
messages in what was committed together; positions grow, and some are missing. `columns` is a list of names of
`heliograph.wire.arrow_events.SCHEMA`, by default all. An offset by time is the first position at which something
happened then or later; one behind the last if nothing did. An extent is the last position of a range with at most so
many rows of about so many bytes, but of one position at least, which is never divided; and how many rows it has. What
the broker has forgotten is missing from the stream; a stream is whole only if it ends with `arrow.END_OF_STREAM`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator

from heliograph.broker.protocol import Broker
from heliograph.errors import InvalidArgument
from heliograph.server.arrow_stream import ROWS_MAX, columns_of, number_of, send_stream
from heliograph.server.http import answer_json, query, required
from heliograph.server.routing import Receive, Route, Scope, Send
from heliograph.wire import arrow
from heliograph.wire.arrow_events import SCHEMA, EventRows


async def bounds(_scope: Scope, _receive: Receive, send: Send, broker: Broker) -> None:
    """`GET /api/v1/events/bounds`, see the module. Raises: FailedPrecondition (no event log is kept)."""
    first, last = await asyncio.to_thread(broker.event_bounds)
    await answer_json(send, {"first": first, "last": last})


async def offset(scope: Scope, _receive: Receive, send: Send, broker: Broker) -> None:
    """`GET /api/v1/events/offset`, see the module. Raises: InvalidArgument, FailedPrecondition."""
    required(scope, "time_ns")
    position = await asyncio.to_thread(broker.event_offset, number_of(query(scope), "time_ns", 0))
    await answer_json(send, {"position": position})


async def extent(scope: Scope, _receive: Receive, send: Send, broker: Broker) -> None:
    """`GET /api/v1/events/extent`, see the module. Raises: InvalidArgument, FailedPrecondition."""
    parameters = query(scope)
    first_readable, _ = await asyncio.to_thread(broker.event_bounds)
    first = number_of(parameters, "first", first_readable)
    rows_max, bytes_max = (number_of(parameters, name, UNBOUNDED) for name in ("rows_max", "bytes_max"))
    last, rows = await asyncio.to_thread(_extent, broker, max(first, first_readable), rows_max, bytes_max)
    await answer_json(send, {"last": last, "rows": rows})


async def read(scope: Scope, receive: Receive, send: Send, broker: Broker) -> None:
    """`GET /api/v1/events/read`, see the module.

    Raises:
        InvalidArgument: a range or a column that does not exist.
        FailedPrecondition: no event log is kept.
    """
    parameters = query(scope)
    columns = columns_of(parameters, SCHEMA.names)
    first_readable, last_readable = await asyncio.to_thread(broker.event_bounds)
    first = number_of(parameters, "first", first_readable)
    last = number_of(parameters, "last", last_readable)
    if last < first - 1 or last > last_readable:
        raise InvalidArgument(f"There is no range of positions from {first} to {last}: the last is {last_readable}")
    await send_stream(receive, send, _stream(broker, first, last, columns))


UNBOUNDED = 2**62
"""Rows or bytes of an extent without a bound."""

ROUTES = (
    Route("GET", "/api/v1/events/bounds", bounds),
    Route("GET", "/api/v1/events/offset", offset),
    Route("GET", "/api/v1/events/extent", extent),
    Route("GET", "/api/v1/events/read", read),
)


def _extent(broker: Broker, first: int, rows_max: int, bytes_max: int) -> tuple[int, int]:
    _, last = broker.event_bounds()
    reached, rows, size_bytes = first - 1, 0, 0
    for position, facts in broker.read_events(first, last):
        found = EventRows({})
        found.add(position, facts)
        rows_then, bytes_then = rows + len(found), size_bytes + found.size_bytes
        if rows and (rows_then > rows_max or bytes_then > bytes_max):
            return reached, rows
        reached, rows, size_bytes = position, rows_then, bytes_then
    return last, rows


def _stream(broker: Broker, first: int, last: int, columns: list[str]) -> Generator[bytes | memoryview]:
    schema = arrow.chosen(SCHEMA, columns)
    names = {info.number: info.name for info in broker.list_topics()}
    yield arrow.stream_start(schema)
    rows = EventRows(names)
    for position, facts in broker.read_events(first, last):
        rows.add(position, facts)
        if len(rows) >= ROWS_MAX:
            yield arrow.stream_part(rows.record_batch(schema))
            rows = EventRows(names)
    if len(rows):
        yield arrow.stream_part(rows.record_batch(schema))
    yield arrow.END_OF_STREAM
