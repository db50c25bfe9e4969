"""Proves, hour by hour, that a topic's log, its archive and its acknowledgements agree, and lists every difference.

Compared is what was archived and is still in the log; what the archive has not taken yet is lag, not a difference. A
message differs if it is in only one of the two, in the archive more than once, or there with other contents. Of each
subscription, what the event log says was settled must exist, and what it leaves open must be what the broker says
(`settlements.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow.dataset as ds

from heliograph.errors import FailedPrecondition
from heliograph.spark.failure import in_one_line
from heliograph.spark.log_client import LogBounds
from heliograph.spark.pipeline.archive import read_archive
from heliograph.spark.pipeline.job import Outcome, Place, Tell, replaced, silent
from heliograph.spark.pipeline.settlements import Look, Settlements, look
from heliograph.spark.pipeline.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHOWN_MAX = 20

CONTENT = "xxhash64(data, ordering_key, array_sort(map_entries(attributes)), publish_time_ns, priority)"

COMPARED = f"""
    WITH log AS (SELECT sequence, publish_time, message_id, {CONTENT} AS content FROM {{log}}),
    archive AS (
        SELECT sequence, min(publish_time) AS publish_time, min(message_id) AS message_id, count(*) AS copies,
            min({CONTENT}) AS content, max({CONTENT}) AS other_content
        FROM {{archive}} GROUP BY sequence
    )
    SELECT coalesce(log.sequence, archive.sequence) AS sequence,
        coalesce(log.message_id, archive.message_id) AS message_id,
        coalesce(log.publish_time, archive.publish_time) AS publish_time,
        log.sequence IS NOT NULL AS in_log, coalesce(archive.copies, 0) AS copies,
        CASE WHEN archive.sequence IS NULL THEN 'not in the archive'
            WHEN log.sequence IS NULL THEN 'only in the archive'
            WHEN archive.copies > 1 THEN concat('archived ', archive.copies, ' times')
            WHEN archive.content <> log.content OR archive.other_content <> log.content
                THEN 'archived with other contents'
        END AS difference
    FROM log FULL OUTER JOIN archive ON log.sequence = archive.sequence
"""

HOURS = """
    SELECT date_trunc('HOUR', publish_time) AS hour, count_if(in_log) AS log, sum(copies) AS archive,
        count(difference) AS differences
    FROM {compared} GROUP BY 1
"""

COLUMNS = "topic STRING, subscription STRING, sequence BIGINT, message_id STRING, at TIMESTAMP, difference STRING"


def reconcile(spark: SparkSession, place: Place, tell: Tell = silent) -> Outcome:
    """Compare, and write the tables `reconcile/hours`, `reconcile/acknowledgements` and `reconcile/differences` anew.

    Raises:
        HeliographError: no broker, no topic, nothing archived, or a damaged archive.
    """
    table = Table(place.table("archive"))
    archived = set(table.series())
    all_bounds = place.bounds()
    bounds = {topic: found for topic, found in all_bounds.items() if topic in archived or topic in place.topics}
    if not bounds:
        raise FailedPrecondition(f"Nothing is archived in {table.directory}: run the job archive first")
    remarks, lag = _not_archived({topic: held for topic, held in all_bounds.items() if topic not in bounds})
    with table.reading(), replaced(place.table("reconcile")) as target:
        for topic, held in bounds.items():
            tell(f"comparing {topic}")
            with in_one_line(f"Comparing {topic}"):
                lag += _topic(spark, place, table, topic, held, target)
            tell(f"compared {topic}", held.last - held.first + 1)
        tell("comparing acknowledgements")
        with in_one_line("Comparing acknowledgements"):
            looked = _acknowledgements(spark, place, table, bounds, target)
    compared, archive_rows = _sum(place.table("reconcile") / "hours", "log", "archive")
    differences = _differences(place.table("reconcile") / "differences")
    figures: dict[str, int | float | str] = {"topics": len(bounds), "log": compared, "archive": archive_rows}
    if looked is None:
        remarks.append("The broker keeps no event log: acknowledgements were not compared.")
    else:
        figures["subscriptions"] = len(looked.subscriptions)
        if looked.settled_ns:
            figures["settled until"] = _instant(looked.settled_ns)
    figures["differences"] = len(differences)
    remarks += [_sentence(row) for row in differences[:SHOWN_MAX]]
    if len(differences) > SHOWN_MAX:
        remarks.append(f"and {len(differences) - SHOWN_MAX:,} more, in {place.table('reconcile') / 'differences'}")
    return Outcome(compared, lag, figures, tuple(remarks), is_good=not differences)


def _not_archived(bounds: Mapping[str, LogBounds]) -> tuple[list[str], int]:
    """Of topics that no run has archived: what to say, and how many messages wait."""
    waiting = {topic: held.last - held.first + 1 for topic, held in bounds.items() if held.last >= held.first}
    if not waiting:
        return [], 0
    names = ", ".join(sorted(waiting)[:SHOWN_MAX])
    more = f" and {len(waiting) - SHOWN_MAX:,} more" if len(waiting) > SHOWN_MAX else ""
    lag = sum(waiting.values())
    return [f"Not archived yet, so not compared: {lag:,} messages of {names}{more}"], lag


def _topic(spark: SparkSession, place: Place, table: Table, topic: str, held: LogBounds, target: Path) -> int:
    """Compare log and archive of one topic. Returns how many messages the archive has not taken yet."""
    from pyspark.sql import functions as sf

    end = table.next_position(topic, held.topic_number, held.first)
    last = min(end - 1, held.last)
    log = place.read_log(spark, topic, held.first, last, failOnDataLoss=False)
    try:
        archive = read_archive(spark, table.directory, topic, number=held.topic_number, first=held.first, last=end - 1)
    except FailedPrecondition:
        archive = log.where("false")
    horizon = table.horizon(topic)
    if horizon:
        log = log.where(sf.col("publish_time") >= sf.lit(horizon).cast("timestamp"))
    compared = spark.sql(COMPARED, log=log, archive=archive.select(*log.columns)).cache()
    try:
        differences = compared.where("difference IS NOT NULL").selectExpr(
            "sequence", "message_id", "publish_time AS at", "difference", "'' AS subscription"
        )
        hours = spark.sql(HOURS, compared=compared).withColumn("topic", sf.lit(topic))
        hours.coalesce(1).write.mode("append").parquet(str(target / "hours"))
        _write(differences.withColumn("topic", sf.lit(topic)), target)
    finally:
        compared.unpersist()
    return held.last - last


def _write(differences: DataFrame, target: Path) -> None:
    columns = [field.split()[0] for field in COLUMNS.split(", ")]
    differences.select(*columns).coalesce(1).write.mode("append").parquet(str(target / "differences"))


def _acknowledgements(
    spark: SparkSession, place: Place, table: Table, bounds: Mapping[str, LogBounds], target: Path
) -> Look | None:
    """Compare event log and broker. Returns what was looked at; None = there is no event log.

    A difference is told if a second look finds it, too: clocks are no finer than they are, and a broker that starts
    again may be set back.
    """
    looked = look(place, bounds)
    if looked is None or not looked.subscriptions:
        return looked
    known = _known(spark, place, table, bounds)
    settlements = Settlements(spark, place, looked, bounds)
    try:
        settlements.hours().coalesce(1).write.parquet(str(target / "acknowledgements"))
        rows = settlements.differences(known).collect()
    finally:
        settlements.close()
    if not rows:
        return looked
    again = look(place, bounds) or looked
    settlements = Settlements(spark, place, again, bounds)
    try:
        seen = {(row.subscription, row.sequence, row.difference) for row in settlements.differences(known).collect()}
    finally:
        settlements.close()
    confirmed = [row for row in rows if (row.subscription, row.sequence, row.difference) in seen]
    _write(spark.createDataFrame(confirmed, COLUMNS), target)
    return looked


def _known(spark: SparkSession, place: Place, table: Table, bounds: Mapping[str, LogBounds]) -> DataFrame:
    """The id of every message in a log or in the archive; some come twice."""
    readable = {topic: held for topic, held in bounds.items() if held.last >= held.first}
    known = spark.createDataFrame([], "message_id STRING")
    if readable:
        options = place.options(
            topics=",".join(readable),
            startingOffsets=msgspec.json.encode({topic: held.first for topic, held in readable.items()}).decode(),
            endingOffsets=msgspec.json.encode({topic: held.last + 1 for topic, held in readable.items()}).decode(),
            failOnDataLoss=False,
            includePayload=False,
            includeAttributes=False,
        )
        known = known.union(spark.read.format("heliograph").options(**options).load().select("message_id"))
    paths = [str(path) for topic, held in bounds.items() for path in table.files(topic, number=held.topic_number)]
    return known.union(spark.read.parquet(*paths).select("message_id")) if paths else known


def _sum(directory: Path, *columns: str) -> list[int]:
    found = ds.dataset(directory, format="parquet").to_table(columns=list(columns)) if directory.exists() else None
    return [sum(found[column].to_pylist()) if found is not None else 0 for column in columns]


def _differences(directory: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = ds.dataset(directory, format="parquet").to_table().to_pylist()
    return sorted(rows, key=lambda row: (row["topic"], row["subscription"], row["sequence"] or 0))


def _sentence(row: dict[str, Any]) -> str:
    where = f"{row['topic']} {row['subscription']}".strip()
    is_event = "does not exist" in row["difference"]
    return (
        f"{where}: message {row['message_id']} (sequence {row['sequence']}) "
        f"{'was' if is_event else 'is'} {row['difference']}"
    )


def _instant(instant_ns: int) -> str:
    return datetime.fromtimestamp(instant_ns / 1e9, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
