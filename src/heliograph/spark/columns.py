"""The columns of the Spark source, with the Spark types that equal the Arrow types of the broker's doors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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
"""Of a topic's log: `heliograph.wire.arrow.SCHEMA`."""

CLAIM_COLUMNS: Mapping[str, DataType] = {**COLUMNS, "delivery_attempt": IntegerType(), "claim": LongType()}
"""Of what is claimed of a subscription: `heliograph.wire.arrow.CLAIM_SCHEMA`."""

EVENT_COLUMNS: Mapping[str, DataType] = {
    "position": LongType(),
    "event": StringType(),
    "event_time": TimestampType(),
    "event_time_ns": LongType(),
    "topic": StringType(),
    "subscription": StringType(),
    "message_id": StringType(),
    "sequence": LongType(),
    "attempt": IntegerType(),
    "consumer": StringType(),
    "wait_us": LongType(),
    "processing_us": LongType(),
    "reason": StringType(),
    "last_sequence": LongType(),
}
"""Of the event log: `heliograph.wire.arrow_events.SCHEMA`."""

_BY_MODE = {"log": COLUMNS, "queue": CLAIM_COLUMNS, "events": EVENT_COLUMNS}


def chosen(mode: str, left_out: Iterable[str]) -> dict[str, DataType]:
    """The columns of a mode of the source, without some."""
    return {name: kind for name, kind in _BY_MODE[mode].items() if name not in left_out}


def struct(columns: Mapping[str, DataType]) -> StructType:
    """As a schema of Spark."""
    return StructType([StructField(name, kind) for name, kind in columns.items()])
