"""The same query on every kind of master: through a queue and Spark into a topic, exactly once."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from heliograph.spark.session import prepare_environment
from tests.spark.test_crashes_on_spark import ENVIRON, Broker, Driver, assert_exactly_once

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

START_SECONDS_MAX = 120


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    broker = Broker(tmp_path / "broker")
    try:
        broker.create()
        broker.publish(4_000)
        yield broker
    finally:
        broker.kill()


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
            os.killpg(running.pid, 9)
        running.wait(30)


def listens(port: int, log: Path) -> None:
    """Return when something accepts connections there."""
    ends_at = time.monotonic() + START_SECONDS_MAX
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert time.monotonic() < ends_at, log.read_text()[-3_000:]
            time.sleep(0.3)
        else:
            return


def spark_home() -> Path:
    found = find_spec("pyspark")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent


def run(broker: Broker, directory: Path, master: str, **options: Any) -> None:
    Driver(broker, directory, "queue", master=master, pause=0.05, **options).succeeds()
    assert_exactly_once(broker, "queue")


def test_local(broker: Broker, tmp_path: Path) -> None:
    run(broker, tmp_path, "local[2]")


def test_local_cluster(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENVIRON, "SPARK_WORKER_DIR", str(tmp_path / "work"))
    run(broker, tmp_path, "local-cluster[2,1,1024]", conf={"spark.executor.memory": "1g"})


def test_a_standalone_master_with_two_workers(broker: Broker, tmp_path: Path) -> None:
    port, log, java = free_port(), tmp_path / "spark.log", str(spark_home() / "bin" / "spark-class")
    master = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    worker = (java, f"{deploy}.worker.Worker", "--cores", "1", "--memory", "1g", "--host", "127.0.0.1")
    with contextlib.ExitStack() as stack:
        ui = ("--webui-port", "0")
        arguments = ("--host", "127.0.0.1", "--port", str(port), *ui)
        stack.enter_context(process(log, java, f"{deploy}.master.Master", *arguments))
        listens(port, log)
        for _ in range(2):
            stack.enter_context(process(log, *worker, *ui, master))
        run(broker, tmp_path, master, conf={"spark.executor.memory": "800m"})


def test_spark_connect(broker: Broker, tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "connect.log"
    submit = str(spark_home() / "bin" / "spark-submit")
    command = (submit, "--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "--master", "local[2]")
    conf = {"spark.connect.grpc.binding.port": str(port), "spark.connect.grpc.binding.address": "127.0.0.1"}
    settings = [argument for name, value in conf.items() for argument in ("--conf", f"{name}={value}")]
    with process(log, *command, *settings, "--name", "connect", "spark-internal"):
        listens(port, log)
        run(broker, tmp_path, f"sc://127.0.0.1:{port}")
