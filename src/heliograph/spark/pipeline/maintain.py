"""Keeps the pipeline's tables small: many small batches become one, old days go, and what killed runs have left.

Compaction rewrites batches that lie beside each other and whose hours are over. The rows, and the positions that the
jobs go on from, stay the same; the commits of the small batches, which are the jobs' checkpoints, become one, too. A
reader that this pipeline starts is never disturbed: a table that is being read is left for the next run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from heliograph.errors import FailedPrecondition, InvalidArgument
from heliograph.spark.failure import in_one_line
from heliograph.spark.pipeline.archive import mirror_to_delta, write_by_hour
from heliograph.spark.pipeline.job import Outcome, Place, Tell, silent
from heliograph.spark.pipeline.metrics import write_by_day
from heliograph.spark.pipeline.table import Commit, File, Table, exactly

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCH_BYTES_MAX = 256 * 1024 * 1024
"""A batch of this size is large enough; smaller ones are put together up to it."""

BY_HOUR = ("archive", "refined", "quarantine")
TABLES = (*BY_HOUR, "metrics")


class Retention(NamedTuple):
    """How long rows are kept, in seconds; 0 = for ever.

    Args:
        seconds: of all topics and tables that are not named.
        topics: by full name, in all tables.
        tables: by name, whatever the topic.
    """

    seconds: float = 0
    topics: Mapping[str, float] = {}
    tables: Mapping[str, float] = {}

    def checked(self) -> Retention:
        """The same. Raises: InvalidArgument (it names a table that there is not)."""
        unknown = sorted(self.tables.keys() - set(TABLES))
        if unknown:
            raise InvalidArgument(f"There is no table {unknown[0]!r} to retain; there are {', '.join(TABLES)}")
        return self

    def of(self, table: str, topic: str) -> float:
        """Of a topic's rows in a table."""
        return self.tables.get(table, self.topics.get(topic, self.seconds))


class MaintainOptions(NamedTuple):
    """What to do.

    Args:
        retention: days of publication, or of a metric's window, that are older go.
        batch_bytes: see `BATCH_BYTES_MAX`.
        closed_seconds: an hour that ended so long ago gets no more messages.
    """

    retention: Retention = Retention()
    batch_bytes: int = BATCH_BYTES_MAX
    closed_seconds: float = 3600


def maintain(spark: SparkSession, place: Place, options: MaintainOptions, tell: Tell = silent) -> Outcome:
    """Maintain all tables that there are.

    Raises:
        FailedPrecondition: one is damaged. One that is in use is left alone.
        InvalidArgument: a retention is given for a table that there is not.
    """
    options.retention.checked()
    counts = {"batches before": 0, "batches": 0, "files before": 0, "files": 0, "removed rows": 0, "stray files": 0}
    remarks: list[str] = []
    for name in TABLES:
        table = Table(place.table(name))
        if not table.directory.exists():
            continue
        try:
            with table.rewriting(), table.changing():
                for series in table.series():
                    if name == "metrics" or place.looks_at(series):
                        tell(f"{name}: {series}")
                        with in_one_line(f"Maintaining {name}"):
                            _series(spark, table, series, name, options, counts)
                    else:
                        table.settle(series)
                counts["stray files"] += table.sweep()
                _remove_empty(table.directory)
            if name in BY_HOUR:
                mirror_to_delta(table.directory, tidies=True)
        except FailedPrecondition as error:
            if "damaged" in error.message:
                raise
            remarks.append(f"{name} was left alone: {error.message}")
    return Outcome(counts["batches before"] - counts["batches"], 0, dict(counts), tuple(remarks))


def _series(
    spark: SparkSession, table: Table, series: str, name: str, options: MaintainOptions, counts: dict[str, int]
) -> None:
    by_hour, retain_seconds = name in BY_HOUR, options.retention.of(name, series)
    commits = table.settle(series)
    counts["batches before"] += len(commits)
    counts["files before"] += sum(len(commit.files) for commit in commits)
    if retain_seconds:
        counts["removed rows"] += _forget(table, series, commits, retain_seconds)
        commits = table.commits(series)
    closed = _hour(time.time() - options.closed_seconds - 3600) if by_hour else ""
    for group in groups(commits, options.batch_bytes, closed):
        _merge(spark, table, group, by_hour)
    commits = table.commits(series)
    counts["batches"] += len(commits)
    counts["files"] += sum(len(commit.files) for commit in commits)


def groups(commits: Sequence[Commit], batch_bytes: int, closed: str) -> list[list[Commit]]:
    """Which commits are to become one: neighbours of one life of their series, together no larger than this.

    Args:
        commits: oldest first.
        batch_bytes: bound of a group's size.
        closed: `2013-07-01 12`: a commit with a file of a later hour is left alone; "" = there are no hours.
    """
    found: list[list[Commit]] = [[]]
    for commit in commits:
        if closed and any(hour_of(file) > closed for file in commit.files):
            found.append([])
            continue
        group = found[-1]
        fits = sum(each.bytes for each in group) + commit.bytes <= batch_bytes
        if group and (not fits or group[-1].topic_number != commit.topic_number):
            found.append([])
        found[-1].append(commit)
    return [group for group in found if len(group) > 1]


def hour_of(file: File) -> str:
    """`2013-07-01 12` of `…/dt=2013-07-01/hr=12/…`."""
    parts = dict(part.partition("=")[::2] for part in Path(file.path).parent.parts)
    return f"{parts.get('dt', '')} {parts.get('hr', '')}"


def _merge(spark: SparkSession, table: Table, group: list[Commit], by_hour: bool) -> None:
    paths = [str(table.directory / file.path) for commit in group for file in commit.files]
    figures: dict[str, int] = {}
    for commit in group:
        for name, figure in commit.figures.items():
            figures[name] = figures.get(name, 0) + figure
    draft = Commit(
        group[0].topic,
        group[0].topic_number,
        group[0].first,
        group[-1].last,
        [],
        generation=max(commit.generation for commit in group) + 1,
        replaces=[commit.name for commit in group],
        figures=figures,
    )

    def write(target: Path) -> None:
        if not paths:
            return
        if not by_hour:
            write_by_day(spark.read.parquet(*paths), target)
            return
        rows = spark.read.option("basePath", str(table.directory)).parquet(*paths).drop("topic", "dt", "hr")
        ordered = rows.repartitionByRange("sequence").sortWithinPartitions("sequence")
        write_by_hour(ordered, target)

    table.write(draft, write, exactly(f"{len(group)} batches", sum(commit.rows for commit in group)))


def _forget(table: Table, series: str, commits: Sequence[Commit], retain_seconds: float) -> int:
    """Remove the days that are too old. Returns how many rows these were."""
    horizon = (datetime.now(UTC) - timedelta(seconds=retain_seconds)).strftime("%Y-%m-%d")
    removed = 0

    def is_old(file: File) -> bool:
        return "" < hour_of(file)[:10].strip() < horizon  # metrics of earlier versions tell no day: merging does

    if any(is_old(file) for commit in commits for file in commit.files):
        table.keep_horizon(series, horizon)  # before anything goes
    for commit in commits:
        going = [file for file in commit.files if is_old(file)]
        if going:
            table.shorten(commit, going)
            removed += sum(file.rows for file in going)
    return removed


def _hour(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H")


def _remove_empty(directory: Path) -> None:
    for folder in sorted(directory.glob("topic=*/**/"), reverse=True):
        if not any(folder.iterdir()):
            folder.rmdir()
