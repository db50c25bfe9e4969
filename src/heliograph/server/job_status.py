"""What the pipeline's jobs have told of themselves, kept for the console and for scripts.

One `JobStatus` for each job of each pipeline. All of it is bounded, and durable as documents of the broker: at once
when a job is first heard of, ends or fails, and once a minute while it is at work, because documents are facts, and
many would push messages' events out of an event log of bounded size. A broker that is killed forgets a minute of a
chart at most.

Instants are the broker's own: the clocks of the jobs' machines do not matter.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from heliograph.broker.protocol import Broker
from heliograph.wire.job_report import JobReport

COLLECTION = "pipeline-jobs"
"""Of the broker's documents."""

JOBS_MAX = 100
"""Kept; beyond it goes the one that was silent for the longest time."""

POINTS_MAX = 60
"""Of a job's history."""

KEEP_SECONDS = 60.0
"""Between two writes of a job that is at work."""

SILENT_REPORTS_MAX = 4
"""Reports that may fail to come before a job counts as lost: killed, or cut off from its broker."""

SECOND_NS = 1_000_000_000


class Point(NamedTuple):
    """One of a history: when, the rows of all runs until then, and the lag if it was known."""

    at_ns: int
    rows: int
    lag: int | None


class JobStatus(msgspec.Struct, frozen=True):
    """What is known of a job.

    Args:
        report: the last one.
        reported_ns: when it came.
        kept_ns: when the status was last written.
        runs: that were told of.
        rows: of all of them.
        error, error_ns: the last error in one line, and when it came; "" = there was none.
        history: the last points, oldest first.
    """

    report: JobReport
    reported_ns: int
    kept_ns: int = 0
    runs: int = 0
    rows: int = 0
    error: str = ""
    error_ns: int = 0
    history: list[Point] = []

    @property
    def name(self) -> str:
        """Of the document; jobs with one directory on one host are one pipeline's."""
        return f"{self.report.host} {self.report.directory} {self.report.job}"

    @property
    def is_at_work(self) -> bool:
        """More reports are to be expected."""
        return self.report.state in ("running", "idle")

    @property
    def rows_per_second(self) -> float:
        """Of the last run."""
        return self.report.rows / self.report.seconds if self.report.seconds else 0.0

    def state(self, now_ns: int) -> str:
        """As it has told, or "lost": it should have told something long ago."""
        silent_ns = now_ns - self.reported_ns
        if self.is_at_work and silent_ns > SILENT_REPORTS_MAX * self.report.report_seconds * SECOND_NS:
            return "lost"
        return self.report.state


def after(before: JobStatus | None, report: JobReport, now_ns: int) -> JobStatus:
    """The status once a report has come; `before` None = it is the job's first."""
    before = before or JobStatus(report, now_ns)
    is_new_run = not before.runs or report.run != before.report.run
    rows = before.rows + (report.rows if is_new_run else max(report.rows - before.report.rows, 0))
    return JobStatus(
        report,
        now_ns,
        kept_ns=before.kept_ns,
        runs=before.runs + is_new_run,
        rows=rows,
        error=report.error or before.error,
        error_ns=now_ns if report.error else before.error_ns,
        history=_with_point(before.history, Point(now_ns, rows, report.lag)),
    )


def _with_point(history: list[Point], point: Point) -> list[Point]:
    """The last ones. Where nothing changes, the last point moves on: a flat line needs its two ends only."""
    if len(history) > 1 and history[-2][1:] == history[-1][1:] == point[1:]:
        history = history[:-1]
    return [*history, point][-POINTS_MAX:]


_decode = msgspec.json.Decoder(JobStatus).decode


class JobStatuses:
    """All of them, of one broker.

    Args:
        broker: keeps them.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._statuses: dict[str, JobStatus] | None = None  # not read yet

    def listed(self) -> list[JobStatus]:
        """By host, directory and job."""
        known = self._known()
        return [known[name] for name in sorted(known)]

    async def take(self, report: JobReport) -> None:
        """A report has come. Raises: Unavailable (it could not be kept; it is shown all the same)."""
        known, now_ns = self._known(), self._broker.now_ns()
        before = known.get(JobStatus(report, 0).name)
        status = after(before, report, now_ns)
        is_due = before is None or now_ns - before.kept_ns >= KEEP_SECONDS * SECOND_NS
        if is_due or not status.is_at_work:
            status = msgspec.structs.replace(status, kept_ns=now_ns)
        known[status.name] = status
        if status.kept_ns == now_ns:
            kept = self._broker.put_document(COLLECTION, status.name, msgspec.json.encode(status))
            await self._forget_oldest(known)
            await kept

    async def _forget_oldest(self, known: dict[str, JobStatus]) -> None:
        while len(known) > JOBS_MAX:
            name = min(known, key=lambda each: known[each].reported_ns)
            del known[name]
            await self._broker.delete_document(COLLECTION, name)

    def _known(self) -> dict[str, JobStatus]:
        if self._statuses is None:
            documents = self._broker.list_documents(COLLECTION)
            self._statuses = {name: _decode(document) for name, document in documents}
        return self._statuses
