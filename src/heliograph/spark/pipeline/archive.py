"""Archives a topic to Parquet: every message once, whatever is killed and whenever.

An archive is a directory that any Parquet reader understands::

    DIRECTORY/topic=projects%2Fp%2Ftopics%2Ft/dt=2013-07-01/hr=12/000003-000000000001-000000020000-00000.zstd.parquet
    DIRECTORY/_commits/projects%2Fp%2Ftopics%2Ft/000003-000000000001-000000020000.json
    DIRECTORY/_staging/, DIRECTORY/_lock

The numbers are the topic's number (another one after the topic was deleted and created again), and the first and last
sequence of the run that wrote the file; `dt` and `hr` are day and hour of publication in UTC.

A run reads what the log holds beyond the last commit, writes it under `_staging`, checks that every message is there,
and then writes one commit file that names all its files: the moment at which they belong to the archive. Only then are
they moved to their places, by renaming. What was killed before the commit leaves a heap in `_staging` that the next run
removes; what was killed after it is moved on by the next run, or by `read_archive`. Names that begin with `_` are
invisible to Spark and to most readers. Needs a file system with atomic renames, which the driver and all executors see.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

import msgspec
import pyarrow.parquet as pq
from pyspark.sql.types import DateType, IntegerType, StructField, StructType

from heliograph.errors import FailedPrecondition, Internal
from heliograph.spark.failure import in_one_line
from heliograph.spark.log_client import LogBounds, LogClient
from heliograph.spark.source import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

COMMITS = "_commits"
STAGING = "_staging"
LOCK = "_lock"


class File(msgspec.Struct, frozen=True):
    """A file of a commit.

    Args:
        path: its place, relative to the archive.
        staged: where it was written, relative to the archive.
        rows: messages in it.
        bytes: its size.
    """

    path: str
    staged: str
    rows: int
    bytes: int


class Commit(msgspec.Struct, frozen=True):
    """What one run added: sequences `first` to `last` of a topic, inclusive, less what the broker had trimmed."""

    topic: str
    topic_number: int
    first: int
    last: int
    files: list[File]

    @property
    def rows(self) -> int:
        """Messages added."""
        return sum(file.rows for file in self.files)


class Archived(NamedTuple):
    """What `archive` has done.

    Args:
        topic: the topic's full name.
        messages: archived by this run.
        messages_total: of this topic in the archive now, over all its lives under this name.
        bytes: size of the files that this run added.
        directory: the archive.
    """

    topic: str
    messages: int
    messages_total: int
    bytes: int
    directory: Path


def archive(
    spark: SparkSession, *, endpoint: str, topic: str, directory: Path, fail_on_data_loss: bool = True
) -> Archived:
    """Archive what the topic's log holds and the archive does not hold yet. A second run adds nothing.

    Args:
        spark: where to run; its executors must reach the broker and the directory.
        endpoint: the broker, `http://host:port`.
        topic: full name.
        directory: the archive; made if it is missing.
        fail_on_data_loss: whether it is an error that the broker has trimmed messages since the last run that were
            never archived. What was trimmed before the first run of all is none.

    Raises:
        TopicNotFound: no such topic.
        FailedPrecondition: messages are lost (see above); another run is writing to the archive; or it is damaged.
        Unavailable: no broker answers.
    """
    directory = directory.absolute()
    bounds = LogClient(endpoint).bounds(topic)
    with _lock(directory, wait=False):
        commits = _moved(directory, topic)
        shutil.rmtree(_staging(directory, topic), ignore_errors=True)
        first = _first_unarchived(commits, bounds)
        if first < bounds.first and fail_on_data_loss:
            raise FailedPrecondition(
                f"The broker has trimmed {topic} up to sequence {bounds.first - 1}, but it is archived up to "
                f"{first - 1} only. To go on without the messages in between, turn off fail_on_data_loss"
            )
        first = max(first, bounds.first)
        if first <= bounds.last:
            files = _write(spark, endpoint, topic, directory, bounds._replace(first=first), fail_on_data_loss)
            commit = Commit(topic, bounds.topic_number, first, bounds.last, files)
            _commit(directory, commit)
            _moved(directory, topic)
            shutil.rmtree(_staging(directory, topic), ignore_errors=True)
        else:
            commit = Commit(topic, bounds.topic_number, first, bounds.last, [])
    return Archived(
        topic=topic,
        messages=commit.rows,
        messages_total=commit.rows + sum(earlier.rows for earlier in commits),
        bytes=sum(file.bytes for file in commit.files),
        directory=directory,
    )


def read_archive(spark: SparkSession, directory: Path, topic: str) -> DataFrame:
    """All archived messages of a topic: the columns of the source, and `dt` (date) and `hr` (int).

    Raises:
        FailedPrecondition: nothing of the topic is archived there, or the archive is damaged.
    """
    directory = directory.absolute()
    commits = _commits(directory, topic)
    if any(not (directory / file.path).exists() for commit in commits for file in commit.files):
        with _lock(directory, wait=True):
            commits = _moved(directory, topic)
    paths = [str(directory / file.path) for commit in commits for file in commit.files]
    if not paths:
        raise FailedPrecondition(f"Nothing of {topic} is archived in {directory}")
    columns = {**COLUMNS, "dt": DateType(), "hr": IntegerType()}
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    return spark.read.schema(schema).option("basePath", str(directory)).parquet(*paths)


def _first_unarchived(commits: list[Commit], bounds: LogBounds) -> int:
    """The sequence after the last archived one of this life of the topic; the first readable one if there is none."""
    ends = [commit.last + 1 for commit in commits if commit.topic_number == bounds.topic_number]
    return max(ends, default=bounds.first)


def _write(
    spark: SparkSession, endpoint: str, topic: str, directory: Path, wanted: LogBounds, fail_on_data_loss: bool
) -> list[File]:
    """Write the messages of a range below the staging directory, durably; nobody sees them there."""
    run = f"{wanted.topic_number:06d}-{wanted.first:012d}-{wanted.last:012d}"
    staging = _staging(directory, topic) / run
    options = {
        "endpoint": endpoint,
        "topic": topic,
        "startingOffsets": str(wanted.first),
        "endingOffsets": str(wanted.last + 1),
        "failOnDataLoss": str(fail_on_data_loss),
    }
    with in_one_line(f"Archiving {topic}"):
        write_hours(spark, options, staging)
    files = []
    for number, staged in enumerate(sorted(staging.glob("dt=*/hr=*/*.parquet"))):
        _sync(staged)
        hour = staged.parent.relative_to(staging)
        path = Path(f"topic={_quoted(topic)}", hour, f"{run}-{number:05d}.zstd.parquet")
        rows = pq.read_metadata(staged).num_rows
        files.append(File(str(path), str(staged.relative_to(directory)), rows, staged.stat().st_size))
    written, expected = sum(file.rows for file in files), wanted.last - wanted.first + 1
    if written > expected or (written < expected and fail_on_data_loss):
        raise Internal(f"Spark wrote {written} of {expected} messages of {topic}; nothing was archived")
    return files


def write_hours(spark: SparkSession, options: Mapping[str, str], target: Path) -> None:
    """Write what the source gives with these options to `target`, as `dt=/hr=` of Parquet files.

    If it raises, nobody may use what is in `target`.
    """
    from pyspark.sql import functions as sf

    messages = spark.read.format("heliograph").options(**options).load()
    hours = messages.drop("topic").withColumns(
        {"dt": sf.date_format("publish_time", "yyyy-MM-dd"), "hr": sf.date_format("publish_time", "HH")}
    )
    hours.write.partitionBy("dt", "hr").option("compression", "zstd").parquet(str(target))


def _commit(directory: Path, commit: Commit) -> None:
    """From here on the files belong to the archive, whatever happens."""
    name = f"{commit.topic_number:06d}-{commit.first:012d}-{commit.last:012d}.json"
    file = directory / COMMITS / _quoted(commit.topic) / name
    file.parent.mkdir(parents=True, exist_ok=True)
    partial = file.with_suffix(".partial")
    partial.write_bytes(msgspec.json.encode(commit))
    _sync(partial)
    partial.rename(file)
    _sync(file.parent)


def _commits(directory: Path, topic: str) -> list[Commit]:
    """The commits of a topic, oldest first."""
    commits = []
    for file in sorted((directory / COMMITS / _quoted(topic)).glob("*.json")):
        try:
            commits.append(msgspec.json.decode(file.read_bytes(), type=Commit))
        except msgspec.DecodeError as error:
            raise FailedPrecondition(f"The archive is damaged: {file}: {error}") from None
    return commits


def _moved(directory: Path, topic: str) -> list[Commit]:
    """The commits of a topic, oldest first, after each of their files is in its place."""
    commits = _commits(directory, topic)
    for file in (file for commit in commits for file in commit.files):
        place = directory / file.path
        if place.exists():
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            (directory / file.staged).rename(place)
        except FileNotFoundError:
            raise FailedPrecondition(f"The archive is damaged: {place} is missing") from None
    return commits


@contextlib.contextmanager
def _lock(directory: Path, *, wait: bool) -> Iterator[None]:
    """Only one process at a time changes an archive; the lock goes with the process."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / LOCK).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            raise FailedPrecondition(f"Another run is writing to the archive {directory}") from None
        yield


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _staging(directory: Path, topic: str) -> Path:
    return directory / STAGING / _quoted(topic)


def _quoted(topic: str) -> str:
    """A topic's name as the name of a directory, in the way that Spark and Hive read it back."""
    return quote(topic, safe="")
