"""Results for people (a table) and for programs (JSON)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from benchmarks.harness import Result, Scale
from benchmarks.machine import Machine

WIDE = 130  # columns in which every name fits


class Report(msgspec.Struct):
    """Everything of one run."""

    started: str
    scale: Scale
    machine: Machine
    results: list[Result]
    failed: dict[str, str]
    format: int = 1
    skipped: dict[str, str] = {}


def write_json(report: Report, path: Path) -> None:
    """Make the directory if need be, and write."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")


def print_table(results: Sequence[Result], console: Console) -> None:
    """One line per scenario: the median rate, its spread, the scenario's own figures, the ratio to its peer."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("scenario", overflow="fold", no_wrap=console.width >= WIDE)
    table.add_column("per second", justify="right", no_wrap=True)
    table.add_column("min – max", justify="right", no_wrap=True)
    table.add_column("also")
    table.add_column("against a peer")
    table.add_column("to reach")
    for result in results:
        rate = result.per_second
        table.add_row(
            escape(result.name),
            f"{short(rate.median)} {result.unit}",
            f"{short(rate.minimum)} – {short(rate.maximum)}",
            ", ".join(f"{name} {short(spread.median)}" for name, spread in result.figures.items()),
            f"{result.ratio.median:.2f} × {result.peer.partition('[')[0]}" if result.peer and result.ratio else "",
            result.target,
        )
    console.print(table)


def short(value: float) -> str:
    """Three digits that matter: 0.238, 25, 26.3, 4,210, 253k, 3.21M."""
    for limit, divisor, suffix in ((1e6, 1e6, "M"), (1e4, 1e3, "k")):
        if value >= limit:
            return f"{value / divisor:.3g}{suffix}" if value < 1000 * divisor else f"{value / divisor:,.0f}{suffix}"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
