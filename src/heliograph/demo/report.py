"""The report: tables for the terminal, and one HTML page that needs no network.

Every sentence about what was seen is made from the figures, so that it is true of this run.
"""

from __future__ import annotations

import html
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from heliograph.demo.balance import AirlineBalance, Balance
from heliograph.demo.charts import BLUE, FONT, VERMILION, hours_chart, priority_label, waits_chart
from heliograph.demo.figures import HourOfDay
from heliograph.demo.latency import Percentiles
from heliograph.demo.outcome import Outcome

FEW_FLIGHTS = 30
_BALANCE_COLUMNS = (
    "airline",
    "flights",
    "published",
    "archived",
    "acked",
    "queued",
    "worked",
    "dead",
    "cancelled",
)
_LATENCY_COLUMNS = ("latency in milliseconds", "p50", "p95", "p99", "count")
_THROUGHPUT_COLUMNS = ("throughput", "messages", "seconds", "a second")


def print_tables(console: Console, outcome: Outcome) -> None:
    """The balance, throughput and latency, and what differs if anything does."""
    console.print(_table("The balance: numbers of different flights", _BALANCE_COLUMNS, _balance_rows(outcome.balance)))
    console.print(_table(None, _THROUGHPUT_COLUMNS, _throughput_rows(outcome)))
    console.print(_table(None, _LATENCY_COLUMNS, _latency_rows(outcome)))
    for sentence in seen(outcome):
        console.print(sentence, highlight=False, soft_wrap=True)
    if outcome.balance.adds_up:
        console.print("[green]The balance adds up.[/green]", highlight=False)


def write_page(outcome: Outcome, path: Path, origin: str) -> None:
    """Write the page, whole or not at all; for `origin` see `page`."""
    text = page(outcome, origin)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, unfinished = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(unfinished).chmod(0o644)
        Path(unfinished).replace(path)
    except BaseException:
        Path(unfinished).unlink(missing_ok=True)
        raise


def page(outcome: Outcome, origin: str) -> str:
    """The HTML page; the drawing library is part of it.

    Args:
        outcome: what it tells.
        origin: where the flights are from, as it follows the word "flights".
    """
    config = {"displaylogo": False, "responsive": True}
    hours = hours_chart(outcome.hours).to_html(full_html=False, include_plotlyjs=True, config=config)
    waits = waits_chart(outcome.waits).to_html(full_html=False, include_plotlyjs=False, config=config)
    balance = outcome.balance
    verdict = "The balance adds up" if balance.adds_up else "The balance does not add up"
    differences = "".join(f"<li>{html.escape(each)}</li>" for each in balance.differences)
    return _PAGE.format(
        font=FONT,
        blue=BLUE,
        vermilion=VERMILION,
        verdict=verdict,
        verdict_class="good" if balance.adds_up else "bad",
        differences=f"<ul>{differences}</ul>" if differences else "",
        flights=f"{sum(each.flights for each in balance.airlines):,}",
        airlines=len(balance.airlines),
        origin=html.escape(origin),
        seconds=f"{outcome.seconds:.0f}",
        machine=html.escape(outcome.machine),
        seen="".join(f"<li>{html.escape(sentence)}</li>" for sentence in seen(outcome)),
        hours=hours,
        hours_seen=html.escape(_hours_seen(outcome.hours)),
        waits=waits,
        waits_seen=html.escape(_waits_seen(outcome)),
        balance=_html_table(_BALANCE_COLUMNS, _balance_rows(balance)),
        throughput=_html_table(_THROUGHPUT_COLUMNS, _throughput_rows(outcome)),
        latency=_html_table(_LATENCY_COLUMNS, _latency_rows(outcome)),
    )


def seen(outcome: Outcome) -> Iterator[str]:
    """What was seen, beside the tables and the charts, sentence by sentence."""
    if outcome.broker_killed:
        yield (
            "The broker was killed with SIGKILL while the publishers were at work, and started again on its data "
            "directory: every answered flight was there."
            if outcome.balance.adds_up
            else "The broker was killed with SIGKILL while the publishers were at work, and started again."
        )
    yield (
        f"{outcome.legs_checked:,} arrivals of {outcome.aircraft:,} aircraft were checked for their order, "
        f"{'none' if not outcome.balance.order_violations else f'{outcome.balance.order_violations:,}'} was out of it."
    )
    for error, count in outcome.failures_by_error.items():
        yield f"The workers failed {count:,} times with {error}."
    if outcome.failures_by_error:
        yield "That is meant to be: cancelled flights have no times to compute with, and so become dead letters."
    repeated = [f"{count:,} {what}" for what, count in outcome.repeated.items() if count]
    yield f"Came more than once (at-least-once allows it): {', '.join(repeated) if repeated else 'nothing'}."


def _hours_seen(hours: Sequence[HourOfDay]) -> str:
    delays = [(hour.delay_minutes, hour) for hour in hours if hour.delay_minutes is not None]
    usual = [(delay, hour) for delay, hour in delays if hour.flights >= FEW_FLIGHTS] or delays
    if not usual:
        return "No flight left."
    busiest = max(hours, key=lambda hour: hour.flights)
    least_minutes, least = min(usual, key=lambda each: each[0])
    most_minutes, most = max(usual, key=lambda each: each[0])
    text = (
        f"Most flights are due in the hour from {busiest.hour}:00 ({busiest.flights:,}). The mean delay is least in "
        f"the hour from {least.hour}:00 ({least_minutes:.1f} minutes) and greatest in the hour from {most.hour}:00 "
        f"({most_minutes:.1f} minutes)"
    )
    return text + (", so lateness piles up over the day." if least.hour < 12 <= most.hour else ".")


def _waits_seen(outcome: Outcome) -> str:
    if not outcome.waits:
        return "Nothing was queued."
    worst, mildest = max(outcome.waits), min(outcome.waits)
    worst_wait, mildest_wait = outcome.waits[worst].p50_ms / 1e3, outcome.waits[mildest].p50_ms / 1e3
    text = (
        f"Half of the flights of priority {worst} were taken within {worst_wait:.2f} s, half of those of priority "
        f"{mildest} within {mildest_wait:.2f} s. "
    )
    if mildest_wait > 2 * worst_wait:
        text += "The workers took the worst first."
    else:
        text += "The queue was hardly ever long enough for priorities to matter."
    if outcome.handling_seconds:
        milliseconds = outcome.handling_seconds * 1e3
        text += f" A worker was busy with each late flight for {milliseconds:.0f} ms, so that a queue could form."
    return text


def _balance_rows(balance: Balance) -> list[tuple[str, ...]]:
    rows = [_balance_row(each) for each in balance.airlines]
    numbers = [[getattr(each, name) for each in balance.airlines] for name in AirlineBalance.__struct_fields__[1:-1]]
    return [*rows, ("all", *(f"{sum(column):,}" for column in numbers))]


def _balance_row(each: AirlineBalance) -> tuple[str, ...]:
    numbers = (getattr(each, name) for name in AirlineBalance.__struct_fields__[1:-1])
    return (each.carrier if each.adds_up else f"{each.carrier} ✗", *(f"{number:,}" for number in numbers))


def _throughput_rows(outcome: Outcome) -> list[tuple[str, ...]]:
    return [
        (each.what, f"{each.count:,}", f"{each.seconds:.1f}", f"{each.per_second:,.0f}") for each in outcome.throughput
    ]


def _latency_rows(outcome: Outcome) -> list[tuple[str, ...]]:
    rows = [_latency_row(what, each) for what, each in outcome.latency.items()]
    extremes = sorted({max(outcome.waits), min(outcome.waits)} if outcome.waits else (), reverse=True)
    return rows + [
        _latency_row(f"in the queue, priority {priority_label(level)}", outcome.waits[level]) for level in extremes
    ]


def _latency_row(what: str, each: Percentiles) -> tuple[str, ...]:
    return (what, *map(_milliseconds, (each.p50_ms, each.p95_ms, each.p99_ms)), f"{each.count:,}")


def _milliseconds(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"


def _table(title: str | None, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0, show_edge=False)
    for place, column in enumerate(columns):
        table.add_column(column, justify="right" if place else "left", no_wrap=not place)
    for row in rows:
        table.add_row(*row, style="bold" if row[0] == "all" else None)
    return table


def _html_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{html.escape(column)}</th>' for column in columns)
    body = "".join(f"<tr>{_html_cells(row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _html_cells(row: Sequence[str]) -> str:
    numbers = "".join(f"<td>{html.escape(cell)}</td>" for cell in row[1:])
    return f'<th scope="row">{html.escape(row[0])}</th>{numbers}'


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Heliograph: {flights} flights</title>
<style>
body {{ font-family: {font}; color: #1f2933; background: #fff; line-height: 1.5; }}
body {{ max-width: 60rem; margin: 0 auto; padding: 2rem 1rem 4rem; }}
h1 {{ margin-bottom: 0; }}
h2 {{ margin-top: 2.5rem; }}
.facts {{ color: #4a5560; margin-top: .25rem; }}
.verdict {{ border-left: .4rem solid {blue}; background: #f1f6fa; padding: .75rem 1rem; }}
.verdict.bad {{ border-color: {vermilion}; background: #fdf2ea; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 1rem 0; }}
th, td {{ padding: .3rem .75rem; text-align: right; border-bottom: 1px solid #d8dee4; }}
th:first-child {{ text-align: left; font-weight: 600; }}
thead th {{ border-bottom-width: 2px; }}
</style>
</head>
<body>
<h1>{flights} flights through Heliograph</h1>
<p class="facts">Flights {origin}, {airlines} airlines, {seconds} seconds on {machine}.</p>
<div class="verdict {verdict_class}"><strong>{verdict}.</strong>{differences}<ul>{seen}</ul></div>
<h2>Flights and mean delay by hour of day</h2>
<p>{hours_seen}</p>
{hours}
<h2>Wait in the work queue by priority</h2>
<p>{waits_seen}</p>
{waits}
<p class="facts">Box: the middle half of the flights, with the median; whiskers: 5 and 95 in 100.</p>
<h2>The balance</h2>
<p>Numbers of different flights. Published, archived and acknowledged by the ordered subscriber must be equal;
queued is worked off and dead letters together; the dead letters are the cancelled flights, one by one.</p>
{balance}
<h2>Throughput</h2>
{throughput}
<h2>Latency</h2>
{latency}
</body>
</html>
"""
