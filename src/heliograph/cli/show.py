"""How commands show what they found: tables and words for people, JSON for scripts."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any, Protocol

import typer

from heliograph.engine.settings import SECOND_NS

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Labels = Annotated[list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="A label; may be repeated.")]


class Step(Protocol):
    """Tell that so many more are done."""

    def __call__(self, more: int) -> None: ...


def print_json(value: object) -> None:
    """A value as indented JSON."""
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_json_line(value: object) -> None:
    """A value as one line of JSON, at once: of results that come one by one."""
    import msgspec

    print(msgspec.json.encode(value).decode(), flush=True)


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns of plain text: numbers to the right, the first and the last to the left. Without rows nothing."""
    if not rows:
        return
    widths = [max(len(row[column]) for row in (heads, *rows)) for column in range(len(heads))]
    for row in (heads, *rows):
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        cells[0], cells[-1] = row[0].ljust(widths[0]), row[-1]
        print("  ".join(cells).rstrip())


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """A name and a value a line; what is None or empty is left out."""
    shown = [(name, str(value)) for name, value in fields if value not in (None, "", {}, [])]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        print(f"{name.ljust(width)}  {value}")


def instant(instant_ns: int) -> str:
    """`2026-11-28 02:35:57 UTC`; "-" for 0."""
    if not instant_ns:
        return "-"
    return datetime.fromtimestamp(instant_ns // SECOND_NS, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def age(seconds: float) -> str:
    """Short: `0.4 s`, `12 s`, `3 min`, `5 h`, `2 d`; "-" for none."""
    if seconds <= 0:
        return "-"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def pairs(labels: dict[str, str]) -> str:
    """`a=1 b=2`."""
    return " ".join(f"{name}={value}" for name, value in sorted(labels.items()))


@contextmanager
def counting(what: str, total: int | None = None) -> Iterator[Step]:
    """A counter on standard error while work goes on, gone at its end; nothing where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda more: None
        return
    columns: Any = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, refresh_per_second=5) as bars:
        shown = bars.add_task(what, total=total)
        yield lambda more: bars.advance(shown, more)


def parse_pairs(texts: list[str] | None, what: str) -> dict[str, str]:
    """From `a=1` and `b=2`.

    Raises:
        typer.BadParameter: one has no `=`.
    """
    found = {}
    for text in texts or ():
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise typer.BadParameter(f"{text!r} is not {what.upper()}=VALUE", param_hint=f"--{what}")
        found[name] = value
    return found


def input_lines() -> Iterator[str]:
    """Standard input, line by line, without the line ends; bytes that are no UTF-8 are kept as surrogates."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    for line in sys.stdin:
        yield line.rstrip("\n")
