"""From the archive to rows that can be worked with: parsed, validated, each once; what cannot be is put aside.

`refined/` has for each message its `value`, as a variant, and which schema it follows; `quarantine/` has what is left
out, with the reason, the error, the position and the data as they came. Together they have every archived message once:
a row that is wrong never stops the job, and never goes missing.

Both are tables with the archive's positions (`table.py`). A batch is committed to the quarantine first; where a run was
killed between the two, the next one repeats that very range, which gives the same rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from heliograph.errors import FailedPrecondition, HeliographError, Internal, InvalidArgument
from heliograph.spark.failure import in_one_line
from heliograph.spark.pipeline.archive import BATCH_MESSAGES_MAX, read_archive, write_by_hour
from heliograph.spark.pipeline.definitions import Definitions
from heliograph.spark.pipeline.job import Outcome, Place, Tell, silent, sql_text
from heliograph.spark.pipeline.parsing import PARSED, SCHEMA_NAME, SCHEMA_REVISION, arrow_parser
from heliograph.spark.pipeline.rejecting import Rejects
from heliograph.spark.pipeline.table import Commit, Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WATERMARK_SECONDS_DEFAULT = 3600.0

KEPT = "message_id, sequence, ordering_key, attributes, publish_time, publish_time_ns, priority"

REFINED_COLUMNS = f"{KEPT}, schema, value, unique_key"
QUARANTINED_COLUMNS = f"{KEPT}, schema, reason, error, data, unique_key"

JUDGED = """
    WITH seen AS (
        SELECT unique_key, publish_time_ns, sequence FROM {earlier}
        UNION ALL SELECT unique_key, publish_time_ns, sequence FROM {fresh} WHERE unique_key IS NOT NULL
    ),
    alike AS (
        SELECT sequence, min(sequence) OVER (
            PARTITION BY unique_key ORDER BY publish_time_ns
            RANGE BETWEEN {watermark_ns}L PRECEDING AND {watermark_ns}L FOLLOWING) AS first_alike
        FROM seen
    )
    SELECT f.* EXCEPT (reason, error),
        if(reason = '' AND first_alike < f.sequence, 'duplicate', reason) AS reason,
        if(reason = '' AND first_alike < f.sequence,
            concat('the same as the message of sequence ', first_alike), error) AS error
    FROM {fresh} f LEFT JOIN alike a ON f.sequence = a.sequence
"""
"""Which message was first is told by the order in the log: batches do not matter then where times are not in order."""


class RefineOptions(NamedTuple):
    """How to refine.

    Args:
        schemas: by topic's full name, for messages that tell no schema of their own: the file of an Avro (`.avsc`) or
            Protocol Buffers (`.proto`) definition, or the full name of a schema of the broker.
        encoding: of these messages, JSON or BINARY.
        unique_by: what duplicates share: `message_id`, `data`, `ordering_key`, `attributes.NAME` or `value.PATH`.
        watermark_seconds: a duplicate is published no later, and no earlier, than this after one before it in the log.
        batch_messages: a batch has no more messages.
        dead_letter_topic: full name of the topic that gets what is wrong, duplicates apart, as well; "" = none does.
    """

    schemas: Mapping[str, str] = {}
    encoding: str = "JSON"
    unique_by: str = "message_id"
    watermark_seconds: float = WATERMARK_SECONDS_DEFAULT
    batch_messages: int = BATCH_MESSAGES_MAX
    dead_letter_topic: str = ""


DEFAULTS = RefineOptions()


def refine(
    spark: SparkSession,
    place: Place,
    options: RefineOptions = DEFAULTS,
    tell: Tell = silent,
) -> Outcome:
    """Refine what the archive has beyond the last run. A second run adds nothing.

    Raises:
        InvalidArgument: an option makes no sense, or a schema that it names is none.
        FailedPrecondition: nothing is archived, or a table is damaged or in use.
        TopicNotFound: there is no such dead letter topic.
    """
    key = unique_key(options.unique_by)
    archive = Table(place.table("archive"))
    topics = [topic for topic in archive.series() if place.looks_at(topic)]
    if not topics:
        raise FailedPrecondition(f"Nothing is archived in {archive.directory}: run the job archive first")
    refined, quarantine = Table(place.table("refined")), Table(place.table("quarantine"))
    if options.dead_letter_topic:
        place.logs.bounds(options.dead_letter_topic)
    definitions = Definitions(place, refined.directory / "_schemas", options.schemas, options.encoding)
    counts = {"refined": 0, "quarantined": 0, "duplicates": 0}
    with archive.reading(), refined.changing(), quarantine.changing():
        waiting = {topic: _waiting(archive, refined, topic) for topic in topics}
        for topic in topics:
            refined.settle(topic)
            quarantine.settle(topic)
            rejects = None
            if options.dead_letter_topic not in ("", topic):  # what is wrong there would come back for ever
                rejects = Rejects(spark, place, topic, options.dead_letter_topic)
            job = _Topic(spark, topic, archive, refined, quarantine, definitions, key, options, rejects)
            for number, first, last in job.ranges():
                tell(f"refining {topic}", lag=sum(waiting.values()))
                with in_one_line(f"Refining {topic}"):
                    good, bad, duplicates = job.add(number, first, last)
                waiting[topic] = max(waiting[topic] - (last - first + 1), 0)
                tell(f"refining {topic}", good + bad + duplicates, sum(waiting.values()))
                counts["refined"] += good
                counts["quarantined"] += bad
                counts["duplicates"] += duplicates
    figures: dict[str, int | float | str] = {"topics": len(topics), **counts}
    return Outcome(sum(counts.values()), 0, figures, tuple(definitions.remarks))


def _waiting(archive: Table, refined: Table, topic: str) -> int:
    """How many archived messages of a topic are not refined yet, as far as that can be read."""
    with contextlib.suppress(HeliographError):  # refining it will say what is wrong
        commits = archive.commits(topic)
        number = max((commit.topic_number for commit in commits), default=0)
        first = min((commit.first for commit in commits if commit.topic_number == number), default=1)
        return max(archive.next_position(topic, number, first) - refined.next_position(topic, number, first), 0)
    return 0


def read_refined(spark: SparkSession, directory: Path, topic: str, columns: str = "") -> DataFrame:
    """The refined messages of a topic.

    Args:
        spark: where to read.
        directory: the pipeline's.
        topic: full name.
        columns: fields of `value` as columns of their own, in the words of Spark's SQL: "carrier STRING, hour INT";
            what does not fit is null.

    Raises:
        FailedPrecondition: there is nothing yet.
    """
    rows = _read(spark, Table(directory / "refined"), topic)
    if not columns:
        return rows
    fields = f"try_variant_get(value, '$', 'STRUCT<{_struct(columns)}>')"
    return rows.selectExpr("*", f"{fields} AS fields").selectExpr("* EXCEPT (value, fields)", "fields.*")


def read_quarantine(spark: SparkSession, directory: Path, topic: str) -> DataFrame:
    """What was left out of a topic, with `reason` and `error`. Raises: FailedPrecondition (there is nothing)."""
    return _read(spark, Table(directory / "quarantine"), topic)


def unique_key(unique_by: str) -> str:
    """What duplicates share, as an expression of Spark's SQL. Raises: InvalidArgument."""
    kind, _, name = unique_by.partition(".")
    if unique_by in ("message_id", "ordering_key"):
        return f"nullif({unique_by}, '')"
    if unique_by == "data":
        return "hex(data)"
    if kind == "attributes" and name:
        return f"attributes[{sql_text(name)}]"
    if kind == "value" and name:
        return f"try_variant_get(value, {sql_text(f'$.{name}')}, 'STRING')"
    raise InvalidArgument(
        f"Duplicates cannot be told by {unique_by!r}: say message_id, data, ordering_key, attributes.NAME or value.PATH"
    )


class _Topic:
    """The work on one topic."""

    def __init__(
        self,
        spark: SparkSession,
        topic: str,
        archive: Table,
        refined: Table,
        quarantine: Table,
        definitions: Definitions,
        key: str,
        options: RefineOptions,
        rejects: Rejects | None,
    ) -> None:
        self._rejects = rejects
        self._spark = spark
        self._topic = topic
        self._archive = archive
        self._refined = refined
        self._quarantine = quarantine
        self._definitions = definitions
        self._key = key
        self._options = options

    def ranges(self) -> list[tuple[int, int, int]]:
        """(topic's number, first, last) of each batch that is to be made, in order."""
        found: list[tuple[int, int, int]] = []
        commits = self._archive.commits(self._topic)
        for number in sorted({commit.topic_number for commit in commits}):
            lives = [commit for commit in commits if commit.topic_number == number]
            first = self._refined.next_position(self._topic, number, min(commit.first for commit in lives))
            end = max(commit.last for commit in lives)
            half_done = self._quarantine.next_position(self._topic, number, first) - 1
            if half_done >= first:
                found.append((number, first, half_done))
                first = half_done + 1
            while first <= end:
                last = min(first + self._options.batch_messages - 1, end)
                found.append((number, first, last))
                first = last + 1
        return found

    def add(self, number: int, first: int, last: int) -> tuple[int, int, int]:
        """Refine one batch. Returns (good, bad, duplicate) messages."""
        try:
            archived = read_archive(
                self._spark, self._archive.directory, self._topic, number=number, first=first, last=last
            )
        except FailedPrecondition:  # all of it is past its retention
            self._refined.write(Commit(self._topic, number, first, last, []), lambda target: None, lambda rows: None)
            return 0, 0, 0
        fresh = self._parsed(archived.drop("topic", "dt", "hr")).cache()
        judged = self._judged(fresh, number, first).cache()
        try:
            counts = {row.reason: row["count"] for row in judged.groupBy("reason").count().collect()}
            total, good, duplicates = sum(counts.values()), counts.get("", 0), counts.get("duplicate", 0)
            draft = Commit(self._topic, number, first, last, [], figures={"duplicates": duplicates})
            if self._quarantine.next_position(self._topic, number, first) == first:
                bad = judged.where("reason <> ''").selectExpr(*QUARANTINED_COLUMNS.split(", "))
                self._quarantine.write(draft, lambda target: write_by_hour(bad, target), _exactly(total - good))
            if self._rejects is not None and total - good - duplicates:
                wrong = judged.where("reason NOT IN ('', 'duplicate')")
                self._rejects.publish(wrong, number, last)
            fine = judged.where("reason = ''").selectExpr(*REFINED_COLUMNS.split(", "))
            self._refined.write(draft, lambda target: write_by_hour(fine, target), _exactly(good))
        finally:
            judged.unpersist()
            fresh.unpersist()
        return good, total - good - duplicates, duplicates

    def _parsed(self, messages: DataFrame) -> DataFrame:
        """Messages with their `value`, or `reason` and `error`, and the `unique_key`."""
        from pyspark.sql.types import StringType, StructField, StructType

        named = messages.selectExpr(
            f"attributes['{SCHEMA_NAME}'] AS name", f"attributes['{SCHEMA_REVISION}'] AS revision"
        )
        uses = [(row.name, row.revision or "") for row in named.where("name IS NOT NULL").distinct().collect()]
        parser = arrow_parser(self._definitions.of(self._topic, uses), self._options.encoding)
        columns = [*messages.schema.fields, *(StructField(name, StringType()) for name in PARSED)]
        parsed = messages.mapInArrow(parser, StructType(columns))
        valued = parsed.selectExpr("*", "CASE WHEN json IS NOT NULL THEN try_parse_json(json) END AS value")
        unfit = "reason = '' AND json IS NOT NULL AND value IS NULL"
        judged = valued.selectExpr(
            "* EXCEPT (json, reason, error)",
            f"if({unfit}, 'not_json', reason) AS reason",
            f"if({unfit}, 'too deep, too large, or a name twice', error) AS error",
        )
        keyed = judged.selectExpr("*", f"CASE WHEN reason = '' THEN CAST({self._key} AS STRING) END AS full_key")
        key = "if(length(full_key) > 64, sha2(full_key, 256), full_key) AS unique_key"
        return keyed.selectExpr("* EXCEPT (full_key)", key)

    def _judged(self, fresh: DataFrame, number: int, first: int) -> DataFrame:
        """With duplicates among what is left out."""
        if self._options.unique_by == "message_id":  # there are none in a log
            return fresh
        earlier = self._earlier(fresh, number, first)
        watermark_ns = int(self._options.watermark_seconds * 1e9)
        return self._spark.sql(JUDGED, fresh=fresh, earlier=earlier, watermark_ns=watermark_ns)

    def _earlier(self, messages: DataFrame, number: int, first: int) -> DataFrame:
        """The keys of messages before the batch that its first ones may repeat."""
        nothing = self._spark.createDataFrame([], "unique_key STRING, publish_time_ns BIGINT, sequence BIGINT")
        oldest = messages.selectExpr("min(publish_time_ns) AS oldest").collect()[0].oldest
        if oldest is None:
            return nothing
        since_ns = oldest - int(self._options.watermark_seconds * 1e9)
        frames = [nothing]
        for table, condition in ((self._refined, "true"), (self._quarantine, "reason = 'duplicate'")):
            paths = [str(path) for path in table.files(self._topic, 0, first - 1, number)]
            if paths:
                rows = self._spark.read.option("basePath", str(table.directory)).parquet(*paths).where(condition)
                rows = rows.where(f"unique_key IS NOT NULL AND publish_time_ns >= {since_ns} AND sequence < {first}")
                frames.append(rows.select("unique_key", "publish_time_ns", "sequence"))
        found = frames[0]
        for frame in frames[1:]:
            found = found.union(frame)
        return found


def _read(spark: SparkSession, table: Table, topic: str) -> DataFrame:
    paths = [str(path) for path in table.files(topic)]
    if not paths:
        raise FailedPrecondition(f"There is nothing of {topic} in {table.directory}")
    return spark.read.option("basePath", str(table.directory)).parquet(*paths)


def _exactly(expected: int) -> Any:
    def check(rows: int) -> None:
        if rows != expected:
            raise Internal(f"Spark wrote {rows} of {expected} rows; nothing was committed")

    return check


def _struct(columns: str) -> str:
    """`a INT, b STRING` as the fields of a STRUCT<…>: `a: INT, b: STRING`."""
    from pyspark.sql.types import StructType

    return StructType.fromDDL(columns).simpleString().removeprefix("struct<").removesuffix(">")
