"""Runs of jobs are remembered, one that runs on waits for its broker, and the pages tell what was found."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heliograph.errors import FailedPrecondition, InvalidArgument, Unavailable
from heliograph.spark.door import Address
from heliograph.spark.pipeline.dead_letters import fingerprint, markdown, page, redrive
from heliograph.spark.pipeline.job import RUNS_KEPT, Outcome, Place, recorded, replaced, runs
from heliograph.spark.pipeline.jobs import JOBS, Job, JobOptions, job_named, run_continuously
from heliograph.spark.pipeline.report import write_report


def test_a_run_is_remembered_with_its_figures(tmp_path: Path) -> None:
    recorded(tmp_path, "archive", lambda: Outcome(5, 2, {"topics": 1}, ("a remark",)))
    found = runs(tmp_path, "archive")
    assert [(run.rows, run.lag, run.figures, run.remarks, run.error) for run in found] == [
        (5, 2, {"topics": 1}, ["a remark"], "")
    ]
    assert runs(tmp_path, "refine") == []


def test_a_run_that_fails_is_remembered_in_one_line(tmp_path: Path) -> None:
    def fails() -> Outcome:
        raise Unavailable("No answer\nfrom the broker")

    with pytest.raises(Unavailable):
        recorded(tmp_path, "archive", fails)
    assert runs(tmp_path, "archive")[-1].error == "No answer from the broker"


def test_idle_runs_do_not_pile_up_and_old_ones_are_forgotten(tmp_path: Path) -> None:
    for _ in range(3):
        recorded(tmp_path, "archive", lambda: Outcome(0))
    assert len(runs(tmp_path, "archive")) == 1
    for _ in range(RUNS_KEPT + 1):
        recorded(tmp_path, "archive", lambda: Outcome(1))
    assert len(runs(tmp_path, "archive")) == RUNS_KEPT


def test_an_outage_does_not_push_out_what_a_job_did_before_it(tmp_path: Path) -> None:
    def fails() -> Outcome:
        raise Unavailable("gone")

    recorded(tmp_path, "archive", lambda: Outcome(5))
    for _ in range(3):
        with pytest.raises(Unavailable):
            recorded(tmp_path, "archive", fails)
    recorded(tmp_path, "archive", lambda: Outcome(0))
    assert [(run.rows, run.error) for run in runs(tmp_path, "archive")] == [(5, ""), (0, "gone"), (0, "")]


def test_a_damaged_record_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "_runs").mkdir()
    (tmp_path / "_runs" / "archive.json").write_text("{")
    with pytest.raises(FailedPrecondition, match="remove it to go on"):
        runs(tmp_path, "archive")


def test_a_directory_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "table"
    with replaced(target) as fresh:
        fresh.mkdir()
        (fresh / "one").touch()
    with pytest.raises(OSError, match="exists"), replaced(target):
        target.mkdir()
    assert [path.name for path in target.iterdir()] == ["one"]


def test_an_unknown_job_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(InvalidArgument, match="archive, refine, metrics, dead-letters, replay, reconcile, maintain"):
        job_named("archives")


def test_a_job_that_runs_on_waits_for_its_broker_and_ends_with_any_other_failure(tmp_path: Path) -> None:
    script: list[Any] = [Outcome(3), Unavailable("gone"), Outcome(4), FailedPrecondition("damaged")]
    told: list[int] = []
    pauses: list[float] = []

    def run(*_: Any) -> Outcome:
        step = script.pop(0)
        if isinstance(step, Exception):
            raise step
        assert isinstance(step, Outcome)
        return step

    no_spark: Any = None
    with pytest.raises(FailedPrecondition, match="damaged"):
        run_continuously(
            no_spark,
            Job("archive", "", "", "", run),
            Place(Address("http://127.0.0.1:1"), tmp_path),
            JobOptions(),
            pause_seconds=7,
            told=lambda outcome: told.append(outcome.rows),
            sleep=pauses.append,
        )
    assert (told, pauses) == ([3, 4], [7, 7, 7])


def test_errors_that_differ_in_numbers_and_ids_have_one_fingerprint() -> None:
    texts = (
        "Flight 1234 of 0xdeadbeef failed after 1.5 s: 550e8400-e29b-41d4-a716-446655440000",
        "Flight 99 of 0x12 failed  after 20 s: 650e8400-e29b-41d4-a716-446655440001",
    )
    assert {fingerprint(text) for text in texts} == {"Flight <n> of <id> failed after <n> s: <id>"}
    assert fingerprint("the decade faded") == "the decade faded"


def group(**fields: Any) -> dict[str, Any]:
    at = datetime(2013, 7, 1, 12, tzinfo=UTC)
    base = {"source": "quarantine", "topic": "t", "subscription": "", "reason": "not_json", "count": 3}
    base |= {"fingerprint": "", "sample_error": "a | b\n<c>", "first_seen": at, "last_seen": at, "sample_ids": ["1"]}
    base["version"] = "1.2"
    return base | fields


def test_the_markdown_page_bears_whatever_is_in_an_error() -> None:
    lines = markdown([group()]).splitlines()
    assert lines[2] == "3 messages, 1 kinds of failure."
    assert lines[6] == (
        "| 3 | not_json | a \\| b &lt;c&gt; | quarantine: t | 1.2 | 2013-07-01 12:00:00 | 2013-07-01 12:00:00 | 1 |"
    )


TOPICS = {"projects/p/subscriptions/work": "projects/p/topics/orders"}


REPLAY = ["heliograph", "pipeline", "run", "replay"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"reason": "schema_violation"}, []),
        (
            {"reason": "schema_unknown"},
            [*REPLAY, "--from", "quarantine", "--topic", "t", "--where", "reason = 'schema_unknown'"],
        ),
        (
            {"source": "given up", "subscription": "queues/my tasks"},
            ["heliograph", "dead-letter", "retry", "my tasks"],
        ),
        ({"source": "given up", "subscription": "projects/p/subscriptions/work"}, []),
        (
            {"source": "forwarded", "subscription": "work"},
            [
                *REPLAY,
                *("--topic", "t", "--to", "projects/p/topics/orders"),
                *("--where", "attributes['CloudPubSubDeadLetterSourceSubscription'] = 'work'"),
            ],
        ),
        (
            {"source": "forwarded", "subscription": "deleted"},
            [
                *REPLAY,
                *("--topic", "t", "--to", "TOPIC"),
                *("--where", "attributes['CloudPubSubDeadLetterSourceSubscription'] = 'deleted'"),
            ],
        ),
        (
            {"source": "forwarded", "subscription": "a' OR 'b\\"},
            [
                *REPLAY,
                *("--topic", "t", "--to", "TOPIC"),
                *("--where", r"attributes['CloudPubSubDeadLetterSourceSubscription'] = 'a\' OR \'b\\'"),
            ],
        ),
    ],
)
def test_what_may_succeed_a_second_time_is_told_with_the_command_that_redrives_it(
    fields: dict[str, str], words: list[str]
) -> None:
    assert shlex.split(redrive(group(**fields), TOPICS)) == words


def test_the_pages_list_candidates_for_redriving_once_for_each_command() -> None:
    kinds = [group(count=count, error=str(count), redrive="heliograph dead-letter retry tasks") for count in (3, 4)]
    assert markdown([*kinds, group(redrive="")]).splitlines()[-5:] == [
        "## Redrive candidates",
        "",
        "| count | reason | where | how |",
        "| --- | --- | --- | --- |",
        "| 7 | not_json | t | heliograph dead-letter retry tasks |",
    ]
    assert "heliograph dead-letter retry tasks" in page(kinds)
    assert "Redrive" not in page([group(redrive="")])


def test_the_report_has_every_job_and_charts_of_what_was_measured(tmp_path: Path) -> None:
    recorded(tmp_path, "archive", lambda: Outcome(5000, 7, {"topics": 1}))
    at = datetime(2013, 7, 1, 12, tzinfo=UTC)
    window = {"subscription": "projects/p/subscriptions/<s>", "window_start": at, "published": 5, "delivered": 5}
    names = ("backlog", "oldest_age_seconds", "acknowledged_per_second", "wait_ms_p95", "processing_ms_p95")
    rows = [window | dict.fromkeys((*names, "redelivery_ratio"), 1.5)]
    for name, content in (
        ("metrics-by-window", rows),
        ("reconcile/hours", [{"hour": at, "log": 5, "archive": 4, "differences": 1}]),
        ("dead-letters", [group()]),
    ):
        (tmp_path / name).mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(content), tmp_path / name / "part.parquet")
    page = tmp_path / "report.html"
    write_report(tmp_path, JOBS, page)
    text = page.read_text()
    for expected in ("<td>maintain</td><td>never</td>", "5,000", "Backlog at the end", "1 differences", "a | b"):
        assert expected in text
    assert text.count('class="plotly-graph-div"') == 8


def test_a_report_of_nothing_is_a_page_too(tmp_path: Path) -> None:
    write_report(tmp_path, JOBS, tmp_path / "report.html")
    assert "never" in (tmp_path / "report.html").read_text()
