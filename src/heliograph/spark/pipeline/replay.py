"""Publishes archived messages again: by time, by a condition or by ids; at a bounded rate; once.

A replay has a name, and a manifest under it: what is chosen, and which ranges of the archive are looked at, both fixed
when it begins. It goes through them piece by piece. The messages of a piece are staged at the broker, where nobody sees
them; what was staged is written down; and only then published, under the replay's name and the piece's number, which
the broker publishes once. So a replay that was killed goes on where it was, and one that is done adds nothing.

A replayed message has its data, ordering key, priority and attributes (but not those that the broker gives), and tells
in the attribute `x-replayed-from` which message it was.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from heliograph.errors import FailedPrecondition, InvalidArgument
from heliograph.spark.door import Address
from heliograph.spark.failure import in_one_line
from heliograph.spark.pipeline.job import Outcome, Place, Tell, silent
from heliograph.spark.pipeline.table import Table, quoted, write_whole
from heliograph.spark.sink import Pacer, pieces, staged_columns
from heliograph.spark.stage_client import Part, StageClient

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PIECE_POSITIONS_MAX = 50_000
SHOWN_HOURS_MAX = 24
TABLES = ("archive", "quarantine")
REPLAYED_FROM = "x-replayed-from"

MESSAGES = f"""
    SELECT sequence, data, ordering_key, priority,
        map_concat(
            map_filter(attributes, (name, _) -> name NOT LIKE 'goog%' AND name <> '{REPLAYED_FROM}'),
            map('{REPLAYED_FROM}', message_id)
        ) AS attributes
    FROM {{rows}} ORDER BY sequence
"""
STAGED = "sequence BIGINT, first BIGINT, last BIGINT"


class Choice(msgspec.Struct, frozen=True):
    """What is to be replayed.

    Args:
        topics: full names.
        to: the full name of the topic that gets them; "" = each message its own.
        since_ns, until_ns: published from the first instant on and before the second; 0 = no bound.
        where: a condition of Spark's SQL on the archive's columns; "" = none.
        ids: message ids, if only these.
        table: `archive` or `quarantine`.
        since, until: what `since_ns` and `until_ns` were reckoned from, such as `2h`, where that depends on when it
            is asked; "" = they are what was asked for. Two choices that differ in the reckoned instants alone ask for
            the same.
    """

    topics: tuple[str, ...]
    to: str = ""
    since_ns: int = 0
    until_ns: int = 0
    where: str = ""
    ids: tuple[str, ...] = ()
    table: str = "archive"
    since: str = ""
    until: str = ""

    @property
    def asked(self) -> Choice:
        """Without the instants that were reckoned from something else."""
        return msgspec.structs.replace(
            self, since_ns=0 if self.since else self.since_ns, until_ns=0 if self.until else self.until_ns
        )


class Piece(msgspec.Struct, frozen=True):
    """Positions of one topic in the table, both ends inclusive."""

    topic: str
    number: int
    first: int
    last: int


class Manifest(msgspec.Struct, frozen=True):
    """How far a replay has come.

    Args:
        choice: what it replays.
        pieces: in order.
        done: how many of them are published.
        staged: the parts of the next one, once all its messages are staged; None = they are not.
        messages: published by the pieces that are done.
    """

    choice: Choice
    pieces: list[Piece]
    done: int = 0
    staged: list[Part] | None = None
    messages: int = 0


_MANIFEST = msgspec.json.Decoder(Manifest)


class ReplayOptions(NamedTuple):
    """How to replay.

    Args:
        choice: what; its `topics` are those of the place if it names none.
        name: of the replay; "" = made from the choice.
        rate: messages a second; None = no bound.
        dry_run: only count.
    """

    choice: Choice = Choice(())
    name: str = ""
    rate: int | None = None
    dry_run: bool = False


def replay(spark: SparkSession, place: Place, options: ReplayOptions, tell: Tell = silent) -> Outcome:
    """Replay, or go on with it, or count what would be replayed.

    Raises:
        InvalidArgument: the choice makes no sense.
        FailedPrecondition: nothing is archived; or a replay of this name replays something else.
        TopicNotFound, Unavailable: of the broker.
    """
    choice = _checked(options.choice, place)
    table = Table(place.table(choice.table))
    name = _name(choice, options.name)
    if options.dry_run:
        with table.reading():
            return _count(spark, table, choice, _pieces(table, choice))
    for topic in {choice.to} if choice.to else choice.topics:
        place.logs.bounds(topic)
    file = place.table("replays") / f"{quoted(name)}.json"
    guard = Table(place.table("replays"))
    with guard.changing(), table.reading():
        _understood(spark, table, choice)
        manifest = _manifest(file, table, choice, name)
        if manifest.done == len(manifest.pieces):
            said = (
                f"The replay {name} is done: it published {manifest.messages:,} messages. To replay again, name another"
            )
            return Outcome(0, 0, {"published": 0}, (said,))
        return _Replay(spark, place, table, file, name, Pacer(options.rate), tell).go(manifest)


def _name(choice: Choice, given: str) -> str:
    """The name of a replay: that which is given, else one that what is asked for always has."""
    return given or "replay-" + hashlib.sha256(msgspec.json.encode(choice.asked)).hexdigest()[:12]


def _checked(choice: Choice, place: Place) -> Choice:
    topics = choice.topics or place.topics
    if not topics and place.topic_pattern and choice.table in TABLES:
        topics = tuple(each for each in Table(place.table(choice.table)).series() if place.looks_at(each))
    choice = msgspec.structs.replace(choice, topics=topics)
    if not choice.topics:
        raise InvalidArgument("Name the topic whose messages are to be replayed: --topic")
    if choice.table not in TABLES:
        raise InvalidArgument(f"Messages are replayed from {' or '.join(TABLES)}, not from {choice.table!r}")
    if choice.until_ns and choice.until_ns <= choice.since_ns:
        raise InvalidArgument("The time range ends before it begins")
    return choice


def _pieces(table: Table, choice: Choice) -> list[Piece]:
    found = []
    for topic in choice.topics:
        commits = table.commits(topic)
        if not commits:
            raise FailedPrecondition(f"Nothing of {topic} is in {table.directory}")
        for number in sorted({commit.topic_number for commit in commits}):
            lives = [commit for commit in commits if commit.topic_number == number]
            first, end = min(commit.first for commit in lives), max(commit.last for commit in lives)
            while first <= end:
                found.append(Piece(topic, number, first, min(first + PIECE_POSITIONS_MAX - 1, end)))
                first += PIECE_POSITIONS_MAX
    return found


def _manifest(file: Path, table: Table, choice: Choice, name: str) -> Manifest:
    try:
        manifest = _MANIFEST.decode(file.read_bytes())
    except FileNotFoundError:
        manifest = Manifest(choice, _pieces(table, choice))
        write_whole(file, msgspec.json.encode(manifest))
    except msgspec.DecodeError as error:
        raise FailedPrecondition(f"The manifest of the replay is damaged: {file}: {error}") from None
    if manifest.choice.asked != choice.asked:
        raise FailedPrecondition(f"The replay {name} replays something else; give this one another name")
    return manifest


def _chosen(spark: SparkSession, table: Table, choice: Choice, piece: Piece) -> DataFrame | None:
    """The rows of a piece that are to be replayed; None = it has none at all."""
    from pyspark.sql import functions as sf

    paths = [str(path) for path in table.files(piece.topic, piece.first, piece.last, piece.number)]
    if not paths:
        return None
    rows = spark.read.option("basePath", str(table.directory)).parquet(*paths)
    rows = rows.where(sf.col("sequence").between(piece.first, piece.last))
    if choice.since_ns:
        rows = rows.where(sf.col("publish_time_ns") >= choice.since_ns)
    if choice.until_ns:
        rows = rows.where(sf.col("publish_time_ns") < choice.until_ns)
    if choice.ids:
        rows = rows.where(sf.col("message_id").isin(*choice.ids))
    return _where(rows, choice.where) if choice.where else rows


def _where(rows: DataFrame, condition: str) -> DataFrame:
    """The rows that a condition leaves. Raises: InvalidArgument (Spark does not understand it)."""
    from pyspark.errors import AnalysisException

    try:
        left = rows.where(condition)
        _ = left.schema  # Spark Connect looks at it only then
    except AnalysisException as error:
        raise InvalidArgument(f"The condition {condition!r} makes no sense: {_first_line(str(error))}") from None
    return left


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "Spark does not say why")


def _understood(spark: SparkSession, table: Table, choice: Choice) -> None:
    """Before anything is written down: the condition makes sense. Raises: InvalidArgument."""
    if choice.where:
        with in_one_line("Replaying"):
            any(_chosen(spark, table, choice, piece) is not None for piece in _pieces(table, choice))


def _count(spark: SparkSession, table: Table, choice: Choice, all_pieces: list[Piece]) -> Outcome:
    """What would be replayed, hour by hour."""
    hours: dict[tuple[str, str], int] = {}
    size = 0
    whole: dict[tuple[str, int], Piece] = {}
    for piece in all_pieces:
        known = whole.get((piece.topic, piece.number), piece)
        whole[piece.topic, piece.number] = msgspec.structs.replace(known, last=piece.last)
    for piece in whole.values():
        with in_one_line("Counting"):
            rows = _chosen(spark, table, choice, piece)
            if rows is None:
                continue
            hour = "date_format(publish_time, 'yyyy-MM-dd HH:00') AS hour"
            counted = rows.selectExpr(hour, "length(data) AS size").groupBy("hour").agg({"*": "count", "size": "sum"})
            for row in counted.collect():
                hours[piece.topic, row.hour] = hours.get((piece.topic, row.hour), 0) + row["count(1)"]
                size += row["sum(size)"] or 0
    lines = [f"{topic} {hour}: {count:,}" for (topic, hour), count in sorted(hours.items())]
    if len(lines) > SHOWN_HOURS_MAX:
        lines = [*lines[:SHOWN_HOURS_MAX], f"and {len(lines) - SHOWN_HOURS_MAX:,} more hours"]
    total = sum(hours.values())
    return Outcome(0, total, {"would publish": total, "bytes": size}, tuple(lines))


class _Replay:
    """The work of one run."""

    def __init__(
        self, spark: SparkSession, place: Place, table: Table, file: Path, name: str, pacer: Pacer, tell: Tell
    ) -> None:
        self._spark = spark
        self._place = place
        self._table = table
        self._file = file
        self._name = name
        self._pacer = pacer
        self._tell = tell

    def go(self, manifest: Manifest) -> Outcome:
        """From where it is to its end."""
        published = 0
        while manifest.done < len(manifest.pieces):
            if manifest.staged is None:
                self._tell("staging")
                with in_one_line("Replaying"):
                    staged = self._stage(manifest.choice, manifest.pieces[manifest.done], manifest.done)
                manifest = self._keep(msgspec.structs.replace(manifest, staged=staged))
            published += self._publish(manifest.done, manifest.staged or [])
            size = sum(part.last - part.first + 1 for part in manifest.staged or ())
            done, messages = manifest.done + 1, manifest.messages + size
            manifest = self._keep(msgspec.structs.replace(manifest, done=done, staged=None, messages=messages))
        return Outcome(published, 0, {"published": published, "of": manifest.messages}, (f"replay {self._name}",))

    def _stage(self, choice: Choice, piece: Piece, number: int) -> list[Part]:
        rows = _chosen(self._spark, self._table, choice, piece)
        if rows is None:
            return []
        stage, topic = self._stage_name(number), choice.to or piece.topic
        StageClient(self._place.address, stage).drop()  # what a run that was killed has left
        messages = self._spark.sql(MESSAGES, rows=rows)
        staged = messages.mapInArrow(stager(self._place.address, stage, topic), STAGED).collect()
        return [Part(topic, row.first, row.last) for row in sorted(staged, key=lambda row: row.sequence)]

    def _publish(self, number: int, parts: list[Part]) -> int:
        if not parts:
            return 0
        client = StageClient(self._place.address, self._stage_name(number))
        total, left = 0, 1
        while left:
            published, left = client.publish(f"replay/{self._name}", number, parts, self._pacer.allowance())
            self._pacer.took(published)
            self._tell("publishing", published)
            total += published
        return total

    def _keep(self, manifest: Manifest) -> Manifest:
        write_whole(self._file, msgspec.json.encode(manifest))
        return manifest

    def _stage_name(self, number: int) -> str:
        return f"replay/{self._name}/{number}"


def stager(address: Address, stage: str, topic: str) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """A function for `DataFrame.mapInArrow` that stages messages, in a task, and tells where they are. A task that runs
    twice stages twice; what is published is what its last run tells."""

    def work(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        schema = pa.schema([("sequence", pa.int64()), ("first", pa.int64()), ("last", pa.int64())])
        client = StageClient(address, stage)
        for batch in batches:
            for piece in pieces(batch):
                sequence = piece.column("sequence")[0].as_py()
                part = client.write(topic, staged_columns(piece))
                row = {"sequence": sequence, "first": part.first, "last": part.last}
                yield pa.RecordBatch.from_pylist([row], schema=schema)

    return work
