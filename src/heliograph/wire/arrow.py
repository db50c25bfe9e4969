"""A topic's log as Arrow record batches: one constant schema, built a column at a time.

The server's log door writes these batches, the Spark source reads them. Nothing here does I/O.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate, chain

import pyarrow as pa
import pyarrow.compute as pc

from heliograph.engine.limits import RESERVED_KEY_PREFIX
from heliograph.engine.message import NO_ATTRIBUTES, SEQUENCES_PER_TOPIC, Draft, Extras, Message
from heliograph.errors import InvalidArgument

MEDIA_TYPE = "application/vnd.apache.arrow.stream"

END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""The last eight bytes of a whole stream. A reader that does not see them has lost rows: Arrow's own readers take a
stream that just ends for a whole one."""

SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("sequence", pa.int64()),
        ("message_id", pa.string()),
        ("ordering_key", pa.string()),
        ("attributes", pa.map_(pa.string(), pa.string())),
        ("data", pa.binary()),
        ("publish_time", pa.timestamp("us", tz="UTC")),
        ("publish_time_ns", pa.int64()),
        ("priority", pa.int32()),
    ]
)
"""Every column of a log. `publish_time` is what tables understand, in microseconds; `publish_time_ns` is the whole
truth, in nanoseconds since the epoch, so that an archived message can be published again as it was. `priority` is null
where the publisher named none."""

CLAIM_SCHEMA = pa.schema([*SCHEMA, ("delivery_attempt", pa.int32()), ("claim", pa.int64())])
"""Every column of what is claimed of a subscription: those of its topic's log, which delivery it is (from 1), and the
number of the claim."""

_SEQUENCE_DIGITS = len(str(SEQUENCES_PER_TOPIC - 1))


def chosen(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """Of a schema these columns, in this order.

    Raises:
        KeyError: there is no such column.
    """
    return pa.schema([schema.field(column) for column in columns])


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """`chosen` from `SCHEMA`."""
    return chosen(SCHEMA, columns)


def record_batch(topic: str, topic_number: int, messages: Sequence[Message], schema: pa.Schema) -> pa.RecordBatch:
    """Messages of one topic as a record batch.

    Args:
        topic: its full name.
        topic_number: the broker's number of it, at least 1; message ids begin with it.
        messages: in the order of the log.
        schema: from `schema_of`.
    """
    return _record_batch(_Columns(topic, topic_number, messages), schema)


def carried(columns: Sequence[str]) -> list[str]:
    """Of the columns of `SCHEMA` that somebody wants, those that must be sent for `completed` to have them all. The
    others follow from these, and what is not sent costs the broker nothing."""
    return list(dict.fromkeys(_FOLLOW_FROM.get(column, column) for column in columns if column != "topic"))


def completed(batch: pa.RecordBatch, topic: str, topic_number: int, schema: pa.Schema) -> pa.RecordBatch:
    """A record batch as `record_batch` makes it, of one with the columns `carried`.

    Args:
        batch: what was sent.
        topic, topic_number: see `record_batch`.
        schema: from `schema_of`.
    """

    def column(name: str) -> pa.Array:
        match name:
            case "topic":
                return _repeated_text(topic, batch.num_rows)
            case "message_id":
                return _message_ids(topic_number, batch.column("sequence"))
            case "publish_time":
                return _publish_times(batch.column("publish_time_ns"))
        return batch.column(name)

    return pa.RecordBatch.from_arrays([column(name) for name in schema.names], schema=schema)


_FOLLOW_FROM = {"message_id": "sequence", "publish_time": "publish_time_ns"}


def claim_record_batch(
    topic: str, topic_number: int, claim: int, deliveries: Sequence[tuple[Message, int]], schema: pa.Schema
) -> pa.RecordBatch:
    """Messages of one claim, each with its attempt, as a record batch with columns of `CLAIM_SCHEMA`; for the rest see
    `record_batch`."""
    columns = _Columns(topic, topic_number, [message for message, _ in deliveries])
    columns.claim_number = claim
    columns.attempts = [attempt for _, attempt in deliveries]
    return _record_batch(columns, schema)


def _record_batch(columns: _Columns, schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([_BUILDERS[name](columns) for name in schema.names], schema=schema)


class _Columns:
    """The columns of some messages, each built on demand and in C where possible: what is spent on a message here is
    what reading a topic costs."""

    def __init__(self, topic: str, topic_number: int, messages: Sequence[Message]) -> None:
        self._topic = topic
        self._topic_number = topic_number
        self._messages = messages
        self.claim_number = 0
        self.attempts: Sequence[int] = ()

    def topic(self) -> pa.Array:
        return _repeated_text(self._topic, len(self._messages))

    @cached_property
    def _sequences(self) -> pa.Array:
        return pa.array([message.sequence for message in self._messages], pa.int64())

    def sequence(self) -> pa.Array:
        return self._sequences

    def message_id(self) -> pa.Array:
        return _message_ids(self._topic_number, self._sequences)

    def ordering_key(self) -> pa.Array:
        keys = [message.ordering_key for message in self._messages]
        return pa.array(keys, pa.string()) if any(keys) else _repeated_text("", len(keys))

    def attributes(self) -> pa.Array:
        maps = [message.attributes for message in self._messages]
        if not any(maps):
            return pa.MapArray.from_arrays(
                _from_buffer(pa.int32(), array("i", [0]) * (len(maps) + 1)), _NO_STRINGS, _NO_STRINGS
            )
        keys = pa.array(list(chain.from_iterable(maps)), pa.string())
        values = pa.array([value for each in maps for value in each.values()], pa.string())
        offsets = pa.array(list(accumulate(map(len, maps), initial=0)), pa.int32())
        return pa.MapArray.from_arrays(offsets, keys, values)

    def data(self) -> pa.Array:
        return pa.array([message.data for message in self._messages], pa.binary())

    @cached_property
    def _publish_times_ns(self) -> pa.Array:
        instants = [message.publish_time_ns for message in self._messages]
        if instants.count(instants[0]) == len(instants):
            return _repeated(instants[0], len(instants))
        return pa.array(instants, pa.int64())

    def publish_time(self) -> pa.Array:
        return _publish_times(self._publish_times_ns)

    def publish_time_ns(self) -> pa.Array:
        return self._publish_times_ns

    def priority(self) -> pa.Array:
        extras = [message.extras for message in self._messages]
        if not any(extras):
            return pa.nulls(len(extras), pa.int32())
        return pa.array([None if each is None else each.priority for each in extras], pa.int32())

    def delivery_attempt(self) -> pa.Array:
        return pa.array(self.attempts, pa.int32())

    def claim(self) -> pa.Array:
        return _repeated(self.claim_number, len(self._messages))


# not pa.array: that loads pandas where there is one, which takes longer than Arrow, and no server needs it to start
_NO_STRINGS = pa.nulls(0, pa.string())


def _message_ids(topic_number: int, sequences: pa.Array) -> pa.Array:
    base = topic_number * SEQUENCES_PER_TOPIC
    if base + SEQUENCES_PER_TOPIC < 2**63:
        return pc.add(sequences, _repeated(base, len(sequences))).cast(pa.string())
    digits = pc.utf8_lpad(sequences.cast(pa.string()), _SEQUENCE_DIGITS, "0")
    return pc.binary_join_element_wise(str(topic_number), digits, "")


def _publish_times(publish_times_ns: pa.Array) -> pa.Array:
    return pc.divide(publish_times_ns, _repeated(1_000, len(publish_times_ns))).cast(SCHEMA.field("publish_time").type)


def _repeated(value: int, count: int) -> pa.Array:
    # not by pa.scalar, for the same reason
    return _from_buffer(pa.int64(), array("q", [value]) * count)


@lru_cache(maxsize=8)
def _repeated_text(value: str, count: int) -> pa.Array:
    text = value.encode()
    offsets = array("i", [len(text) * place for place in range(count + 1)])
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(text * count)])


def _from_buffer(kind: pa.DataType, values: array[int]) -> pa.Array:
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])


_BUILDERS: dict[str, Callable[[_Columns], pa.Array]] = {name: getattr(_Columns, name) for name in CLAIM_SCHEMA.names}


STAGED_SCHEMA = pa.schema(
    [
        ("data", pa.binary()),
        ("attributes", pa.map_(pa.string(), pa.string())),
        ("ordering_key", pa.string()),
        ("priority", pa.int32()),
    ]
)
"""What is published as Arrow: `data`, and any of the others; null means none."""


def drafts(batch: pa.RecordBatch) -> list[Draft]:
    """The messages to publish of a record batch with columns of `STAGED_SCHEMA`. Attributes that only the broker sets,
    as messages have them that were read from a topic and are published again, are left out.

    Raises:
        InvalidArgument: it has other columns, or no data.
    """
    for field in batch.schema:
        if field.name not in STAGED_SCHEMA.names or field.type != STAGED_SCHEMA.field(field.name).type:
            raise InvalidArgument(f"Column {field.name} of type {field.type} is none of {STAGED_SCHEMA}")
    if "data" not in batch.schema.names:
        raise InvalidArgument("The column data is missing")
    columns = {name: batch.column(name) for name in batch.schema.names}
    made = list(map(Draft, [data or b"" for data in columns["data"].to_pylist()]))
    given = {name: column for name, column in columns.items() if name != "data" and column.null_count < len(column)}
    if not given:
        return made
    rows = len(batch)
    attributes = given["attributes"].to_pylist() if "attributes" in given else [None] * rows
    keys = given["ordering_key"].to_pylist() if "ordering_key" in given else [None] * rows
    priorities = given["priority"].to_pylist() if "priority" in given else [None] * rows
    return [
        Draft(
            draft.data,
            {key: value for key, value in pairs if not key.startswith(RESERVED_KEY_PREFIX)} if pairs else NO_ATTRIBUTES,
            key or "",
            None if priority is None else Extras(priority=priority),
        )
        for draft, pairs, key, priority in zip(made, attributes, keys, priorities, strict=True)
    ]


def stream_start(schema: pa.Schema) -> memoryview:
    """The first bytes of an Arrow stream of this schema; serialized record batches follow, then `END_OF_STREAM`."""
    return memoryview(schema.serialize())


def stream_part(batch: pa.RecordBatch) -> memoryview:
    """A record batch as it stands in an Arrow stream."""
    return memoryview(batch.serialize())
