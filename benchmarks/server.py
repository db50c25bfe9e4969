"""`heliograph serve` as a process of its own, on a free loopback port, ended by its own process id."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

READY = "Server started, listening on "
START_SECONDS_MAX = 30.0
STOP_SECONDS_MAX = 15.0


@contextmanager
def running_server(store: str) -> Iterator[str]:
    """Its endpoint, HOST:PORT; the server and its data go when the block ends.

    Args:
        store: "sqlite" or "memory".

    Raises:
        RuntimeError: it did not start; the text is what it said.
    """
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as directory:
        command = [sys.executable, "-m", "heliograph.cli.main", "serve", "--port", "0", "--store", store]
        if store == "sqlite":
            command += ["--data-dir", str(Path(directory) / "data")]
        said = Path(directory) / "stderr"
        with said.open("wb") as stderr:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, text=True
            )
        assert process.stdout is not None
        too_late = threading.Timer(START_SECONDS_MAX, process.kill)
        too_late.start()
        try:
            port = next((line.removeprefix(READY) for line in process.stdout if line.startswith(READY)), None)
            too_late.cancel()
            if port is None:
                process.wait()
                raise RuntimeError(f"heliograph serve did not start: {said.read_text().strip()}")
            yield f"127.0.0.1:{int(port)}"
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
    assert process.stdout is not None
    process.stdout.close()
