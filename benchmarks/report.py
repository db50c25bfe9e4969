"""Results for people (a table) and for programs (JSON)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.harness import Result, Scale, Spread
from benchmarks.machine import Machine


class Report(msgspec.Struct):
    """Everything of one run."""

    started: str
    scale: Scale
    machine: Machine
    results: list[Result]
    failed: dict[str, str]
    format: int = 1


def write_json(report: Report, path: Path) -> None:
    """Make the directory if need be, and write."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")


def print_table(results: Sequence[Result], console: Console) -> None:
    """One line per scenario: the median rate, its spread, the scenario's own figures, the ratio to its peer."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("scenario", overflow="fold")
    table.add_column("per second", justify="right")
    table.add_column("min – max", justify="right")
    table.add_column("also")
    table.add_column("× peer", justify="right")
    for result in results:
        rate = result.per_second
        table.add_row(
            escape(result.name),
            f"{rate.median:,.0f} {result.unit}",
            f"{rate.minimum:,.0f} – {rate.maximum:,.0f}",
            ", ".join(f"{name} {_figure(spread)}" for name, spread in result.figures.items()),
            f"{result.ratio:.2f}" if result.ratio is not None else "",
        )
    console.print(table)
    for peer in sorted({result.peer for result in results if result.peer}):
        compared = [result.name for result in results if result.peer == peer]
        console.print(f"[dim]× peer of {escape(', '.join(compared))}: {escape(peer)}[/dim]", highlight=False)


def _figure(spread: Spread) -> str:
    value = spread.median
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
