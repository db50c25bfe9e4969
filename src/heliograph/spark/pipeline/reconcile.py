"""Proves, hour by hour, that a topic's log, its archive and its acknowledgements agree, and lists every difference.

Compared is what was archived and is still in the log; what the archive has not taken yet is lag, not a difference. A
message differs if it is in only one of the two, in the archive more than once, or there with other contents. Of each
subscription, what the event log says was settled must exist, and what it leaves open must be what the broker says.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow.dataset as ds

from heliograph.errors import FailedPrecondition
from heliograph.spark.failure import in_one_line
from heliograph.spark.log_client import LogBounds
from heliograph.spark.pipeline.archive import read_archive
from heliograph.spark.pipeline.job import Outcome, Place, Tell, replaced, silent
from heliograph.spark.pipeline.table import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SHOWN_MAX = 20
QUIET_LOOKS_MAX = 5

SETTLED = ("acknowledged", "dead_lettered", "dropped", "purged")
"""Events after which a subscription is done with a message."""

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

SETTLEMENTS = """
    SELECT subscription, sequence, min(message_id) AS message_id, min(event_time) AS event_time,
        count_if(event = 'acknowledged') AS acknowledged,
        max_by(event, position) IN ('acknowledged', 'dead_lettered', 'dropped', 'purged') AS settled
    FROM {events}
    WHERE topic = {topic} AND subscription IS NOT NULL AND message_id LIKE {ids}
        AND event IN ('acknowledged', 'dead_lettered', 'dropped', 'purged')
    GROUP BY subscription, sequence
"""

COLUMNS = "topic STRING, subscription STRING, sequence BIGINT, message_id STRING, at TIMESTAMP, difference STRING"


class Open(NamedTuple):
    """What the broker says of a subscription, while nothing happens: how many messages came, how many are open."""

    topic: str
    published: int
    unacknowledged: int


class Look(NamedTuple):
    """The event log, and the broker's own counts of the same moment; without them if it was too busy."""

    first: int
    last: int
    subscriptions: dict[str, Open]
    is_quiet: bool


def reconcile(spark: SparkSession, place: Place, tell: Tell = silent) -> Outcome:
    """Compare, and write the tables `reconcile/hours` and `reconcile/differences` anew.

    Raises:
        HeliographError: no broker, no topic, nothing archived, or a damaged archive.
    """
    table = Table(place.table("archive"))
    archived = set(table.series())
    bounds = {topic: found for topic, found in place.bounds().items() if topic in archived or topic in place.topics}
    if not bounds:
        raise FailedPrecondition(f"Nothing is archived in {table.directory}: run the job archive first")
    look = _look(place)
    remarks: list[str] = []
    with table.reading(), replaced(place.table("reconcile")) as target:
        lag = 0
        for topic, held in bounds.items():
            tell(f"comparing {topic}")
            with in_one_line(f"Comparing {topic}"):
                lag += _topic(spark, place, table, topic, held, look, target)
            tell(f"compared {topic}", held.last - held.first + 1)
    compared, archive_rows = _sum(place.table("reconcile") / "hours", "log", "archive")
    differences = _differences(place.table("reconcile") / "differences")
    if look is None:
        remarks.append("The broker keeps no event log: acknowledgements were not compared.")
    elif not look.is_quiet:
        remarks.append("The broker was busy: what is open was not compared with what it says.")
    remarks += [_sentence(row) for row in differences[:SHOWN_MAX]]
    if len(differences) > SHOWN_MAX:
        remarks.append(f"and {len(differences) - SHOWN_MAX:,} more, in {place.table('reconcile') / 'differences'}")
    figures = {"topics": len(bounds), "log": compared, "archive": archive_rows, "differences": len(differences)}
    return Outcome(compared, lag, figures, tuple(remarks), is_good=not differences)


def _look(place: Place) -> Look | None:
    """None = there is no event log."""
    try:
        before = place.events.bounds()
    except FailedPrecondition:
        return None
    for _ in range(QUIET_LOOKS_MAX):
        counted = place.door.get("/api/v1/statistics", {})["subscriptions"]
        after = place.events.bounds()
        if after == before:
            return Look(*after, {_name(each): _open(each) for each in counted}, is_quiet=True)
        before = after
    return Look(*before, {}, is_quiet=False)


def _name(counted: dict[str, Any]) -> str:
    return f"queues/{counted['name']}" if counted["kind"] == "queue" else str(counted["name"])


def _open(counted: dict[str, Any]) -> Open:
    topic = f"queues/{counted['topic']}" if counted["kind"] == "queue" else str(counted["topic"])
    return Open(topic, counted["published_total"], counted["ready"] + counted["delayed"] + counted["outstanding"])


def _topic(
    spark: SparkSession, place: Place, table: Table, topic: str, held: LogBounds, look: Look | None, target: Path
) -> int:
    """Compare one topic. Returns how many messages the archive has not taken yet."""
    from pyspark.sql import functions as sf

    end = table.next_position(topic, held.topic_number, held.first)
    last = min(end - 1, held.last)
    log = place.read_log(spark, topic, held.first, last, failOnDataLoss=False)
    try:
        archive = read_archive(spark, table.directory, topic, number=held.topic_number, first=held.first, last=end - 1)
    except FailedPrecondition:
        archive = log.where("false")
    horizon = _horizon(table)
    if horizon:
        log = log.where(sf.col("publish_time") >= sf.lit(horizon).cast("timestamp"))
    compared = spark.sql(COMPARED, log=log, archive=archive.select(*log.columns)).cache()
    try:
        differences = compared.where("difference IS NOT NULL").selectExpr(
            "sequence", "message_id", "publish_time AS at", "difference", "'' AS subscription"
        )
        if look is not None:
            differences = differences.unionByName(_acknowledgements(spark, place, topic, held, look, table))
        named = differences.withColumn("topic", sf.lit(topic))
        columns = [field.split()[0] for field in COLUMNS.split(", ")]
        hours = spark.sql(HOURS, compared=compared).withColumn("topic", sf.lit(topic))
        hours.coalesce(1).write.mode("append").parquet(str(target / "hours"))
        named.select(*columns).coalesce(1).write.mode("append").parquet(str(target / "differences"))
    finally:
        compared.unpersist()
    return held.last - last


def _acknowledgements(
    spark: SparkSession, place: Place, topic: str, held: LogBounds, look: Look, table: Table
) -> DataFrame:
    """What differs between the event log, what there is and what the broker says."""
    from pyspark.sql import functions as sf

    events = place.read_events(spark, look.first, look.last)
    settlements = spark.sql(SETTLEMENTS, events=events, topic=topic, ids=f"{held.topic_number}%")
    known = place.read_log(spark, topic, held.first, held.last, failOnDataLoss=False).select("sequence")
    if table.files(topic, number=held.topic_number):
        archived = read_archive(spark, table.directory, topic, number=held.topic_number).select("sequence")
        known = known.union(archived)
    oldest = known.agg(sf.coalesce(sf.min("sequence"), sf.lit(2**62)).alias("oldest"))
    lost = (
        settlements.join(known.distinct(), "sequence", "left_anti")
        .crossJoin(oldest)
        .where("sequence >= oldest")
        .selectExpr(
            "sequence",
            "message_id",
            "event_time AS at",
            "'settled, but it does not exist' AS difference",
            "subscription",
        )
    )
    if not look.is_quiet or look.first > 1:
        return lost
    settled = {
        row.subscription: row.n for row in settlements.groupBy("subscription").agg(sf.count("*").alias("n")).collect()
    }
    rows = [
        (
            f"the broker says that {each.unacknowledged:,} messages are open, its event log "
            f"that {each.published - settled.get(name, 0):,} are",
            name,
        )
        for name, each in look.subscriptions.items()
        if each.topic == topic and each.published - settled.get(name, 0) != each.unacknowledged
    ]
    if not rows:
        return lost
    open_rows = spark.createDataFrame(rows, "difference STRING, subscription STRING").selectExpr(
        "CAST(NULL AS BIGINT) AS sequence",
        "'' AS message_id",
        "current_timestamp() AS at",
        "difference",
        "subscription",
    )
    return lost.unionByName(open_rows)


def _horizon(table: Table) -> str:
    """Days before this one are gone from the archive on purpose; "" = none are."""
    file = table.directory / "_retention"
    return file.read_text().strip() if file.exists() else ""


def _sum(directory: Path, *columns: str) -> list[int]:
    found = ds.dataset(directory, format="parquet").to_table(columns=list(columns)) if directory.exists() else None
    return [sum(found[column].to_pylist()) if found is not None else 0 for column in columns]


def _differences(directory: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = ds.dataset(directory, format="parquet").to_table().to_pylist()
    return sorted(rows, key=lambda row: (row["topic"], row["subscription"], row["sequence"] or 0))


def _sentence(row: dict[str, Any]) -> str:
    where = f"{row['topic']} {row['subscription']}".strip()
    return (
        f"{where}: {row['difference']}"
        if row["sequence"] is None
        else (
            f"{where}: message {row['message_id']} (sequence {row['sequence']}) is {row['difference']}"
            if not row["difference"].startswith("settled")
            else f"{where}: message {row['message_id']} (sequence {row['sequence']}) was {row['difference']}"
        )
    )
