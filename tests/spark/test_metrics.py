"""The figures of the event log, batch by batch and rolled up, against the broker and against pandas on the events."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import SparkSession

from heliograph.broker.broker import LocalBroker
from heliograph.broker.clock import SimulatedClock
from heliograph.engine.message import Draft
from heliograph.engine.settings import DAY_NS, SECOND_NS, SubscriptionSettings, TopicSettings
from heliograph.spark.door import Address
from heliograph.spark.pipeline.job import Place
from heliograph.spark.pipeline.jobs import JobOptions, job_named, run_once
from heliograph.spark.pipeline.maintain import MaintainOptions, Retention, hour_of
from heliograph.spark.pipeline.metrics import read_metrics
from heliograph.spark.pipeline.table import Table
from tests.spark.fakes import ServerThread

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TOPIC, FIRST, SECOND = "projects/p/topics/t", "projects/p/subscriptions/first", "projects/p/subscriptions/second"


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock(1_372_680_000 * SECOND_NS)


@pytest.fixture
def place(clock: SimulatedClock, tmp_path: Path) -> Iterator[tuple[LocalBroker, Place]]:
    broker = LocalBroker.open(tmp_path / "broker", clock=clock, event_retention_ns=DAY_NS)
    broker.create_topic(TOPIC, TopicSettings(message_retention_ns=DAY_NS)).result()
    with ServerThread(broker) as server:
        yield broker, Place(Address(server.endpoint), tmp_path / "pipeline")
    broker.close()


def take(broker: LocalBroker, clock: SimulatedClock, subscription: str, count: int, nacked: int = 0) -> None:
    """Work on so many messages for two seconds, and give some back."""
    taken = [each.ack_id for each in broker.pull(subscription, count).result()]
    clock.advance(2)
    broker.nack(subscription, taken[:nacked]).result()
    broker.acknowledge(subscription, taken[nacked:]).result()
    broker.unacknowledged(subscription).result()  # acknowledgements are answered before they are in the event log


def measure(spark: SparkSession, place: Place) -> None:
    run_once(spark, job_named("metrics"), place, JobOptions(window_seconds=60.0))


def publish(broker: LocalBroker, count: int) -> None:
    broker.publish(TOPIC, [Draft(b"x")] * count).result()


def test_figures_are_those_of_the_events_however_they_were_cut_into_runs(
    spark: SparkSession, place: tuple[LocalBroker, Place], clock: SimulatedClock
) -> None:
    broker, where = place
    publish(broker, 10)  # for nobody
    clock.advance(1)
    broker.create_subscription(FIRST, TOPIC, SubscriptionSettings()).result()
    publish(broker, 100)
    clock.advance(10)
    take(broker, clock, FIRST, 60, nacked=10)
    measure(spark, where)
    clock.advance(15)
    publish(broker, 40)
    clock.advance(1)
    broker.create_subscription(SECOND, TOPIC, SubscriptionSettings()).result()
    clock.advance(40)  # into the next minute
    publish(broker, 4)
    take(broker, clock, FIRST, 20)
    take(broker, clock, SECOND, 3)
    publish(broker, 1)  # whose commit has the acknowledgements with it
    measure(spark, where)

    figures = pd.read_parquet(where.table("metrics-by-window")).set_index(["subscription", "window_start"]).sort_index()
    first, second = figures.loc[FIRST], figures.loc[SECOND]
    assert first["published"].tolist() == [140, 5]
    assert first[["delivered", "acknowledged", "nacked", "redelivered"]].to_numpy().tolist() == [
        [60, 50, 10, 0],
        [20, 20, 0, 10],
    ]
    assert first["redelivery_ratio"].tolist() == [0.0, 0.5]
    assert first["backlog"].tolist() == [90, 75]
    assert (second["published"].iloc[-1], second["acknowledged"].iloc[-1], second["backlog"].iloc[-1]) == (5, 3, 2)
    assert first["processing_ms_p50"].tolist() == [2000.0, 2000.0]
    for subscription in (FIRST, SECOND):
        now, last = broker.statistics(subscription), figures.loc[subscription].iloc[-1]
        assert last["backlog"] == now.ready + now.delayed + now.outstanding
        oldest_seconds = (broker.now_ns() - now.oldest_unacknowledged_ns) / 1e9
        assert last["oldest_age_seconds"] == pytest.approx(oldest_seconds)

    check_roll_up(spark, where)


def check_roll_up(spark: SparkSession, where: Place) -> None:
    hours = read_metrics(spark, where.directory, 3600).toPandas().set_index("subscription")
    columns = ["event", "subscription", "attempt", "wait_us", "position"]
    events = pd.concat(batch.to_pandas() for batch in where.events.read(*where.events.bounds(), columns))
    row: Any = hours.loc[FIRST]
    assert (row["published"], row["delivered"], row["acknowledged"], row["backlog"]) == (145, 80, 70, 75)
    chosen = (events["event"] == "delivered") & (events["subscription"] == FIRST) & (events["attempt"] == 1)
    waits = np.sort(events[chosen]["wait_us"].to_numpy() / 1e3)
    for share in (50, 95, 99):
        assert row[f"wait_ms_p{share}"] == np.quantile(waits, share / 100, method="inverted_cdf")


def test_a_seek_settles_what_it_passes_over_and_opens_what_it_brings_back(
    spark: SparkSession, place: tuple[LocalBroker, Place], clock: SimulatedClock
) -> None:
    broker, where = place
    for subscription in (FIRST, SECOND):
        broker.create_subscription(subscription, TOPIC, SubscriptionSettings()).result()
    clock.advance(1)
    publish(broker, 10)
    take(broker, clock, FIRST, 6)
    measure(spark, where)
    clock.advance(60)
    then_ns = broker.now_ns()
    publish(broker, 5)
    clock.advance(1)
    broker.seek_to_time(FIRST, 0).result()  # back: all 15 are open
    broker.seek_to_time(SECOND, then_ns).result()  # forward: 10 of the 15 are passed over
    clock.advance(1)
    publish(broker, 1)
    measure(spark, where)
    figures = pd.read_parquet(where.table("metrics-by-window")).set_index(["subscription", "window_start"]).sort_index()
    assert figures.loc[FIRST]["backlog"].tolist() == [4, 16]
    assert figures.loc[SECOND]["backlog"].tolist() == [10, 6]
    for subscription in (FIRST, SECOND):
        assert broker.statistics(subscription).ready == figures.loc[subscription]["backlog"].iloc[-1]
    check_retention(spark, where)


def check_retention(spark: SparkSession, where: Place) -> None:
    """Parts of figures become one by day, and go when the day is too old."""
    parts, before = Table(where.table("metrics")), read_metrics(spark, where.directory).count()
    kept = run_once(spark, job_named("maintain"), where, JobOptions(maintain=MaintainOptions(Retention(0))))
    assert (kept.figures["batches before"], kept.figures["batches"], kept.figures["removed rows"]) == (2, 1, 0)
    assert [hour_of(file).strip() for commit in parts.commits("events") for file in commit.files] == ["2013-07-01"]
    assert read_metrics(spark, where.directory).count() == before
    retention = Retention(86_400 * 10**5, tables={"metrics": 86_400})
    gone = run_once(spark, job_named("maintain"), where, JobOptions(maintain=MaintainOptions(retention)))
    assert gone.figures["removed rows"] > 0
    assert parts.files("events") == []
    measure(spark, where)  # goes on where it was


def test_the_backlog_of_a_subscription_with_a_filter_is_what_the_filter_lets_pass(
    spark: SparkSession, place: tuple[LocalBroker, Place], clock: SimulatedClock
) -> None:
    broker, where = place
    broker.create_subscription(FIRST, TOPIC, SubscriptionSettings(filter='attributes.kind = "a"')).result()
    for _ in range(2):
        drafts = [Draft(b"x", attributes={"kind": "ab"[number % 2]}) for number in range(20)]
        broker.publish(TOPIC, drafts).result()
        clock.advance(10)
        take(broker, clock, FIRST, 3)
        broker.pull(FIRST, 2).result()  # delivered, not settled
        measure(spark, where)
    figures = pd.read_parquet(where.table("metrics-by-window")).set_index("subscription")
    now = broker.statistics(FIRST)
    assert now.ready + now.delayed + now.outstanding == 14
    assert figures.loc[FIRST]["backlog"] == 14
