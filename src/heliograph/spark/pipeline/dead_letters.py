"""What could not be processed, and why: a table, and a page for people.

Looked at are the quarantine of the job `refine`, what subscriptions and queues gave up (from the event log), and topics
that dead letters are forwarded to (from the archive). Errors that differ in numbers and ids only have one fingerprint.
Messages of different versions of their producer are told apart, where an attribute says which it was.

What may succeed a second time is a candidate for redriving: `redrive-candidates/` has each, and the page the command.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from heliograph.errors import FailedPrecondition
from heliograph.page import document, table
from heliograph.spark.failure import in_one_line
from heliograph.spark.pipeline.job import QUEUE_PREFIX, Outcome, Place, Tell, replaced, silent, sql_text
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

CANDIDATES_MAX = 1_000_000
"""Messages in the table of candidates; the newest."""

VERSION_ATTRIBUTES = ("producer_version", "app_version", "version")
"""Where the version of a producer is looked for, in this order."""

LETTER = (
    "source STRING, topic STRING, subscription STRING, reason STRING, error STRING, at TIMESTAMP, message_id STRING, "
    "version STRING"
)

GROUPED = f"""
    SELECT source, topic, subscription, reason, fingerprint, version, count(*) AS count,
        min(at) AS first_seen, max(at) AS last_seen, min_by(error, at) AS sample_error,
        slice(array_sort(collect_set(message_id)), 1, {SAMPLES}) AS sample_ids
    FROM {{letters}} GROUP BY ALL ORDER BY count DESC LIMIT {GROUPS_MAX}
"""

CANDIDATES = f"""
    SELECT source, topic, subscription, reason, error, version, at, message_id FROM {{letters}}
    WHERE source = 'forwarded' OR source = 'given up' AND subscription LIKE '{QUEUE_PREFIX}%'
        OR source = 'quarantine' AND reason = 'schema_unknown'
    ORDER BY at DESC LIMIT {CANDIDATES_MAX}
"""


class DeadLetterOptions(NamedTuple):
    """How to look at them.

    Args:
        version_attributes: names of the attributes that tell the version of a message's producer; the first one that it
            has counts.
    """

    version_attributes: tuple[str, ...] = VERSION_ATTRIBUTES


def fingerprint(error: str) -> str:
    """What errors of one kind share: numbers and ids are left out."""
    for pattern, replacement in _STEPS:
        error = re.sub(pattern, replacement, error)
    return error.strip()


def fingerprint_sql(column: str) -> str:
    """`fingerprint` as an expression of Spark's SQL."""
    for pattern, replacement in _STEPS:
        column = f"regexp_replace({column}, {sql_text(pattern)}, '{replacement}')"
    return f"trim({column})"


DEFAULTS = DeadLetterOptions()


def redrive(group: Mapping[str, Any], topics: Mapping[str, str]) -> str:
    """The command that has dead letters of a kind processed again; "" where that would end as before.

    Args:
        group: a row of the table.
        topics: by the full name of a subscription, its topic's.
    """
    source, subscription = group["source"], group["subscription"] or ""
    if source == "given up" and subscription.startswith(QUEUE_PREFIX):
        return f"heliograph dead-letter retry {quote(subscription.removeprefix(QUEUE_PREFIX))}"
    if source == "quarantine" and group["reason"] == "schema_unknown":
        where = quote("reason = 'schema_unknown'")
        return f"heliograph pipeline run replay --from quarantine --topic {quote(group['topic'])} --where {where}"
    if source == "forwarded":
        ends = [topic for name, topic in topics.items() if name.endswith(f"/subscriptions/{subscription}")]
        to = quote(ends[0]) if len(ends) == 1 else "TOPIC"
        where = quote(f"attributes['{FORWARDED}'] = {sql_text(subscription)}")  # publishers may write anything there
        return f"heliograph pipeline run replay --topic {quote(group['topic'])} --to {to} --where {where}"
    return ""


def dead_letters(
    spark: SparkSession, place: Place, options: DeadLetterOptions = DEFAULTS, tell: Tell = silent
) -> Outcome:
    """Write `dead-letters/` and `redrive-candidates/` (tables), `dead-letters.html` and `dead-letters.md` anew.

    Raises:
        HeliographError: no broker, or a damaged table.
    """
    version = _version(options.version_attributes)
    tell("grouping")
    with (
        in_one_line("Grouping dead letters"),
        Table(place.table("archive")).reading(),
        Table(place.table("quarantine")).reading(),
        replaced(place.table("dead-letters")) as target,
    ):
        letters = spark.createDataFrame([], LETTER)
        for find in (_quarantined, _given_up, _forwarded):
            for frame in find(spark, place, version):
                letters = letters.unionByName(frame)
        told = letters.selectExpr("*", f"{fingerprint_sql('error')} AS fingerprint")
        spark.sql(GROUPED, letters=told).coalesce(1).write.parquet(str(target))
        with replaced(place.table("redrive-candidates")) as candidates:
            spark.sql(CANDIDATES, letters=letters).coalesce(1).write.parquet(str(candidates))
    topics = _topics(place)
    groups = [group | {"redrive": redrive(group, topics)} for group in _groups(place.table("dead-letters"))]
    write_whole(place.directory / "dead-letters.md", markdown(groups).encode())
    write_whole(place.directory / "dead-letters.html", page(groups).encode())
    total = sum(group["count"] for group in groups)
    by_source = {source: sum(g["count"] for g in groups if g["source"] == source) for source in _sources(groups)}
    lines = [
        f"{group['count']:,} × {group['reason']}{': ' + group['fingerprint'] if group['fingerprint'] else ''}"
        f" ({group['subscription'] or group['topic']})"
        for group in groups[:SHOWN]
    ]
    candidates = sum(group["count"] for group in groups if group["redrive"])
    figures = {"dead letters": total, "kinds": len(groups), **by_source, "redrive candidates": candidates}
    return Outcome(total, 0, figures, tuple(lines))


def _version(attributes: Sequence[str]) -> str:
    """The version of a message's producer, as an expression of Spark's SQL."""
    found = "".join(f"attributes[{sql_text(name)}], " for name in attributes)
    return f"coalesce({found}'')"


def _topics(place: Place) -> dict[str, str]:
    """By the full name of each subscription."""
    return {each.subscription: each.topic for each in place.subscriptions()}


def _kept(spark: SparkSession, place: Place, name: str) -> Iterator[DataFrame]:
    """The rows of a table, by topic. Within `Table.reading`: no file that was found goes."""
    kept = Table(place.table(name))
    for topic in kept.series():
        paths = [str(path) for path in kept.files(topic)]
        if paths and place.looks_at(topic):
            yield spark.read.option("basePath", str(kept.directory)).parquet(*paths)


def _quarantined(spark: SparkSession, place: Place, version: str) -> Iterator[DataFrame]:
    for rows in _kept(spark, place, "quarantine"):
        yield rows.where("reason <> 'duplicate'").selectExpr(
            "'quarantine' AS source",
            "topic",
            "'' AS subscription",
            "reason",
            "error",
            "publish_time AS at",
            "message_id",
            f"{version} AS version",
        )


def _given_up(spark: SparkSession, place: Place, version: str) -> Iterator[DataFrame]:
    try:
        first, last = place.events.bounds()
    except FailedPrecondition:  # no event log is kept
        return
    if last >= first:
        given_up = place.read_events(spark, first, last).where("event = 'dead_lettered'")
        told = given_up.join(_versions(spark, place, version), "message_id", "left")
        yield told.selectExpr(
            "'given up' AS source",
            "coalesce(topic, '') AS topic",
            "subscription",
            "reason",
            "concat('after ', attempt, ' deliveries') AS error",
            "event_time AS at",
            "message_id",
            "coalesce(version, '') AS version",
        )


def _versions(spark: SparkSession, place: Place, version: str) -> DataFrame:
    """Of each archived message whose producer tells one: `message_id` and `version`."""
    versions = spark.createDataFrame([], "message_id STRING, version STRING")
    for rows in _kept(spark, place, "archive"):
        versions = versions.union(rows.selectExpr("message_id", f"{version} AS version").where("version <> ''"))
    return versions


def _forwarded(spark: SparkSession, place: Place, version: str) -> Iterator[DataFrame]:
    for rows in _kept(spark, place, "archive"):
        yield rows.where(f"attributes['{FORWARDED}'] IS NOT NULL").selectExpr(
            "'forwarded' AS source",
            "topic",
            f"attributes['{FORWARDED}'] AS subscription",
            "'MaxDeliveryAttempts' AS reason",
            "coalesce(attributes['error'], '') AS error",
            "publish_time AS at",
            "message_id",
            f"{version} AS version",
        )


def _groups(directory: Path) -> list[dict[str, Any]]:
    files = sorted(directory.glob("*.parquet"))
    rows: list[dict[str, Any]] = pa.concat_tables([pq.read_table(file) for file in files]).to_pylist() if files else []
    return sorted(rows, key=lambda row: (-row["count"], row["source"], row["topic"], row["reason"]))


def _sources(groups: list[dict[str, Any]]) -> list[str]:
    return sorted({group["source"] for group in groups})


HEADS = ("count", "reason", "error", "where", "version", "first seen", "last seen", "samples")
REDRIVE_HEADS = ("count", "reason", "where", "how")


def _row(group: dict[str, Any]) -> tuple[str, ...]:
    where = group["subscription"] or group["topic"]
    return (
        f"{group['count']:,}",
        group["reason"] or "",
        group["sample_error"] or "",
        f"{group['source']}: {where}",
        group.get("version") or "",
        _instant(group["first_seen"]),
        _instant(group["last_seen"]),
        ", ".join(group["sample_ids"]),
    )


def _redriven(groups: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Rows of the candidates for redriving: kinds that the same command has processed again are one."""
    counts: dict[str, int] = {}
    firsts: dict[str, dict[str, Any]] = {}
    for group in groups:
        command = group.get("redrive", "")
        if command:
            counts[command] = counts.get(command, 0) + group["count"]
            firsts.setdefault(command, group)
    return [
        (f"{count:,}", firsts[how]["reason"] or "", firsts[how]["subscription"] or firsts[how]["topic"], how)
        for how, count in counts.items()
    ]


def _instant(at: datetime) -> str:
    return (at.astimezone(UTC) if at.tzinfo else at).strftime("%Y-%m-%d %H:%M:%S")


def markdown(groups: list[dict[str, Any]]) -> str:
    """The page as Markdown."""
    total = sum(group["count"] for group in groups)
    lines = ["# Dead letters", "", f"{total:,} messages, {len(groups):,} kinds of failure.", ""]
    if groups:
        lines += ["| " + " | ".join(HEADS) + " |", "|" + " --- |" * len(HEADS)]
        lines += ["| " + " | ".join(_cell(cell) for cell in _row(group)) + " |" for group in groups]
    redriven = _redriven(groups)
    if redriven:
        lines += ["", "## Redrive candidates", "", "| " + " | ".join(REDRIVE_HEADS) + " |"]
        lines += ["|" + " --- |" * len(REDRIVE_HEADS)]
        lines += ["| " + " | ".join(_cell(cell) for cell in row) + " |" for row in redriven]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(html.escape(text, quote=False).replace("|", "\\|").split())


def page(groups: list[dict[str, Any]]) -> str:
    """The page as HTML that needs no network."""
    total = sum(group["count"] for group in groups)
    body = f"<p>{total:,} messages, {len(groups):,} kinds of failure.</p>"
    if groups:
        body += table(HEADS, [_row(group) for group in groups])
    redriven = _redriven(groups)
    if redriven:
        body += "<h2>Redrive candidates</h2>" + table(REDRIVE_HEADS, redriven)
    return document("Dead letters", body)
