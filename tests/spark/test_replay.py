"""What a replay is called and what it goes on with, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest

from heliograph.errors import FailedPrecondition
from heliograph.spark.pipeline.replay import Choice, _manifest, _name
from heliograph.spark.pipeline.table import Table

TOPICS = ("projects/p/topics/t",)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "archive")


def begun(file: Path, table: Table, choice: Choice) -> Choice:
    """The choice that a run works with."""
    return _manifest(file, table, choice, _name(choice, "")).choice


@pytest.fixture(autouse=True)
def one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heliograph.spark.pipeline.replay._pieces", lambda table, choice: [])


def test_a_replay_of_the_last_two_hours_goes_on_with_the_hours_that_it_began_with(table: Table, tmp_path: Path) -> None:
    first = Choice(TOPICS, since_ns=1_000, until_ns=9_000, since="2h", until="now")
    later = Choice(TOPICS, since_ns=5_000, until_ns=13_000, since="2h", until="now")
    assert _name(first, "") == _name(later, "")
    assert [begun(tmp_path / "m.json", table, choice) for choice in (first, later)] == [first, first]


@pytest.mark.parametrize(
    "other",
    [
        Choice(TOPICS, since_ns=1_000, since="3h"),
        Choice(TOPICS, since_ns=1_000),
        Choice(TOPICS, since_ns=1_000, until_ns=2_000, since="2h"),
        Choice(TOPICS, since_ns=1_000, since="2h", where="true"),
    ],
)
def test_a_replay_that_asks_for_something_else_has_another_name_and_does_not_go_on_with_it(
    table: Table, tmp_path: Path, other: Choice
) -> None:
    first = Choice(TOPICS, since_ns=1_000, since="2h")
    begun(tmp_path / "m.json", table, first)
    assert _name(first, "") != _name(other, "")
    with pytest.raises(FailedPrecondition, match="give this one another name"):
        begun(tmp_path / "m.json", table, other)
