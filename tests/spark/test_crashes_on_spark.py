"""Exactly once on a real Spark, whatever is killed: every message of the source is in the topic of the sink, once, and
nothing is left unacknowledged."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from heliograph.errors import Unavailable
from heliograph.spark.claim_client import ClaimClient
from heliograph.spark.door import Address, Door
from heliograph.spark.log_client import LogClient

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SOURCE, SINK = "projects/p/topics/source", "projects/p/topics/sink"
SUBSCRIPTION = "projects/p/subscriptions/source"
MESSAGES = 4_000
WAIT_SECONDS = 240
ROOT = Path(__file__).parents[2]
ENVIRON = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}


class Broker:
    """`heliograph serve` as a process of its own, on a port that it keeps."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = 0
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-c", "from heliograph.cli.main import main; main()", "serve"]
        arguments = ["--port", str(self.port), "--data-dir", str(self.directory), "--end-with-stdin"]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [*command, *arguments], stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=ENVIRON
        )
        assert self.process.stdout is not None
        found = re.search(r"listening on (\d+)", self.process.stdout.readline())
        assert found is not None
        self.port = int(found[1])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def create(self) -> None:
        import urllib.request

        resources = {
            SOURCE: {"messageRetentionDuration": "86400s"},
            SINK: {"messageRetentionDuration": "86400s"},
            SUBSCRIPTION: {"topic": SOURCE},
        }
        for name, resource in resources.items():
            request = urllib.request.Request(f"{self.endpoint}/v1/{name}", json.dumps(resource).encode(), method="PUT")
            request.add_header("Content-Type", "application/json")
            urllib.request.urlopen(request, timeout=30).read()

    def publish(self, count: int) -> None:
        import pyarrow as pa

        from heliograph.spark.stage_client import StageClient

        stage = StageClient(Address(self.endpoint), "fill")
        rows = [{"data": b"%d" % number, "ordering_key": f"key {number % 10}"} for number in range(count)]
        kind = pa.schema([("data", pa.binary()), ("ordering_key", pa.string())])
        part = stage.write(SOURCE, pa.RecordBatch.from_pylist(rows, kind))
        assert stage.publish("fill", 0, [part], count) == (count, 0)

    def ids(self, topic: str, attribute: str = "") -> list[str]:
        """Message ids of a topic's log, or an attribute of its messages."""
        client = LogClient(self.endpoint)
        bounds = client.bounds(topic)
        columns = ["sequence", "message_id", "attributes"]
        return [
            dict(attributes)[attribute] if attribute else message_id
            for batch in client.read(topic, bounds.topic_number, bounds.first, bounds.last, columns)
            for message_id, attributes in zip(
                batch.column("message_id").to_pylist(), batch.column("attributes").to_pylist(), strict=True
            )
        ]

    def published(self) -> int:
        """How many messages the sink's topic has; 0 while the broker is away."""
        try:
            return int(Door(Address(self.endpoint)).get("/api/v1/log/bounds", {"topic": SINK})["last"])
        except Unavailable:
            return 0


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "broker")
    try:
        broker.create()
        broker.publish(MESSAGES)
        yield broker
    finally:
        broker.kill()


SOURCES = {
    "log": {"topic": SOURCE, "startingOffsets": "earliest", "minPartitions": "2"},
    "queue": {"subscription": SUBSCRIPTION, "claimSize": "250", "consumer": "test"},
}


class Driver:
    """The process of `driver.py`, and all that it starts."""

    def __init__(self, broker: Broker, directory: Path, mode: str, **options: Any) -> None:
        self.log = directory / "driver.log"
        settings = {
            "master": "local[2]",
            "source": {"endpoint": broker.endpoint, "maxMessagesPerTrigger": "500"} | SOURCES[mode],
            "sink": {"endpoint": broker.endpoint, "topic": SINK},
            "checkpoint": str(directory / "checkpoint"),
            "pause": 0.3,
        } | options
        with self.log.open("a") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("driver.py")), json.dumps(settings)],
                stdout=output,
                stderr=output,
                env=ENVIRON,
                cwd=directory,
                start_new_session=True,
            )

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)

    def succeeds(self) -> None:
        try:
            code = self.process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            code = -1
        assert code == 0, self.log.read_text()[-3_000:]


def until_published(broker: Broker, driver: Driver, count: int) -> None:
    ends_at = time.monotonic() + WAIT_SECONDS
    while broker.published() < count:
        assert driver.process.poll() is None, driver.log.read_text()[-3_000:]
        assert time.monotonic() < ends_at, "nothing is published"
        time.sleep(0.1)


def assert_exactly_once(broker: Broker, mode: str) -> None:
    sent, found = broker.ids(SOURCE), broker.ids(SINK, "id")
    assert (len(found), len(set(found))) == (MESSAGES, MESSAGES)
    assert set(found) == set(sent)
    if mode == "queue":
        claimed = ClaimClient(Address(broker.endpoint), SUBSCRIPTION, "test").claimed()
        assert (claimed.claims, claimed.ready) == ([], 0)


@pytest.mark.parametrize("mode", ["log", "queue"])
def test_a_driver_that_is_killed_in_the_middle_of_a_batch(broker: Broker, tmp_path: Path, mode: str) -> None:
    driver = Driver(broker, tmp_path, mode)
    until_published(broker, driver, 1_000)
    time.sleep(0.3)
    driver.kill()
    assert broker.published() < MESSAGES
    Driver(broker, tmp_path, mode, pause=0).succeeds()
    assert_exactly_once(broker, mode)


@pytest.mark.parametrize("mode", ["log", "queue"])
def test_a_broker_that_is_killed_while_spark_reads_and_publishes(broker: Broker, tmp_path: Path, mode: str) -> None:
    driver = Driver(broker, tmp_path, mode)
    for count in (500, 2_000):
        until_published(broker, driver, count)
        time.sleep(0.2)
        broker.kill()
        broker.start()
    driver.succeeds()
    assert_exactly_once(broker, mode)


@pytest.mark.parametrize("mode", ["log", "queue"])
def test_a_task_that_fails_once_and_is_run_again(broker: Broker, tmp_path: Path, mode: str) -> None:
    marker = str(tmp_path / "failed once")
    Driver(broker, tmp_path, mode, master="local[2,3]", fails_once=marker, pause=0).succeeds()
    assert Path(marker).exists()
    assert_exactly_once(broker, mode)


@pytest.mark.parametrize("mode", ["log", "queue"])
def test_a_batch_that_is_used_twice_has_the_same_rows(broker: Broker, tmp_path: Path, mode: str) -> None:
    counts = tmp_path / "counts"
    counts.mkdir()
    Driver(broker, tmp_path, mode, twice=str(counts), pause=0).succeeds()
    batches = [json.loads(file.read_text()) for file in counts.glob("*.json")]
    assert all(first == second for first, second in batches)
    assert sorted(each for first, _ in batches for each in first) == sorted(broker.ids(SOURCE))


def test_a_query_goes_on_after_its_claims_have_ended(broker: Broker, tmp_path: Path) -> None:
    ends = SOURCES["queue"] | {"endpoint": broker.endpoint, "maxMessagesPerTrigger": "500"}
    ends |= {"claimTtl": "5s", "failOnDataLoss": "false"}
    driver = Driver(broker, tmp_path, "queue", source=ends)
    until_published(broker, driver, 1_000)
    driver.kill()
    client = ClaimClient(Address(broker.endpoint), SUBSCRIPTION, "test")
    ends_at = time.monotonic() + 30
    while client.claimed().claims:
        assert time.monotonic() < ends_at
        time.sleep(0.5)
    Driver(broker, tmp_path, "queue", source=ends | {"claimTtl": "1h"}, pause=0).succeeds()
    sent, found = set(broker.ids(SOURCE)), broker.ids(SINK, "id")
    assert set(found) == sent
    assert (client.claimed().claims, client.claimed().ready) == ([], 0)
