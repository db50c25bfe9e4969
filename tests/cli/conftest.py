"""`heliograph` as a process of its own, as a shell would start it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HELIOGRAPH = (sys.executable, "-m", "heliograph")
READY = "Server started, listening on "
SECONDS_MAX = 60

Run = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., "Serve"]


class Serve:
    """A `heliograph serve` that is up."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process = process
        self.line = process.stdout.readline()

    @property
    def port(self) -> int:
        assert self.line.startswith(READY), f"not a readiness line: {self.line!r}"
        return int(self.line.removeprefix(READY))

    def stop(self, number: signal.Signals) -> tuple[int, str, str]:
        """Its exit code and what else it said on standard output and standard error."""
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=SECONDS_MAX)
        return self.process.returncode, out, err


@pytest.fixture
def heliograph(tmp_path: Path) -> Run:
    """Runs one command to its end, in an empty directory."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*HELIOGRAPH, *arguments],
            cwd=tmp_path,
            env=environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
        )

    return run


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Start]:
    """Starts `heliograph serve` on a free port; what still runs at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, host_port: str = "") -> Serve:
        where = ("--host-port", host_port) if host_port else ("--port", "0")
        process = subprocess.Popen(
            [*HELIOGRAPH, "serve", *where, *arguments],
            cwd=tmp_path,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return Serve(process)

    yield start
    for process in started:
        process.kill()
        process.communicate()


def environment() -> dict[str, str]:
    """This process's, with the package also found where it is not installed."""
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
