"""Reads topics' logs from a broker over HTTP (`heliograph.server.log`), on the driver and on the executors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from heliograph.errors import Unavailable
from heliograph.spark import door
from heliograph.spark.door import TIMEOUT_SECONDS, Address, Door, persistently
from heliograph.wire.arrow import carried, completed, schema_of


class LogBounds(NamedTuple):
    """What a topic's log holds: sequences `first` to `last`, inclusive; first 1, last 0 when it holds nothing.

    `topic_number` tells topics of one name apart: it is another one after a topic was deleted and created again.
    `in_time_order`: publish times grow with the sequences; False = perhaps not.
    """

    topic_number: int
    first: int
    last: int
    in_time_order: bool = False


class LogClient:
    """One broker's log door. Holds no connection between calls, so it can be pickled.

    Args:
        endpoint: `http://host:port`, `https://host:port` or `host:port`.
        timeout_seconds: the longest silence of the broker that is borne.
        token: sent as a bearer token; "" = none.

    Raises:
        InvalidArgument: the endpoint is no such address.
    """

    def __init__(self, endpoint: str, timeout_seconds: float = TIMEOUT_SECONDS, token: str = "") -> None:
        self._door = Door(Address(endpoint, timeout_seconds, token))

    def bounds(self, topic: str) -> LogBounds:
        """What the log of `topic`, a full name, holds now. Raises: TopicNotFound, Unavailable."""
        found = persistently(lambda: self._door.get("/api/v1/log/bounds", {"topic": topic}))
        return _bounds(found)

    def topics(self) -> dict[str, LogBounds]:
        """What the log of every topic holds now, by full name. Raises: Unavailable."""
        found = persistently(lambda: self._door.get("/api/v1/log/topics", {}))["topics"]
        return {each["topic"]: _bounds(each) for each in found}

    def offset(self, topic: str, published_ns: int) -> int:
        """The sequence of the first message that was published at that instant, nanoseconds since the epoch, or later;
        one behind the last if none was. Raises: TopicNotFound, Unavailable."""
        parameters = {"topic": topic, "time_ns": published_ns}
        return int(persistently(lambda: self._door.get("/api/v1/log/offset", parameters))["sequence"])

    def snapshot_offset(self, topic: str, snapshot: str) -> int:
        """The first sequence that a snapshot, by its full name, had not acknowledged. Raises: TopicNotFound,
        SnapshotNotFound, FailedPrecondition (it is of another topic), Unavailable."""
        parameters = {"topic": topic, "snapshot": snapshot}
        return int(persistently(lambda: self._door.get("/api/v1/log/offset", parameters))["sequence"])

    def extent(self, topic: str, first: int, bytes_max: int) -> int:
        """The last sequence of a range from `first` on with about `bytes_max` of messages. Raises: as `offset`."""
        parameters = {"topic": topic, "first": first, "bytes_max": bytes_max}
        return int(persistently(lambda: self._door.get("/api/v1/log/extent", parameters))["last"])

    def commit_cursor(self, consumer: str, topic: str, topic_number: int, next_sequence: int) -> None:
        """Tell the broker, for people to see, how far a reader has come. Raises: TopicNotFound, Unavailable."""
        cursor = {"consumer": consumer, "topic": topic, "topic_number": topic_number, "next": next_sequence}
        self._door.post("/api/v1/log/cursor", cursor)

    def read(
        self, topic: str, topic_number: int, first: int, last: int, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Record batches with the messages of sequences `first` to `last`, inclusive, in order.

        A stream that breaks is taken up again where it broke, also when the broker was started anew meanwhile. Messages
        that the broker has trimmed are missing.

        Args:
            topic: its full name.
            topic_number: from `bounds`.
            first, last: sequences that the log holds.
            columns: names of `heliograph.wire.arrow.SCHEMA`; `sequence` must be one.

        Raises:
            TopicNotFound, FailedPrecondition: the topic is gone, or another one by now.
            Unavailable: the broker did not answer, or not to the end, several times.
        """
        failures, schema, sent = 0, schema_of(columns), carried(columns)
        while True:
            wanted = {
                "topic": topic,
                "topic_number": topic_number,
                "first": first,
                "last": last,
                "columns": ",".join(sent),
            }
            try:
                for batch in self._door.batches("/api/v1/log/read", wanted, f"the log of {topic}"):
                    if not batch.num_rows:
                        continue
                    failures = 0
                    first = batch.column("sequence")[-1].as_py() + 1
                    yield completed(batch, topic, topic_number, schema)
                return
            except Unavailable:
                failures += 1
                door.pause(failures)
            if first > last:
                return

    def __str__(self) -> str:
        return str(self._door)


def _bounds(told: dict[str, Any]) -> LogBounds:
    return LogBounds(told["topic_number"], told["first"], told["last"], told.get("in_time_order", False))
