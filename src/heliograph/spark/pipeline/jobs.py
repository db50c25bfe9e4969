"""The jobs of the pipeline by name, with their options, run once or for as long as nobody ends them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from heliograph.errors import HeliographError, InvalidArgument, TopicNotFound, Unavailable
from heliograph.spark.pipeline import archive as archiving
from heliograph.spark.pipeline.dead_letters import DeadLetterOptions, dead_letters
from heliograph.spark.pipeline.job import Outcome, Place, Tell, recorded, silent
from heliograph.spark.pipeline.maintain import MaintainOptions, maintain
from heliograph.spark.pipeline.metrics import metrics
from heliograph.spark.pipeline.reconcile import reconcile
from heliograph.spark.pipeline.refine import RefineOptions, refine
from heliograph.spark.pipeline.replay import ReplayOptions, replay
from heliograph.spark.pipeline.reporter import Reporter, reporting
from heliograph.wire.job_report import State

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAUSE_SECONDS_DEFAULT = 10.0
"""Between two runs of a job that runs on."""


class JobOptions(NamedTuple):
    """Options of all jobs; each looks at its own.

    Args:
        limits: archive: of batches and files.
        allow_data_loss: archive: go on where the broker has trimmed what was never archived.
        delta: archive, refine: keep a Delta log beside the files, from now on.
        window_seconds: metrics: the width of windows.
        refine, dead_letters, replay, maintain: see there.
    """

    limits: archiving.Limits = archiving.Limits()
    allow_data_loss: bool = False
    delta: bool = False
    window_seconds: float = 60.0
    refine: RefineOptions = RefineOptions()
    dead_letters: DeadLetterOptions = DeadLetterOptions()
    replay: ReplayOptions = ReplayOptions()
    maintain: MaintainOptions = MaintainOptions()


class Job(NamedTuple):
    """A job.

    Args:
        name: how it is called.
        does: what it does, in one line.
        reads, writes: for people.
        run: one run of it.
    """

    name: str
    does: str
    reads: str
    writes: str
    run: Callable[[SparkSession, Place, JobOptions, Tell], Outcome]


def _archive(spark: SparkSession, place: Place, options: JobOptions, tell: Tell) -> Outcome:
    """Every topic, one after the other; one that fails does not keep the others from being archived."""
    archived: list[archiving.Archived] = []
    failures: list[HeliographError] = []
    bounds = place.bounds()
    waiting = {topic: archiving.waiting(place.table("archive"), topic, held) for topic, held in bounds.items()}
    for topic in bounds:
        tell(f"archiving {topic}", lag=sum(waiting.values()))
        others = sum(waiting.values()) - waiting.pop(topic)

        def progress(rows: int, left: int, topic: str = topic, others: int = others) -> None:
            tell(f"archiving {topic}", rows, left + others)

        try:
            archived.append(
                archiving.archive(
                    spark,
                    endpoint=place.address.endpoint,
                    token=place.address.token,
                    topic=topic,
                    directory=place.table("archive"),
                    fail_on_data_loss=not options.allow_data_loss,
                    limits=options.limits,
                    progress=progress,
                )
            )
        except TopicNotFound as error:
            if topic in place.topics:  # else it was deleted just now
                failures.append(error)
        except HeliographError as error:
            failures.append(error)
    archiving.mirror_to_delta(place.table("archive"), wanted=options.delta)
    if failures:
        raise failures[0]
    messages = sum(each.messages for each in archived)
    figures = {
        "topics": len(archived),
        "messages": messages,
        "bytes": sum(each.bytes for each in archived),
        "in the archive": sum(each.messages_total for each in archived),
    }
    return Outcome(messages, sum(each.lag for each in archived), figures)


def _refine(spark: SparkSession, place: Place, options: JobOptions, tell: Tell) -> Outcome:
    outcome = refine(spark, place, options.refine, tell)
    for table in ("refined", "quarantine"):
        archiving.mirror_to_delta(place.table(table), wanted=options.delta)
    return outcome


JOBS: Mapping[str, Job] = {
    job.name: job
    for job in (
        Job("archive", "every topic's log becomes Parquet files by topic, day and hour", "logs", "archive/", _archive),
        Job(
            "refine",
            "messages parsed by their schemas, validated, each once; what cannot be is put aside with the reason",
            "archive/",
            "refined/, quarantine/",
            _refine,
        ),
        Job(
            "metrics",
            "rates, waiting and processing times, backlog by subscription and window",
            "event log",
            "metrics/, metrics-by-window/",
            lambda spark, place, options, tell: metrics(spark, place, window_seconds=options.window_seconds, tell=tell),
        ),
        Job(
            "dead-letters",
            "what could not be processed: reasons, fingerprints of errors, samples",
            "quarantine/, event log, archive/",
            "dead-letters/, redrive-candidates/, dead-letters.html, .md",
            lambda spark, place, options, tell: dead_letters(spark, place, options.dead_letters, tell),
        ),
        Job(
            "replay",
            "publishes archived messages again: by time, condition or ids; once",
            "archive/ or quarantine/",
            "a topic, replays/",
            lambda spark, place, options, tell: replay(spark, place, options.replay, tell),
        ),
        Job(
            "reconcile",
            "proves per hour that log, archive and acknowledgements agree",
            "logs, event log, archive/",
            "reconcile/",
            lambda spark, place, _options, tell: reconcile(spark, place, tell),
        ),
        Job(
            "maintain",
            "small batches become one, old days go, and what killed runs have left",
            "all tables",
            "all tables",
            lambda spark, place, options, tell: maintain(spark, place, options.maintain, tell),
        ),
    )
}
"""In the order in which they build on each other."""


def job_named(name: str) -> Job:
    """Raises: InvalidArgument (there is no such job)."""
    job = JOBS.get(name)
    if job is None:
        raise InvalidArgument(f"There is no job {name!r}; there are {', '.join(JOBS)}")
    return job


def run_once(spark: SparkSession, job: Job, place: Place, options: JobOptions, tell: Tell = silent) -> Outcome:
    """One run, remembered in the pipeline's directory, and told to the broker. Raises: HeliographError, as well."""
    with reporting(place, job.name, tell) as reporter:
        return _run(spark, job, place, options, reporter, "done")


def run_continuously(
    spark: SparkSession,
    job: Job,
    place: Place,
    options: JobOptions,
    *,
    pause_seconds: float = PAUSE_SECONDS_DEFAULT,
    tell: Tell = silent,
    told: Callable[[Outcome], None] = lambda outcome: None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Run after run until it is interrupted. A broker that does not answer is waited for; every other failure ends it.

    Args:
        spark, job, place, options, tell: as for `run_once`.
        pause_seconds: between two runs.
        told: is given what each run has done.
        sleep: waits so many seconds.

    Raises:
        HeliographError: a run failed.
    """
    with reporting(place, job.name, tell) as reporter:
        while True:
            try:
                told(_run(spark, job, place, options, reporter, "idle"))
            except Unavailable as error:
                reporter.failed(error.message, "idle")
                reporter.tell(f"waiting: {error.message}")
            sleep(pause_seconds)


def _run(spark: SparkSession, job: Job, place: Place, options: JobOptions, reporter: Reporter, then: State) -> Outcome:
    """One run; `then` is the job's state after it."""
    reporter.began()
    outcome = recorded(place.directory, job.name, lambda: job.run(spark, place, options, reporter.tell))
    reporter.ended(outcome, then)
    return outcome
