"""Topics as a Spark source: `spark.read.format("heliograph")`.

::

    messages = (spark.read.format("heliograph")
        .option("endpoint", "http://127.0.0.1:8085")
        .option("topic", "projects/demo/topics/flights")
        .load())

The options (Kafka's names where Kafka has them; upper and lower case are the same to Spark):

=====================  ==============================================================================================
endpoint               the broker, `http://host:port`; default: PUBSUB_EMULATOR_HOST, else http://127.0.0.1:8085
topic                  the topic's full name, or a short one together with `project`
project                the project of a short topic name
startingOffsets        `earliest` (default), `latest` or the first sequence to read
endingOffsets          `latest` (default), `earliest` or a sequence: the first one not to read
minPartitions          read in at least so many parallel parts; default: the cores of the driver's machine
includePayload         false: no column `data` (Spark cannot leave out columns by itself here)
includeAttributes      false: no column `attributes`
failOnDataLoss         true (default): fail when the broker has trimmed messages of the range; false: skip them
timeoutSeconds         the longest silence of the broker that is borne; default 60
=====================  ==============================================================================================

Offsets are the topic's sequence numbers and are fixed when the query is planned, so reading the same DataFrame twice
gives the same messages. The module is imported in every Python worker, so it stays light.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from heliograph.errors import FailedPrecondition, InvalidArgument
from heliograph.spark.log_client import TIMEOUT_SECONDS, LogBounds, LogClient

if TYPE_CHECKING:
    import pyarrow as pa

COLUMNS: Mapping[str, DataType] = {
    "topic": StringType(),
    "sequence": LongType(),
    "message_id": StringType(),
    "ordering_key": StringType(),
    "attributes": MapType(StringType(), StringType()),
    "data": BinaryType(),
    "publish_time": TimestampType(),
    "publish_time_ns": LongType(),
    "priority": IntegerType(),
}
"""Every column with its Spark type; the Arrow types of `heliograph.wire.arrow.SCHEMA` are equal to these."""

PARTITION_ROWS_MIN = 5_000
"""A part smaller than this is not worth a task, unless `minPartitions` asks for it."""

PARTITION_ROWS_MAX = 1_000_000
"""A part larger than this would be lost to a failed task at once."""


class LogRange(InputPartition):
    """Sequences `first` to `last`, inclusive, of a topic's log: what one task reads."""

    def __init__(self, topic_number: int, first: int, last: int) -> None:
        self.topic_number = topic_number
        self.first = first
        self.last = last

    def __repr__(self) -> str:
        return f"LogRange({self.topic_number}, {self.first}, {self.last})"


class ReadOptions(NamedTuple):
    """The options of the module's table, checked."""

    endpoint: str
    topic: str
    starting_offsets: str
    ending_offsets: str
    partitions_min: int | None
    include_payload: bool
    include_attributes: bool
    fail_on_data_loss: bool
    timeout_seconds: float

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        """The options as Spark hands them over.

        Raises:
            InvalidArgument: one is missing or is not what the table says; the message names it.
        """
        return cls(
            endpoint=options.get("endpoint") or os.environ.get("PUBSUB_EMULATOR_HOST") or "http://127.0.0.1:8085",
            topic=_topic(options),
            starting_offsets=_offset(options, "startingOffsets", "earliest"),
            ending_offsets=_offset(options, "endingOffsets", "latest"),
            partitions_min=_whole_number(options, "minPartitions"),
            include_payload=_truth(options, "includePayload", True),
            include_attributes=_truth(options, "includeAttributes", True),
            fail_on_data_loss=_truth(options, "failOnDataLoss", True),
            timeout_seconds=_whole_number(options, "timeoutSeconds") or TIMEOUT_SECONDS,
        )

    @property
    def columns(self) -> list[str]:
        """The names of the columns that are asked for."""
        left_out = {"data"} if not self.include_payload else set()
        left_out |= {"attributes"} if not self.include_attributes else set()
        return [name for name in COLUMNS if name not in left_out]


class HeliographDataSource(DataSource):
    """The data source; Spark makes one from the options of a query."""

    @classmethod
    def name(cls) -> str:
        """What `format(…)` calls it."""
        return "heliograph"

    def schema(self) -> StructType:
        """The columns, as the options choose them. Raises: InvalidArgument."""
        return StructType([StructField(name, COLUMNS[name]) for name in ReadOptions.parse(self.options).columns])

    def reader(self, schema: StructType) -> DataSourceReader:
        """The batch reader. Raises: InvalidArgument."""
        return LogReader(ReadOptions.parse(self.options))


class LogReader(DataSourceReader):
    """Reads a topic's log by ranges of sequences, each range in a task of its own.

    Args:
        options: from `ReadOptions.parse`.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._client = LogClient(options.endpoint, options.timeout_seconds)

    def partitions(self) -> list[LogRange]:
        """The ranges that together are what the query reads; on the driver, once a query.

        Raises:
            TopicNotFound: no such topic.
            FailedPrecondition: the broker has trimmed what `startingOffsets` asks for.
            InvalidArgument: offsets that the log does not reach.
            Unavailable: no broker answers.
        """
        bounds = self._client.bounds(self._options.topic)
        first, end = self._resolve(bounds)
        if end <= first:
            # Spark wants at least one part, or it asks for a part that is None.
            return [LogRange(bounds.topic_number, first, first - 1)]
        return split(bounds.topic_number, first, end, self._parts(end - first))

    def _resolve(self, bounds: LogBounds) -> tuple[int, int]:
        """(first sequence to read, first one not to read)."""
        options = self._options
        named = {"earliest": bounds.first, "latest": bounds.last + 1}
        first = named.get(options.starting_offsets) or int(options.starting_offsets)
        end = named.get(options.ending_offsets) or int(options.ending_offsets)
        if max(first, end) > bounds.last + 1:
            raise InvalidArgument(
                f"The log of {options.topic} ends before sequence {bounds.last + 1}; "
                f"asked for were offsets {first} to {end}"
            )
        if first < bounds.first:
            if options.fail_on_data_loss and first < end:
                raise FailedPrecondition(
                    f"The messages of {options.topic} before sequence {bounds.first} are gone; asked for were those "
                    f"from {first}. To read what there is, set failOnDataLoss to false"
                )
            first = bounds.first
        return first, end

    def _parts(self, rows: int) -> int:
        fair = min(os.cpu_count() or 1, -(-rows // PARTITION_ROWS_MIN))
        return max(self._options.partitions_min or fair, -(-rows // PARTITION_ROWS_MAX))

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """The messages of one range as Arrow batches; on an executor.

        Raises:
            FailedPrecondition: messages are missing, and `failOnDataLoss` is true; or the topic is another one by now.
            TopicNotFound: it is gone.
            Unavailable: no broker answers, or not to the end.
        """
        assert isinstance(partition, LogRange)
        if partition.last < partition.first:
            return
        options = self._options
        rows = 0
        for batch in self._client.read(
            options.topic, partition.topic_number, partition.first, partition.last, options.columns
        ):
            rows += batch.num_rows
            yield batch
        missing = partition.last - partition.first + 1 - rows
        if missing and options.fail_on_data_loss:
            raise FailedPrecondition(
                f"{missing} messages of {options.topic} between sequences {partition.first} and {partition.last} are "
                "gone from the broker. To read what there is, set failOnDataLoss to false"
            )


def split(topic_number: int, first: int, end: int, parts: int) -> list[LogRange]:
    """The sequences from `first` up to but not including `end` in at most `parts` ranges whose sizes differ by one."""
    rows = end - first
    parts = max(1, min(parts, rows))
    edges = [first + rows * part // parts for part in range(parts + 1)]
    return [LogRange(topic_number, low, high - 1) for low, high in pairwise(edges)]


def _topic(options: Mapping[str, str]) -> str:
    topic, project = options.get("topic", ""), options.get("project", "")
    if not topic:
        raise InvalidArgument("The option topic is missing: the topic to read, such as projects/p/topics/t")
    if "/" in topic:
        return topic
    if not project:
        raise InvalidArgument(
            f"topic {topic!r} is a short name: give its full name, or its project in the option project"
        )
    return f"projects/{project}/topics/{topic}"


def _offset(options: Mapping[str, str], name: str, default: str) -> str:
    text = options.get(name, default).strip().lower()
    if text in ("earliest", "latest") or (text.isascii() and text.isdigit() and 1 <= int(text) < 10**18):
        return text
    raise InvalidArgument(f"{name} must be earliest, latest or a sequence number from 1, not {text!r}")


def _whole_number(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name)
    if text is None:
        return None
    if text.isascii() and text.isdigit() and int(text) >= 1:
        return int(text)
    raise InvalidArgument(f"{name} must be a whole number from 1, not {text!r}")


def _truth(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name, str(default)).strip().lower()
    if text in ("true", "false"):
        return text == "true"
    raise InvalidArgument(f"{name} must be true or false, not {text!r}")
