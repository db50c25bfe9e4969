"""What the jobs of the pipeline have in common: where they work, what they tell, and what they have done."""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from heliograph.errors import FailedPrecondition, HeliographError, InvalidArgument
from heliograph.spark.door import Address, Door
from heliograph.spark.event_client import EventClient
from heliograph.spark.log_client import LogBounds, LogClient
from heliograph.spark.pipeline.table import write_whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RUNS_KEPT = 200
"""Of each job; what reports show."""

QUEUE_PREFIX = "queues/"
"""A work queue `tasks` is the topic and the subscription `queues/tasks` (`heliograph.broker.queues`)."""


class Subscribed(NamedTuple):
    """A subscription that there is now: full names, and when it was created, nanoseconds since the epoch."""

    topic: str
    subscription: str
    created_ns: int


class Place(NamedTuple):
    """Where a pipeline works.

    Args:
        address: the broker, as the driver and the executors reach it.
        directory: of all its tables; the driver and the executors see it under this name.
        topics: full names of the topics that the jobs look at; () = all.
        topic_pattern: a regular expression that the full name of a topic matches as a whole, if these are looked at as
            well; "" = all, or `topics` alone.
    """

    address: Address
    directory: Path
    topics: tuple[str, ...] = ()
    topic_pattern: str = ""

    @property
    def logs(self) -> LogClient:
        """The broker's log door."""
        return LogClient(*self.address)

    @property
    def events(self) -> EventClient:
        """The broker's event door."""
        return EventClient(self.address)

    @property
    def door(self) -> Door:
        """The broker's other doors over HTTP."""
        return Door(self.address)

    def table(self, name: str) -> Path:
        """The directory of one of the pipeline's tables."""
        return self.directory / name

    def bounds(self) -> dict[str, LogBounds]:
        """What the logs of the chosen topics hold, by full name.

        Raises:
            TopicNotFound: one that is named does not exist.
            Unavailable: no broker answers.
        """
        named = {topic: self.logs.bounds(topic) for topic in self.topics}
        if self.topics and not self.topic_pattern:
            return named
        return named | {topic: held for topic, held in self.logs.topics().items() if self.looks_at(topic)}

    def subscriptions(self) -> list[Subscribed]:
        """All that there are, those of work queues among them. Raises: Unavailable."""
        found = []
        for each in self.door.get("/api/v1/statistics", {})["subscriptions"]:
            prefix = QUEUE_PREFIX if each["kind"] == "queue" else ""
            found.append(Subscribed(prefix + each["topic"], prefix + each["name"], int(each["created_ns"])))
        return found

    def looks_at(self, topic: str) -> bool:
        """Whether the jobs look at this topic."""
        if not self.topics and not self.topic_pattern:
            return True
        return topic in self.topics or bool(self.topic_pattern and re.fullmatch(self.topic_pattern, topic))

    def options(self, **options: Any) -> dict[str, str]:
        """The options of the Spark source for this broker, and these."""
        own = {"endpoint": self.address.endpoint, "timeoutSeconds": str(int(self.address.timeout_seconds))}
        if self.address.token:
            own["token"] = self.address.token
        return own | {name: str(value) for name, value in options.items()}

    def read_log(self, spark: SparkSession, topic: str, first: int, last: int, **options: Any) -> DataFrame:
        """A range of a topic's log, both ends inclusive."""
        given = self.options(topic=topic, startingOffsets=first, endingOffsets=last + 1, **options)
        return spark.read.format("heliograph").options(**given).load()

    def read_events(self, spark: SparkSession, first: int, last: int) -> DataFrame:
        """A range of the event log, both ends inclusive; what is past its retention is left out."""
        given = self.options(mode="events", startingOffsets=first, endingOffsets=last + 1, failOnDataLoss=False)
        return spark.read.format("heliograph").options(**given).load()


def sql_text(text: str) -> str:
    """A text as Spark's SQL writes it."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def checked_pattern(pattern: str) -> str:
    """The same. Raises: InvalidArgument (it is no regular expression)."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise InvalidArgument(f"The pattern of topics is no regular expression: {error}") from None
    return pattern


class Tell(Protocol):
    """Told while a job works: what it does, how many more rows are done, and how many are left (None = unknown)."""

    def __call__(self, what: str, rows: int = 0, lag: int | None = None) -> None: ...


def silent(what: str, rows: int = 0, lag: int | None = None) -> None:
    """Nobody listens."""


class Outcome(NamedTuple):
    """What one run of a job has done.

    Args:
        rows: that it worked on.
        lag: how many more wait for it.
        figures: what it counted, by name, in the order to show them.
        remarks: sentences for people.
        is_good: False = it found something that is wrong; what, say the remarks.
    """

    rows: int = 0
    lag: int = 0
    figures: Mapping[str, int | float | str] = {}
    remarks: tuple[str, ...] = ()
    is_good: bool = True


class Run(msgspec.Struct, frozen=True):
    """A run of a job, as the pipeline's directory remembers it.

    Args:
        job: its name.
        started_ns: when, nanoseconds since the epoch.
        seconds: how long.
        rows, lag, figures, remarks, is_good: see `Outcome`.
        error: why it failed, in one line; "" = it did not.
    """

    job: str
    started_ns: int
    seconds: float
    rows: int = 0
    lag: int = 0
    figures: dict[str, int | float | str] = {}
    remarks: list[str] = []
    is_good: bool = True
    error: str = ""

    @property
    def state(self) -> str:
        """How it ended, in the console's words."""
        return "failed" if self.error else "done" if self.is_good else "found a fault"


_RUNS = msgspec.json.Decoder(list[Run])


def runs(directory: Path, job: str) -> list[Run]:
    """What is remembered of a job's runs, oldest first. Raises: FailedPrecondition (the record is damaged)."""
    file = _record(directory, job)
    try:
        return _RUNS.decode(file.read_bytes())
    except FileNotFoundError:
        return []
    except msgspec.DecodeError as error:
        raise FailedPrecondition(f"The record of runs is damaged: {file}: {error}; remove it to go on") from None


def last_run(done: Sequence[Run], *, failed: bool) -> Run | None:
    """The latest run that failed, or that did not; None = there is none."""
    return next((run for run in reversed(done) if bool(run.error) == failed), None)


def remember(directory: Path, run: Run) -> None:
    """Keep a run, and of those before it the latest; one that did nothing, or failed as the one before it, takes its
    place: the pauses and outages of a job that runs on do not push out what it did."""
    earlier = runs(directory, run.job)
    if earlier and not (run.rows or earlier[-1].rows) and run.error == earlier[-1].error:
        earlier.pop()
    write_whole(_record(directory, run.job), msgspec.json.encode([*earlier, run][-RUNS_KEPT:]))


def recorded(directory: Path, job: str, work: Callable[[], Outcome]) -> Outcome:
    """`work()`, remembered, also where it fails. Raises: whatever it raises."""
    started_ns, started = time.time_ns(), time.monotonic()
    try:
        outcome = work()
    except (HeliographError, OSError) as error:
        with contextlib.suppress(OSError):
            seconds = time.monotonic() - started
            reason = error.message if isinstance(error, HeliographError) else str(error)
            remember(directory, Run(job, started_ns, seconds, error=" ".join(reason.split())))
        raise
    remember(
        directory,
        Run(
            job,
            started_ns,
            time.monotonic() - started,
            outcome.rows,
            outcome.lag,
            dict(outcome.figures),
            list(outcome.remarks),
            outcome.is_good,
        ),
    )
    return outcome


@contextlib.contextmanager
def replaced(directory: Path) -> Iterator[Path]:
    """A directory that takes the place of `directory` when the block ends well."""
    fresh, old = directory.with_name(f"_{directory.name}.new"), directory.with_name(f"_{directory.name}.old")
    for heap in (fresh, old):
        shutil.rmtree(heap, ignore_errors=True)
    directory.parent.mkdir(parents=True, exist_ok=True)
    yield fresh
    if directory.exists():
        directory.rename(old)
    fresh.rename(directory)
    shutil.rmtree(old, ignore_errors=True)


def _record(directory: Path, job: str) -> Path:
    return directory / "_runs" / f"{job}.json"
