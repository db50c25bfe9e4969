"""The two charts of the report, as plotly figures.

Where two things share a chart they differ in place as well as in colour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from heliograph.demo.delays import MINUTES_PER_PRIORITY, PRIORITY_CANCELLED, PRIORITY_LATE_MAX
from heliograph.demo.figures import HourOfDay
from heliograph.demo.flights import LATE_MINUTES
from heliograph.demo.latency import Percentiles
from heliograph.page import BLUE, FONT, GREY, INK, VERMILION

_LAYOUT: dict[str, Any] = {
    "template": "plotly_white",
    "font": {"family": FONT, "size": 14, "color": INK},
    "margin": {"l": 80, "r": 30, "t": 50, "b": 70},
    "showlegend": False,
}


def hours_chart(hours: Sequence[HourOfDay]) -> go.Figure:
    """Flights and mean delay by hour of day: two panels over one axis."""
    labels = [f"{hour.hour:02}" for hour in hours]
    chart = make_subplots(
        rows=2,
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.1,
        subplot_titles=("Flights due to leave in the hour", "Mean delay at departure"),
    )
    chart.add_bar(
        x=labels,
        y=[hour.flights for hour in hours],
        customdata=[hour.cancelled for hour in hours],
        marker_color=BLUE,
        hovertemplate="%{x}:00 to %{x}:59<br>%{y:,} flights, %{customdata:,} of them cancelled<extra></extra>",
        row=1,
        col=1,
    )
    chart.add_scatter(
        x=labels,
        y=[hour.delay_minutes for hour in hours],
        mode="lines+markers",
        line={"color": VERMILION, "width": 3},
        marker={"size": 9, "symbol": "diamond"},
        hovertemplate="%{x}:00 to %{x}:59<br>%{y:.1f} minutes<extra></extra>",
        row=2,
        col=1,
    )
    chart.update_layout(**_LAYOUT, height=560)
    chart.update_yaxes(title_text="flights", tickformat=",", rangemode="tozero", row=1, col=1)
    chart.update_yaxes(title_text="minutes", rangemode="tozero", zeroline=True, zerolinecolor=GREY, row=2, col=1)
    chart.update_xaxes(type="category", row=1, col=1)
    chart.update_xaxes(type="category", title_text="scheduled hour of departure (local time)", row=2, col=1)
    return chart


def waits_chart(waits: Mapping[int, Percentiles]) -> go.Figure:
    """Queue wait by priority: the middle half as a box, the line in it half of all, the whiskers 5 and 95 in 100."""
    chart = go.Figure()
    for level in sorted(waits, reverse=True):
        wait = waits[level]
        chart.add_box(
            y=[f"{priority_label(level)} ({wait.count:,})  "],
            lowerfence=[wait.p5_ms / 1e3],
            q1=[wait.p25_ms / 1e3],
            median=[wait.p50_ms / 1e3],
            q3=[wait.p75_ms / 1e3],
            upperfence=[wait.p95_ms / 1e3],
            orientation="h",
            line={"color": VERMILION if level == PRIORITY_CANCELLED else BLUE, "width": 2},
            width=0.6,
            name=f"{wait.count:,} flights",
        )
    chart.update_layout(**{**_LAYOUT, "margin": {**_LAYOUT["margin"], "l": 230}}, height=120 + 44 * len(waits))
    chart.update_xaxes(title_text="seconds in the queue before a worker first took the flight", rangemode="tozero")
    chart.update_yaxes(title_text="priority, and how many flights had it", autorange="reversed", type="category")
    return chart


def priority_label(level: int) -> str:
    """What a priority stands for."""
    if level == PRIORITY_CANCELLED:
        return f"{level}: cancelled"
    first = LATE_MINUTES + 1 + level * MINUTES_PER_PRIORITY
    if level == PRIORITY_LATE_MAX:
        return f"{level}: {first} min late or more"
    return f"{level}: {first}–{first + MINUTES_PER_PRIORITY - 1} min late"
