"""Heliograph as a Spark sink: `df.write.format("heliograph")` and `df.writeStream.format("heliograph")`, exactly once.

The columns of what is written (any others are refused):

=============================  ======================================================================================
data (or value)                the payload: binary or string; required
attributes                     map of string to string
ordering_key (or key)          string; rows of one key keep their order within a partition of the DataFrame, so bring
                               them together with `repartition("ordering_key")`
priority                       whole number, 0 to 9
topic                          where the row goes: a full name, or a short one together with `project`; in place of
                               the option of this name
=============================  ======================================================================================

Options, besides `endpoint`, `token`, `project`, `timeoutSeconds` of the source:

=============================  ======================================================================================
topic                          where all rows go
ratePerSecond                  publish no faster than so many messages a second
=============================  ======================================================================================

Tasks stage their rows at the broker, where nobody sees them; when all are done, one commit publishes them. A task that
is run again stages again, and only what its last attempt staged counts. A micro-batch that is repeated after a crash is
published once: the broker keeps, for each query, the number of the last batch and how far it has come. A batch query
has a name of its own for each run, so that running it twice publishes twice.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
)

from heliograph.errors import FailedPrecondition, InvalidArgument
from heliograph.spark.door import Address
from heliograph.spark.known_options import WRITE, check_options
from heliograph.spark.log_client import LogClient
from heliograph.spark.options import address_of, full_topic_name, whole_number
from heliograph.spark.stage_client import Part, StageClient

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_MAX = 5_000
BYTES_MAX = 4 * 1024 * 1024
"""Of one request to the broker; a larger message goes alone."""

PUBLISHED_AT_ONCE = 100_000
"""Messages of one request of a commit, where no rate bounds them."""

ALIASES = {"value": "data", "key": "ordering_key"}

_KINDS: Mapping[str, tuple[type[DataType], ...]] = {
    "data": (BinaryType, StringType),
    "attributes": (MapType,),
    "ordering_key": (StringType, BinaryType),
    "priority": (IntegerType, LongType, ShortType, ByteType),
    "topic": (StringType,),
}


class WriteOptions(NamedTuple):
    """The options of the module's table, checked against the schema.

    Args:
        address: of the broker.
        topic: where rows go that do not say so; "" = all say so.
        project: of short names.
        rate: messages a second; None = no bound.
    """

    address: Address
    topic: str
    project: str
    rate: int | None

    @classmethod
    def parse(cls, options: Mapping[str, str], schema: StructType) -> WriteOptions:
        """The options as Spark hands them over. Raises: InvalidArgument."""
        check_options(options, WRITE, "sink")
        kinds = {ALIASES.get(field.name, field.name): field.dataType for field in schema.fields}
        if len(kinds) < len(schema.fields):
            raise InvalidArgument("A column is there under both of its names: data or value, ordering_key or key")
        for name, kind in kinds.items():
            if name not in _KINDS:
                raise InvalidArgument(f"Messages have no column {name}; there are {', '.join(_KINDS)}")
            if not isinstance(kind, _KINDS[name]):
                raise InvalidArgument(f"The column {name} cannot be {kind.simpleString()}")
        if "data" not in kinds:
            raise InvalidArgument("The column data (or value) is missing: the payload")
        topic = options.get("topic", "")
        if not topic and "topic" not in kinds:
            raise InvalidArgument("The option topic is missing: where to publish, such as projects/p/topics/t")
        return cls(
            address=address_of(options),
            topic=full_topic_name(options, topic) if topic else "",
            project=options.get("project", ""),
            rate=whole_number(options, "ratePerSecond"),
        )


class Staged(WriterCommitMessage):
    """What one task has staged.

    Args:
        writer: of the query.
        stage: where.
        partition: of the task; batches are published in this order.
        parts: in the order of the rows.
    """

    def __init__(self, writer: str, stage: str, partition: int, parts: list[Part]) -> None:
        self.writer = writer
        self.stage = stage
        self.partition = partition
        self.parts = parts


class _Writer:
    """What tasks and commits do, for batch and stream alike.

    Args:
        options: from `WriteOptions.parse`.
    """

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def stage(self, writer: str, batch: int, partition: int, batches: Iterable[pa.RecordBatch]) -> Staged:
        stage = f"{writer}/{batch}"
        client = StageClient(self._options.address, stage)
        parts: list[Part] = []
        for whole in batches:
            for piece in pieces(whole):
                for topic, rows in self._by_topic(piece):
                    part = client.write(topic, rows)
                    if parts and parts[-1].topic == topic and parts[-1].last + 1 == part.first:
                        part = parts.pop()._replace(last=part.last)
                    parts.append(part)
        return Staged(writer, stage, partition, parts)

    def _by_topic(self, batch: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
        """The rows for each topic, in order, as the broker takes them."""
        names = [ALIASES.get(name, name) for name in batch.schema.names]
        batch = batch.rename_columns(names)
        if "topic" not in names:
            yield self._options.topic, staged_columns(batch)
            return
        import pyarrow.compute as pc

        topics = batch.column("topic")
        for topic in topics.unique().to_pylist():
            if topic is None and not self._options.topic:
                raise InvalidArgument("A row has no topic, and there is no option topic")
            mask = pc.is_null(topics) if topic is None else pc.equal(topics, topic)
            name = self._options.topic if topic is None else self._full_name(topic)
            yield name, staged_columns(batch.filter(mask))

    def _full_name(self, topic: str) -> str:
        return full_topic_name({"project": self._options.project}, topic)

    def publish(self, staged: list[Staged], batch: int) -> int:
        """Publish what all tasks have staged; how many messages that were now."""
        staged = sorted(staged, key=lambda each: each.partition)
        parts = [part for each in staged for part in each.parts]
        if not parts:
            return 0
        client = StageClient(self._options.address, staged[0].stage)
        pacer = Pacer(self._options.rate)
        total, left = 0, 1
        while left:
            published, left = client.publish(staged[0].writer, batch, parts, pacer.allowance())
            pacer.took(published)
            total += published
        return total

    def drop(self, staged: list[Staged | None]) -> None:
        for stage in {each.stage for each in staged if each is not None}:
            StageClient(self._options.address, stage).drop()


class HeliographWriter(DataSourceArrowWriter):
    """Publishes a DataFrame once.

    Args:
        options: from `WriteOptions.parse`.
    """

    def __init__(self, options: WriteOptions) -> None:
        self._writer = _Writer(options)
        self._name = f"batch/{uuid.uuid4().hex}"
        if options.topic:
            LogClient(*options.address).bounds(options.topic)  # before any task runs

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of a partition, in a task. Raises: InvalidArgument, MessageTooLarge, Unavailable."""
        return self._writer.stage(self._name, 0, _task().partitionId(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish all. Raises: TopicNotFound, Unavailable."""
        self._writer.publish(_staged(messages), 0)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish nothing. Raises: Unavailable."""
        self._writer.drop(list(_staged(messages)))


class HeliographStreamWriter(DataSourceStreamArrowWriter):
    """Publishes each micro-batch of a query once.

    Args:
        options: from `WriteOptions.parse`.
    """

    def __init__(self, options: WriteOptions) -> None:
        self._writer = _Writer(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """Stage the rows of a partition, in a task. Raises: InvalidArgument, MessageTooLarge, Unavailable,
        FailedPrecondition (Spark does not tell which query and batch it is)."""
        context = _task()
        query = context.getLocalProperty("sql.streaming.queryId")
        batch = context.getLocalProperty("streaming.sql.batchId")
        if query is None or batch is None:
            raise FailedPrecondition("Spark does not tell the task its query and batch: nothing can be published once")
        return self._writer.stage(f"query/{query}", int(batch), context.partitionId(), iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Publish all, unless it was done before. Raises: TopicNotFound, Unavailable."""
        self._writer.publish(_staged(messages), batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Publish nothing now: the micro-batch comes again. Its stage stays: a commit that broke off may need it."""


class Pacer:
    """A token bucket of one second.

    Args:
        rate: tokens a second; None = no bound.
    """

    def __init__(self, rate: int | None) -> None:
        self._rate = rate
        self._free_at = time.monotonic()

    def allowance(self) -> int:
        """How many messages may be published now, after a wait if there are none."""
        if self._rate is None:
            return PUBLISHED_AT_ONCE
        wait_seconds = self._free_at - time.monotonic()
        if wait_seconds > 0:
            time.sleep(wait_seconds)  # the rate is the caller's wish, by the real clock
        return max(min(self._rate // 10, PUBLISHED_AT_ONCE), 1)

    def took(self, count: int) -> None:
        """So many were published."""
        if self._rate is not None:
            self._free_at = max(self._free_at, time.monotonic() - 1) + count / self._rate


def pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """A record batch in pieces that are small enough for one request."""
    size_bytes = batch.nbytes
    if batch.num_rows <= 1 or (batch.num_rows <= ROWS_MAX and size_bytes <= BYTES_MAX):
        if batch.num_rows:
            yield batch
        return
    parts = max(-(-batch.num_rows // ROWS_MAX), -(-size_bytes // BYTES_MAX))
    size = max(-(-batch.num_rows // parts), 1)
    for start in range(0, batch.num_rows, size):
        piece = batch.slice(start, size)
        if piece.num_rows == batch.num_rows:
            yield piece
        else:
            yield from pieces(piece)


def staged_columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The columns that the broker takes, in its types. Raises: InvalidArgument (a priority that is none)."""
    import pyarrow as pa

    from heliograph.wire.arrow import STAGED_SCHEMA

    names = [name for name in STAGED_SCHEMA.names if name in batch.schema.names]
    schema = pa.schema([STAGED_SCHEMA.field(name) for name in names])
    try:
        arrays = [batch.column(name).cast(STAGED_SCHEMA.field(name).type) for name in names]
    except pa.ArrowInvalid as error:
        raise InvalidArgument(f"A message cannot be published so: {error}") from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _staged(messages: list[Any]) -> list[Staged]:
    return [message for message in messages if isinstance(message, Staged)]


def _task() -> Any:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise FailedPrecondition("This runs in a task of Spark only")
    return context
