"""How `heliograph demo` ends, told by what the story brings."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from heliograph.demo import run, story
from heliograph.demo.balance import Balance
from heliograph.errors import Unavailable
from tests.demo.samples import FLIGHT, write_csv
from tests.demo.test_report import airline, outcome


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the command on one flight, with a story that brings this outcome."""
    flights = write_csv(tmp_path / "flights.csv", FLIGHT)
    monkeypatch.setattr(run, "_import_needed", lambda: None)
    monkeypatch.setattr(run.tempfile, "mkdtemp", lambda prefix: str(_made(tmp_path / f"{prefix}1")))
    app = typer.Typer()
    app.command()(run.demo)

    def call(brings: Any, *options: str) -> Result:
        monkeypatch.setattr(story.Story, "tell", brings)
        report = ("--report", str(tmp_path / "report.html"))
        return CliRunner().invoke(app, ["--input", str(flights), *report, *options])

    return call


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def differs(_story: story.Story) -> Any:
    return outcome(balance=Balance([airline("UA", adds_up=False)], ["UA: 2 flights were published, 1 are archived"]))


def adds_up(_story: story.Story) -> Any:
    return outcome()


def fails(_story: story.Story) -> Any:
    raise Unavailable("The broker ended before its time, by signal 9")


def test_a_balance_that_adds_up_is_success_with_the_report_s_path_last(demo: Any, tmp_path: Path) -> None:
    done = demo(adds_up)
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, str(tmp_path / "report.html"))
    assert "The balance adds up" in (tmp_path / "report.html").read_text("utf-8")


def test_a_balance_that_does_not_add_up_fails_and_says_what_differs(demo: Any, tmp_path: Path) -> None:
    done = demo(differs)
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (1, str(tmp_path / "report.html"))
    assert "The balance does not add up. UA: 2 flights were published, 1 are archived" in done.stdout
    assert "UA: 2 flights were published, 1 are archived" in (tmp_path / "report.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("brings", "options", "stays"), [(adds_up, (), False), (adds_up, ("--keep",), True), (differs, (), True)]
)
def test_the_data_stay_when_they_are_wanted_or_needed(
    demo: Any, tmp_path: Path, brings: Any, options: tuple[str, ...], stays: bool
) -> None:
    demo(brings, *options)
    folder = tmp_path / "heliograph-demo-1"
    assert folder.exists() == stays
    shutil.rmtree(folder, ignore_errors=True)


def test_a_story_that_fails_leaves_nothing(demo: Any, tmp_path: Path) -> None:
    done = demo(fails)
    assert isinstance(done.exception, Unavailable)
    assert [each.name for each in tmp_path.iterdir()] == ["flights.csv"]
