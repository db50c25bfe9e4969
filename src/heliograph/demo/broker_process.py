"""A broker as a process of its own: `heliograph serve`, started, killed and ended by its own process id."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import types
from collections.abc import Sequence
from pathlib import Path

from heliograph.errors import Unavailable

READY = "Server started, listening on "
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 20.0


class BrokerProcess:
    """One `heliograph serve` on a data directory; as a context manager it is stopped on the way out, whatever happens.

    Args:
        data_dir: its data directory.
        log_path: what it writes to standard error goes here, appended.
        program: what is started; it is given the command `serve` and its options.
        options: more of them.
    """

    def __init__(
        self,
        data_dir: Path,
        log_path: Path,
        *,
        program: Sequence[str] = (sys.executable, "-m", "heliograph"),
        options: Sequence[str] = (),
    ) -> None:
        self.data_dir = data_dir
        self.port = 0
        self.program = program
        self._options = options
        self._log_path = log_path
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    @property
    def endpoint(self) -> str:
        """HOST:PORT."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and wait until it serves: on a free port the first time, on the same one ever after.

        Raises:
            Unavailable: it ended, or was not ready in a minute; the text is its own last line.
        """
        self.launch()
        self.port = self._await_ready()

    def launch(self) -> None:
        """Start it without waiting."""
        command = [
            *self.program,
            *("serve", "--host", "127.0.0.1", "--port", str(self.port)),
            *("--data-dir", str(self.data_dir), "--store", "sqlite", *self._options, "--end-with-stdin"),
        ]
        with self._log_path.open("a", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,  # closed with this process, however it ends; the broker then ends as well
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                # Ctrl-C is for the demonstration, which then ends its broker in order
                start_new_session=True,
            )
        self._lines = queue.SimpleQueue()
        arguments = self._process, self._lines
        threading.Thread(target=_read_lines, args=arguments, name="broker-output", daemon=True).start()

    def kill(self) -> None:
        """SIGKILL: no goodbye, as in a crash."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            _let_go(self._process)
            self._process = None

    def stop(self) -> None:
        """SIGTERM, and SIGKILL where that does not help. Idempotent."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        _let_go(process)

    def ended(self) -> int | None:
        """The exit code of a broker that ended by itself; None = it runs."""
        return None if self._process is None else self._process.poll()

    def last_words(self) -> str:
        """The last line of its log."""
        lines = [line for line in self._log_path.read_text("utf-8", "replace").splitlines() if line.strip()]
        return lines[-1].strip() if lines else "it said nothing; start it by hand with `heliograph serve`"

    def __enter__(self) -> BrokerProcess:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        self.stop()

    def _await_ready(self) -> int:
        try:
            while (line := self._lines.get(timeout=START_SECONDS_MAX)) is not None:
                if line.startswith(READY):
                    return int(line.removeprefix(READY))
        except queue.Empty:
            self.stop()
            raise Unavailable(f"The broker was not ready in {START_SECONDS_MAX:.0f} s: see {self._log_path}") from None
        self.stop()
        raise Unavailable(f"The broker did not start: {self.last_words()}")


def _let_go(process: subprocess.Popen[str]) -> None:
    """Of the standard input of a process that has ended."""
    assert process.stdin is not None
    process.stdin.close()


def _read_lines(process: subprocess.Popen[str], lines: queue.SimpleQueue[str | None]) -> None:
    """Hand over what the broker prints; read on for ever, so that it never waits for a reader."""
    assert process.stdout is not None
    with process.stdout as output:
        for line in output:
            lines.put(line.rstrip(os.linesep))
    lines.put(None)
