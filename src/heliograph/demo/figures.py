"""The demonstration's Spark job: archive the flights, then measure them from the archive.

What was published twice (a client repeats a call whose answer was lost) is archived twice, as two messages of the
broker; the figures count different flights, told apart by `row`, their place in the input.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from heliograph.spark.failure import in_one_line
from heliograph.spark.log_client import LogClient
from heliograph.spark.pipeline.archive import Archived, archive, read_archive
from heliograph.spark.session import create_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLIGHT = "`row` INT, hour INT, dep_time INT, dep_delay INT"
"""What is read of a message's JSON."""

AIRLINE_HOURS = f"""
    WITH parsed AS (
        SELECT coalesce(attributes['carrier'], '?') AS carrier, from_json(CAST(data AS STRING), '{FLIGHT}') AS flight
        FROM {{messages}}
    ),
    flights AS (
        SELECT carrier, flight.`row`, flight.hour, flight.dep_time, flight.dep_delay, count(*) AS messages
        FROM parsed GROUP BY ALL
    )
    SELECT if(grouping(carrier) = 1, '', carrier) AS carrier, hour, sum(messages) AS messages, count(`row`) AS flights,
        count_if(`row` IS NOT NULL AND dep_time IS NULL) AS cancelled, avg(dep_delay) AS delay_minutes
    FROM flights GROUP BY GROUPING SETS ((carrier, hour), (hour)) ORDER BY carrier, hour
"""
"""One pass over the archive. A message that is no flight has neither hour nor row, and counts as a message only."""


class HourOfDay(msgspec.Struct, frozen=True):
    """The flights that were due to leave in one hour of the day.

    Args:
        carrier: the airline; "" = all together.
        hour: 0-23, local time.
        flights: how many.
        cancelled: how many of them never left.
        delay_minutes: mean delay at departure of those that left; None = none did.
    """

    carrier: str
    hour: int
    flights: int
    cancelled: int
    delay_minutes: float | None


class FlightFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What Spark found.

    Args:
        archived: what the archive took in, and where it is.
        messages: messages in the archive, per airline.
        flights: different flights in the archive, per airline.
        hours: the hours of the day that have flights, in order.
        airline_hours: the same per airline.
    """

    archived: Archived
    messages: Mapping[str, int]
    flights: Mapping[str, int]
    hours: Sequence[HourOfDay]
    airline_hours: Sequence[HourOfDay]


def start_spark(endpoint: str, topic: str) -> SparkSession:
    """A session that has read from the broker once already, so that `run_flights` spends its time on flights.

    It takes some twelve seconds on two cores, most of them waiting for programs to start: call it in a thread while
    the rest of the demonstration works. The topic must exist; none of its messages are read.

    Raises:
        HeliographError: no Spark, no Java, no broker or no topic; the message says what to do.
    """
    LogClient(endpoint).bounds(topic)
    spark = create_session("heliograph demo", brief=True)
    nothing = {"endpoint": endpoint, "topic": topic, "endingOffsets": "earliest"}
    with in_one_line(f"Reading {topic}"):
        spark.read.format("heliograph").options(**nothing).load().count()
    return spark


def run_flights(spark: SparkSession, *, endpoint: str, topic: str, archive_directory: Path) -> FlightFigures:
    """Archive the topic's messages and measure the flights in the archive.

    Args:
        spark: from `start_spark`.
        endpoint: the broker, `http://host:port` or `host:port`.
        topic: full name; its messages are flights as JSON, with the airline as attribute `carrier`.
        archive_directory: made if it is missing.

    Raises:
        HeliographError: as `heliograph.spark.pipeline.archive.archive`; a topic without messages is a
            `FailedPrecondition`.
    """
    archived = archive(spark, endpoint=endpoint, topic=topic, directory=archive_directory)
    archived_messages = read_archive(spark, archive_directory, topic)
    messages: Counter[str] = Counter()
    flights: Counter[str] = Counter()
    hours = []
    with in_one_line("Measuring the flights"):
        rows = spark.sql(AIRLINE_HOURS, messages=archived_messages).collect()
    for row in rows:
        messages[row.carrier] += row.messages
        flights[row.carrier] += row.flights
        if row.hour is not None:
            hours.append(HourOfDay(row.carrier, row.hour, row.flights, row.cancelled, row.delay_minutes))
    return FlightFigures(
        archived=archived,
        messages={carrier: count for carrier, count in messages.items() if carrier},
        flights={carrier: count for carrier, count in flights.items() if carrier},
        hours=[hour for hour in hours if not hour.carrier],
        airline_hours=[hour for hour in hours if hour.carrier],
    )
