"""Servers as processes of their own, on free loopback ports, ended by their own process ids."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
READY = "Server started, listening on "
START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 15.0


class ServerProcess(NamedTuple):
    """A server that is up.

    Args:
        endpoint: HOST:PORT.
        pid: its process.
    """

    endpoint: str
    pid: int


@contextmanager
def running_server(store: str) -> Iterator[str]:
    """The endpoint of a `server_process`."""
    with server_process(store) as process:
        yield process.endpoint


@contextmanager
def server_process(store: str, *arguments: str) -> Iterator[ServerProcess]:
    """`heliograph serve`; it and its data go when the block ends.

    Args:
        store: "sqlite" or "memory".
        arguments: what else to tell it.

    Raises:
        RuntimeError: it did not start; the text is what it said.
    """
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as directory:
        command = ["heliograph", "serve", "--port", "0", "--store", store, "--end-with-stdin", *arguments]
        if store == "sqlite":
            command += ["--data-dir", str(Path(directory) / "data")]
        with _process(command, Path(directory) / "stderr") as process:
            yield process


@contextmanager
def bare_grpcio() -> Iterator[str]:
    """The endpoint of a peer that does nothing (`benchmarks/bare_grpcio.py`)."""
    with (
        tempfile.TemporaryDirectory(prefix="heliograph-bench-") as directory,
        _process(["benchmarks.bare_grpcio"], Path(directory) / "stderr") as process,
    ):
        yield process.endpoint


@contextmanager
def _process(module: list[str], said: Path) -> Iterator[ServerProcess]:
    """A Python module that tells where it listens. `said` is the file for what it says on standard error."""
    with said.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", *module],
            env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))},
            stdin=subprocess.PIPE,  # closed with this process, however it ends
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
    assert process.stdout is not None
    too_late = threading.Timer(START_SECONDS_MAX, process.kill)
    too_late.start()
    try:
        port = next((line.removeprefix(READY) for line in process.stdout if line.startswith(READY)), None)
        too_late.cancel()
        if port is None:
            process.wait()
            raise RuntimeError(f"{' '.join(module[:2])} did not start: {said.read_text().strip()}")
        yield ServerProcess(f"127.0.0.1:{int(port)}", process.pid)
    finally:
        too_late.cancel()
        _stop(process)


def _stop(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.stdout.close()
