"""The report: tables for the terminal, and one HTML page that needs no network.

Every sentence about what was seen is made from the figures, so that it is true of this run.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from heliograph.demo.balance import AirlineBalance, Balance
from heliograph.demo.charts import hours_chart, priority_label, waits_chart
from heliograph.demo.figures import HourOfDay
from heliograph.demo.latency import Percentiles
from heliograph.demo.outcome import Outcome
from heliograph.page import document, escape, table

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
    differences = "".join(f"<li>{escape(each)}</li>" for each in balance.differences)
    flights = f"{sum(each.flights for each in balance.airlines):,}"
    body = _BODY.format(
        verdict=verdict,
        verdict_class="good" if balance.adds_up else "bad",
        differences=f"<ul>{differences}</ul>" if differences else "",
        airlines=len(balance.airlines),
        origin=escape(origin),
        seconds=f"{outcome.seconds:.0f}",
        machine=escape(outcome.machine),
        seen="".join(f"<li>{escape(sentence)}</li>" for sentence in seen(outcome)),
        hours=hours,
        hours_seen=escape(_hours_seen(outcome.hours)),
        waits=waits,
        waits_seen=escape(_waits_seen(outcome)),
        balance=table(_BALANCE_COLUMNS, _balance_rows(balance), of_numbers=True),
        throughput=table(_THROUGHPUT_COLUMNS, _throughput_rows(outcome), of_numbers=True),
        latency=table(_LATENCY_COLUMNS, _latency_rows(outcome), of_numbers=True),
    )
    heading = f"{flights} flights through Heliograph"
    return document(f"Heliograph: {flights} flights", body, heading=heading, style=_STYLE)


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


_STYLE = """
body { max-width: 60rem; }
.verdict { border-left: .4rem solid var(--blue); background: var(--tint); padding: .75rem 1rem; }
.verdict.bad { border-color: var(--bad); background: var(--bad-tint); color: inherit; font-weight: inherit; }
"""

_BODY = """<p class="faint">Flights {origin}, {airlines} airlines, {seconds} seconds on {machine}.</p>
<div class="verdict {verdict_class}"><strong>{verdict}.</strong>{differences}<ul>{seen}</ul></div>
<h2>Flights and mean delay by hour of day</h2>
<p>{hours_seen}</p>
{hours}
<h2>Wait in the work queue by priority</h2>
<p>{waits_seen}</p>
{waits}
<p class="faint">Box: the middle half of the flights, with the median; whiskers: 5 and 95 in 100.</p>
<h2>The balance</h2>
<p>Numbers of different flights. Published, archived and acknowledged by the ordered subscriber must be equal;
queued is worked off and dead letters together; the dead letters are the cancelled flights, one by one.</p>
{balance}
<h2>Throughput</h2>
{throughput}
<h2>Latency</h2>
{latency}"""
