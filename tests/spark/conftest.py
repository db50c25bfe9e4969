"""One Spark for all tests that need one: it takes ten seconds to start."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from heliograph.spark.session import create_session


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = create_session("heliograph tests", master="local[2]", brief=True)
    yield session
    session.stop()
