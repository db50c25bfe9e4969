"""A job tells its broker how it is doing, and never fails for it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.errors import FailedPrecondition, Unavailable
from heliograph.spark.door import Address
from heliograph.spark.pipeline.job import Outcome, Place, Tell
from heliograph.spark.pipeline.jobs import Job, JobOptions, run_continuously, run_once
from heliograph.spark.pipeline.reporter import Reporter, reporting
from heliograph.wire.job_report import PATH, REMARKS_MAX, TEXT_LENGTH_MAX, JobReport
from tests.server.clients import Http
from tests.server.conftest import serving

NOWHERE = Address("http://127.0.0.1:1")
NO_SPARK: Any = None


def job(run: Callable[[Tell], Outcome]) -> Job:
    return Job("archive", "", "", "", lambda _spark, _place, _options, tell: run(tell))


def decoded(report: JobReport) -> JobReport:
    """As the broker takes it."""
    return msgspec.json.decode(msgspec.json.encode(report), type=JobReport)


def test_a_report_tells_what_the_job_told() -> None:
    now = [0.0]
    heard: list[tuple[str, int, int | None]] = []
    reporter = Reporter("archive", "/d", lambda *told: heard.append(told), now=lambda: now[0])
    reporter.began()
    now[0] = 3.0
    reporter.tell("archiving", 10, 90)
    reporter.tell("archiving", 5, 85)
    now[0] = 4.0
    found = decoded(reporter.report())
    assert (found.state, found.rows, found.lag, found.seconds, found.doing) == ("running", 15, 85, 4, "archiving")
    assert (found.batch_rows, found.batch_seconds) == (5, 1)
    assert heard == [("archiving", 10, 90), ("archiving", 5, 85)]
    reporter.ended(Outcome(15, 80, {"messages": 15}, ("a remark",), is_good=False), "done")
    now[0] = 60.0
    found = decoded(reporter.report())
    assert (found.state, found.seconds, found.lag, found.doing, found.is_good) == ("done", 4, 80, "", False)
    assert (found.figures, found.remarks) == ({"messages": 15}, ["a remark"])


def test_a_new_run_begins_from_nothing_and_keeps_what_the_last_one_found() -> None:
    reporter = Reporter("archive", "/d")
    reporter.began()
    reporter.ended(Outcome(15, 80, {"messages": 15}), "idle")
    first = reporter.report()
    reporter.began()
    second = reporter.report()
    assert second.run > first.run
    assert (second.rows, second.lag, second.figures) == (0, 80, {"messages": 15})


def test_a_job_that_is_ended_between_two_runs_tells_how_long_the_last_one_took() -> None:
    now = [0.0]
    reporter = Reporter("archive", "/d", now=lambda: now[0])
    reporter.began()
    now[0] = 3.0
    reporter.ended(Outcome(15), "idle")
    now[0] = 60.0
    reporter.failed("", "stopped")
    assert (reporter.report().state, reporter.report().seconds) == ("stopped", 3)


def test_whatever_a_job_tells_is_within_the_bounds_of_a_report() -> None:
    reporter = Reporter("archive", "/d" * 2000)
    reporter.began()
    reporter.tell("x" * 2000)
    long: dict[str, int | float | str] = {f"{number} {'x' * 2000}": "y" * 2000 for number in range(50)}
    reporter.ended(Outcome(1, -5, long, ("z" * 2000,) * 50), "done")
    found = decoded(reporter.report())
    assert (len(found.remarks), found.lag) == (REMARKS_MAX, 0)
    reporter.failed("e\n" * 2000, "failed")
    assert len(decoded(reporter.report()).error) == TEXT_LENGTH_MAX


def test_a_run_is_shown_while_it_works_and_at_its_end(tmp_path: Path) -> None:
    with serving(LocalBroker()) as server:
        place = Place(Address(f"http://127.0.0.1:{server.port}"), tmp_path)
        http = Http(server.port)
        seen: list[Any] = []

        def run(tell: Tell) -> Outcome:
            tell("archiving", 7, 3)
            while not (found := http.request("GET", PATH).body["jobs"]) or not found[0]["rows"]:
                time.sleep(0.01)  # reports come by themselves
            seen.extend(found)
            return Outcome(7, 0)

        run_once(NO_SPARK, job(run), place, JobOptions())
        (after,) = http.request("GET", PATH).body["jobs"]
    assert [(each["state"], each["rows"], each["lag"]) for each in (*seen, after)] == [
        ("running", 7, 3),
        ("done", 7, 0),
    ]
    assert after["directory"] == str(tmp_path)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FailedPrecondition("no\nschema"), ("failed", "no schema")),
        (ValueError("odd"), ("failed", "ValueError('odd')")),
        (KeyboardInterrupt(), ("stopped", "")),
    ],
)
def test_the_last_report_says_how_a_job_ended(tmp_path: Path, error: BaseException, expected: tuple[str, str]) -> None:
    found: list[JobReport] = []

    def run() -> None:
        with reporting(Place(NOWHERE, tmp_path), "archive", send=found.append) as reporter:
            reporter.began()
            raise error

    with pytest.raises(type(error)):
        run()
    assert (found[-1].state, found[-1].error) == expected


def test_reports_come_while_the_job_works(tmp_path: Path) -> None:
    enough = threading.Event()
    found: list[JobReport] = []

    def send(report: JobReport) -> None:
        found.append(report)
        if len(found) == 3:
            enough.set()

    with reporting(Place(NOWHERE, tmp_path), "archive", send=send, seconds=0.001) as reporter:
        reporter.began()
        assert enough.wait(30)
    assert {report.state for report in found} == {"running"}


def test_a_broker_that_is_away_is_told_the_next_time(tmp_path: Path) -> None:
    told, enough = [0], threading.Event()

    def send(_report: JobReport) -> None:
        told[0] += 1
        if told[0] == 3:
            enough.set()
        raise Unavailable("away")

    with reporting(Place(NOWHERE, tmp_path), "archive", send=send, seconds=0.001) as reporter:
        reporter.began()
        assert enough.wait(30)


def test_a_broker_that_takes_no_reports_is_left_alone_and_the_job_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told, once = [0], threading.Event()

    def send(_report: JobReport) -> None:
        told[0] += 1
        once.set()
        raise FailedPrecondition("Nothing is served at /api/v1/pipelines")

    with (
        caplog.at_level(logging.WARNING),
        reporting(Place(NOWHERE, tmp_path), "archive", send=send, seconds=0.001) as reporter,
    ):
        reporter.began()
        assert once.wait(30)
        reporter.ended(Outcome(1), "done")
    assert told == [1]
    assert [record.message for record in caplog.records] == [
        "The broker takes no reports of jobs: Nothing is served at /api/v1/pipelines"
    ]


def test_a_job_without_a_broker_to_report_to_runs_all_the_same(tmp_path: Path) -> None:
    outcome = run_once(NO_SPARK, job(lambda tell: Outcome(5)), Place(NOWHERE, tmp_path), JobOptions())
    assert outcome.rows == 5


def test_a_job_that_runs_on_is_idle_between_its_runs_also_when_its_broker_was_away(tmp_path: Path) -> None:
    script: list[Outcome | Exception] = [Outcome(3, 1), Unavailable("gone"), FailedPrecondition("damaged")]

    def run(_tell: Tell) -> Outcome:
        step = script.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    with serving(LocalBroker()) as server:
        place, http = Place(Address(f"http://127.0.0.1:{server.port}"), tmp_path), Http(server.port)
        idle: list[Any] = []

        def sleep(_seconds: float) -> None:
            while not (found := http.request("GET", PATH).body["jobs"]) or found[0]["runs"] <= len(idle):
                time.sleep(0.01)
            while (found := http.request("GET", PATH).body["jobs"])[0]["state"] != "idle":
                time.sleep(0.01)
            idle.append((found[0]["run_rows"], found[0]["last_error"]))

        with pytest.raises(FailedPrecondition):
            run_continuously(NO_SPARK, job(run), place, JobOptions(), sleep=sleep)
        (after,) = http.request("GET", PATH).body["jobs"]
    assert (after["state"], after["last_error"], after["runs"]) == ("failed", "damaged", 3)
    assert idle == [(3, ""), (0, "gone")]
