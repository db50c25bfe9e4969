"""`heliograph pipeline run JOB`: each job is a command with its own options, and those that all jobs have."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from heliograph.cli.duration import is_relative, parse_instant, parse_seconds
from heliograph.cli.failure import ExitCode, Failure, import_extra
from heliograph.cli.show import AsJson, parse_pairs, print_json
from heliograph.cli.size import parse_size
from heliograph.cli.target import Target, on_broker
from heliograph.errors import InvalidArgument, Unavailable

if TYPE_CHECKING:
    from heliograph.cli.door import Door
    from heliograph.spark.pipeline.job import Outcome, Place, Tell
    from heliograph.spark.pipeline.jobs import Job, JobOptions

DIRECTORY_DEFAULT = Path("heliograph-pipeline")
MASTER_DEFAULT = "local[*]"

BRIEF_MESSAGES_MAX = 2_000_000
"""With more messages, what a JVM that compiles well saves is more than its compiling takes."""

Own = dict[str, Any]
"""A job's own options: fields of `JobOptions`."""

run_app = typer.Typer(help="Run a job: once, on what there is now, or for as long as nobody ends it.")

Directory = Annotated[
    Path,
    typer.Option("--directory", "-d", help="Where the pipeline's tables are.", envvar="HELIOGRAPH_PIPELINE"),
]
Once = Annotated[bool, typer.Option("--once", help="Work on what there is now, and end; this is the default.")]
Continuous = Annotated[bool, typer.Option("--continuous", help="Go on until Ctrl-C.")]
Pause = Annotated[str, typer.Option(help="With --continuous: the time between two runs.", metavar="SPAN")]
Topics = Annotated[list[str] | None, typer.Option("--topic", help="Only this one; may be repeated.", metavar="TOPIC")]
TopicPattern = Annotated[
    str,
    typer.Option(
        help="Topics whose full name matches this regular expression as a whole, later ones among them.",
        metavar="REGEX",
    ),
]
Master = Annotated[str, typer.Option(help="Where Spark runs: local[*], spark://HOST:PORT or sc://HOST:PORT.")]
Conf = Annotated[list[str] | None, typer.Option(help="A setting of Spark; may be repeated.", metavar="NAME=VALUE")]
Token = Annotated[str, typer.Option(help="A bearer token for the broker.", envvar="HELIOGRAPH_TOKEN", metavar="TOKEN")]

Delta = Annotated[bool, typer.Option("--delta", help="Make it a Delta table, too, from now on.")]

_SHARED: tuple[tuple[str, Any, Any], ...] = (
    ("once", Once, False),
    ("continuous", Continuous, False),
    ("pause", Pause, "10s"),
    ("directory", Directory, DIRECTORY_DEFAULT),
    ("topic", Topics, None),
    ("topic_pattern", TopicPattern, ""),
    ("master", Master, MASTER_DEFAULT),
    ("conf", Conf, None),
    ("token", Token, ""),
    ("as_json", AsJson, False),
)


def job_command(name: str) -> Callable[[Callable[..., Own]], None]:
    """Make a command of a function that gives the options of the job `name`, with the options of all jobs besides."""

    def make(own: Callable[..., Own]) -> None:
        @functools.wraps(own)
        def command(target: Target, *positional: Any, **named: Any) -> None:
            shared = {key: named.pop(key) for key, _, _ in _SHARED}
            _run(target, name, lambda: own(*positional, **named), **shared)

        signature = inspect.signature(own, eval_str=True)
        kind = inspect.Parameter.KEYWORD_ONLY
        added = [inspect.Parameter(key, kind, default=default, annotation=type_) for key, type_, default in _SHARED]
        first = inspect.Parameter("target", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=Target)
        keywords = [each.replace(kind=kind) for each in signature.parameters.values()]
        command.__signature__ = inspect.Signature([first, *added, *keywords])  # type: ignore[attr-defined]
        del command.__wrapped__
        run_app.command(name)(on_broker(command))

    return make


@job_command("archive")
def archive(
    batch_messages: Annotated[int, typer.Option(min=1, help="A batch has no more messages.")] = 1_000_000,
    batch_size: Annotated[
        str, typer.Option(help="Nor does it have more payload than about this.", metavar="SIZE")
    ] = "1g",
    file_messages: Annotated[int, typer.Option(min=1, help="A file has no more messages.")] = 2_000_000,
    least_messages: Annotated[
        int, typer.Option(min=1, help="Fewer messages wait for more, no longer than --max-age.")
    ] = 1,
    least_size: Annotated[
        str, typer.Option(help="With less payload they wait as well; whichever is reached first.", metavar="SIZE")
    ] = "",
    max_age: Annotated[str, typer.Option(help="How long the first message waits for others.", metavar="SPAN")] = "5m",
    allow_data_loss: Annotated[
        bool, typer.Option("--allow-data-loss", help="Go on where messages went before they were archived.")
    ] = False,
    delta: Delta = False,
) -> Own:
    """Every topic's log becomes Parquet files by topic, day and hour.

    Example: heliograph pipeline run archive --topic orders
    """
    from heliograph.spark.pipeline.archive import Limits

    limits = Limits(
        batch_messages,
        file_messages,
        least_messages,
        parse_seconds(max_age),
        parse_size(batch_size),
        parse_size(least_size) if least_size else 0,
    )
    return {"limits": limits, "allow_data_loss": allow_data_loss, "delta": delta}


@job_command("refine")
def refine(
    schema: Annotated[
        list[str] | None,
        typer.Option(
            help="The schema of a topic whose messages tell none: a file .avsc or .proto, or one of the broker's by "
            "its full name.",
            metavar="TOPIC=SCHEMA",
        ),
    ] = None,
    encoding: Annotated[str, typer.Option(help="Of these messages: JSON or BINARY.")] = "JSON",
    unique_by: Annotated[
        str,
        typer.Option(help="What duplicates share: message_id, data, ordering_key, attributes.NAME or value.PATH."),
    ] = "message_id",
    watermark: Annotated[
        str, typer.Option(help="Duplicates come no later than this after another.", metavar="SPAN")
    ] = "1h",
    dead_letter_topic: Annotated[
        str, typer.Option(help="The topic that gets what is wrong as well.", metavar="TOPIC")
    ] = "",
    delta: Delta = False,
) -> Own:
    """Parse messages by their schemas, validate them, drop duplicates, put aside what is wrong.

    Example: heliograph pipeline run refine --schema orders=order.avsc --unique-by value.id
    """
    from heliograph.spark.pipeline.refine import RefineOptions

    schemas = parse_pairs(schema, "schema")
    options = RefineOptions(
        schemas, encoding.upper(), unique_by, parse_seconds(watermark), dead_letter_topic=dead_letter_topic
    )
    return {"refine": options, "delta": delta}


@job_command("metrics")
def metrics(
    window: Annotated[str, typer.Option(help="The width of windows.", metavar="SPAN")] = "1m",
) -> Own:
    """Rates, waiting and processing times, backlog and oldest age by subscription and window.

    Example: heliograph pipeline run metrics --window 5m
    """
    from heliograph.spark.pipeline.metrics import width_ns

    seconds = parse_seconds(window)
    width_ns(seconds)
    return {"window_seconds": seconds}


@job_command("reconcile")
def reconcile() -> Own:
    """Prove per hour that log, archive and acknowledgements agree, and list every difference.

    Example: heliograph pipeline run reconcile --json
    """
    return {}


@job_command("dead-letters")
def dead_letters(
    version_attribute: Annotated[
        list[str] | None,
        typer.Option(
            help="The attribute that tells the version of a message's producer; may be repeated "
            "(default producer_version, app_version, version).",
            metavar="NAME",
        ),
    ] = None,
) -> Own:
    """Tell what could not be processed, and what may be redriven: reasons, fingerprints of errors, first and last seen.

    Example: heliograph pipeline run dead-letters
    """
    from heliograph.spark.pipeline.dead_letters import VERSION_ATTRIBUTES, DeadLetterOptions

    return {"dead_letters": DeadLetterOptions(tuple(version_attribute or VERSION_ATTRIBUTES))}


@job_command("replay")
def replay(
    to: Annotated[str, typer.Option(help="The topic that gets them; without it each its own.", metavar="TOPIC")] = "",
    since: Annotated[str, typer.Option(help="Published then or later: an instant, or 2h for so long ago.")] = "",
    until: Annotated[str, typer.Option(help="Published before then.")] = "",
    where: Annotated[str, typer.Option(help="A condition of SQL, such as \"attributes['carrier'] = 'UA'\".")] = "",
    message_id: Annotated[list[str] | None, typer.Option("--id", help="Only this message; may be repeated.")] = None,
    source: Annotated[str, typer.Option("--from", help="archive, or quarantine.")] = "archive",
    name: Annotated[str, typer.Option(help="Of the replay; one that is done is not done again.")] = "",
    rate: Annotated[int | None, typer.Option(min=1, help="No faster than so many messages a second.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count.")] = False,
) -> Own:
    """Publish archived messages again, chosen by --topic, time, condition or ids; once, and resumable.

    Example: heliograph pipeline run replay --topic orders --since 2h --to orders-again --dry-run
    """
    from heliograph.spark.pipeline.replay import Choice, ReplayOptions

    since_ns, until_ns = (instant_ns(text) if text else 0 for text in (since, until))
    asked = tuple(text if is_relative(text) else "" for text in (since, until))
    choice = Choice((), to, since_ns, until_ns, where, tuple(message_id or ()), source, *asked)
    return {"replay": ReplayOptions(choice, name, rate, dry_run)}


@job_command("maintain")
def maintain(
    retain: Annotated[
        list[str] | None,
        typer.Option(
            help="Remove days that are older, of all topics or of one; may be repeated. 0 = keep all.",
            metavar="SPAN|TOPIC=SPAN",
        ),
    ] = None,
    retain_table: Annotated[
        list[str] | None,
        typer.Option(
            help="The same for one table, whatever the topic: archive, refined, quarantine or metrics.",
            metavar="TABLE=SPAN",
        ),
    ] = None,
    batch_size: Annotated[str, typer.Option(help="Put batches together up to this size.", metavar="SIZE")] = "256m",
) -> Own:
    """Put small batches together, remove old days, and what killed runs have left.

    Example: heliograph pipeline run maintain --retain 90d --retain orders=365d --retain-table quarantine=30d
    """
    from heliograph.spark.pipeline.maintain import MaintainOptions, Retention

    general = [text for text in retain or () if "=" not in text]
    if len(general) > 1:
        raise typer.BadParameter("give one span for all topics, and others as TOPIC=SPAN", param_hint="--retain")
    spans = [
        {name: parse_seconds(span) for name, span in parse_pairs(pairs, hint).items()}
        for pairs, hint in (
            ([text for text in retain or () if "=" in text], "retain"),
            (retain_table, "retain-table"),
        )
    ]
    retention = Retention(parse_seconds(general[0]) if general else 0, *spans).checked()
    return {"maintain": MaintainOptions(retention, parse_size(batch_size))}


def instant_ns(text: str) -> int:
    """Nanoseconds since the epoch of what `parse_instant` takes."""
    return int(datetime.fromisoformat(parse_instant(text)).timestamp() * 1_000_000) * 1_000


def _run(
    target: Target,
    name: str,
    make_options: Callable[[], Own],
    *,
    once: bool,
    continuous: bool,
    pause: str,
    directory: Path,
    topic: list[str] | None,
    topic_pattern: str,
    master: str,
    conf: list[str] | None,
    token: str,
    as_json: bool,
) -> None:
    if once and continuous:
        raise typer.BadParameter("a job runs once or continuously, not both", param_hint="--continuous")
    settings, pause_seconds = parse_pairs(conf, "conf"), parse_seconds(pause)
    jobs = import_extra("heliograph.spark.pipeline.jobs", extra="spark", for_what="the pipeline")
    from heliograph.spark.pipeline.job import checked_pattern
    from heliograph.spark.session import checked_master

    with _refusing():
        options, job = jobs.JobOptions(**make_options()), jobs.job_named(name)
        checked_pattern(topic_pattern)
        checked_master(master)
    with _refusing(), target as door:
        place = place_of(door, directory, topic or [], token, topic_pattern)
        options = _full_names(options, door)
        place.door.get("/api/v1/log/topics", {})  # a broker that is not there is told at once; later it is waited for
        bounds = place.bounds()  # whatever is wrong with the broker is told before Spark starts
        held = sum(log.last - log.first + 1 for log in bounds.values())
        with _telling(job) as tell:
            tell(f"starting Spark on {master}")
            spark = _session(master, settings, brief=not continuous and held <= BRIEF_MESSAGES_MAX)
            try:
                if continuous:
                    _go_on(spark, job, place, options, pause_seconds, tell, as_json)
                    return
                started = time.monotonic()
                outcome = jobs.run_once(spark, job, place, options, tell)
            finally:
                spark.stop()
        show_outcome(job.name, outcome, time.monotonic() - started, as_json)
    if not outcome.is_good:
        raise typer.Exit(ExitCode.FAILED)


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """An option that makes no sense, whoever notices it, is wrong usage; a broker that is away ends a run as it ends
    every command."""
    try:
        yield
    except InvalidArgument as error:
        raise Failure(error.message, ExitCode.USAGE) from error
    except Unavailable as error:
        raise Failure(error.message, ExitCode.NOT_READY) from error


def _full_names(options: JobOptions, door: Door) -> JobOptions:
    """With the names of topics as the broker knows them."""
    schemas = {door.topic(name): schema for name, schema in options.refine.schemas.items()}
    choice = options.replay.choice
    if choice.to:
        choice = msgspec.structs.replace(choice, to=door.topic(choice.to))
    rejected = options.refine.dead_letter_topic
    refine = options.refine._replace(schemas=schemas, dead_letter_topic=rejected and door.topic(rejected))
    retention = options.maintain.retention
    topics = {door.topic(name): seconds for name, seconds in retention.topics.items()}
    return options._replace(
        refine=refine,
        replay=options.replay._replace(choice=choice),
        maintain=options.maintain._replace(retention=retention._replace(topics=topics)),
    )


def _session(master: str, settings: dict[str, str], *, brief: bool) -> Any:
    session = import_extra("heliograph.spark.session", extra="spark", for_what="the pipeline")
    return session.create_session("heliograph pipeline", master=master, conf=settings, brief=brief)


def _go_on(
    spark: Any, job: Job, place: Place, options: JobOptions, pause_seconds: float, tell: Tell, as_json: bool
) -> None:
    from heliograph.spark.pipeline.jobs import run_continuously

    started = time.monotonic()

    def told(outcome: Outcome) -> None:
        nonlocal started
        if outcome.rows or not outcome.is_good:
            show_outcome(job.name, outcome, time.monotonic() - started, as_json)
        started = time.monotonic()

    with contextlib.suppress(KeyboardInterrupt):
        run_continuously(spark, job, place, options, pause_seconds=pause_seconds, tell=tell, told=told)


def place_of(door: Door, directory: Path, topics: list[str], token: str, topic_pattern: str = "") -> Place:
    """Where the pipeline works, as the command line names it."""
    from heliograph.spark.door import Address
    from heliograph.spark.pipeline.job import Place

    names = tuple(door.topic(name) for name in topics)
    return Place(Address(door.url, token=token), directory.absolute(), names, topic_pattern)


def show_outcome(name: str, outcome: Outcome, seconds: float, as_json: bool) -> None:
    """What a run has done, in a line, and its remarks below."""
    if as_json:
        told = {"job": name, "rows": outcome.rows, "lag": outcome.lag, "seconds": round(seconds, 1)}
        print_json(told | {"figures": outcome.figures, "remarks": outcome.remarks, "is_good": outcome.is_good})
        return
    figures = ", ".join(f"{key} {shown(value)}" for key, value in outcome.figures.items())
    waiting = f", {outcome.lag:,} wait" if outcome.lag else ""
    print(f"{name}: {figures or 'nothing to do'}{waiting} ({seconds:.1f} s)", flush=True)
    for remark in outcome.remarks:
        print(f"  {remark}", flush=True)


def shown(value: int | float | str) -> str:
    """A figure for people."""
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else value


@contextlib.contextmanager
def _telling(job: Job) -> Iterator[Tell]:
    """Progress on standard error while a job runs, gone at its end; nothing where that is no terminal."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal or os.environ.get("TERM") == "dumb":
        yield lambda what, rows=0, lag=None: None
        return
    columns: Any = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TextColumn("{task.completed:,} rows"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True, refresh_per_second=5) as progress:
        shown_task = progress.add_task(job.name, total=None)

        def tell(what: str, rows: int = 0, lag: int | None = None) -> None:
            progress.update(shown_task, description=f"{job.name}: {what}", advance=rows)

        yield tell
