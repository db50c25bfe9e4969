"""Spans of time on the command line: 24h, 90m, 7d, 30s, or 0."""

from __future__ import annotations

import re

import typer

from heliograph.engine.limits import SPAN_NS_MAX
from heliograph.engine.settings import DAY_NS, SECOND_NS

_UNITS_NS = {"s": SECOND_NS, "m": 60 * SECOND_NS, "h": 3600 * SECOND_NS, "d": DAY_NS}
_FORM = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd])")


def parse_duration(text: str) -> int:
    """`24h`, `90m`, `7d`, `30s` or `0` as nanoseconds.

    Raises:
        typer.BadParameter: it is none of these, or longer than 146 years.
    """
    if text.strip() == "0":
        return 0
    found = _FORM.fullmatch(text.strip().lower())
    if found is None:
        raise typer.BadParameter(f"{text!r} is no span of time: write 24h, 90m, 7d, 30s or 0")
    span_ns = int(float(found[1]) * _UNITS_NS[found[2]])
    if span_ns > SPAN_NS_MAX:
        raise typer.BadParameter(f"{text!r} is longer than any span that can be kept: 146 years")
    return span_ns
