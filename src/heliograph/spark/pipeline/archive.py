"""Archives a topic to Parquet: every message once, whatever is killed and whenever (`table.py` says how).

A file's day and hour (`dt`, `hr`) are those of publication in UTC. A run reads what the log holds beyond the last
commit, in batches, so that a backlog of any size fits and what was killed does not begin anew.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql.types import DateType, IntegerType, StructField, StructType

from heliograph.errors import FailedPrecondition, HeliographError, Internal
from heliograph.spark.failure import in_one_line
from heliograph.spark.log_client import LogBounds, LogClient
from heliograph.spark.pipeline.table import Commit, Table
from heliograph.spark.source import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH_MESSAGES_MAX = 1_000_000
"""Messages of one commit: a failure costs no more than reading so many again."""

BATCH_BYTES_MAX = 1024**3
"""Payload of one commit: large messages are written in smaller batches, so that they fit into memory."""

FILE_MESSAGES_MAX = 2_000_000
AGE_SECONDS_MAX = 300.0


class Limits(NamedTuple):
    """How large and how old a batch gets; as Pub/Sub's Cloud Storage subscriptions have it.

    Args:
        batch_messages: a batch has no more messages.
        file_messages: nor has a file.
        least_messages: a batch with fewer waits; or, if `least_bytes` is given and this is 1, whatever their number.
        age_seconds: but no longer than until its first message is so old.
        batch_bytes: a batch has no more payload than about this.
        least_bytes: a batch with as much payload does not wait; 0 = messages alone decide.
    """

    batch_messages: int = BATCH_MESSAGES_MAX
    file_messages: int = FILE_MESSAGES_MAX
    least_messages: int = 1
    age_seconds: float = AGE_SECONDS_MAX
    batch_bytes: int = BATCH_BYTES_MAX
    least_bytes: int = 0


LIMITS_DEFAULT = Limits()


class Archived(NamedTuple):
    """What `archive` has done.

    Args:
        topic: the topic's full name.
        messages: archived by this run.
        messages_total: of this topic in the archive now, over all its lives under this name.
        bytes: size of the files that this run added.
        directory: the archive.
        lag: messages that the log holds and the archive does not, when the run ended.
    """

    topic: str
    messages: int
    messages_total: int
    bytes: int
    directory: Path
    lag: int = 0


def archive(
    spark: SparkSession,
    *,
    endpoint: str,
    topic: str,
    directory: Path,
    token: str = "",
    fail_on_data_loss: bool = True,
    limits: Limits = LIMITS_DEFAULT,
    progress: Callable[[int, int], None] = lambda messages, left: None,
) -> Archived:
    """Archive what the topic's log holds and the archive does not hold yet. A second run adds nothing.

    Args:
        spark: where to run; its executors must reach the broker and the directory.
        endpoint: the broker, `http://host:port`.
        topic: full name.
        directory: the archive; made if it is missing.
        token: for the broker; "" = none.
        fail_on_data_loss: whether it is an error that the broker has trimmed messages since the last run that were
            never archived. What was trimmed before the first run of all is none.
        limits: of batches and files.
        progress: is told of each batch how many messages it had, and how many are left.

    Raises:
        TopicNotFound: no such topic.
        FailedPrecondition: messages are lost (see above); another run is writing to the archive; or it is damaged.
        Unavailable: no broker answers.
    """
    client = LogClient(endpoint, token=token)
    bounds = client.bounds(topic)
    table = Table(directory)
    added: list[Commit] = []
    with table.changing():
        before = table.settle(topic)
        first = table.next_position(topic, bounds.topic_number, bounds.first)
        if first < bounds.first and fail_on_data_loss:
            raise FailedPrecondition(
                f"The broker has trimmed {topic} up to sequence {bounds.first - 1}, but it is archived up to "
                f"{first - 1} only. To go on without the messages in between, turn off fail_on_data_loss "
                "(in the shell: --allow-data-loss)"
            )
        first = max(first, bounds.first)
        if _is_due(client, topic, bounds._replace(first=first), limits):
            while first <= bounds.last:
                last = min(first + limits.batch_messages - 1, bounds.last)
                if last > first:
                    last = min(last, client.extent(topic, first, limits.batch_bytes))
                source = Source(endpoint, token, topic, fail_on_data_loss, limits.file_messages)
                added.append(_add(spark, table, source, LogBounds(bounds.topic_number, first, last)))
                progress(added[-1].rows, bounds.last - last)
                first = last + 1
    return Archived(
        topic=topic,
        messages=sum(commit.rows for commit in added),
        messages_total=sum(commit.rows for commit in [*before, *added]),
        bytes=sum(commit.bytes for commit in added),
        directory=table.directory,
        lag=bounds.last - first + 1,
    )


def waiting(directory: Path, topic: str, held: LogBounds) -> int:
    """How many messages of a log are not in the archive yet, as far as that can be read."""
    with contextlib.suppress(HeliographError):  # archiving it will say what is wrong
        first = Table(directory).next_position(topic, held.topic_number, held.first)
        return max(held.last - max(first, held.first) + 1, 0)
    return 0


class Source(NamedTuple):
    """Where a batch comes from; see `archive` and `Limits`."""

    endpoint: str
    token: str
    topic: str
    fail_on_data_loss: bool
    file_messages: int


def read_archive(
    spark: SparkSession,
    directory: Path,
    topic: str,
    *,
    number: int | None = None,
    first: int = 0,
    last: int = 2**62,
    without: Sequence[Path] = (),
) -> DataFrame:
    """The archived messages of a topic: the columns of the source, and `dt` (date) and `hr` (int).

    Args:
        spark: where to read.
        directory: the archive.
        topic: full name.
        number: of the topic's lives under this name, this one only; None = all.
        first, last: sequences, inclusive.
        without: files that are known to be lost; see `Table.lost`.

    Raises:
        FailedPrecondition: nothing of this is archived there, or the archive is damaged.
    """
    from pyspark.sql import functions as sf

    table = Table(directory)
    paths = [str(path) for path in table.files(topic, first, last, number, without=without)]
    if not paths:
        raise FailedPrecondition(f"Nothing of {topic} is archived in {table.directory}")
    columns = {**COLUMNS, "dt": DateType(), "hr": IntegerType()}
    schema = StructType([StructField(name, kind) for name, kind in columns.items()])
    frame = spark.read.schema(schema).option("basePath", str(table.directory)).parquet(*paths)
    return frame if (first, last) == (0, 2**62) else frame.where(sf.col("sequence").between(first, last))


def mirror_to_delta(directory: Path, *, wanted: bool = False, tidies: bool = False) -> None:
    """Bring a table's Delta log up to date, if it has one, or is to have one.

    Args:
        directory: of the table.
        wanted: it is to have one.
        tidies: put the log together as well.

    Raises:
        FailedPrecondition: another run is writing to the table; or deltalake is not installed.
    """
    table = Table(directory)
    if not wanted and not (table.directory / "_delta_log").is_dir():
        return
    try:
        from heliograph.spark.pipeline.delta import mirror, tidy
    except ModuleNotFoundError:
        raise FailedPrecondition("A Delta table needs deltalake: pip install 'heliograph[delta]'") from None
    with table.changing():
        mirror(table)
        if tidies:
            tidy(table)


def _is_due(client: LogClient, topic: str, waiting: LogBounds, limits: Limits) -> bool:
    """Whether what waits is enough for a batch, or has waited long enough."""
    count = waiting.last - waiting.first + 1
    if count <= 0:
        return False
    if count >= limits.least_messages and not (limits.least_bytes and limits.least_messages == 1):
        return True
    if limits.least_bytes and client.extent(topic, waiting.first, limits.least_bytes) < waiting.last:
        return True
    columns = ["sequence", "publish_time_ns"]
    for batch in client.read(topic, waiting.topic_number, waiting.first, waiting.first, columns):
        published_ns = int(batch.column("publish_time_ns")[0].as_py())
        return time.time_ns() - published_ns >= limits.age_seconds * 1e9
    return True


def _add(spark: SparkSession, table: Table, source: Source, wanted: LogBounds) -> Commit:
    options = {
        "endpoint": source.endpoint,
        "token": source.token,
        "topic": source.topic,
        "startingOffsets": str(wanted.first),
        "endingOffsets": str(wanted.last + 1),
        "failOnDataLoss": str(source.fail_on_data_loss),
    }
    expected = wanted.last - wanted.first + 1

    def check(rows: int) -> None:
        if rows > expected or (rows < expected and source.fail_on_data_loss):
            raise Internal(f"Spark wrote {rows} of {expected} messages of {source.topic}; nothing was archived")

    def write(target: Path) -> None:
        with in_one_line(f"Archiving {source.topic}"):
            write_hours(spark, options, target, source.file_messages)

    return table.write(Commit(source.topic, wanted.topic_number, wanted.first, wanted.last, []), write, check)


def write_hours(spark: SparkSession, options: Mapping[str, str], target: Path, file_messages: int) -> None:
    """Write what the source gives with these options to `target`, as `dt=/hr=` of Parquet files.

    If it raises, nobody may use what is in `target`.
    """
    messages = spark.read.format("heliograph").options(**options).load()
    write_by_hour(messages.drop("topic"), target, file_messages)


def write_by_hour(rows: DataFrame, target: Path, file_rows: int = FILE_MESSAGES_MAX) -> None:
    """Write rows with a `publish_time` as `dt=/hr=` of Parquet files with at most so many rows each."""
    from pyspark.sql import functions as sf

    hours = rows.withColumns(
        {"dt": sf.date_format("publish_time", "yyyy-MM-dd"), "hr": sf.date_format("publish_time", "HH")}
    )
    writer = hours.write.partitionBy("dt", "hr").option("compression", "zstd")
    writer.option("maxRecordsPerFile", file_rows).parquet(str(target))
