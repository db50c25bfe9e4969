"""What the pipeline's jobs tell of themselves is kept within bounds, and shown to scripts and on the console's page."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.broker.clock import SimulatedClock
from heliograph.server.console.pipeline import pipeline_page, span
from heliograph.server.job_status import JOBS_MAX, POINTS_MAX, SECOND_NS, JobStatus, after
from heliograph.server.pipelines import described
from heliograph.wire.job_report import PATH, TEXT_LENGTH_MAX, JobReport, one_line
from tests.server.clients import Http
from tests.server.conftest import serving

NOW_NS = 1_764_297_357 * SECOND_NS


def report(**fields: Any) -> JobReport:
    base: dict[str, Any] = {"job": "archive", "host": "h", "directory": "/d", "state": "running", "run": 1}
    return JobReport(**base | fields)


def status(*reports: JobReport, every: float = 2.0) -> JobStatus:
    """After these, which came one after the other from `NOW_NS` on."""
    found = None
    for number, each in enumerate(reports):
        found = after(found, each, NOW_NS + round(number * every * SECOND_NS))
    assert found is not None
    return found


# ── what is kept of reports ───────────────────────────────────────────────────────────────────────────────────────────


def test_rows_of_a_run_are_counted_once_however_often_it_tells_of_them() -> None:
    found = status(report(rows=10), report(rows=30), report(rows=30, state="idle"), report(run=2, rows=5))
    assert (found.rows, found.runs) == (35, 2)


def test_the_last_error_is_remembered_when_the_job_does_well_again() -> None:
    found = status(report(state="failed", error="no disk"), report(run=2, state="done"))
    assert (found.error, found.error_ns, found.report.error) == ("no disk", NOW_NS, "")


def test_a_history_keeps_the_last_points_and_of_a_flat_line_its_ends() -> None:
    flat = status(*[report(rows=5, lag=1)] * 10)
    assert [(point.at_ns - NOW_NS) // SECOND_NS for point in flat.history] == [0, 18]
    long = status(*[report(rows=number) for number in range(POINTS_MAX + 5)])
    assert [point.rows for point in long.history] == list(range(5, POINTS_MAX + 5))


def test_a_job_that_should_have_told_something_is_lost_and_one_that_has_ended_is_not() -> None:
    running, done = status(report(report_seconds=2)), status(report(report_seconds=2, state="done"))
    assert [running.state(NOW_NS + seconds * SECOND_NS) for seconds in (8, 9)] == ["running", "lost"]
    assert done.state(NOW_NS + 10**6 * SECOND_NS) == "done"


def test_what_scripts_get_is_in_seconds_of_the_brokers_clock() -> None:
    told = described(status(report(rows=100, seconds=4, batch_rows=60, batch_seconds=1.5)), NOW_NS + 3 * SECOND_NS)
    assert (told["rows_per_second"], told["told_seconds_ago"], told["lag"]) == (25, 3, None)
    assert told["last_batch"] == {"rows": 60, "age_seconds": 4.5}
    assert told["history"] == [(NOW_NS / SECOND_NS, 100, None)]


# ── the doors ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Bench:
    """A broker with a server, and a job that reports to it."""

    def __init__(self, broker: LocalBroker, clock: SimulatedClock, http: Http) -> None:
        self.broker = broker
        self.clock = clock
        self.http = http

    def post(self, **fields: Any) -> Any:
        return self.http.request("POST", PATH, msgspec.json.encode(report(**fields)))

    def jobs(self) -> list[Any]:
        return list(self.http.request("GET", PATH).body["jobs"])

    def kept(self) -> dict[str, JobStatus]:
        documents = self.broker.list_documents("pipeline-jobs")
        return {name: msgspec.json.decode(value, type=JobStatus) for name, value in documents}

    def page(self, path: str = "/console/pipeline") -> str:
        with urllib.request.urlopen(self.http.url + path, timeout=30) as answer:
            text: str = answer.read().decode()
            self.policy = answer.headers["Content-Security-Policy"]
        return text


@pytest.fixture
def bench() -> Iterator[Bench]:
    clock = SimulatedClock(NOW_NS)
    broker = LocalBroker(clock=clock)
    with serving(broker) as server:
        yield Bench(broker, clock, Http(server.port))


def test_what_a_job_tells_is_told_to_scripts(bench: Bench) -> None:
    assert bench.post(rows=120, lag=7, seconds=2, doing="archiving t").status == 200
    (job,) = bench.jobs()
    assert (job["job"], job["state"], job["rows"], job["lag"]) == ("archive", "running", 120, 7)
    assert (job["rows_per_second"], job["doing"]) == (60, "archiving t")


def test_a_running_job_is_written_once_a_minute_and_one_that_ends_at_once(bench: Bench) -> None:
    for rows in range(31):
        bench.post(rows=rows)
        bench.clock.advance(2)
    (kept,) = bench.kept().values()
    assert (kept.rows, bench.jobs()[0]["rows"]) == (30, 30)
    bench.post(rows=31)
    assert next(iter(bench.kept().values())).rows == 30
    bench.post(rows=40, state="done")
    assert next(iter(bench.kept().values())).rows == 40


def test_it_is_there_after_a_restart(tmp_path: Path) -> None:
    for said in ("no disk", ""):
        broker = LocalBroker.open(tmp_path, durability="none")
        with serving(broker) as server:
            bench = Bench(broker, SimulatedClock(0), Http(server.port))
            if said:
                bench.post(state="failed", rows=9, error=said)
            else:
                (job,) = bench.jobs()
                assert (job["state"], job["rows"], job["last_error"]) == ("failed", 9, "no disk")


def test_the_job_that_was_silent_for_the_longest_time_goes_when_there_are_too_many(bench: Bench) -> None:
    for number in range(JOBS_MAX):
        bench.post(job=f"job {number}")
        bench.clock.advance(1)
    bench.post(job="job 0")
    bench.clock.advance(1)
    bench.post(job="one more")
    names = {job["job"] for job in bench.jobs()}
    assert (len(names), "job 0" in names, "job 1" in names) == (JOBS_MAX, True, False)
    assert {each.report.job for each in bench.kept().values()} == names


@pytest.mark.parametrize(
    "fields",
    [
        {"job": ""},
        {"state": "asleep"},
        {"rows": -1},
        {"error": "x" * (TEXT_LENGTH_MAX + 1)},
        {"remarks": ["x"] * 6},
        {"figures": {str(number): 1 for number in range(21)}},
    ],
)
def test_a_report_beyond_its_bounds_is_refused(bench: Bench, fields: dict[str, Any]) -> None:
    answer = bench.post(**fields)
    assert (answer.status, answer.body["code"], bench.jobs()) == (400, "InvalidArgument", [])


def test_a_large_body_is_refused_before_it_is_read(bench: Bench) -> None:
    assert bench.http.request("POST", PATH, b" " * 70_000).status == 413


def test_a_long_text_is_cut_to_what_a_report_takes() -> None:
    assert one_line("two\n  lines") == "two lines"
    assert (len(one_line("x" * 1000)), one_line("x" * 1000)[-1]) == (TEXT_LENGTH_MAX, "…")


# ── the page ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_console_leads_to_its_page(bench: Bench) -> None:
    for path in ("/console", "/console/"):
        assert "<title>Heliograph: Data pipeline</title>" in bench.page(path)
    assert bench.http.request("GET", "/console/nothing").status == 404
    assert "/console" in bench.http.request("GET", "/", headers={"Accept": "text/html"}).body


def test_the_page_needs_nothing_from_anywhere_and_runs_its_own_script_only(bench: Bench) -> None:
    bench.post(rows=3)
    page = bench.page()
    assert re.findall(r"""(?:src|href)=["'](?!data:)""", page) == []
    assert page.count("<script") == 1
    assert "default-src 'none'" in bench.policy
    assert re.findall(r"script-src ([^;]+)", bench.policy)[0].startswith("'sha256-")


def test_the_page_without_jobs_says_how_to_start_one(bench: Bench) -> None:
    page = bench.page()
    assert f"heliograph pipeline run archive --continuous --server {bench.http.url}" in page
    assert "<table" not in page


def text_of(jobs: list[JobStatus], now_ns: int = NOW_NS) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", pipeline_page(jobs, now_ns, "http://b")).split())


def test_the_page_tells_of_each_job_its_state_rows_rate_lag_run_and_error() -> None:
    jobs = [
        status(report(rows=10), report(rows=1_200, lag=3_400, seconds=4, batch_rows=200, doing="archiving t")),
        status(report(job="refine", state="failed", error="no such schema")),
        status(report(job="reconcile", state="done", is_good=False, figures={"differences": 1}, remarks=["one"])),
    ]
    text = text_of(jobs, NOW_NS + 2 * SECOND_NS)
    assert "3 jobs: 1 failed, 1 found a fault, 1 running." in text
    assert "archive archiving t ▶ running 1,200 last batch 200, just now" in text
    assert "300 3,400" in text
    assert "✕ failed 0 – unknown 2.0 s ago took 0.0 s no such schema" in text
    assert "! found a fault 0 – unknown 2.0 s ago took 0.0 s differences 1 one" in text


def test_the_page_tells_that_a_job_was_killed_and_of_an_error_that_is_over() -> None:
    jobs = [
        status(report()),
        status(report(job="refine", state="failed", error="no disk"), report(job="refine", run=2)),
    ]
    text = text_of(jobs, NOW_NS + 600 * SECOND_NS)
    assert "? lost 0 – unknown heard of 10 min ago killed, or cut off from this broker" in text
    assert "Last error, 10 min ago: no disk" in text


def test_the_page_draws_what_was_done_and_what_waits() -> None:
    found = status(report(rows=100, lag=50), report(rows=150, lag=25))
    page = pipeline_page([found], NOW_NS, "")
    assert '<title>Rows of archive over time</title><polygon points="3.0,37.0 3.0,37.0 157.0,3.0 157.0,37.0"/>' in page
    assert '<title>Lag of archive over time</title><polygon points="3.0,37.0 3.0,3.0 157.0,20.0 157.0,37.0"/>' in page


EVIL = "<script>alert(1)</script>\"'&"


def test_whatever_a_job_tells_is_text_on_the_page() -> None:
    fields: dict[str, Any] = dict.fromkeys(("job", "host", "directory", "doing", "error"), EVIL)
    evil = report(**fields, figures={EVIL: EVIL}, remarks=[EVIL], rows=1, lag=1)
    page = pipeline_page([status(evil, msgspec.structs.replace(evil, rows=2))], NOW_NS, EVIL)
    assert page.count("alert(1)") >= 9
    assert "<script" not in page
    assert EVIL[-3:] not in page


def test_the_address_of_the_broker_is_text_on_the_page() -> None:
    page = pipeline_page([], NOW_NS, EVIL)
    assert "alert(1)" in page
    assert "<script" not in page


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0.0 s"), (0.42, "0.4 s"), (12.3, "12 s"), (200, "3 min"), (7200, "2 h"), (2e5, "2 d")]
)
def test_a_span_is_short(seconds: float, text: str) -> None:
    assert span(seconds) == text
