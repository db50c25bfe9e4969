"""How the pipeline's jobs are doing, over HTTP: they tell it, and scripts ask for it. `console/` shows it to people.

::

    POST /api/v1/pipelines    a `heliograph.wire.job_report.JobReport`     → {}
    GET  /api/v1/pipelines
        → {"now": 1764297357.1, "jobs": [{"job": "archive", "host": …, "directory": …, "state": "running", …}]}

`state` is one of "running", "idle", "done", "failed", "stopped", and "lost" for a job that should have told something
long ago. `rows` are those of all runs, `run_rows` and `rows_per_second` those of the last one; `lag` is null where
nobody knows it; `history` has up to 60 points [seconds since the epoch, rows, lag].
"""

from __future__ import annotations

from typing import Any

import msgspec

from heliograph.broker.protocol import Broker
from heliograph.server.http import answer_json, check_length, read_json
from heliograph.server.job_status import SECOND_NS, JobStatus, JobStatuses
from heliograph.server.routing import Receive, Route, Scope, Send
from heliograph.wire.job_report import PATH, JobReport

REPORT_BYTES_MAX = 64 * 1024

_decode = msgspec.json.Decoder(JobReport).decode


def pipeline_routes(statuses: JobStatuses) -> list[Route]:
    """The routes.

    Args:
        statuses: what jobs have told.
    """

    async def report(scope: Scope, receive: Receive, send: Send, _broker: Broker) -> None:
        """`POST /api/v1/pipelines`, see the module. Raises: InvalidArgument, BodyTooLarge, Unavailable."""
        check_length(scope, REPORT_BYTES_MAX)
        await statuses.take(await read_json(receive, _decode, REPORT_BYTES_MAX))
        await answer_json(send, {})

    async def jobs(_scope: Scope, _receive: Receive, send: Send, broker: Broker) -> None:
        """`GET /api/v1/pipelines`, see the module."""
        now_ns = broker.now_ns()
        told = [described(status, now_ns) for status in statuses.listed()]
        await answer_json(send, {"now": now_ns / SECOND_NS, "jobs": told})

    return [Route("POST", PATH, report), Route("GET", PATH, jobs)]


def described(status: JobStatus, now_ns: int) -> dict[str, Any]:
    """A job's status as scripts get it."""
    report = status.report
    told_seconds_ago = (now_ns - status.reported_ns) / SECOND_NS
    batch = {"rows": report.batch_rows, "age_seconds": told_seconds_ago + report.batch_seconds}
    return {
        "job": report.job,
        "host": report.host,
        "directory": report.directory,
        "state": status.state(now_ns),
        "doing": report.doing,
        "rows": status.rows,
        "runs": status.runs,
        "run_rows": report.rows,
        "run_seconds": report.seconds,
        "rows_per_second": status.rows_per_second,
        "lag": report.lag,
        "last_batch": batch if report.batch_rows else None,
        "told_seconds_ago": told_seconds_ago,
        "figures": report.figures,
        "remarks": report.remarks,
        "is_good": report.is_good,
        "last_error": status.error,
        "last_error_seconds_ago": (now_ns - status.error_ns) / SECOND_NS if status.error else None,
        "history": [(at_ns / SECOND_NS, rows, lag) for at_ns, rows, lag in status.history],
    }
