"""The broker's event log, as a batch and as a stream. An offset is ``{"position": 1042}``, the first that is not
read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from heliograph.errors import FailedPrecondition, HeliographError
from heliograph.spark.columns import chosen
from heliograph.spark.event_client import EventClient
from heliograph.spark.log_stream import Patience, default_limit
from heliograph.spark.options import EARLIEST, LATEST, Position, ReadOptions
from heliograph.spark.pushdown import Narrowed, PushFilters

if TYPE_CHECKING:
    import pyarrow as pa

Offset = dict[str, int]

PARTITION_POSITIONS_MIN = 200
"""Positions are commits, each of one event or of thousands; so few are not worth a task."""


class EventRange(InputPartition):
    """Positions `first` to `last`, inclusive: what one task reads; none if `last` is `first` - 1."""

    def __init__(self, first: int, last: int) -> None:
        self.first = first
        self.last = last

    def __repr__(self) -> str:
        return f"EventRange({self.first}, {self.last})"


class Events:
    """The event log, and how the options have it read.

    Args:
        options: from `ReadOptions.parse`.
    """

    def __init__(self, options: ReadOptions) -> None:
        self.options = options
        self.client = EventClient(options.address)

    def resolve(self, position: Position) -> int:
        """The position of the log that an option's means."""
        first, last = self.client.bounds()
        if position.time_ns:
            return self.client.offset(position.time_ns)
        if position.by_topic:
            return min(max(position.by_topic.values()), last + 1)
        return last + 1 if position.named == LATEST else first

    def split(self, first: int, end: int) -> list[EventRange]:
        """Positions from `first` up to but not including `end`, in parts.

        Raises:
            FailedPrecondition: some of them are gone, and `failOnDataLoss` is true.
        """
        readable, _ = self.client.bounds()
        if first < readable and first < end:
            if self.options.fail_on_data_loss:
                raise FailedPrecondition(
                    f"The event log begins at position {readable}, and what was asked for begins at {first}: it "
                    f"is past "
                    "its retention. To read what there is, set failOnDataLoss to false"
                )
            first = min(readable, end)
        count = max(end - first, 0)
        fair = min(os.cpu_count() or 1, -(-count // PARTITION_POSITIONS_MIN))
        parts = max(1, min(self.options.partitions_min or fair, count))
        edges = [first + count * part // parts for part in range(parts + 1)]
        return [EventRange(low, high - 1) for low, high in pairwise(edges)]

    def read(self, part: EventRange) -> Iterator[pa.RecordBatch]:
        """What happened, on an executor. Raises: FailedPrecondition, Unavailable."""
        return self.client.read(part.first, part.last, list(chosen("events", self.options.left_out)))


class EventReader(DataSourceReader):
    """Reads the event log in a batch query.

    Args:
        options: from `ReadOptions.parse`.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._events = Events(options)
        self._options = options
        self._narrowed = Narrowed("position")
        if options.pushdown:
            self.pushFilters = PushFilters(self._narrowed)  # type: ignore[method-assign]  # see there

    def partitions(self) -> list[EventRange]:
        """What the query reads, fixed now. Raises: FailedPrecondition, Unavailable."""
        first = self._events.resolve(self._options.starting or Position(EARLIEST))
        end = max(self._events.resolve(self._options.ending), first)
        runs = list(self._narrowed.within(first, end)) or [(first, first)]
        return [part for low, high in runs for part in self._events.split(low, high)]

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """See `Events.read`."""
        assert isinstance(partition, EventRange)
        return self._events.read(partition)


class EventStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads the event log in a streaming query. Limits count rows; but what was committed together, one position, is
    never divided.

    Args:
        options: from `ReadOptions.parse`.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._events = Events(options)
        self._options = options
        self._target: int | None = None
        self._patience = Patience(options.limits)

    def initialOffset(self) -> Offset:
        """Where a new query begins. Raises: FailedPrecondition, Unavailable."""
        return {"position": self._events.resolve(self._options.starting or Position(LATEST))}

    def getDefaultReadLimit(self) -> ReadLimit:
        """See `default_limit`."""
        return default_limit(self._options.limits)

    def prepareForTriggerAvailableNow(self) -> None:
        """What is there now is what the query reads."""
        self._target = self._events.client.bounds()[1] + 1

    def reportLatestOffset(self) -> Offset | None:
        """What could be read, for the progress."""
        with contextlib.suppress(HeliographError):
            return {"position": self._events.client.bounds()[1] + 1}
        return None

    def latestOffset(self, start: Offset | None = None, limit: ReadLimit | None = None) -> Offset:
        """Where the next micro-batch ends. Raises: FailedPrecondition, Unavailable."""
        first, last = self._events.client.bounds()
        end = last + 1 if self._target is None else self._target
        begin = first if start is None else start["position"]
        readable = max(begin, first)
        if end <= begin or (self._target is None and not self._is_enough(readable, end)):
            return {"position": begin}
        limits = self._options.limits
        if (limits.messages_max or limits.bytes_max) and readable < end and not isinstance(limit, ReadAllAvailable):
            reached, _ = self._events.client.extent(readable, limits.messages_max, limits.bytes_max)
            end = min(end, reached + 1)
        return {"position": end}

    def _is_enough(self, first: int, end: int) -> bool:
        """Whether to begin with what there is before position `end`; see `Patience`."""
        least = self._options.limits.messages_min
        if least is None or first >= end:
            return True
        reached, rows = self._events.client.extent(first, least)
        return self._patience.is_over(rows if reached >= end - 1 else least)

    def partitions(self, start: Offset, end: Offset) -> list[EventRange]:
        """See `Events.split`."""
        return self._events.split(start["position"], end["position"])

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """See `Events.read`."""
        assert isinstance(partition, EventRange)
        return self._events.read(partition)

    def commit(self, end: Offset) -> None:
        """Nothing: the event log waits for nobody."""
