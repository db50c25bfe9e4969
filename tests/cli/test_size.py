from __future__ import annotations

import pytest
import typer

from heliograph.broker.housekeeping import MEMORY_BUDGET_BYTES
from heliograph.cli.size import parse_size, show_size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("4096", 4096), ("64MB", 64 << 20), ("64mib", 64 << 20), ("1 GiB", 1 << 30), ("1.5k", 1536), (" 7B ", 7)],
)
def test_a_size_is_a_number_with_a_unit_or_without(text: str, size_bytes: int) -> None:
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "0", "-1", "much", "MB", "1XB", "1MBs", "1e3", "1,000"])
def test_what_is_no_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is not a size: write 64MB, 1GiB, or a number of bytes"):
        parse_size(text)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "0.977 KB"), (1 << 20, "1 MB"), (700 << 20, "700 MB"), (3 << 50, "3,072 TB")],
)
def test_a_size_is_shown_short(size_bytes: int, text: str) -> None:
    assert show_size(size_bytes) == text


def test_the_default_of_the_memory_budget_can_be_given_as_it_is_shown() -> None:
    assert parse_size(show_size(MEMORY_BUDGET_BYTES)) == MEMORY_BUDGET_BYTES
