"""Holds the event log against the broker, message by message: what the events leave open must be what the broker says
is not acknowledged, and what they say is settled must exist.

Each subscription is judged as of one instant: the broker tells what was open then, once all that led to it is durable;
later events are not looked at. So a busy broker raises no alarm. Judged are messages of which the event log still tells
anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from heliograph.engine.message import SEQUENCES_PER_TOPIC
from heliograph.errors import FailedPrecondition, SubscriptionNotFound
from heliograph.spark.log_client import LogBounds
from heliograph.spark.pipeline.job import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SETTLED = "('acknowledged', 'dead_lettered', 'dropped', 'purged')"
"""Events after which a subscription is done with a message, unless it comes back."""

TOLD = f"""
    WITH told AS (
        SELECT e.subscription, e.sequence, e.last_sequence, e.event, e.event_time,
            struct(e.position, e.event_time_ns) AS place
        FROM {{events}} e JOIN {{subscriptions}} s
            ON e.subscription = s.subscription AND e.event_time_ns BETWEEN s.created_ns AND s.at_ns
    ),
    mine AS (
        SELECT subscription, sequence, event, event_time, place FROM told WHERE last_sequence IS NULL
        UNION ALL
        SELECT subscription, explode(sequence(sequence, last_sequence)), event, event_time, place
        FROM told WHERE last_sequence IS NOT NULL
    ),
    moved AS (
        SELECT subscription, max(place) AS moved FROM mine WHERE event = 'sought' AND sequence IS NULL
        GROUP BY subscription
    ),
    touched AS (
        SELECT subscription, sequence, max(place) AS place, max(event_time) AS event_time,
            max_by(event, struct(place, event IN {SETTLED})) AS event
        FROM mine WHERE sequence IS NOT NULL GROUP BY subscription, sequence
    ),
    published AS (
        SELECT s.subscription, e.sequence, struct(e.position, e.event_time_ns) AS place, e.event_time AS published
        FROM {{events}} e JOIN {{subscriptions}} s
            ON CAST(e.message_id AS BIGINT) DIV {SEQUENCES_PER_TOPIC} = s.topic_number
            AND e.event_time_ns > s.created_ns AND e.event_time_ns <= s.at_ns
        WHERE e.event = 'published'
    )
    SELECT coalesce(t.subscription, p.subscription) AS subscription, coalesce(t.sequence, p.sequence) AS sequence,
        p.published, t.event, t.event_time,
        CASE WHEN coalesce(t.place, p.place) < m.moved THEN 'passed over by a seek'
            WHEN t.event IN {SETTLED} THEN replace(t.event, '_', '-')
        END AS settled
    FROM published p FULL OUTER JOIN touched t ON p.subscription = t.subscription AND p.sequence = t.sequence
        LEFT JOIN moved m ON coalesce(t.subscription, p.subscription) = m.subscription
"""
"""What the events say of each message: how it was settled, NULL = it is open."""

HELD_AGAINST = """
    SELECT coalesce(t.subscription, o.subscription) AS subscription, coalesce(t.sequence, o.sequence) AS sequence,
        t.published, coalesce(t.event_time, t.published) AS at, t.settled, o.sequence IS NOT NULL AS is_open,
        CASE WHEN t.settled IS NOT NULL AND o.sequence IS NOT NULL THEN concat('open, although it was ', t.settled)
            WHEN t.sequence IS NOT NULL AND t.settled IS NULL AND o.sequence IS NULL
                AND (t.event IS NOT NULL OR NOT s.is_filtered) THEN 'neither open nor settled'
        END AS difference
    FROM {told} t FULL OUTER JOIN {open} o ON t.subscription = o.subscription AND t.sequence = o.sequence
        LEFT JOIN {subscriptions} s ON coalesce(t.subscription, o.subscription) = s.subscription
"""

WITH_NAMES = f"""
    SELECT s.topic, h.subscription, h.sequence, CAST(s.topic_number * {SEQUENCES_PER_TOPIC} + h.sequence AS STRING)
        AS message_id, h.at, h.difference
    FROM {{differences}} h JOIN {{subscriptions}} s ON h.subscription = s.subscription
"""

UNREAL = f"""
    WITH known AS (
        SELECT CAST(message_id AS BIGINT) AS id FROM {{known}}
    ),
    oldest AS (SELECT id DIV {SEQUENCES_PER_TOPIC} AS topic_number, min(id) AS oldest FROM known GROUP BY 1)
    SELECT t.subscription, t.sequence, t.event_time AS at,
        concat(t.settled, ', but it does not exist') AS difference
    FROM {{told}} t JOIN {{subscriptions}} s ON t.subscription = s.subscription
        JOIN oldest ON oldest.topic_number = s.topic_number
        LEFT ANTI JOIN known ON known.id = s.topic_number * {SEQUENCES_PER_TOPIC} + t.sequence
    WHERE t.event IS NOT NULL AND t.settled IS NOT NULL AND t.sequence <= s.last
        AND s.topic_number * {SEQUENCES_PER_TOPIC} + t.sequence >= oldest.oldest
"""

HOURS = """
    SELECT s.topic, h.subscription, date_trunc('HOUR', h.published) AS hour, count_if(h.settled IS NOT NULL) AS settled,
        count_if(h.is_open) AS open, count(h.difference) AS differences
    FROM {held} h JOIN {subscriptions} s ON h.subscription = s.subscription GROUP BY ALL
"""

SUBSCRIPTIONS = (
    "subscription STRING, topic STRING, topic_number BIGINT, created_ns BIGINT, at_ns BIGINT, is_filtered BOOLEAN, "
    "last BIGINT"
)
RUNS = "subscription STRING, first BIGINT, stop BIGINT"


class Open(msgspec.Struct, frozen=True):
    """What a subscription had not acknowledged at an instant; see `server/unacknowledged.py`."""

    subscription: str
    topic: str
    topic_number: int
    at_ns: int
    created_ns: int
    is_filtered: bool
    is_detached: bool
    runs: list[tuple[int, int]]


class Look(msgspec.Struct, frozen=True):
    """All subscriptions at about one moment, and the positions of the event log that tell of what led to it."""

    first: int
    last: int
    subscriptions: list[Open]

    @property
    def settled_ns(self) -> int:
        """What happened up to this instant is judged of every subscription; 0 = there is none."""
        return min((each.at_ns for each in self.subscriptions), default=0)


def open_of(place: Place, subscription: str) -> Open | None:
    """What a subscription, by its full name, has not acknowledged now; None = it was deleted just now. Raises:
    Unavailable."""
    try:
        told = place.door.get("/api/v1/unacknowledged", {"subscription": subscription})
    except SubscriptionNotFound:
        return None
    return msgspec.convert(told, Open)


def look(place: Place, bounds: Mapping[str, LogBounds]) -> Look | None:
    """The subscriptions of these topics, as they are now; None = the broker keeps no event log.

    Args:
        place: where the broker is.
        bounds: of the topics, by full name.

    Raises:
        Unavailable: no broker answers.
    """
    try:
        place.events.bounds()
    except FailedPrecondition:
        return None
    found = []
    for each in place.subscriptions():
        if each.topic not in bounds:
            continue
        is_open = open_of(place, each.subscription)
        if is_open is None or is_open.is_detached:
            continue
        if is_open.topic_number == bounds[is_open.topic].topic_number:
            found.append(is_open)
    return Look(*place.events.bounds(), found)


class Settlements:
    """What the event log and the broker say of the messages of subscriptions.

    Args:
        spark: where to compare.
        place: where the broker is.
        looked: from `look`.
        bounds: what was given to it.
    """

    def __init__(self, spark: SparkSession, place: Place, looked: Look, bounds: Mapping[str, LogBounds]) -> None:
        self._spark = spark
        rows: list[tuple[Any, ...]] = [
            (
                each.subscription,
                each.topic,
                each.topic_number,
                each.created_ns,
                each.at_ns,
                each.is_filtered,
                bounds[each.topic].last,
            )
            for each in looked.subscriptions
        ]
        self._subscriptions = spark.createDataFrame(rows, SUBSCRIPTIONS)
        runs = [(each.subscription, first, stop) for each in looked.subscriptions for first, stop in each.runs]
        is_open = spark.createDataFrame(runs, RUNS).selectExpr(
            "subscription", "explode(sequence(first, stop - 1)) AS sequence"
        )
        events = place.read_events(spark, looked.first, looked.last)
        self._told = spark.sql(TOLD, events=events, subscriptions=self._subscriptions).cache()
        self._held = spark.sql(HELD_AGAINST, told=self._told, open=is_open, subscriptions=self._subscriptions).cache()

    def hours(self) -> DataFrame:
        """By topic, subscription and hour of publication (NULL = before the event log begins): how many messages were
        settled, and how many open."""
        return self._spark.sql(HOURS, held=self._held, subscriptions=self._subscriptions)

    def differences(self, known: DataFrame) -> DataFrame:
        """Columns topic, subscription, sequence, message_id, at and difference.

        Args:
            known: the `message_id` of every message that there is, in logs and archive.
        """
        found = self._held.where("difference IS NOT NULL").select("subscription", "sequence", "at", "difference")
        unreal = self._spark.sql(UNREAL, told=self._told, known=known, subscriptions=self._subscriptions)
        return self._spark.sql(WITH_NAMES, differences=found.unionByName(unreal), subscriptions=self._subscriptions)

    def close(self) -> None:
        """Forget what was read."""
        self._held.unpersist()
        self._told.unpersist()
