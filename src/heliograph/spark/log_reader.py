"""Topics' logs by ranges of sequences: what a batch query reads, and what the tasks of any query do."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from heliograph.errors import FailedPrecondition, InvalidArgument
from heliograph.spark.columns import chosen
from heliograph.spark.log_client import LogBounds, LogClient
from heliograph.spark.options import EARLIEST, LATEST, Position, ReadOptions
from heliograph.spark.pushdown import TIME_END_NS, Narrowed, PushFilters

if TYPE_CHECKING:
    import pyarrow as pa

PARTITION_ROWS_MIN = 5_000
"""A part smaller than this is not worth a task, unless `minPartitions` asks for it."""

PARTITION_ROWS_MAX = 1_000_000
"""A part larger than this would be lost to a failed task at once."""


class LogRange(InputPartition):
    """Sequences `first` to `last`, inclusive, of a topic's log: what one task reads; none if `last` is `first` - 1."""

    def __init__(self, topic: str, topic_number: int, first: int, last: int) -> None:
        self.topic = topic
        self.topic_number = topic_number
        self.first = first
        self.last = last

    def __repr__(self) -> str:
        return f"LogRange({self.topic!r}, {self.topic_number}, {self.first}, {self.last})"


class Logs:
    """The logs that a query's options name, and how they are read.

    Args:
        options: from `ReadOptions.parse`.
    """

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.client = LogClient(*options.address)

    def bounds(self, wanted: Callable[[str], bool] = lambda topic: True) -> dict[str, LogBounds]:
        """What the logs hold now, by topic; of those that are wanted.

        Raises:
            TopicNotFound: one that is named does not exist.
            Unavailable: no broker answers.
        """
        if not self.options.topic_pattern:
            return {topic: self.client.bounds(topic) for topic in self.options.topics if wanted(topic)}
        pattern = re.compile(self.options.topic_pattern)
        found = self.client.topics()
        return {topic: bounds for topic, bounds in found.items() if pattern.fullmatch(topic) and wanted(topic)}

    def resolve(self, position: Position, topic: str, bounds: LogBounds) -> int:
        """The sequence that a position means in a topic's log."""
        if position.snapshot:
            return self.client.snapshot_offset(topic, position.snapshot)
        if position.time_ns:
            return self.client.offset(topic, position.time_ns)
        named = position.named or (EARLIEST if topic not in position.by_topic and "" not in position.by_topic else "")
        if named:
            return bounds.last + 1 if named == LATEST else bounds.first
        return position.by_topic.get(topic) or position.by_topic[""]

    def check_start(self, topic: str, first: int, end: int, bounds: LogBounds) -> int:
        """Where to begin to read up to `end`: `first`, or behind what is gone.

        Raises:
            FailedPrecondition: some messages are gone, and `failOnDataLoss` is true.
        """
        if first >= bounds.first:
            return first
        if self.options.fail_on_data_loss and first < end:
            raise FailedPrecondition(
                f"The messages of {topic} before sequence {bounds.first} are gone; asked for were those "
                f"from {first}. To read what there is, set failOnDataLoss to false"
            )
        return bounds.first

    def split(self, ranges: list[LogRange]) -> list[LogRange]:
        """The same messages in as many parts as the options, or the machine's cores, ask for; at least one part, since
        Spark wants one."""
        rows = sum(part.last - part.first + 1 for part in ranges)
        if not rows:
            return ranges[:1] or [LogRange("", 0, 1, 0)]
        fair = min(os.cpu_count() or 1, -(-rows // PARTITION_ROWS_MIN))
        wanted = max(self.options.partitions_min or fair, -(-rows // PARTITION_ROWS_MAX))
        parts: list[LogRange] = []
        for part in ranges:
            size = part.last - part.first + 1
            if size:
                share = max(round(wanted * size / rows), -(-size // PARTITION_ROWS_MAX), 1)
                parts += split(part.topic, part.topic_number, part.first, part.last + 1, share)
        return parts

    def read(self, part: LogRange) -> Iterator[pa.RecordBatch]:
        """The messages of one range as Arrow batches; on an executor.

        Raises:
            FailedPrecondition: messages are missing, and `failOnDataLoss` is true; or the topic is another one by now.
            TopicNotFound: it is gone.
            Unavailable: no broker answers, or not to the end.
        """
        if part.last < part.first:
            return
        columns = list(chosen("log", self.options.left_out))
        rows = 0
        for batch in self.client.read(part.topic, part.topic_number, part.first, part.last, columns):
            rows += batch.num_rows
            yield batch
        missing = part.last - part.first + 1 - rows
        if missing and self.options.fail_on_data_loss:
            raise FailedPrecondition(
                f"{missing} messages of {part.topic} between sequences {part.first} and {part.last} are "
                "gone from the broker. To read what there is, set failOnDataLoss to false"
            )


class LogReader(DataSourceReader):
    """Reads logs in a batch query: what is read is fixed when the query is planned.

    Args:
        options: from `ReadOptions.parse`.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._logs = Logs(options)
        self._options = options
        self._narrowed = Narrowed("sequence")
        if options.pushdown:
            self.pushFilters = PushFilters(self._narrowed)  # type: ignore[method-assign]  # see there

    def partitions(self) -> list[LogRange]:
        """The ranges that together are what the query reads; on the driver, once a query.

        Raises:
            TopicNotFound: no such topic.
            FailedPrecondition: the broker has trimmed what `startingOffsets` asks for.
            InvalidArgument: offsets that the log does not reach.
            Unavailable: no broker answers.
        """
        logs = self._logs.bounds(self._narrowed.wants_topic)
        return self._logs.split([part for topic, bounds in logs.items() for part in self._ranges(topic, bounds)])

    def _ranges(self, topic: str, bounds: LogBounds) -> list[LogRange]:
        first = self._logs.resolve(self._options.starting or Position(EARLIEST), topic, bounds)
        end = self._logs.resolve(self._options.ending, topic, bounds)
        if max(first, end) > bounds.last + 1:
            raise InvalidArgument(
                f"The log of {topic} ends before sequence {bounds.last + 1}; asked for were offsets {first} to {end}"
            )
        narrowed = self._narrowed
        if narrowed.since_ns:
            first = max(first, self._logs.client.offset(topic, narrowed.since_ns))
        if narrowed.until_ns < TIME_END_NS and bounds.in_time_order:
            end = min(end, self._logs.client.offset(topic, max(narrowed.until_ns, 0)))
        runs = list(narrowed.within(first, end)) or [(first, first)]
        first = self._logs.check_start(topic, runs[0][0], runs[-1][1], bounds)
        number = bounds.topic_number
        return [LogRange(topic, number, max(low, first), max(high, low, first) - 1) for low, high in runs]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """See `Logs.read`."""
        assert isinstance(partition, LogRange)
        return self._logs.read(partition)


def split(topic: str, topic_number: int, first: int, end: int, parts: int) -> list[LogRange]:
    """The sequences from `first` up to but not including `end` in at most `parts` ranges whose sizes differ by one."""
    rows = end - first
    parts = max(1, min(parts, rows))
    edges = [first + rows * part // parts for part in range(parts + 1)]
    return [LogRange(topic, topic_number, low, high - 1) for low, high in pairwise(edges)]
