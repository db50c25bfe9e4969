"""Spans of time and instants on the command line: 24h, 90m, 7d, 30s, or 0; 2026-11-28T02:35:00Z, now, or 10m ago."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

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


def parse_seconds(text: str) -> float:
    """As `parse_duration`, in seconds."""
    return parse_duration(text) / SECOND_NS


def proto_duration(seconds: float) -> str:
    """As Pub/Sub's JSON writes it: `600s`, `0.5s`."""
    return f"{seconds:.9f}".rstrip("0").rstrip(".") + "s"


def is_relative(text: str) -> bool:
    """Whether the instant that `parse_instant` makes of it depends on when it is asked."""
    return text == "now" or _FORM.fullmatch(text) is not None


def parse_instant(text: str) -> str:
    """An instant as Pub/Sub's JSON writes it: from a date and time, `now`, or a span of time ago.

    Raises:
        typer.BadParameter: it is none of these.
    """
    if text == "now":
        instant = datetime.now(UTC)
    elif _FORM.fullmatch(text):
        instant = datetime.now(UTC) - timedelta(seconds=parse_seconds(text))
    else:
        try:
            instant = datetime.fromisoformat(text)
        except ValueError:
            raise typer.BadParameter(f"{text!r} is not an instant: write 2026-11-28T02:35:00Z, now, or 10m") from None
        if instant.tzinfo is None:
            instant = instant.replace(tzinfo=UTC)
    return instant.astimezone(UTC).isoformat().replace("+00:00", "Z")
