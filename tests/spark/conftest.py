"""One Spark for all tests that need one: it takes ten seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from heliograph.spark.session import create_session


@pytest.fixture(scope="session")
def event_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Spark writes down what it does, for its history server."""
    return tmp_path_factory.mktemp("events")


@pytest.fixture(scope="session")
def spark(event_log: Path) -> Iterator[SparkSession]:
    conf = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": event_log.as_uri()}
    conf |= {"spark.eventLog.compress": "false"}
    # A task may fail once, as on a cluster.
    session = create_session("heliograph tests", master="local[2,2]", brief=True, conf=conf)
    yield session
    session.stop()
