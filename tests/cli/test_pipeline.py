"""`heliograph pipeline` and `heliograph doctor` from the shell."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from heliograph.cli.doctor import Verdict, examine
from heliograph.cli.pipeline_run import instant_ns, shown
from heliograph.errors import Unavailable
from heliograph.spark.pipeline.job import Outcome, recorded
from tests.cli.conftest import HELIOGRAPH, Run, Start, environment
from tests.spark.gateway import Gateway

JOBS = ["archive", "refine", "metrics", "dead-letters", "replay", "reconcile", "maintain"]


def test_the_plan_tells_of_every_job(heliograph: Run) -> None:
    found = json.loads(heliograph("pipeline", "plan", "--json").stdout)
    assert [each["job"] for each in found] == JOBS


@pytest.mark.slow
def test_the_status_of_a_pipeline_that_never_ran(heliograph: Run) -> None:
    ran = heliograph("pipeline", "status")
    assert [line.split()[:2] for line in ran.stdout.splitlines()[1:]] == [[job, "never"] for job in JOBS]


def test_a_report_without_a_pipeline_is_one_line(heliograph: Run) -> None:
    ran = heliograph("pipeline", "report")
    assert (ran.returncode, ran.stderr) == (
        5,
        "heliograph: There is no pipeline in heliograph-pipeline: run a job first\n",
    )


def test_without_a_broker_a_job_fails_at_once_and_before_spark_starts(heliograph: Run) -> None:
    ran = heliograph("pipeline", "run", "archive", "--server", "http://127.0.0.1:1", "--topic", "t")
    assert ran.returncode == 3
    assert ran.stderr == "heliograph: No whole answer from a broker at http://127.0.0.1:1: Connection refused\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ("archive", "--topic-pattern", "("),
        ("archive", "--master", "nonsense"),
        ("metrics", "--window", "0"),
        ("metrics", "--window", "0.1s"),
        ("maintain", "--retain-table", "archives=1d"),
    ],
)
def test_an_option_that_makes_no_sense_is_wrong_usage_in_one_line_and_changes_nothing(
    heliograph: Run, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    places = ("--data-dir", str(tmp_path / "data"), "--directory", str(tmp_path / "pipeline"))
    ran = heliograph("pipeline", "run", *arguments, *places)
    assert (ran.returncode, ran.stderr.count("\n"), ran.stderr[:12]) == (2, 1, "heliograph: ")
    assert list(tmp_path.glob("pipeline*")) == list(tmp_path.glob("data*")) == []


@pytest.mark.parametrize(
    ("token", "says"),
    [("", "is missing"), pytest.param("secret-of-nobody", "is not valid there", marks=pytest.mark.slow)],
)
def test_without_a_valid_token_a_job_ends_before_spark_starts_and_says_which_option_it_is(
    heliograph: Run, token: str, says: str
) -> None:
    with Gateway("http://127.0.0.1:1", rights={}) as gateway:
        given = ["--token", token] if token else []
        ran = heliograph("pipeline", "run", "metrics", "--server", gateway.endpoint, *given)
    assert ran.returncode == 3
    assert ran.stderr == (
        f"heliograph: {gateway.endpoint} answered 401 (Unauthorized) to GET /api/v1/log/topics: the option token {says}"
        f"{', or not any more' if token else ''} (in the shell: --token, or HELIOGRAPH_TOKEN)\n"
    )


def test_once_and_continuously_exclude_each_other(heliograph: Run) -> None:
    assert heliograph("pipeline", "run", "archive", "--once", "--continuous").returncode == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--retain", "90d", "--retain", "30d"), "give one span for all topics, and others as TOPIC=SPAN"),
        (("--retain-table", "archives=1d"), "There is no table 'archives' to retain; there are archive, refined"),
    ],
)
def test_what_maintain_does_not_understand_is_told_before_anything_runs(
    heliograph: Run, tmp_path: Path, options: tuple[str, ...], says: str
) -> None:
    ran = heliograph("pipeline", "run", "maintain", "--data-dir", str(tmp_path / "data"), *options)
    assert (ran.returncode != 0, says in " ".join(ran.stderr.replace("│", " ").split())) == (True, True)


@pytest.mark.slow
def test_the_status_tells_the_last_error_also_when_a_later_run_was_good(heliograph: Run, tmp_path: Path) -> None:
    def failing() -> Outcome:
        raise Unavailable("No answer")

    directory = tmp_path / "pipeline"
    with pytest.raises(Unavailable):
        recorded(directory, "archive", failing)
    recorded(directory, "archive", lambda: Outcome(5, 2, {"topics": 1}))
    with pytest.raises(Unavailable):
        recorded(directory, "metrics", failing)
    ran = heliograph("pipeline", "status", "--directory", str(directory), "--json")
    found = {each["job"]: each for each in json.loads(ran.stdout)}
    names = ("state", "lag", "error", "last_error", "figures")
    assert [found["archive"][name] for name in names] == ["done", 2, "", "No answer", {"topics": 1}]
    assert [found["metrics"][name] for name in names] == ["failed", 0, "No answer", "No answer", {}]
    lines = heliograph("pipeline", "status", "--directory", str(directory)).stdout.splitlines()
    assert [line.split(" failed ")[0] for line in lines[-2:]] == ["archive", "metrics"]
    assert all(line.endswith(" ago: No answer") for line in lines[-2:])


def test_instants_and_figures_are_read_and_written() -> None:
    assert instant_ns("2013-07-01T12:00:00Z") == 1_372_680_000 * 10**9
    assert [shown(figure) for figure in (12_345, 0.25, "text")] == ["12,345", "0.2", "text"]


def test_the_doctor_tells_of_a_taken_port_and_what_to_do(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        port = server.getsockname()[1]
        checks = {check.what: check for check in examine(port, tmp_path / "not" / "there")}
    assert checks[f"port {port}"].verdict is Verdict.WARNING
    assert f"--port {port + 1}" in checks[f"port {port}"].advice
    assert checks["disk"].verdict is Verdict.GOOD
    assert {"Python", "Java", "memory", "cores", "loopback", "extra spark"} <= set(checks)


def test_the_doctor_finds_a_missing_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heliograph.spark.java.find", lambda: None)
    java = next(check for check in examine(8085, tmp_path) if check.what == "Java")
    assert (java.verdict, "install Java 17" in java.advice) == (Verdict.WARNING, True)


@pytest.mark.slow
def test_the_doctor_knows_a_server(serve: Start, heliograph: Run) -> None:
    server = serve("--store", "memory")
    ran = heliograph("doctor", "--port", str(server.port), "--json")
    found = {check["what"]: check for check in json.loads(ran.stdout)}
    assert (ran.returncode, found[f"port {server.port}"]["found"]) == (0, "a Heliograph server answers")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_jobs_run_from_the_shell_one_after_the_other_and_are_told_by_status_and_report(
    serve: Start, tmp_path: Path
) -> None:
    server = serve("--data-dir", "data")
    call = shell(tmp_path, f"http://127.0.0.1:{server.port}")
    call("topic", "create", "flights", "--retention", "1d")
    call("subscription", "create", "workers", "--topic", "flights")
    call("publish", "flights", "one")
    done = call("pipeline", "run", "archive", "--master", "local[1]")
    assert done.startswith("archive: topics 1, messages 1, ")
    found = json.loads(call("pipeline", "run", "reconcile", "--master", "local[1]", "--json"))
    assert (found["figures"]["differences"], found["is_good"]) == (0, True)
    status = {each["job"]: each for each in json.loads(call("pipeline", "status", "--json"))}
    assert (status["archive"]["rows"], status["reconcile"]["runs"], status["replay"]["runs"]) == (1, 1, 0)
    assert call("pipeline", "report") == "Wrote heliograph-pipeline/report.html\n"
    assert "archive" in (tmp_path / "heliograph-pipeline" / "report.html").read_text()
    server.stop(signal.SIGTERM)


def shell(directory: Path, server: str) -> Callable[..., str]:
    """Runs a command that must succeed; gives its standard output."""

    def call(*arguments: str) -> str:
        ran = subprocess.run(
            [*HELIOGRAPH, *arguments],
            cwd=directory,
            env={**environment(), "HELIOGRAPH_SERVER": server, "TERM": os.environ.get("TERM", "dumb")},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    return call


@pytest.mark.slow
def test_a_command_on_a_data_directory_leaves_its_event_log(serve: Start, heliograph: Run, tmp_path: Path) -> None:
    server = serve("--data-dir", "data")
    url = f"http://127.0.0.1:{server.port}"
    heliograph("topic", "create", "flights", "--server", url)
    heliograph("publish", "flights", "one", "--server", url)
    server.stop(signal.SIGTERM)
    for _ in range(2):
        assert heliograph("topic", "list", "--data-dir", "data").returncode == 0
    again = serve("--data-dir", "data")
    with urllib.request.urlopen(f"http://127.0.0.1:{again.port}/api/v1/events/read?columns=event") as answer:
        events = pa.ipc.open_stream(answer).read_all()["event"].to_pylist()
    assert events == ["published"]
