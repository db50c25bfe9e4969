"""The same on every kind of master: through a queue and Spark into a topic, exactly once; and a job of the pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.driver import run
from tests.spark.processes import (
    ENVIRON,
    MESSAGES,
    Broker,
    Driver,
    Shell,
    assert_exactly_once,
    options,
    standalone_master,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker.filled(tmp_path / "broker") as broker:
        yield broker


def test_local(spark: SparkSession, broker: Broker, tmp_path: Path) -> None:
    assert spark.conf.get("spark.master") == "local[2,2]"
    run(spark, options(broker.endpoint, tmp_path, "queue"))
    assert_exactly_once(broker, "queue")


def test_local_cluster(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ENVIRON, "SPARK_WORKER_DIR", str(tmp_path / "work"))
    master = {"master": "local-cluster[2,1,1024]", "conf": {"spark.executor.memory": "1g"}}
    Driver(tmp_path, options(broker.endpoint, tmp_path, "queue", **master)).succeeds()
    assert_exactly_once(broker, "queue")


def test_a_standalone_master_with_two_workers(broker: Broker, tmp_path: Path) -> None:
    with standalone_master(tmp_path) as master:
        conf = {"spark.executor.memory": "800m"}
        Driver(tmp_path, options(broker.endpoint, tmp_path, "queue", master=master, conf=conf)).succeeds()
        assert_exactly_once(broker, "queue")
        shell = Shell(broker.endpoint, tmp_path / "pipeline", master)
        figures = shell.run("archive", "--conf", "spark.executor.memory=800m", "--batch-messages", "3000")
        assert (figures["topics"], figures["messages"]) == (2, 2 * MESSAGES)
