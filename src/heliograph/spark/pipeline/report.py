"""The pipeline's report: one HTML page with charts, from its tables and its record of runs. No Spark needed."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pyarrow as pa
import pyarrow.parquet as pq

from heliograph.page import BLUE, FONT, GREY, INK, VERMILION, document, table
from heliograph.spark.pipeline.job import Run, last_run, runs
from heliograph.spark.pipeline.table import write_whole

COLOURS = (BLUE, VERMILION, "#009E73", "#CC79A7", "#E69F00", "#56B4E9", GREY)
DASHES = ("solid", "dash", "dot", "dashdot")
SUBSCRIPTIONS_MAX = 8
"""In a chart; the ones with the most messages."""

_LAYOUT: dict[str, Any] = {
    "template": "plotly_white",
    "font": {"family": FONT, "size": 14, "color": INK},
    "margin": {"l": 80, "r": 30, "t": 50, "b": 60},
    "height": 420,
    "legend": {"orientation": "h", "y": -0.2},
}

Rows = list[dict[str, Any]]


def write_report(directory: Path, jobs: Iterable[str], path: Path) -> None:
    """Write the page, whole or not at all.

    Args:
        directory: the pipeline's.
        jobs: names, in order.
        path: the page.
    """
    by_job = {job: runs(directory, job) for job in jobs}
    windows = rows_of(directory / "metrics-by-window")
    hours = rows_of(directory / "reconcile" / "hours")
    letters = rows_of(directory / "dead-letters")
    made = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    parts = [f"<p>{html.escape(str(directory))}, {made}.</p>", "<h2>Jobs</h2>", jobs_table(by_job)]
    charts = [*_job_charts(by_job), *_window_charts(windows), *_hour_charts(hours)]
    for number, (title, chart) in enumerate(charts):
        shown = chart.to_html(full_html=False, include_plotlyjs=number == 0, config={"displaylogo": False})
        parts.append(f"<h2>{html.escape(title)}</h2>{shown}")
    if letters:
        parts += ["<h2>Dead letters</h2>", _letters_table(letters)]
    write_whole(path, document("Heliograph pipeline", "\n".join(parts)).encode())


def rows_of(directory: Path) -> Rows:
    """All rows of a small table; none if it is not there."""
    files = sorted(directory.glob("*.parquet")) if directory.is_dir() else []
    if not files:
        return []
    rows: Rows = pa.concat_tables([pq.read_table(file) for file in files]).to_pylist()
    return rows


def jobs_table(by_job: Mapping[str, Sequence[Run]]) -> str:
    """What each job has done, as HTML."""
    lines = []
    for job, done in by_job.items():
        last = done[-1] if done else None
        good, failed = last_run(done, failed=False), last_run(done, failed=True)
        found = good.figures if good else {}
        figures = ", ".join(f"{name} {_figure(value)}" for name, value in found.items())
        lines.append(
            (
                job,
                _instant(last.started_ns) if last else "never",
                f"{last.seconds:.1f}" if last else "",
                f"{sum(run.rows for run in done):,}",
                f"{good.lag:,}" if good else "",
                last.state if last else "",
                figures,
                f"{_instant(failed.started_ns)}: {failed.error}" if failed else "",
            )
        )
    return table(("job", "last run", "seconds", "rows in all", "lag", "state", "what it found", "last error"), lines)


def _job_charts(by_job: Mapping[str, Sequence[Run]]) -> list[tuple[str, go.Figure]]:
    chart = go.Figure()
    for number, (job, done) in enumerate(by_job.items()):
        worked = [run for run in done if run.rows and run.seconds]
        if worked:
            chart.add_scatter(
                x=[_instant(run.started_ns) for run in worked],
                y=[run.rows / run.seconds for run in worked],
                name=job,
                mode="lines+markers",
                line={"color": COLOURS[number % len(COLOURS)], "dash": DASHES[number % len(DASHES)]},
            )
    if not chart.data:
        return []
    chart.update_layout(**_LAYOUT)
    chart.update_yaxes(title_text="rows a second", rangemode="tozero", tickformat=",")
    return [("Speed of each run", chart)]


def _window_charts(windows: Rows) -> list[tuple[str, go.Figure]]:
    """Of each subscription over time."""
    if not windows:
        return []
    totals: dict[str, int] = {}
    for row in windows:
        totals[row["subscription"]] = totals.get(row["subscription"], 0) + row["published"] + row["delivered"]
    names = sorted(totals, key=lambda name: (-totals[name], name))[:SUBSCRIPTIONS_MAX]
    wanted = (
        ("Backlog at the end of each window", "backlog", "messages"),
        ("Age of the oldest open message", "oldest_age_seconds", "seconds"),
        ("Acknowledged", "acknowledged_per_second", "messages a second"),
        ("Waiting time, 95 in 100", "wait_ms_p95", "milliseconds"),
        ("Processing time, 95 in 100", "processing_ms_p95", "milliseconds"),
        ("Redelivered of what was delivered", "redelivery_ratio", "ratio"),
    )
    return [(title, _over_time(windows, names, column, unit)) for title, column, unit in wanted]


def _over_time(windows: Rows, names: Sequence[str], column: str, unit: str) -> go.Figure:
    chart = go.Figure()
    for number, name in enumerate(names):
        rows = sorted((row for row in windows if row["subscription"] == name), key=lambda row: row["window_start"])
        rows = [row for row in rows if row[column] is not None]
        chart.add_scatter(
            x=[row["window_start"] for row in rows],
            y=[float(row[column]) for row in rows],
            name=name,
            mode="lines+markers",
            line={"color": COLOURS[number % len(COLOURS)], "dash": DASHES[number % len(DASHES)]},
        )
    chart.update_layout(**_LAYOUT, showlegend=True)
    chart.update_yaxes(title_text=unit, rangemode="tozero", tickformat=",")
    return chart


def _hour_charts(hours: Rows) -> list[tuple[str, go.Figure]]:
    if not hours:
        return []
    sums: dict[Any, tuple[int, int]] = {}
    for row in hours:
        log, archive = sums.get(row["hour"], (0, 0))
        sums[row["hour"]] = (log + row["log"], archive + row["archive"])
    ordered = sorted(sums)
    chart = go.Figure()
    for place, name in enumerate(("log", "archive")):
        counts = [sums[hour][place] for hour in ordered]
        chart.add_bar(x=ordered, y=counts, name=name, marker_color=COLOURS[place])
    chart.update_layout(**_LAYOUT, barmode="group")
    chart.update_yaxes(title_text="messages", rangemode="tozero", tickformat=",")
    differences = sum(row["differences"] for row in hours)
    return [(f"Log and archive by hour of publication: {differences:,} differences", chart)]


def _letters_table(letters: Rows) -> str:
    rows = sorted(letters, key=lambda row: -row["count"])[:20]
    return table(
        ("count", "reason", "error", "where"),
        [
            (f"{row['count']:,}", row["reason"] or "", row["sample_error"] or "", row["subscription"] or row["topic"])
            for row in rows
        ],
    )


def _figure(value: int | float | str) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else value


def _instant(instant_ns: int) -> str:
    return datetime.fromtimestamp(instant_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S")
