"""The examples for data engineers run as they are, and their figures are those of pandas on the original file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.dataset as ds
import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.demo.flights import installed_file
from heliograph.engine.message import Draft
from heliograph.engine.settings import DAY_NS, TopicSettings
from heliograph.spark.session import prepare_environment
from tests.spark.fakes import ServerThread
from tests.spark.processes import spark_home

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
FLIGHTS = 8_000
ROUNDED = 0.011  # two roundings to hundredths may differ in the last digit


class Run:
    """A run of the notebook on a broker of this test.

    Args:
        text: what it printed.
        broker: what it talked to.
    """

    def __init__(self, text: str, broker: LocalBroker) -> None:
        self.text = text
        self.broker = broker
        self.flights = pd.read_csv(installed_file(), nrows=FLIGHTS)

    def table(self, title: str, index: str) -> pd.DataFrame:
        """A table that it printed below a line that begins so."""
        lines = self.text.partition(f"\n{title}")[2].split("\n\n")[1].splitlines()
        rows = [line.split() for line in lines]
        return pd.DataFrame(rows[1:], columns=rows[0]).set_index(index)

    def topic(self, name: str) -> list[Any]:
        """What it published there."""
        topic = f"projects/test/topics/{name}"
        batches = self.broker.read_log(topic, *self.broker.log_bounds(topic))
        return [json.loads(message.data) for batch in batches for message in batch]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    directory = tmp_path_factory.mktemp("notebook")
    broker = LocalBroker()
    with ServerThread(broker) as server:
        done = subprocess.run(
            [
                *(sys.executable, EXAMPLES / "analyse_flights.py", "--server", server.endpoint),
                *("--flights", str(FLIGHTS), "--project", "test", "--chart", "chart.html"),
            ],
            cwd=directory,
            env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            text=True,
            timeout=400,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert "plotly" in (directory / "chart.html").read_text()
        yield Run(done.stdout, broker)
    broker.close()


def check(found: pd.Series, expected: pd.Series) -> None:
    """The same figures under the same names."""
    found = found.astype(float)
    assert list(found.index) == list(expected.index.astype(found.index.dtype))
    assert list(found) == pytest.approx(list(expected), abs=ROUNDED)


def test_its_tables_of_airlines_hours_and_routes_are_right(run: Run) -> None:
    airlines = run.flights.groupby("carrier").agg(
        flights=("carrier", "size"), left=("dep_delay", "count"), mean_delay=("dep_delay", "mean")
    )
    printed = run.table("Airlines", "carrier")
    order = airlines.loc[printed.index]
    check(printed["flights"], order["flights"])
    check(printed["cancelled"], order["flights"] - order["left"])
    check(printed["mean_delay"], order["mean_delay"])
    assert len(printed) == len(airlines)
    late = run.flights.dropna(subset=["dep_delay"]).groupby("carrier")["dep_delay"].apply(lambda of: (of > 60).mean())
    check(printed["late_percent"], late.loc[printed.index] * 100)

    hours = run.flights.groupby("hour")["dep_delay"].mean().dropna()
    printed = run.table("Hours", "hour")
    check(printed["mean_delay"], hours.rename(index=str))

    routes = run.flights.groupby(["origin", "dest"])["arr_delay"].agg(["count", "mean"])
    worst = routes[routes["count"] >= 20].sort_values("mean", ascending=False).head(10)
    printed = run.table("The ten worst", "dest")
    assert [(row.origin, dest) for dest, row in printed.iterrows()] == list(worst.index)
    check(printed["mean_delay"], worst["mean"].droplevel("origin"))


def test_its_stream_published_every_day_that_is_over_once(run: Run) -> None:
    flights = run.flights
    day = pd.to_datetime(flights[["year", "month", "day"]])
    latest = (day + pd.to_timedelta(flights["hour"], "h")).max()
    over = flights[day + pd.Timedelta(days=1) <= latest - pd.Timedelta(days=1)]
    expected = over.groupby([day.dt.strftime("%Y-%m-%d"), "origin"]).agg(
        flights=("carrier", "size"), mean_delay=("dep_delay", "mean")
    )
    published = run.topic("daily")
    found = {(each["day"], each["origin"]): each for each in published}
    assert len(found) == len(published) == len(expected) > 15
    for name, row in expected.iterrows():
        assert found[name]["flights"] == row["flights"]
        assert found[name]["mean_delay"] == pytest.approx(row["mean_delay"], abs=ROUNDED)


def test_its_queue_is_worked_off_and_its_table_published(run: Run) -> None:
    very_late = run.flights["dep_delay"] > 180
    assert f"\nBefore: {very_late.sum():,} messages wait\n" in run.text
    assert "\nAfter:  0 messages wait\n" in run.text
    worst = run.flights.sort_values("dep_delay", ascending=False).head(5)
    assert list(run.table("The latest", "flight")["carrier"]) == list(worst["carrier"])
    assert {each["carrier"] for each in run.topic("airlines")} == set(run.flights["carrier"])


# ── Spark Declarative Pipelines ───────────────────────────────────────────────────────────────────────────────────────

TOPIC = "projects/demo/topics/flights"


class Project:
    """The example project in a directory of its own, on a broker of this test."""

    def __init__(self, directory: Path, endpoint: str) -> None:
        shutil.copytree(EXAMPLES / "declarative_pipeline", directory)
        spec = directory / "spark-pipeline.yml"
        text = spec.read_text()
        assert "file:///tmp/heliograph-flights" in text
        spec.write_text(text.replace("file:///tmp/heliograph-flights", (directory / "checkpoints").as_uri()))
        self.directory = directory
        self.address = endpoint.removeprefix("http://")

    def run(self) -> None:
        prepare_environment()
        done = subprocess.run(
            [str(spark_home() / "bin" / "spark-pipelines"), "run", "--conf", "spark.sql.catalogImplementation=hive"],
            cwd=self.directory,
            env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "PUBSUB_EMULATOR_HOST": self.address},
            capture_output=True,
            text=True,
            timeout=500,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def table(self, name: str) -> pd.DataFrame:
        files = [str(file) for file in (self.directory / "spark-warehouse" / name).glob("*.parquet")]
        return ds.dataset(files).to_table().to_pandas()


def publish(broker: LocalBroker, flights: pd.DataFrame, broken: Sequence[bytes] = ()) -> None:
    """The flights, and before them what breaks a rule."""
    rows = [json.loads(line) for line in flights.to_json(orient="records", lines=True).splitlines()]
    broker.publish(TOPIC, [Draft(data) for data in (*broken, *(json.dumps(row).encode() for row in rows))]).result()


def test_the_declarative_pipeline_takes_each_message_once_over_two_runs(tmp_path: Path) -> None:
    flights = pd.read_csv(installed_file(), nrows=3_000)
    broken = [b"{", b'{"carrier": "UA", "origin": "SFO", "hour": 30}']
    broker = LocalBroker()
    broker.create_topic(TOPIC, TopicSettings(message_retention_ns=DAY_NS)).result()
    with ServerThread(broker) as server:
        project = Project(tmp_path / "project", server.endpoint)
        publish(broker, flights[:2_000], broken)
        project.run()
        check_tables(project, flights[:2_000], broken)
        publish(broker, flights[2_000:], [b"[]"])
        project.run()
        check_tables(project, flights, [*broken, b"[]"])
    broker.close()


def check_tables(project: Project, flights: pd.DataFrame, broken: Sequence[bytes]) -> None:
    ids = project.table("messages")["message_id"]
    assert (len(ids), ids.nunique()) == (len(flights) + len(broken), len(flights) + len(broken))
    right = project.table("flights")
    assert right["message_id"].nunique() == len(right)
    names = ["carrier", "flight", "origin", "dest", "hour", "distance"]
    assert sorted(right[names].itertuples(index=False)) == sorted(flights[names].itertuples(index=False))
    rejected = project.table("rejected")
    assert sorted(rejected["data"]) == sorted(broken)
    assert sorted(rejected["reasons"].map(list)) == sorted(
        ["not from New York", "no such hour"] if data.endswith(b"30}") else ["no flight in JSON"] for data in broken
    )
    airlines = project.table("airlines").set_index("carrier")
    expected = flights.groupby("carrier").agg(flights=("flight", "size"), mean_delay=("dep_delay", "mean"))
    check(airlines["flights"].sort_index(), expected["flights"])
    check(airlines["mean_delay"].sort_index(), expected["mean_delay"])
    counts = project.table("rejections").set_index("reason")["messages"].to_dict()
    assert counts == {"no flight in JSON": len(broken) - 1, "not from New York": 1, "no such hour": 1}
