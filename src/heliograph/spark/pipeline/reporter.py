"""A job tells its broker how it is doing, for the console's pipeline page.

A thread sends a report every few seconds, and one more is sent at the job's end. None of it matters to the job: a
broker that is away is told the next time, and one that takes no reports is left alone.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from heliograph.errors import HeliographError, Unavailable
from heliograph.spark.door import Door
from heliograph.spark.pipeline.job import Outcome, Place, Tell, silent
from heliograph.wire.job_report import (
    DIRECTORY_LENGTH_MAX,
    FIGURES_MAX,
    HOST_LENGTH_MAX,
    PATH,
    REMARKS_MAX,
    JobReport,
    State,
    one_line,
)

REPORT_SECONDS = 2.0
"""Between two reports."""

GAP_SECONDS = 0.2
"""Between two reports at least, whatever happens."""

TIMEOUT_SECONDS = 2.0
"""A job does not wait longer for its last report to be taken."""

log = logging.getLogger(__name__)

Send = Callable[[JobReport], None]


class Reporter:
    """What there is to report of one job; called from the job's thread, read from the reporting one.

    Args:
        job: its name.
        directory: of the pipeline.
        tell: is told what the job tells.
        now: seconds of a clock that does not run backwards.
    """

    def __init__(
        self, job: str, directory: str, tell: Tell = silent, now: Callable[[], float] = time.monotonic
    ) -> None:
        self.changed = threading.Event()
        """Set when a run begins or ends: that is worth a report at once."""
        self._lock = threading.Lock()
        self._listener = tell
        self._now = now
        self._began_at = self._ended_at = self._batch_at = now()
        host = one_line(socket.gethostname(), HOST_LENGTH_MAX)
        directory = one_line(directory, DIRECTORY_LENGTH_MAX)
        self._report = JobReport(job, host, directory, "idle", time.time_ns(), report_seconds=REPORT_SECONDS)

    def tell(self, what: str, rows: int = 0, lag: int | None = None) -> None:
        """As `Tell`."""
        with self._lock:
            known = self._report
            changes: dict[str, object] = {"doing": one_line(what)}
            if rows:
                changes |= {"rows": known.rows + rows, "batch_rows": rows}
                self._batch_at = self._now()
            if lag is not None:
                changes["lag"] = lag
            self._report = msgspec.structs.replace(known, **changes)
        self._listener(what, rows, lag)

    def began(self) -> None:
        """A run begins; what the one before it found stands until it has ended."""
        with self._lock:
            self._began_at = self._now()
            changes = {"state": "running", "run": time.time_ns(), "rows": 0, "doing": "", "error": ""}
            self._report = msgspec.structs.replace(self._report, **changes)
        self.changed.set()

    def ended(self, outcome: Outcome, state: State) -> None:
        """The run has ended well."""
        with self._lock:
            self._ended_at = self._now()
            figures = {one_line(name): _bounded(value) for name, value in outcome.figures.items()}
            self._report = msgspec.structs.replace(
                self._report,
                state=state,
                doing="",
                rows=outcome.rows,
                lag=max(outcome.lag, 0),
                figures=dict(list(figures.items())[:FIGURES_MAX]),
                remarks=[one_line(remark) for remark in outcome.remarks[:REMARKS_MAX]],
                is_good=outcome.is_good,
            )
        self.changed.set()

    def failed(self, error: str, state: State) -> None:
        """The run has failed, or the job was ended (error ""), perhaps between two runs."""
        with self._lock:
            if self._report.state == "running":
                self._ended_at = self._now()
            self._report = msgspec.structs.replace(self._report, state=state, doing="", error=one_line(error))
        self.changed.set()

    def report(self) -> JobReport:
        """How the job is doing now."""
        with self._lock:
            until = self._now() if self._report.state == "running" else self._ended_at
            batch_seconds = self._now() - self._batch_at if self._report.batch_rows else 0.0
            return msgspec.structs.replace(
                self._report, seconds=max(until - self._began_at, 0.0), batch_seconds=batch_seconds
            )


def _bounded(value: int | float | str) -> int | float | str:
    return one_line(value) if isinstance(value, str) else value


@contextmanager
def reporting(
    place: Place, job: str, tell: Tell = silent, *, send: Send | None = None, seconds: float = REPORT_SECONDS
) -> Iterator[Reporter]:
    """Reports go to the broker while the block runs, and once more at its end, which an exception tells of.

    Args:
        place: broker and directory.
        job: its name.
        tell: is told what the job tells.
        send: sends a report; None = over HTTP.
        seconds: between two reports.
    """
    reporter = Reporter(job, str(place.directory), tell)
    sender = _Sender(reporter, send or _over_http(place), seconds)
    sender.start()
    try:
        yield reporter
    except KeyboardInterrupt:
        reporter.failed("", "stopped")
        raise
    except BaseException as error:
        told = error.message if isinstance(error, HeliographError) else repr(error)
        reporter.failed(told, "failed")
        raise
    finally:
        sender.end()


def _over_http(place: Place) -> Send:
    door = Door(place.address._replace(timeout_seconds=TIMEOUT_SECONDS))

    def send(report: JobReport) -> None:
        door.post_bytes(PATH, msgspec.json.encode(report), "application/json", {})

    return send


class _Sender(threading.Thread):
    """Sends reports until the job ends, or the broker has refused one."""

    def __init__(self, reporter: Reporter, send: Send, seconds: float) -> None:
        super().__init__(name="pipeline report", daemon=True)
        self._reporter = reporter
        self._send = send
        self._seconds = seconds
        self._end = threading.Event()
        self._refused = False

    def run(self) -> None:
        gap_seconds = min(GAP_SECONDS, self._seconds)
        self._reporter.changed.wait()  # before its first run there is nothing to tell
        while not self._refused:
            self._reporter.changed.wait(self._seconds)
            self._reporter.changed.clear()
            if self._end.is_set():
                return
            self._once()
            if self._end.wait(gap_seconds):
                return

    def end(self) -> None:
        """Send the last report, and no more."""
        self._end.set()
        self._reporter.changed.set()
        self.join()
        if not self._refused:
            self._once()

    def _once(self) -> None:
        try:
            self._send(self._reporter.report())
        except Unavailable:
            log.debug("The broker was away when a job reported to it", exc_info=True)
        except HeliographError as error:
            self._refused = True
            log.warning("The broker takes no reports of jobs: %s", error.message)
        except Exception:
            self._refused = True
            log.warning("A job's report could not be sent", exc_info=True)
