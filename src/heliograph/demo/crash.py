"""The crash: the broker is killed with SIGKILL while everybody is at work, and started again on its data directory."""

from __future__ import annotations

import threading
import time
import types

from heliograph.demo.broker_process import BrokerProcess
from heliograph.demo.progress import Step, Steps


class Crash:
    """Waits for its moment in a thread of its own; a context manager that lets no thread outlive it.

    Args:
        broker: the broker to kill.
        after: how many flights are to be published before.
        steps: where it is shown.
    """

    def __init__(self, broker: BrokerProcess, after: int, steps: Steps) -> None:
        self.seconds: float | None = None
        self.failure: Exception | None = None
        self._broker = broker
        self._after = after
        self._steps = steps
        self._now = threading.Event()
        self._called_off = False
        self._thread = threading.Thread(target=self._run, name="crash")

    def published(self, count: int) -> None:
        """So many flights are published now."""
        if count >= self._after:
            self._now.set()

    def __enter__(self) -> Crash:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: types.TracebackType | None
    ) -> None:
        if not self._now.is_set():
            self._called_off = True
            self._now.set()
        self._thread.join()

    def _run(self) -> None:
        self._now.wait()
        if self._called_off:
            return
        step = self._steps.begin(Step("Kill the broker, start it again"))
        started = time.monotonic()
        try:
            self._broker.kill()
            self._broker.start()
        except Exception as error:
            self.failure = error
            return
        self.seconds = time.monotonic() - started
        self._steps.finish(step)
