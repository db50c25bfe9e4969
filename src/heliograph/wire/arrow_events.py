"""The event log as Arrow record batches: one row for each message that something happened to.

The server's event door writes these batches, the Spark source reads them. Nothing here does I/O.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from heliograph.engine.facts import (
    DeadLettersRetried,
    Details,
    Fact,
    MessagesAcknowledged,
    MessagesDeadLettered,
    MessagesDropped,
    MessagesLeased,
    MessagesPublished,
    MessagesPurged,
    MessagesReturned,
    ReturnCause,
    SubscriptionSought,
)
from heliograph.engine.message import SEQUENCES_PER_TOPIC
from heliograph.engine.ranges import unpack_runs
from heliograph.engine.topic import STAGING_PREFIX

EVENTS = (
    "published",
    "delivered",
    "acknowledged",
    "nacked",
    "expired",
    "released",
    "dead_lettered",
    "dropped",
    "purged",
    "retried",
    "sought",
)
"""What the column `event` says: a message was published to its topic; was handed to a consumer; was acknowledged, given
back or not acknowledged in time by it, or came back because its consumer went away; was given up; never reached a
subscription at its capacity; went because of a purge, its TTL, or the retention; or came back from the dead letters. A
subscription that was moved has one row `sought` without a message, and one for each run of messages that were not
acknowledged afterwards: from then on all others are."""

SCHEMA = pa.schema(
    [
        ("position", pa.int64()),
        ("event", pa.string()),
        ("event_time", pa.timestamp("us", tz="UTC")),
        ("event_time_ns", pa.int64()),
        ("topic", pa.string()),
        ("subscription", pa.string()),
        ("message_id", pa.string()),
        ("sequence", pa.int64()),
        ("attempt", pa.int32()),
        ("consumer", pa.string()),
        ("wait_us", pa.int64()),
        ("processing_us", pa.int64()),
        ("reason", pa.string()),
        ("last_sequence", pa.int64()),
    ]
)
"""Every column that there is. `topic` is null where its name is not known any more; `subscription` is null of what is
published; `message_id` and `sequence` are null where a subscription was moved; `attempt` (from 1) is null where nothing
was delivered; `wait_us` is the time from publication to delivery, of what is delivered; `processing_us` the time from
delivery to the event, of what was delivered before; `reason` of dead letters, and where a subscription was moved to:
`time NANOSECONDS` or `snapshot NAME`; `last_sequence` is that of the run that such a row tells of, which begins with
`sequence`. Position, event, subscription, message and attempt together name a row."""

ROW_BYTES = 150
"""Of one row without the names in it, about."""

_CAUSES = {ReturnCause.NACKED: "nacked", ReturnCause.EXPIRED: "expired", ReturnCause.RELEASED: "released"}
_UNKNOWN = -1


class EventRows:
    """Rows in the making.

    Args:
        topic_names: by number, of the topics that there are now.
    """

    def __init__(self, topic_names: Mapping[int, str]) -> None:
        self._topic_names = dict(topic_names)
        self._groups: list[tuple[Any, ...]] = []  # what the rows of one fact share, and how many they are
        self._sequences = array("q")
        self._attempts = array("q")
        self._waits_us = array("q")
        self._processings_us = array("q")
        self._lasts: dict[int, int] = {}  # last sequence by row, where a row tells of a run

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def size_bytes(self) -> int:
        """Of the rows, about, as Arrow has them."""
        texts = ((group[0], group[2], group[5], group[6], group[7]) for group in self._groups)
        return sum(count * (ROW_BYTES + sum(len(text or "") for text in each)) for count, *each in texts)

    def add(self, position: int, facts: Sequence[Fact]) -> None:
        """The rows of what happened at a position. Facts without `Details` are from times without an event log."""
        for fact in facts:
            match fact:
                case MessagesPublished(topic=topic) if topic.startswith(STAGING_PREFIX):
                    continue
                case MessagesPublished(details=Details() as details):
                    self._topic_names[fact.topic_number] = fact.topic
                    self._add(position, "published", fact, range(fact.first_sequence, fact.last_sequence + 1), details)
                case MessagesLeased(details=Details() as details):
                    self._add(position, "delivered", fact, fact.sequences, details)
                case MessagesAcknowledged(details=Details() as details):
                    self._add(position, "acknowledged", fact, fact.sequences, details)
                case MessagesReturned(details=Details() as details):
                    self._add(position, _CAUSES[fact.cause], fact, fact.sequences, details)
                case MessagesDeadLettered(details=Details() as details):
                    if fact.cause is not None:
                        self._add(position, _CAUSES[fact.cause], fact, fact.sequences, details)
                    self._add(position, "dead_lettered", fact, fact.sequences, details)
                case MessagesDropped(details=Details() as details):
                    self._add(position, "dropped", fact, fact.sequences, details)
                case MessagesPurged(details=Details() as details):
                    self._add(position, "purged", fact, fact.sequences, details)
                case DeadLettersRetried(details=Details() as details):
                    self._add(position, "retried", fact, fact.sequences, details)
                case SubscriptionSought(details=Details() as details):
                    runs = unpack_runs(fact.held)
                    row = len(self) + 1
                    self._lasts |= {row + place: stop - 1 for place, (_, stop) in enumerate(runs)}
                    self._add(position, "sought", fact, [_UNKNOWN, *(first for first, _ in runs)], details)

    def _add(self, position: int, event: str, fact: Any, sequences: Sequence[int], details: Details) -> None:
        count = len(sequences)
        self._sequences.extend(sequences)
        spans_us = details.spans_us * count if len(details.spans_us) == 1 else details.spans_us
        unknown = array("q", [_UNKNOWN]) * count
        spans = array("q", spans_us) if spans_us else unknown
        delivered = event == "delivered"
        self._waits_us.extend(spans if delivered else unknown)
        self._processings_us.extend(unknown if delivered else spans)
        if details.attempts:
            self._attempts.extend(details.attempts)
        else:  # all were delivered once, or never
            self._attempts.extend(array("q", [1 if delivered or spans_us else _UNKNOWN]) * count)
        reason = fact.reason.value if event == "dead_lettered" else getattr(fact, "target", None)
        consumer = fact.consumer or None if delivered else None
        subscription = getattr(fact, "subscription", None)
        at_ns, number = details.at_ns, details.topic_number
        self._groups.append((count, position, event, at_ns, number, subscription, consumer, reason))

    def record_batch(self, schema: pa.Schema) -> pa.RecordBatch:
        """All of them, with the columns of `schema`, which are some of `SCHEMA`."""
        if not self._groups:
            return pa.RecordBatch.from_pylist([], schema)
        columns = zip(*self._groups, strict=True)
        counts, positions, events, instants, numbers, subscriptions, consumers, reasons = columns
        indices = array("q")
        for index, count in enumerate(counts):
            indices.extend(array("q", [index]) * count)
        places = _int64(indices)

        def spread(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
            return pa.array(values, kind).take(places)

        builders = {
            "position": lambda: spread(positions, pa.int64()),
            "event": lambda: spread(events, pa.string()),
            "event_time": lambda: spread([ns // 1_000 for ns in instants], pa.int64()).cast(SCHEMA.field(2).type),
            "event_time_ns": lambda: spread(instants, pa.int64()),
            "topic": lambda: spread([self._topic_names.get(number) for number in numbers], pa.string()),
            "subscription": lambda: spread(subscriptions, pa.string()),
            "message_id": lambda: _message_ids(spread(numbers, pa.int64()), _known(self._sequences)),
            "sequence": lambda: _known(self._sequences),
            "attempt": lambda: _known(self._attempts).cast(pa.int32()),
            "consumer": lambda: spread(consumers, pa.string()),
            "wait_us": lambda: _known(self._waits_us),
            "processing_us": lambda: _known(self._processings_us),
            "reason": lambda: spread(reasons, pa.string()),
            "last_sequence": lambda: (
                pa.array(map(self._lasts.get, range(len(self))), pa.int64())
                if self._lasts
                else pa.nulls(len(self), pa.int64())
            ),
        }
        return pa.RecordBatch.from_arrays([builders[name]() for name in schema.names], schema=schema)


def _int64(values: array[int]) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


def _known(values: array[int]) -> pa.Array:
    numbers = _int64(values)
    return pc.if_else(pc.equal(numbers, _UNKNOWN), pa.scalar(None, pa.int64()), numbers)


def _message_ids(topic_numbers: pa.Array, sequences: pa.Array) -> pa.Array:
    digits = pc.utf8_lpad(sequences.cast(pa.string()), len(str(SEQUENCES_PER_TOPIC - 1)), "0")
    return pc.binary_join_element_wise(topic_numbers.cast(pa.string()), digits, "")
