"""`heliograph top`: what all subscriptions and queues hold and do, live on the whole screen."""

from __future__ import annotations

import contextlib
import select
import sys
import time
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heliograph.cli.door import Door
from heliograph.cli.show import AsJson, age, print_json
from heliograph.cli.target import Target, on_broker

if TYPE_CHECKING:
    from rich.console import RenderableType

PLAIN_COLUMNS = 160
"""Where the output is no terminal, and has no width of its own."""

Counted = dict[str, Any]


class Order(StrEnum):
    """By what rows are sorted."""

    BACKLOG = "backlog"
    AGE = "age"
    RATE = "rate"
    NAME = "name"


@on_broker
def top(
    target: Target,
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 2.0,
    order: Annotated[Order, typer.Option("--sort", help="What comes first.")] = Order.BACKLOG,
    once: Annotated[bool, typer.Option("--once", help="Show it once, after one interval for the rates.")] = False,
    as_json: AsJson = False,
) -> None:
    """Watch backlog, rates, oldest age and outstanding messages of everything. q or Ctrl-C ends it.

    Example: heliograph top --sort age
    """
    from rich.console import Console
    from rich.live import Live

    with target as door:
        before = _look(door)
        if as_json:
            print_json(before)
            return
        console = Console()
        if not console.is_terminal:
            console = Console(width=PLAIN_COLUMNS)
        if once or not console.is_terminal:
            time.sleep(interval)  # a rate needs two looks
            console.print(_screen(door, before, _look(door), order, rows_max=None))
            return
        with (
            contextlib.suppress(KeyboardInterrupt),
            _keys() as pressed,
            Live(console=console, screen=True, auto_refresh=False) as live,
        ):
            now = before
            while True:
                live.update(_screen(door, before, now, order, rows_max=console.height - 6), refresh=True)
                if pressed(interval) in ("q", "Q", "\x1b"):
                    return
                before, now = now, _look(door)


def _look(door: Door) -> Counted:
    return door.get("/api/v1/statistics")


def _screen(door: Door, before: Counted, now: Counted, order: Order, rows_max: int | None) -> RenderableType:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    seconds = max(now["now"] - before["now"], 1e-9)
    earlier = {(each["kind"], each["name"]): each for each in before["subscriptions"]}
    rows = [_with_rates(each, earlier.get((each["kind"], each["name"])), seconds) for each in now["subscriptions"]]
    rows.sort(key=lambda row: row["name"] if order is Order.NAME else -row[order.value])
    heads = ("name", "backlog", "outstanding", "oldest", "in/s", "out/s", "acked/s", "redelivered", "dead", "kind")
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for index, head in enumerate(heads):
        table.add_column(head, justify="left" if index in (0, len(heads) - 1) else "right", no_wrap=True)
    for row in rows if rows_max is None else rows[: max(rows_max, 1)]:
        table.add_row(
            row["name"].removeprefix(f"projects/{door.project}/subscriptions/"),
            f"{row['backlog']:,}",
            f"{row['outstanding']:,}",
            age(row["age"]),
            f"{row['rate']:,.0f}",
            f"{row['delivered_rate']:,.0f}",
            f"{row['acknowledged_rate']:,.0f}",
            f"{row['redelivered_total']:,}",
            f"{row['dead_letters']:,}",
            row["kind"],
        )
    sums = {key: sum(row[key] for row in rows) for key in ("backlog", "outstanding", "rate", "delivered_rate")}
    title = Text.assemble(
        ("heliograph top", "bold"),
        f"  {door.url}  {time.strftime('%H:%M:%S')}\n",
        f"{now['topics']:,} topics, {len(rows):,} subscriptions and queues, {sums['backlog']:,} waiting, "
        f"{sums['outstanding']:,} outstanding, {sums['rate']:,.0f} in/s, {sums['delivered_rate']:,.0f} out/s\n",
    )
    left_out = 0 if rows_max is None else len(rows) - max(rows_max, 1)
    return Group(title, table, Text(f"and {left_out:,} more" if left_out > 0 else ""))


def _with_rates(now: Counted, before: Counted | None, seconds: float) -> Counted:
    def rate(key: str) -> float:
        return 0.0 if before is None else max(now[key] - before[key], 0) / seconds

    return now | {
        "backlog": now["ready"] + now["delayed"],
        "age": now["oldest_unacknowledged_age_seconds"],
        "rate": rate("published_total"),
        "delivered_rate": rate("delivered_total"),
        "acknowledged_rate": rate("acknowledged_total"),
    }


def _no_key(seconds: float) -> str:
    """In place of waiting for a key where nobody can press one."""
    time.sleep(seconds)  # until the next look
    return ""


@contextlib.contextmanager
def _keys() -> Iterator[Any]:
    """Within it, single keys can be read: (seconds to wait) to the key pressed, or ""."""
    import termios
    import tty

    def pressed(seconds: float) -> str:
        ready, _, _ = select.select([sys.stdin], [], [], seconds)
        return sys.stdin.read(1) if ready else ""

    if not sys.stdin.isatty():
        yield _no_key
        return
    number = sys.stdin.fileno()
    kept = termios.tcgetattr(number)
    try:
        tty.setcbreak(number)
        yield pressed
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, kept)
