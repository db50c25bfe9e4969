"""Exactly once on a real Spark, whatever is killed: every message of the source is in the topic of the sink, once, and
nothing is left unacknowledged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from tests.spark.driver import run
from tests.spark.gateway import Gateway
from tests.spark.processes import MESSAGES, SOURCES, Broker, Driver, assert_exactly_once, options, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MODES = ("log", "queue")
READ, CLAIM, FETCH = "/api/v1/log/read", "/api/v1/claims/claim", "/api/v1/claims/fetch"
STAGE, PUBLISH = "/api/v1/staging/write", "/api/v1/staging/publish"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker.filled(tmp_path / "broker") as broker:
        yield broker


@pytest.mark.parametrize("mode", MODES)
def test_a_driver_that_is_killed_in_the_middle_of_a_batch(
    spark: SparkSession, broker: Broker, tmp_path: Path, mode: str
) -> None:
    at_work = tmp_path / "the second micro-batch is at work"
    Driver(tmp_path, options(broker.endpoint, tmp_path, mode, holds=str(at_work))).killed_when(at_work.exists)
    assert broker.published() == 1_000
    run(spark, options(broker.endpoint, tmp_path, mode))
    assert_exactly_once(broker, mode)


@pytest.mark.parametrize("mode", MODES)
def test_a_broker_that_is_killed_in_the_middle_of_reads_and_of_publishing(
    spark: SparkSession, broker: Broker, tmp_path: Path, mode: str
) -> None:
    cuts = {STAGE: [4], PUBLISH: [2]} | ({READ: [1, 6]} if mode == "log" else {CLAIM: [2], FETCH: [1, 6]})
    with Gateway(broker.endpoint, cuts=cuts, on_cut=broker.restart) as gateway:
        run(spark, options(gateway.endpoint, tmp_path, mode))
    broken = sorted(each.path for each in gateway.passed if not each.status)
    assert broken == sorted(path for path, numbers in cuts.items() for _ in numbers)
    assert_exactly_once(broker, mode)


@pytest.mark.parametrize("mode", MODES)
def test_tasks_that_fail_once_before_and_after_they_wrote_and_are_run_again(
    spark: SparkSession, broker: Broker, tmp_path: Path, mode: str
) -> None:
    failed = tmp_path / "failed once"
    with Gateway(broker.endpoint, fails={STAGE: [4]}) as gateway:
        run(spark, options(gateway.endpoint, tmp_path, mode, fails_once=str(failed)))
    assert failed.exists()
    assert 400 in gateway.statuses(STAGE)
    assert_exactly_once(broker, mode)


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_that_is_counted_and_written_has_the_same_rows_both_times(
    spark: SparkSession, broker: Broker, tmp_path: Path, mode: str
) -> None:
    with Gateway(broker.endpoint) as gateway:
        run(spark, options(gateway.endpoint, tmp_path, mode, twice=True))
    reads = len(gateway.statuses(READ if mode == "log" else FETCH))
    assert reads == 3 * MESSAGES // 500
    assert_exactly_once(broker, mode)


def test_a_query_whose_claims_have_expired_says_so_and_goes_on_without_loss_or_double(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    at_work = tmp_path / "the second micro-batch is at work"
    source = {"endpoint": broker.endpoint, "maxMessagesPerTrigger": "1000"} | SOURCES["queue"]
    brief = options(broker.endpoint, tmp_path, "queue", source=source | {"claimTtl": "5s"}, holds=str(at_work))
    Driver(tmp_path, brief).killed_when(at_work.exists)
    until(lambda: not broker.claims().claimed().claims)
    with pytest.raises(StreamingQueryException, match=r"1000 messages that test had claimed .* failOnDataLoss"):
        run(spark, options(broker.endpoint, tmp_path, "queue"))
    assert broker.published() == 1_000
    run(spark, options(broker.endpoint, tmp_path, "queue", source=source | {"failOnDataLoss": "false"}))
    assert_exactly_once(broker, "queue")
