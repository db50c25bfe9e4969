"""`heliograph demo` as its users start it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from heliograph.demo.flights import COLUMNS
from tests.demo.samples import FLIGHT, flight, write_csv
from tests.portions import quick_first
from tests.server.clients import wait_until

DEMO = (sys.executable, "-m", "heliograph", "demo")


def run(directory: Path, *options: str, seconds: float = 300) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        (*DEMO, *options), cwd=directory, capture_output=True, text=True, timeout=seconds, check=False
    )


def assert_refused(done: subprocess.CompletedProcess[str], text: str, directory: Path) -> None:
    """One line that says what to do, an exit code, and nothing written."""
    assert done.returncode != 0
    assert text in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr + done.stdout
    assert done.stdout == ""
    assert not (directory / "demo-output").exists()


@pytest.mark.slow
def test_a_flights_file_that_lacks_a_column_is_one_line(tmp_path: Path) -> None:
    columns = tuple(name for name in COLUMNS if name != "tailnum")
    path = write_csv(tmp_path / "flights.csv", FLIGHT, columns=columns)
    done = run(tmp_path, "--input", str(path), "--data-dir", str(tmp_path / "data"))
    assert_refused(done, "lacks the column tailnum: add it", tmp_path)
    assert not (tmp_path / "data").exists()


def test_a_directory_that_is_not_empty_is_one_line(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "flights.csv", FLIGHT)
    done = run(tmp_path, "--input", str(path), "--data-dir", str(tmp_path))
    assert_refused(done, "is not an empty directory", tmp_path)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("number", quick_first(["0", "many", "-1", "1.5"], 2))
def test_a_number_of_flights_that_is_none_is_refused(tmp_path: Path, number: str) -> None:
    done = run(tmp_path, "--flights", number)
    assert done.returncode == 2
    assert "neither a number of flights from 1 up nor all" in " ".join(done.stderr.replace("│", " ").split())


def test_a_report_that_cannot_be_written_is_told_before_the_work(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "flights.csv", FLIGHT)
    done = run(tmp_path, "--input", str(path), "--report", str(path / "report.html"))
    assert_refused(done, "cannot be made", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--chaos-kill",)], ids=["in peace", "broker killed midway"])
def test_the_balance_of_a_thousand_flights_adds_up(tmp_path: Path, options: tuple[str, ...]) -> None:
    done = run(tmp_path, "--flights", "1000", "--data-dir", str(tmp_path / "data"), *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\x1b" not in done.stdout
    assert "The balance adds up." in done.stdout
    assert re.search(r"^all +1,000 +1,000 +1,000 +1,000 +58 +54 +4 +4", done.stdout, re.MULTILINE), done.stdout
    assert ("was killed with SIGKILL" in done.stdout) == bool(options)
    report = Path(done.stdout.splitlines()[-1])
    assert report == tmp_path / "demo-output" / "report.html"
    assert "The balance adds up" in report.read_text("utf-8")
    assert done.stderr == ""


@contextlib.contextmanager
def at_work(directory: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A demonstration that has begun to publish, and where its broker keeps its data."""
    path = write_csv(directory / "flights.csv", *(flight(row) for row in range(1, 200_000)))
    data = directory / "data"
    with subprocess.Popen(
        (*DEMO, "--input", str(path), "--flights", "all", "--data-dir", str(data)),
        cwd=directory,
        stdout=subprocess.PIPE,
        text=True,
    ) as demo:
        assert demo.stdout is not None
        assert any("Measure latency" in line for line in demo.stdout)
        yield demo, data


@pytest.mark.slow
def test_a_demonstration_that_is_ended_ends_its_broker(tmp_path: Path) -> None:
    with at_work(tmp_path) as (demo, data):
        demo.send_signal(signal.SIGTERM)
        assert demo.wait(60) == 128 + signal.SIGTERM
    assert processes_with(str(data)) == []


@pytest.mark.slow
def test_a_demonstration_that_is_killed_leaves_no_broker_behind(tmp_path: Path) -> None:
    with at_work(tmp_path) as (demo, data):
        demo.kill()
    wait_until(lambda: processes_with(str(data)) == [])


def processes_with(text: str) -> list[str]:
    """Command lines of running processes that name a text."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if text in command and int(process.name) != os.getpid():
            found.append(command)
    return found
