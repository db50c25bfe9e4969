"""The example of queue-protocol.md runs to its end, on a broker of its own and on a server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from heliograph.broker.broker import LocalBroker
from tests.server.conftest import serving

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> list[str]:
    """The lines that it prints."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "task_queue.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def check(lines: list[str]) -> None:
    assert "given up: video 666, MaxRetriesExceeded after 3 retries" in lines
    assert "the codec is installed, and 1 video is tried once more" in lines
    # two of twelve fail once, and the poison task four times
    assert lines[-3] == "processed 13, failed 6 times, left 0"
    assert lines[-2] == "dead letters: 1 ever, 0 now"
    assert lines[-1].startswith("average wait: ")
    first = next(line for line in lines if " of a " in line)
    assert "of a premium user" in first


def test_the_example_runs_on_a_broker_of_its_own() -> None:
    check(run())


def test_the_example_runs_on_a_server(tmp_path: Path) -> None:
    with serving(LocalBroker.open(tmp_path)) as server:
        check(run("--url", f"http://127.0.0.1:{server.port}"))
