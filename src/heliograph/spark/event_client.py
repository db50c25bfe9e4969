"""Reads the event log of a broker over HTTP (`heliograph.server.events`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from heliograph.errors import Unavailable
from heliograph.spark import door
from heliograph.spark.door import Address, Door, persistently


class EventClient:
    """One broker's event door. Holds no connection between calls, so it can be pickled.

    Args:
        address: of the broker.

    Raises:
        InvalidArgument: the endpoint is no address.
    """

    def __init__(self, address: Address) -> None:
        self._door = Door(address)

    def bounds(self) -> tuple[int, int]:
        """(first, last) position there is; `last` is `first` - 1 when there is none. Raises: FailedPrecondition (the
        broker keeps no event log), Unavailable."""
        found = persistently(lambda: self._door.get("/api/v1/events/bounds", {}))
        return int(found["first"]), int(found["last"])

    def offset(self, at_ns: int) -> int:
        """The first position at which something happened at that instant, nanoseconds since the epoch, or later.
        Raises: as `bounds`."""
        return int(persistently(lambda: self._door.get("/api/v1/events/offset", {"time_ns": at_ns}))["position"])

    def extent(self, first: int, rows_max: int | None = None, bytes_max: int | None = None) -> tuple[int, int]:
        """The last position of a range from `first` on with at most so many rows and about so many bytes, but of one
        position with rows at least, and how many rows it has. Raises: as `bounds`."""
        wanted = {"first": first, "rows_max": rows_max or "", "bytes_max": bytes_max or ""}
        found = persistently(lambda: self._door.get("/api/v1/events/extent", wanted))
        return int(found["last"]), int(found["rows"])

    def read(self, first: int, last: int, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Record batches with what happened at positions `first` to `last`, inclusive, in order. A stream that breaks
        is taken up again behind the last position that came whole.

        Args:
            first, last: positions.
            columns: names of `heliograph.wire.arrow_events.SCHEMA`; `position` must be one.

        Raises:
            FailedPrecondition: the broker keeps no event log.
            Unavailable: the broker did not answer, or not to the end, several times.
        """
        failures = 0
        while first <= last:
            wanted = {"first": first, "last": last, "columns": ",".join(columns)}
            try:
                for batch in self._door.batches("/api/v1/events/read", wanted, "the event log"):
                    if batch.num_rows:  # the broker ends a batch behind a whole position
                        failures = 0
                        first = batch.column("position")[-1].as_py() + 1
                        yield batch
                return
            except Unavailable:
                failures += 1
                door.pause(failures)
