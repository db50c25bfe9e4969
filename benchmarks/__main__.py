"""`python -m benchmarks`: run scenarios, print a table, write JSON."""

from __future__ import annotations

import datetime
import importlib
import sys
import textwrap
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from benchmarks import machine
from benchmarks.harness import FULL, QUICK, Scale, Scenario, Unavailable, described, measure
from benchmarks.report import Report, print_table, write_json
from benchmarks.scenarios import MODULES, suite

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
WIDTH_ELSEWHERE = 150  # in a file or a pipe
RESULTS = Path(__file__).parent / "results"


@app.command()
def main(
    quick: Annotated[
        bool, typer.Option("--quick", help="A tenth of the work: does it run, and about how fast?")
    ] = False,
    only: Annotated[str, typer.Option(help="Scenarios with this in their name; * stands for anything.")] = "",
    json: Annotated[
        Path | None, typer.Option(help="Write the results there.", show_default="benchmarks/results/")
    ] = None,
    repetitions: Annotated[int | None, typer.Option(help="Runs that count, for each scenario.", min=1)] = None,
    list_only: Annotated[bool, typer.Option("--list", help="Only name the scenarios.")] = False,
) -> None:
    """Measure Heliograph on this machine."""
    for module in MODULES:
        importlib.import_module(module)
    scenarios = suite.matching(only)
    if not scenarios:
        raise typer.BadParameter(f"no scenario has {only!r} in its name", param_hint="--only")
    if list_only:
        for scenario in scenarios:
            target = f" To reach: {scenario.target}." if scenario.target else ""
            print(f"{scenario.group}.{scenario.name}: {described(scenario)}{target}")
        return
    scale = QUICK if quick else FULL
    if repetitions is not None:
        scale = Scale(scale.warmups, repetitions, scale.divisor)
    now = datetime.datetime.now(datetime.UTC)
    console = Console() if sys.stdout.isatty() else Console(width=WIDTH_ELSEWHERE)
    progress = Console(stderr=True)
    report = Report(now.isoformat(timespec="seconds"), scale, machine.describe(), [], {})
    console.print(str(report.machine), highlight=False, soft_wrap=True)
    with progress.status("…") as status:

        @contextmanager
        def attempt(scenario: Scenario) -> Iterator[None]:
            status.update(f"{scenarios.index(scenario) + 1} of {len(scenarios)}: {escape(scenario.name)}")
            try:
                yield
            except Unavailable as reason:
                report.skipped[scenario.name] = str(reason)
                progress.print(f"{scenario.name} is left out: {reason}", markup=False, highlight=False)
            except Exception as error:
                report.failed[scenario.name] = traceback.format_exc()
                progress.print(f"{scenario.name} failed: {_one_line(error)}", markup=False, highlight=False)

        for group in suite.compared(scenarios):
            report.results += measure(suite, group, scale, attempt)
    path = json or RESULTS / f"{now:%Y-%m-%dT%H%M%SZ}.json"
    write_json(report, path)
    print_table(report.results, console)
    print(f"Written to {path}")
    if report.failed:
        print(f"benchmarks: {len(report.failed)} scenarios failed; their tracebacks are in {path}", file=sys.stderr)
        raise typer.Exit(1)


def _one_line(error: Exception) -> str:
    return textwrap.shorten(f"{type(error).__name__}: {error}", 200)


if __name__ == "__main__":
    app(prog_name="python -m benchmarks")
