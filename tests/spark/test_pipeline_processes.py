"""The pipeline from the shell: all its jobs through Spark Connect, and a job that is killed in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from heliograph.spark.log_client import LogClient
from heliograph.spark.pipeline.table import Table
from tests.spark.test_crashes_on_spark import ENVIRON, MESSAGES, SINK, SOURCE, Broker
from tests.spark.test_masters import free_port, listens, process, spark_home

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

WAIT_SECONDS = 300


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "broker")
    try:
        broker.create()
        broker.publish(MESSAGES)
        yield broker
    finally:
        broker.kill()


class Shell:
    """Runs `heliograph pipeline run …` on one broker and directory."""

    def __init__(self, broker: Broker, directory: Path, master: str) -> None:
        self.directory = directory
        self._options = ["--server", broker.endpoint, "--directory", str(directory), "--master", master, "--json"]

    def start(self, job: str, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "heliograph", "pipeline", "run", job, *self._options, *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=ENVIRON, start_new_session=True)

    def run(self, job: str, *arguments: str) -> dict[str, Any]:
        running = self.start(job, *arguments)
        out, err = running.communicate(timeout=WAIT_SECONDS)
        assert running.returncode == 0, err[-3_000:]
        figures: dict[str, Any] = json.loads(out)["figures"]
        return figures

    def killed_once(self, condition: Callable[[], bool], job: str, *arguments: str) -> None:
        """With `kill -9`, together with all that it has started."""
        running = self.start(job, *arguments)
        ends_at = time.monotonic() + WAIT_SECONDS
        while not condition():
            assert running.poll() is None, running.communicate()[1][-3_000:]
            assert time.monotonic() < ends_at
            time.sleep(0.02)
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate()


def messages_of(directory: Path, topic: str) -> Counter[int]:
    return Counter(
        sequence
        for file in Table(directory).files(topic)
        for sequence in pq.read_table(file, columns=["sequence"], partitioning=None)["sequence"].to_pylist()
    )


def test_all_jobs_run_through_spark_connect(broker: Broker, tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "connect.log"
    submit = str(spark_home() / "bin" / "spark-submit")
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    conf = {"spark.connect.grpc.binding.port": str(port), "spark.connect.grpc.binding.address": "127.0.0.1"}
    settings = [argument for name, value in conf.items() for argument in ("--conf", f"{name}={value}")]
    with process(log, submit, "--class", server, "--master", "local[2]", *settings, "--name", "c", "spark-internal"):
        listens(port, log)
        shell = Shell(broker, tmp_path / "pipeline", f"sc://127.0.0.1:{port}")
        assert shell.run("archive")["messages"] == MESSAGES
        refined = shell.run("refine", "--unique-by", "data")
        assert refined["refined"] + refined["quarantined"] + refined["duplicates"] == MESSAGES
        assert shell.run("metrics")["events"] >= MESSAGES
        assert shell.run("dead-letters")["dead letters"] == refined["quarantined"]
        assert shell.run("replay", "--topic", SOURCE, "--to", SINK)["published"] == MESSAGES
        assert shell.run("archive")["messages"] == MESSAGES
        assert shell.run("reconcile")["differences"] == 0
        assert shell.run("maintain")["batches"] > 0


def test_a_job_that_is_killed_goes_on_and_has_every_message_once(broker: Broker, tmp_path: Path) -> None:
    shell = Shell(broker, tmp_path / "pipeline", "local[2]")
    archive = shell.directory / "archive"
    shell.killed_once(lambda: any(archive.glob("_commits/*/*.json")), "archive", "--batch-messages", "500")
    assert 0 < sum(messages_of(archive, SOURCE).values()) < MESSAGES
    shell.run("archive", "--batch-messages", "500")
    assert messages_of(archive, SOURCE) == Counter(range(1, MESSAGES + 1))

    again = ("replay", "--topic", SOURCE, "--to", SINK, "--rate", "1000")
    client = LogClient(broker.endpoint)
    shell.killed_once(lambda: client.bounds(SINK).last > 0, *again)
    assert client.bounds(SINK).last < MESSAGES
    shell.run(*again)
    assert client.bounds(SINK).last == MESSAGES
    assert shell.run(*again) == {"published": 0}
    assert client.bounds(SINK).last == MESSAGES
