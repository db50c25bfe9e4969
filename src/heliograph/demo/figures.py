"""The demonstration's Spark job: archive the flights, then measure them from the archive.

What was published twice (a client repeats a call whose answer was lost) is archived twice, as two messages of the broker;
the figures count different flights, told apart by `row`, their place in the input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from heliograph.spark.pipeline.archive import Archived, archive, read_archive

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLIGHT = "`row` INT, carrier STRING, hour INT, dep_time INT, dep_delay INT"
"""What is read of a message's JSON."""

PARSED = f"""
    SELECT attributes['carrier'] AS airline, from_json(CAST(data AS STRING), '{FLIGHT}') AS flight FROM {{messages}}
"""

AIRLINES = f"""
    WITH parsed AS ({PARSED})
    SELECT airline, count(*) AS messages, count(DISTINCT flight.`row`) AS flights
    FROM parsed GROUP BY airline ORDER BY airline
"""

HOURS = f"""
    WITH parsed AS ({PARSED}),
    flights AS (SELECT DISTINCT flight.`row`, flight.carrier, flight.hour, flight.dep_time, flight.dep_delay FROM parsed)
    SELECT carrier, hour, count(*) AS flights, count_if(dep_time IS NULL) AS cancelled, avg(dep_delay) AS delay_minutes
    FROM flights GROUP BY GROUPING SETS ((carrier, hour), (hour)) ORDER BY carrier NULLS FIRST, hour
"""


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


def run_flights(spark: SparkSession, *, endpoint: str, topic: str, archive_directory: Path) -> FlightFigures:
    """Archive the topic's messages and measure the flights in the archive.

    Args:
        spark: from `heliograph.spark.session.create_session`.
        endpoint: the broker, `http://host:port` or `host:port`.
        topic: full name; its messages are flights as JSON, with the airline as attribute `carrier`.
        archive_directory: made if it is missing.

    Raises:
        HeliographError: as `heliograph.spark.pipeline.archive.archive`; a topic without messages is a
            `FailedPrecondition`.
    """
    archived = archive(spark, endpoint=endpoint, topic=topic, directory=archive_directory)
    messages = read_archive(spark, archive_directory, topic)
    airlines = spark.sql(AIRLINES, messages=messages).collect()
    hours = [
        HourOfDay(row.carrier or "", row.hour, row.flights, row.cancelled, row.delay_minutes)
        for row in spark.sql(HOURS, messages=messages).collect()
    ]
    return FlightFigures(
        archived=archived,
        messages={row.airline: row.messages for row in airlines},
        flights={row.airline: row.flights for row in airlines},
        hours=[hour for hour in hours if not hour.carrier],
        airline_hours=[hour for hour in hours if hour.carrier],
    )
