"""`heliograph store …`: look after a data directory. See docs/store.md."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heliograph.cli.failure import ExitCode, Failure
from heliograph.cli.show import AsJson, instant, print_json, print_table
from heliograph.cli.size import show_size

if TYPE_CHECKING:
    from heliograph.store.findings import CheckReport, Finding
    from heliograph.store.inspection import StoreStats, TopicStats
    from heliograph.store.snapshot import Progress

store_app = typer.Typer(
    help="Look after a data directory: check, stats, backup, compact.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The data directory, as given to `serve`.")]


@store_app.command()
def check(directory: Directory, as_json: AsJson = False) -> None:
    """Verify pages, checksums and what must follow what; tell of any damage what it affects. Nothing is changed.

    Exit code 1 if anything is wrong. Works beside a broker that serves, too: on what it had committed at that moment.

    Example: heliograph store check ./data
    """
    from heliograph.store.verification import check as check_store

    with _progress() as progress:
        report = check_store(directory, progress=progress)
    if as_json:
        print_json(report)
        if not report.is_sound:
            raise typer.Exit(ExitCode.FAILED)
        return
    _print_report(report)
    if not report.is_sound:
        count = len(report.findings) + report.findings_left_out
        raise Failure(
            f"{report.path} is damaged in {count} place{'s' if count > 1 else ''}: stop its broker, keep a copy of the "
            "directory as it is, and restore a backup"
        )


@store_app.command()
def stats(
    directory: Directory,
    subscriptions: Annotated[
        bool, typer.Option("--subscriptions", help="Count what each subscription holds, too; that takes a recovery.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Count what is in it: sizes, topics, the journal. Works beside a broker that serves, too.

    Example: heliograph store stats ./data --subscriptions
    """
    from heliograph.store.inspection import stats as count

    with _progress() as progress:
        found = count(directory, subscriptions=subscriptions, progress=progress)
    if as_json:
        print_json(found)
    else:
        _print_stats(found)


@store_app.command()
def backup(
    directory: Directory,
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="The directory to make: missing, or empty.")],
    as_json: AsJson = False,
) -> None:
    """Copy it, as of one moment, to another directory; also while a broker serves it.

    The copy is a data directory: `serve --data-dir TARGET` starts from it.

    Example: heliograph store backup ./data ./backup
    """
    from heliograph.store.backup import backup as copy

    with _progress() as progress:
        made = copy(directory, target, progress=progress)
    if as_json:
        print_json(made)
    else:
        print(f"{show_size(made.bytes)} in {made.path}: a data directory, to be checked with `store check {target}`")


@store_app.command()
def compact(directory: Directory, as_json: AsJson = False) -> None:
    """Make it as small as it can be: messages past their retention go, and the file is written anew.

    No broker may serve it meanwhile, and the disk must have room for a second, compact file. It is done as a whole or
    not at all.

    Example: heliograph store compact ./data
    """
    from heliograph.broker.compaction import compact as make_small

    with _progress() as progress:
        compacted = make_small(directory, progress=progress)
    if as_json:
        print_json(compacted)
    else:
        print(f"{compacted.path}: {show_size(compacted.bytes_before)} before, {show_size(compacted.bytes_after)} now")


# ── how it is shown ─────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on standard error, gone at the end; nothing where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    from heliograph.store.snapshot import no_progress

    console = Console(stderr=True)
    if not console.is_terminal:
        yield no_progress
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, refresh_per_second=5) as bars:
        shown = bars.add_task("opening", total=None)
        current = ""

        def advance(step: str, done: int, total: int | None) -> None:
            nonlocal current
            if step != current:
                bars.reset(shown, description=step, total=total, completed=0)
                current = step
            if done % 64 == 0 or done == total:  # this is called for each row
                bars.update(shown, completed=done, total=total)

        yield advance


def _print_report(report: CheckReport) -> None:
    for finding in report.findings:
        print(f"{_place(finding)}: {finding.problem}\n  affects {finding.affects}")
    if report.findings_left_out:
        print(f"and {report.findings_left_out:,} more")
    for what in report.not_checked:
        print(f"not checked: {what}")
    if report.is_sound:
        print(
            f"{report.path} is sound: {report.messages:,} messages in {report.message_rows:,} rows, "
            f"{report.journal_rows:,} journal rows, {report.topics:,} topics, {report.subscriptions:,} subscriptions, "
            f"format {report.format_version}"
        )


def _place(finding: Finding) -> str:
    if not finding.first_sequence:
        return finding.where
    if finding.first_sequence == finding.last_sequence:
        return f"{finding.where}: message {finding.first_sequence} of topic {finding.topic}"
    return f"{finding.where}: messages {finding.first_sequence} to {finding.last_sequence} of topic {finding.topic}"


def _print_stats(found: StoreStats) -> None:
    total_bytes = found.file_bytes + found.log_bytes
    in_use = ", served by a broker" if found.in_use else ""
    print(f"{found.path}, format {found.format_version}{in_use}")
    print(
        f"size      {show_size(total_bytes)} (file {show_size(found.file_bytes)}, of which "
        f"{show_size(found.free_bytes)} free; write-ahead log {show_size(found.log_bytes)})"
    )
    print(f"live      {show_size(found.live_bytes)} (messages {show_size(found.message_bytes)}; the rest is journal)")
    since = found.journal_bytes - found.checkpoint_bytes
    checkpoint = f"a checkpoint of {show_size(found.checkpoint_bytes)}" if found.checkpoint_bytes else "no checkpoint"
    rows = found.journal_rows - (found.checkpoint_bytes > 0)
    print(f"journal   {checkpoint}, and {rows:,} rows with {show_size(since)} since")
    if found.topics:
        print()
        print_table(
            ("topic", "messages", "held before", "size", "first", "last", "oldest published"),
            [_topic_row(t) for t in found.topics],
        )
    if found.subscriptions:
        print()
        print_table(
            ("subscription", "waiting", "delayed", "outstanding", "dead letters", "topic"),
            [
                (s.name, f"{s.waiting:,}", f"{s.delayed:,}", f"{s.outstanding:,}", f"{s.dead_letters:,}", s.topic)
                for s in found.subscriptions
            ],
        )


def _topic_row(topic: TopicStats) -> tuple[str, ...]:
    name = topic.name or f"number {topic.number}"
    if topic.deleted:
        name += " (deleted)"
    counted = (name, f"{topic.messages:,}", f"{topic.held_before:,}", show_size(topic.bytes))
    if not topic.messages:
        return (*counted, "-", "-", "-")
    return (*counted, str(topic.first_sequence), str(topic.last_sequence), instant(topic.oldest_publish_time_ns))
