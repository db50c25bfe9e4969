"""Topics' logs as a stream: offsets are sequences, so a micro-batch that is repeated reads what it read before.

An offset is JSON by topic: ``{"projects/p/topics/t": {"number": 3, "next": 1042}}``. `number` tells topics of one name
apart, `next` is the first sequence that is not read yet; where reading of a topic begins, `first` says with which one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from heliograph.errors import FailedPrecondition, HeliographError, Unavailable
from heliograph.spark.log_client import LogBounds
from heliograph.spark.log_reader import LogRange, Logs
from heliograph.spark.options import LATEST, Limits, Position, ReadOptions

if TYPE_CHECKING:
    import pyarrow as pa

Offset = dict[str, Any]


def default_limit(limits: Limits) -> ReadLimit:
    """What the options ask for, as far as Spark has a word for it; the readers apply all of them at once."""
    if limits.messages_max is not None:
        return ReadMaxRows(limits.messages_max)
    if limits.bytes_max is not None:
        return ReadMaxBytes(limits.bytes_max)
    return ReadAllAvailable()


class Patience:
    """`minMessagesPerTrigger` and `maxTriggerDelay`: whether to begin with what there is, or to wait for more.

    Args:
        limits: of the options.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._waiting_since: float | None = None

    def is_over(self, messages: int) -> bool:
        """Whether a micro-batch of so many may begin now."""
        least = self._limits.messages_min
        if messages and (least is None or messages >= least):
            self._waiting_since = None
            return True
        if not messages:
            self._waiting_since = None
            return False
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        if now - self._waiting_since < self._limits.delay_seconds_max:
            return False
        self._waiting_since = None
        return True


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads logs in a streaming query.

    Args:
        options: from `ReadOptions.parse`.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._logs = Logs(options)
        self._options = options
        self._target: dict[str, LogBounds] | None = None  # where a query that ends by itself ends
        self._patience = Patience(options.limits)
        self._committed: Offset = {}  # what the broker was told

    def initialOffset(self) -> Offset:
        """Where a new query begins. Raises: TopicNotFound, FailedPrecondition, Unavailable."""
        starting = self._options.starting or Position(LATEST)
        offset: Offset = {}
        for topic, bounds in self._logs.bounds().items():
            first = min(self._logs.resolve(starting, topic, bounds), bounds.last + 1)
            first = self._logs.check_start(topic, first, bounds.last + 1, bounds)
            offset[topic] = {"number": bounds.topic_number, "next": first}
        return offset

    def getDefaultReadLimit(self) -> ReadLimit:
        """See `default_limit`."""
        return default_limit(self._options.limits)

    def prepareForTriggerAvailableNow(self) -> None:
        """What is there now is what the query reads."""
        self._target = self._logs.bounds()

    def reportLatestOffset(self) -> Offset | None:
        """What could be read, for the progress."""
        with contextlib.suppress(HeliographError):
            return {
                topic: {"number": bounds.topic_number, "next": bounds.last + 1}
                for topic, bounds in self._logs.bounds().items()
            }
        return None

    def latestOffset(self, start: Offset | None = None, limit: ReadLimit | None = None) -> Offset:
        """Where the next micro-batch ends. What is before `start` is durable where the query writes to.

        Raises:
            FailedPrecondition: a topic was deleted, or created again, and `failOnDataLoss` is true.
            Unavailable: no broker answers.
        """
        start = start or {}
        self._commit(start)
        ranges = self._available(start)
        messages = sum(part.last - part.first + 1 for part in ranges)
        if self._target is None and not self._patience.is_over(messages):
            return start
        if not isinstance(limit, ReadAllAvailable):
            ranges = self._limited(ranges, messages)
        end = dict(start)
        for part in ranges:
            if part.last < part.first:
                continue
            known = start.get(part.topic)
            end[part.topic] = {"number": part.topic_number, "next": part.last + 1}
            if known is None or known["number"] != part.topic_number:
                end[part.topic]["first"] = part.first
        return end

    def _available(self, start: Offset) -> list[LogRange]:
        """What can be read from `start` on."""
        ends = self._target if self._target is not None else self._logs.bounds()
        if self._options.fail_on_data_loss:
            gone = [topic for topic in start if topic not in ends]
            if gone:
                raise FailedPrecondition(
                    f"Topic {gone[0]} was deleted. To go on with the others, set failOnDataLoss to false"
                )
        ranges = []
        for topic, bounds in ends.items():
            known = start.get(topic)
            first = bounds.first if known is None else int(known["next"])
            if known is not None and known["number"] != bounds.topic_number:
                if self._options.fail_on_data_loss:
                    raise FailedPrecondition(
                        f"Topic {topic} was deleted and created again; its log is another one now. To read the new one "
                        "from its beginning, set failOnDataLoss to false"
                    )
                first = bounds.first
            ranges.append(LogRange(topic, bounds.topic_number, first, max(bounds.last, first - 1)))
        return ranges

    def _limited(self, ranges: list[LogRange], messages: int) -> list[LogRange]:
        """As much of them as the options allow, of each topic its share; which may be nothing, where there are more
        topics than messages."""
        limits = self._options.limits
        wanted = messages if limits.messages_max is None else min(limits.messages_max, messages)
        limited, before, taken = [], 0, 0
        for part in ranges:
            first, size = part.first, part.last - part.first + 1
            before += size
            share = wanted * before // messages - taken if messages else 0
            taken += share
            last = first + share - 1
            if share and limits.bytes_max is not None:
                bytes_share = max(limits.bytes_max * size // messages, 1)
                last = min(last, self._logs.client.extent(part.topic, first, bytes_share))
            limited.append(LogRange(part.topic, part.topic_number, first, last))
        return limited

    def partitions(self, start: Offset, end: Offset) -> list[LogRange]:
        """The parts of a micro-batch; the same for the same offsets, as long as the broker has the messages.

        Raises:
            FailedPrecondition: it has not, and `failOnDataLoss` is true.
            TopicNotFound, Unavailable.
        """
        ranges = []
        for topic, to in end.items():
            before = start.get(topic)
            if before is not None and before["number"] != to["number"]:
                before = None
            if before is not None and before["next"] >= to["next"]:
                continue
            bounds = self._logs.client.bounds(topic)
            first = int(to.get("first", bounds.first) if before is None else before["next"])
            if bounds.topic_number == to["number"]:
                first = self._logs.check_start(topic, first, int(to["next"]), bounds)
            ranges.append(LogRange(topic, int(to["number"]), first, max(int(to["next"]), first) - 1))
        return self._logs.split(ranges)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """See `Logs.read`."""
        assert isinstance(partition, LogRange)
        return self._logs.read(partition)

    def commit(self, end: Offset) -> None:
        """What is before `end` is durable where the query writes to."""
        self._commit(end)

    def _commit(self, offset: Offset) -> None:
        """Tell the broker, so that people see the lag. Nothing depends on it, so no failure of it matters."""
        for topic, to in offset.items():
            if self._committed.get(topic) != to:
                try:
                    self._logs.client.commit_cursor(self._options.consumer, topic, to["number"], to["next"])
                except Unavailable:
                    continue
                except HeliographError:  # it would answer the same again, for instance to a token that may only read
                    pass
                self._committed[topic] = to
