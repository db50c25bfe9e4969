"""What could not be processed, and why: a table, and a page for people.

Looked at are the quarantine of the job `refine`, what subscriptions and queues gave up (from the event log), and topics
that dead letters are forwarded to (from the archive). Errors that differ in numbers and ids only have one fingerprint.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from heliograph.errors import FailedPrecondition
from heliograph.spark.failure import in_one_line
from heliograph.spark.pipeline.job import Outcome, Place, Tell, replaced, silent
from heliograph.spark.pipeline.table import Table, write_whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

GROUPS_MAX = 1_000
SAMPLES = 5
SHOWN = 20

FORWARDED = "CloudPubSubDeadLetterSourceSubscription"

_STEPS = (
    (r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}", "<id>"),
    (r"\b0x[0-9a-fA-F]+\b", "<id>"),
    (r"\b(?=[0-9a-fA-F]*[0-9])(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{8,}\b", "<id>"),
    (r"\d+(?:\.\d+)?", "<n>"),
    (r"\s+", " "),
)
"""In this order; the same in Java's and in Python's regular expressions."""

LETTER = (
    "source STRING, topic STRING, subscription STRING, reason STRING, error STRING, at TIMESTAMP, message_id STRING"
)

GROUPED = f"""
    SELECT source, topic, subscription, reason, fingerprint, count(*) AS count,
        min(at) AS first_seen, max(at) AS last_seen, min_by(error, at) AS sample_error,
        slice(array_sort(collect_set(message_id)), 1, {SAMPLES}) AS sample_ids
    FROM {{letters}} GROUP BY ALL ORDER BY count DESC LIMIT {GROUPS_MAX}
"""


def fingerprint(error: str) -> str:
    """What errors of one kind share: numbers and ids are left out."""
    for pattern, replacement in _STEPS:
        error = re.sub(pattern, replacement, error)
    return error.strip()


def fingerprint_sql(column: str) -> str:
    """`fingerprint` as an expression of Spark's SQL."""
    for pattern, replacement in _STEPS:
        quoted = pattern.replace("\\", "\\\\")
        column = f"regexp_replace({column}, '{quoted}', '{replacement}')"
    return f"trim({column})"


def dead_letters(spark: SparkSession, place: Place, tell: Tell = silent) -> Outcome:
    """Write `dead-letters/` (a table), `dead-letters.html` and `dead-letters.md` anew.

    Raises:
        HeliographError: no broker, or a damaged table.
    """
    frames = [*_quarantined(spark, place), *_given_up(spark, place), *_forwarded(spark, place)]
    letters = spark.createDataFrame([], LETTER)
    for frame in frames:
        letters = letters.unionByName(frame)
    tell("grouping")
    with (
        in_one_line("Grouping dead letters"),
        Table(place.table("archive")).reading(),
        Table(place.table("quarantine")).reading(),
        replaced(place.table("dead-letters")) as target,
    ):
        told = letters.selectExpr("*", f"{fingerprint_sql('error')} AS fingerprint")
        spark.sql(GROUPED, letters=told).coalesce(1).write.parquet(str(target))
    groups = _groups(place.table("dead-letters"))
    write_whole(place.directory / "dead-letters.md", markdown(groups).encode())
    write_whole(place.directory / "dead-letters.html", page(groups).encode())
    total = sum(group["count"] for group in groups)
    by_source = {source: sum(g["count"] for g in groups if g["source"] == source) for source in _sources(groups)}
    lines = [
        f"{group['count']:,} × {group['reason']}{': ' + group['fingerprint'] if group['fingerprint'] else ''}"
        f" ({group['subscription'] or group['topic']})"
        for group in groups[:SHOWN]
    ]
    return Outcome(total, 0, {"dead letters": total, "kinds": len(groups), **by_source}, tuple(lines))


def _quarantined(spark: SparkSession, place: Place) -> Iterable[DataFrame]:
    table = Table(place.table("quarantine"))
    for topic in table.series():
        paths = [str(path) for path in table.files(topic)]
        if paths and place.looks_at(topic):
            rows = spark.read.option("basePath", str(table.directory)).parquet(*paths)
            yield rows.where("reason <> 'duplicate'").selectExpr(
                "'quarantine' AS source",
                "topic",
                "'' AS subscription",
                "reason",
                "error",
                "publish_time AS at",
                "message_id",
            )


def _given_up(spark: SparkSession, place: Place) -> Iterable[DataFrame]:
    try:
        first, last = place.events.bounds()
    except FailedPrecondition:  # no event log is kept
        return
    if last >= first:
        yield (
            place.read_events(spark, first, last)
            .where("event = 'dead_lettered'")
            .selectExpr(
                "'given up' AS source",
                "coalesce(topic, '') AS topic",
                "subscription",
                "reason",
                "concat('after ', attempt, ' deliveries') AS error",
                "event_time AS at",
                "message_id",
            )
        )


def _forwarded(spark: SparkSession, place: Place) -> Iterable[DataFrame]:
    table = Table(place.table("archive"))
    for topic in table.series():
        paths = [str(path) for path in table.files(topic)]
        if paths and place.looks_at(topic):
            rows = spark.read.option("basePath", str(table.directory)).parquet(*paths)
            yield rows.where(f"attributes['{FORWARDED}'] IS NOT NULL").selectExpr(
                "'forwarded' AS source",
                "topic",
                f"attributes['{FORWARDED}'] AS subscription",
                "'MaxDeliveryAttempts' AS reason",
                "coalesce(attributes['error'], '') AS error",
                "publish_time AS at",
                "message_id",
            )


def _groups(directory: Path) -> list[dict[str, Any]]:
    files = sorted(directory.glob("*.parquet"))
    rows: list[dict[str, Any]] = pa.concat_tables([pq.read_table(file) for file in files]).to_pylist() if files else []
    return sorted(rows, key=lambda row: (-row["count"], row["source"], row["topic"], row["reason"]))


def _sources(groups: list[dict[str, Any]]) -> list[str]:
    return sorted({group["source"] for group in groups})


HEADS = ("count", "reason", "error", "where", "first seen", "last seen", "samples")


def _row(group: dict[str, Any]) -> tuple[str, ...]:
    where = group["subscription"] or group["topic"]
    return (
        f"{group['count']:,}",
        group["reason"] or "",
        group["sample_error"] or "",
        f"{group['source']}: {where}",
        _instant(group["first_seen"]),
        _instant(group["last_seen"]),
        ", ".join(group["sample_ids"]),
    )


def _instant(at: datetime) -> str:
    return (at.astimezone(UTC) if at.tzinfo else at).strftime("%Y-%m-%d %H:%M:%S")


def markdown(groups: list[dict[str, Any]]) -> str:
    """The page as Markdown."""
    total = sum(group["count"] for group in groups)
    lines = ["# Dead letters", "", f"{total:,} messages, {len(groups):,} kinds of failure.", ""]
    if groups:
        lines += ["| " + " | ".join(HEADS) + " |", "|" + " --- |" * len(HEADS)]
        lines += ["| " + " | ".join(_cell(cell) for cell in _row(group)) + " |" for group in groups]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(html.escape(text, quote=False).replace("|", "\\|").split())


def page(groups: list[dict[str, Any]]) -> str:
    """The page as HTML that needs no network."""
    from heliograph.page import document, table

    total = sum(group["count"] for group in groups)
    body = f"<p>{total:,} messages, {len(groups):,} kinds of failure.</p>"
    return document("Dead letters", body + (table(HEADS, [_row(group) for group in groups]) if groups else ""))
