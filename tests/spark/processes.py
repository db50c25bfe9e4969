"""Brokers, drivers and Spark's own servers as processes, to be killed; and how what is left is counted."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pyarrow as pa

from heliograph.spark.claim_client import ClaimClient
from heliograph.spark.door import Address
from heliograph.spark.log_client import LogClient
from heliograph.spark.session import prepare_environment
from heliograph.spark.stage_client import StageClient

SOURCE, SINK = "projects/p/topics/source", "projects/p/topics/sink"
SUBSCRIPTION = "projects/p/subscriptions/source"
MESSAGES = 4_000
WAIT_SECONDS = 240
ROOT = Path(__file__).parents[2]
ENVIRON = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}

SOURCES = {
    "log": {"topic": SOURCE, "startingOffsets": "earliest", "minPartitions": "2"},
    "queue": {"subscription": SUBSCRIPTION, "claimSize": "500", "consumer": "test"},
}


class Broker:
    """`heliograph serve` as a process of its own, on a port that it keeps."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = 0
        self.start()

    @classmethod
    @contextlib.contextmanager
    def filled(cls, directory: Path) -> Iterator[Broker]:
        """One with the topics of these tests, and all messages in that of the source."""
        broker = cls(directory)
        try:
            broker.create()
            broker.publish(MESSAGES)
            yield broker
        finally:
            broker.kill()

    def start(self) -> None:
        command = [sys.executable, "-m", "heliograph", "serve"]
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
        self.process.stdin.close()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def restart(self) -> None:
        self.kill()
        self.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def create(self) -> None:
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
        """How many messages the sink's topic has."""
        return LogClient(self.endpoint).bounds(SINK).last

    def claims(self) -> ClaimClient:
        """Those of the queries of `options`."""
        return ClaimClient(Address(self.endpoint), SUBSCRIPTION, "test")


def options(endpoint: str, directory: Path, mode: str, **more: Any) -> dict[str, Any]:
    """Of `driver.py`, for a query in a mode of `SOURCES` whose checkpoint is in `directory`."""
    return {
        "master": "local[2]",
        "source": {"endpoint": endpoint, "maxMessagesPerTrigger": "1000"} | SOURCES[mode],
        "sink": {"endpoint": endpoint, "topic": SINK},
        "checkpoint": str(directory / "checkpoint"),
    } | more


class Driver:
    """The process of `driver.py`, and all that it starts.

    Args:
        directory: where it works, and writes what it says to `driver.log`.
        settings: of `options`.
        python: what runs it.
    """

    def __init__(self, directory: Path, settings: dict[str, Any], python: str = sys.executable) -> None:
        self.log = directory / "driver.log"
        with self.log.open("a") as output:
            self.process = subprocess.Popen(
                [python, str(Path(__file__).with_name("driver.py")), json.dumps(settings)],
                stdout=output,
                stderr=output,
                env=ENVIRON,
                cwd=directory,
                start_new_session=True,
            )

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)

    def killed_when(self, condition: Callable[[], bool]) -> None:
        """With `kill -9`, together with all that it has started, as soon as the condition holds."""
        try:
            until(condition, self.is_at_work)
        finally:
            self.kill()

    def is_at_work(self) -> None:
        """Raises: AssertionError (it has ended)."""
        assert self.process.poll() is None, self.log.read_text()[-3_000:]

    def succeeds(self) -> None:
        try:
            code = self.process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            code = -1
        assert code == 0, self.log.read_text()[-3_000:]


def until(condition: Callable[[], bool], check: Callable[[], None] = lambda: None) -> None:
    """Return when the condition holds; meanwhile `check` may raise."""
    ends_at = time.monotonic() + WAIT_SECONDS
    while not condition():
        check()
        assert time.monotonic() < ends_at, "it did not come to that"
        time.sleep(0.02)


def assert_exactly_once(broker: Broker, mode: str) -> None:
    """Rows = messages, distinct = messages, and in mode queue nothing is unacknowledged."""
    sent, found = broker.ids(SOURCE), broker.ids(SINK, "id")
    assert (len(found), len(set(found))) == (MESSAGES, MESSAGES)
    assert set(found) == set(sent)
    if mode == "queue":
        assert broker.claims().claimed() == ([], 0)


# ── Spark's own servers ─────────────────────────────────────────────────────────────────────────────────────────────


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextlib.contextmanager
def process(log: Path, *command: str) -> Iterator[None]:
    """A program of Spark's with all that it starts, for the time of the block."""
    prepare_environment()
    environ = ENVIRON | {name: os.environ[name] for name in ("JAVA_HOME", "PYSPARK_PYTHON", "SPARK_LOCAL_IP")}
    environ |= {"SPARK_WORKER_DIR": str(log.parent / "work"), "SPARK_NO_DAEMONIZE": "1"}
    with log.open("a") as output:
        running = subprocess.Popen(
            command, stdout=output, stderr=output, env=environ, cwd=log.parent, start_new_session=True
        )
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.wait(30)


def listens(port: int, log: Path) -> None:
    """Return when something accepts connections there."""

    def connects() -> bool:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return True
        return False

    try:
        until(connects)
    except AssertionError:
        raise AssertionError(log.read_text()[-3_000:]) from None


def spark_home() -> Path:
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


@contextlib.contextmanager
def connect_server(directory: Path) -> Iterator[str]:
    """A server of Spark Connect; gives the master to name."""
    port, log = free_port(), directory / "connect.log"
    submit = str(spark_home() / "bin" / "spark-submit")
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    conf = {
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
    }
    settings = [argument for name, value in conf.items() for argument in ("--conf", f"{name}={value}")]
    with process(log, submit, "--class", server, "--master", "local[2]", *settings, "--name", "c", "spark-internal"):
        listens(port, log)
        yield f"sc://127.0.0.1:{port}"


@contextlib.contextmanager
def standalone_master(directory: Path) -> Iterator[str]:
    """A standalone master with two workers of one core each; gives the master to name."""
    port, log, java = free_port(), directory / "spark.log", str(spark_home() / "bin" / "spark-class")
    master, ui = f"spark://127.0.0.1:{port}", ("--webui-port", "0")
    deploy = "org.apache.spark.deploy"
    worker = (java, f"{deploy}.worker.Worker", "--cores", "1", "--memory", "1g", "--host", "127.0.0.1")
    with contextlib.ExitStack() as stack:
        arguments = ("--host", "127.0.0.1", "--port", str(port), *ui)
        stack.enter_context(process(log, java, f"{deploy}.master.Master", *arguments))
        listens(port, log)
        for _ in range(2):
            stack.enter_context(process(log, *worker, *ui, master))
        yield master


class Shell:
    """Runs `heliograph pipeline run …` on one broker and directory.

    Args:
        endpoint: of the broker.
        directory: of the pipeline.
        master: of Spark.
        token: for the broker.
    """

    def __init__(self, endpoint: str, directory: Path, master: str, token: str = "") -> None:
        self.directory = directory
        self._options = ["--server", endpoint, "--directory", str(directory), "--master", master, "--json"]
        self._environ = ENVIRON | ({"HELIOGRAPH_TOKEN": token} if token else {})

    def start(self, job: str, *arguments: str, python: str = sys.executable) -> subprocess.Popen[str]:
        command = [python, "-m", "heliograph", "pipeline", "run", job, *self._options, *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=self._environ, start_new_session=True)

    def run(self, job: str, *arguments: str, python: str = sys.executable) -> dict[str, Any]:
        """The figures of the job's run, which must go well."""
        running = self.start(job, *arguments, python=python)
        out, err = running.communicate(timeout=WAIT_SECONDS)
        assert running.returncode == 0, err[-3_000:]
        figures: dict[str, Any] = json.loads(out)["figures"]
        return figures

    def killed_when(self, condition: Callable[[], bool], job: str, *arguments: str) -> None:
        """With `kill -9`, together with all that it has started, as soon as the condition holds."""
        running = self.start(job, *arguments)

        def is_at_work() -> None:
            assert running.poll() is None, running.communicate()[1][-3_000:]

        try:
            until(condition, is_at_work)
            assert running.poll() is None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            running.communicate()
