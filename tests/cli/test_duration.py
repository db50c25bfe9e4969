"""Spans of time on the command line."""

from __future__ import annotations

import pytest
import typer

from heliograph.cli.duration import parse_duration
from heliograph.engine.settings import DAY_NS, SECOND_NS


@pytest.mark.parametrize(
    ("text", "seconds"), [("0", 0), ("30s", 30), ("1.5h", 5400), ("90m", 5400), ("24h", 86_400), ("7 D", 7 * 86_400)]
)
def test_a_span_is_a_number_and_a_unit(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds * SECOND_NS


@pytest.mark.parametrize("text", ["", "24", "h", "-1h", "1w", f"{10**9}d"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_duration(text)


def test_a_day_is_24_hours() -> None:
    assert parse_duration("24h") == parse_duration("1d") == DAY_NS
