"""Jobs of the pipeline that are killed in the middle, as processes, and tasks of theirs that fail."""

from __future__ import annotations

import base64
import json
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from heliograph.spark.door import Address
from heliograph.spark.log_client import LogClient
from heliograph.spark.pipeline.job import Outcome, Place
from heliograph.spark.pipeline.jobs import JobOptions, job_named, run_once
from heliograph.spark.pipeline.refine import RefineOptions
from heliograph.spark.pipeline.replay import Choice, ReplayOptions
from heliograph.spark.pipeline.table import Table, write_whole
from tests.spark.gateway import Gateway
from tests.spark.processes import MESSAGES, SINK, SOURCE, SUBSCRIPTION, Broker, Shell

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

BAD, TWICE = 20, 10
STAGE = "/api/v1/staging/write"


class Killed:
    """A broker with messages, some bad and some double, and a pipeline whose jobs are killed in a process of their own
    and run again in this one."""

    def __init__(self, spark: SparkSession, broker: Broker, directory: Path) -> None:
        self.spark = spark
        self.broker = broker
        self.directory = directory
        self.messages = MESSAGES + BAD + TWICE

    def rest(self, method: str, path: str, body: object) -> None:
        url, data = f"{self.broker.endpoint}/v1/{path}", json.dumps(body).encode()
        request = urllib.request.Request(url, data, {"Content-Type": "application/json"}, method=method)
        urllib.request.urlopen(request, timeout=30).read()

    def publish(self, data: list[bytes]) -> None:
        messages = [{"data": base64.b64encode(each).decode()} for each in data]
        self.rest("POST", f"{SOURCE}:publish", {"messages": messages})

    def kill(self, at: str, job: str, *arguments: str, endpoint: str = "", master: str = "local[2]") -> None:
        """As soon as there is something of this pattern in the directory."""
        shell = Shell(endpoint or self.broker.endpoint, self.directory, master)
        shell.killed_when(lambda: any(self.directory.glob(at)), job, *arguments)

    def run(self, job: str, **options: object) -> Outcome:
        place = Place(Address(self.broker.endpoint), self.directory)
        return run_once(self.spark, job_named(job), place, JobOptions()._replace(**options))

    def sequences(self, table: str) -> Counter[int]:
        """Those that are in a table, with how often."""
        return Counter(
            sequence
            for file in Table(self.directory / table).files(SOURCE)
            for sequence in pq.read_table(file, columns=["sequence"], partitioning=None)["sequence"].to_pylist()
        )


@pytest.fixture(scope="module")
def killed(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    """With an archive of all messages that was made by a run that was killed, and another one."""
    directory = tmp_path_factory.mktemp("killed")
    broker = Broker(directory / "broker")
    try:
        broker.create()
        broker.publish(MESSAGES)
        killed = Killed(spark, broker, directory / "pipeline")
        killed.publish([b"{"] * BAD + [b"1"] * TWICE)
        yield killed
    finally:
        broker.kill()


def test_archive_refine_and_metrics_that_were_killed_go_on_and_have_every_message_once(killed: Killed) -> None:
    everything = Counter(range(1, killed.messages + 1))

    killed.kill("archive/_commits/*/*.json", "archive", "--batch-messages", "500")
    assert 0 < killed.sequences("archive").total() < killed.messages
    killed.run("archive")
    assert killed.sequences("archive") == everything

    killed.kill("quarantine/_commits/*/*.json", "refine", "--unique-by", "data")
    assert killed.run("refine", refine=RefineOptions(unique_by="data")).figures["refined"] in (0, MESSAGES)
    assert (killed.sequences("refined").total(), killed.sequences("quarantine").total()) == (MESSAGES, BAD + TWICE)
    assert killed.sequences("refined") + killed.sequences("quarantine") == everything

    killed.kill("metrics/_open/*", "metrics", "--window", "1h")
    assert killed.run("metrics", window_seconds=3600.0).figures["backlog"] == killed.messages
    figures = pd.read_parquet(killed.directory / "metrics-by-window")
    assert figures[["subscription", "published"]].groupby("subscription").sum()["published"].to_dict() == {
        SUBSCRIPTION: killed.messages
    }


def test_a_replay_whose_task_failed_and_that_was_killed_adds_every_message_once(killed: Killed) -> None:
    killed.run("archive")
    client = LogClient(killed.broker.endpoint)
    shell_options = ("--topic", SOURCE, "--to", SINK, "--rate", "1000", "--name", "again")
    with Gateway(killed.broker.endpoint, fails={STAGE: [1]}) as gateway:
        shell = Shell(gateway.endpoint, killed.directory, "local[2,2]")
        shell.killed_when(lambda: client.bounds(SINK).last > 0, "replay", *shell_options)
    assert gateway.statuses(STAGE).count(400) == 1
    assert len(gateway.statuses(STAGE)) > 1
    assert client.bounds(SINK).last < killed.messages
    again = ReplayOptions(Choice((SOURCE,), SINK), name="again")
    killed.run("replay", replay=again)
    assert killed.run("replay", replay=again).figures == {"published": 0}
    assert client.bounds(SINK).last == killed.messages
    replayed = killed.broker.ids(SINK, "x-replayed-from")
    assert replayed == killed.broker.ids(SOURCE)


def test_a_replay_that_was_killed_once_all_was_staged_stages_it_again_and_publishes_it_once(
    killed: Killed, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed.run("archive")
    again = "projects/p/topics/again"
    killed.rest("PUT", again, {"messageRetentionDuration": "86400s"})
    options = ReplayOptions(Choice((SOURCE,), again, where="sequence <= 200"), name="staged")
    written: list[Path] = []

    class Died(BaseException):
        pass

    def dies(path: Path, data: bytes) -> None:
        written.append(path)
        if len(written) == 2:  # what is staged; the first was what is to be replayed
            raise Died
        write_whole(path, data)

    with monkeypatch.context() as patch:
        patch.setattr("heliograph.spark.pipeline.replay.write_whole", dies)
        with pytest.raises(Died):
            killed.run("replay", replay=options)
    client = LogClient(killed.broker.endpoint)
    assert client.bounds(again).last == 0
    assert killed.run("replay", replay=options).figures["published"] == 200
    assert killed.broker.ids(again, "x-replayed-from") == killed.broker.ids(SOURCE)[:200]
