"""Everything through Spark Connect: a query, all jobs of the pipeline, and both from an environment that has no Spark
but `pyspark-client`."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from heliograph.spark.log_client import LogClient
from tests.spark.gateway import GOOD, RIGHTS, Gateway
from tests.spark.processes import (
    MESSAGES,
    ROOT,
    SINK,
    SOURCE,
    Broker,
    Driver,
    Shell,
    assert_exactly_once,
    connect_server,
    options,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with connect_server(tmp_path_factory.mktemp("connect")) as master:
        yield master


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker.filled(tmp_path / "broker") as broker:
        yield broker


def test_a_query(broker: Broker, tmp_path: Path, master: str) -> None:
    Driver(tmp_path, options(broker.endpoint, tmp_path, "queue", master=master, pause=0.01)).succeeds()
    assert_exactly_once(broker, "queue")


def test_all_jobs_of_the_pipeline_with_a_token(broker: Broker, tmp_path: Path, master: str) -> None:
    with Gateway(broker.endpoint, rights=RIGHTS) as gateway:
        shell = Shell(gateway.endpoint, tmp_path / "pipeline", master, token=GOOD)
        assert shell.run("archive")["messages"] == MESSAGES
        refined = shell.run("refine", "--unique-by", "data")
        assert refined["refined"] + refined["quarantined"] + refined["duplicates"] == MESSAGES
        assert shell.run("metrics")["events"] >= MESSAGES
        assert shell.run("dead-letters")["dead letters"] == refined["quarantined"]
        assert shell.run("replay", "--topic", SOURCE, "--to", SINK)["published"] == MESSAGES
        assert shell.run("archive")["messages"] == MESSAGES
        assert shell.run("reconcile")["differences"] == 0
        assert shell.run("maintain")["batches"] > 0
    assert {each.status for each in gateway.passed} == {200}
    assert not any(GOOD.encode() in path.read_bytes() for path in shell.directory.rglob("*") if path.is_file())


UNREACHABLE = ("Could not find a version", "Max retries", "NewConnectionError", "ConnectTimeout", "Temporary failure")


@pytest.fixture(scope="module")
def no_spark(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The Python of a virtual environment with what Heliograph's extra `connect` asks for, and so without a JVM."""
    directory = tmp_path_factory.mktemp("no-spark")
    subprocess.run([sys.executable, "-m", "venv", directory], check=True, timeout=300)
    python = str(directory / "bin" / "python")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["connect"]]
    pip = [python, "-m", "pip", "install", "--quiet", "--retries", "1", "--timeout", "20"]
    installed = subprocess.run(
        [*pip, "-c", str(ROOT / "constraints.txt"), *wanted], capture_output=True, text=True, timeout=600, check=False
    )
    if any(text in installed.stderr for text in UNREACHABLE):
        pytest.skip(f"pyspark-client cannot be had from the package registry: {installed.stderr.strip()[-200:]}")
    assert installed.returncode == 0, installed.stderr[-3_000:]
    return python


READS = f"""
import sys
from heliograph.spark.session import create_session
spark = create_session("no Spark here", master=sys.argv[1])
messages = spark.read.format("heliograph").options(endpoint=sys.argv[2], topic="{SOURCE}").load()
print(messages.count(), messages.select("message_id").distinct().count(), messages.toPandas()["data"].iloc[-1])
"""


def test_source_sink_and_pipeline_from_an_environment_without_spark(
    broker: Broker, tmp_path: Path, master: str, no_spark: str
) -> None:
    no_java = ["-c", "import pyspark, pathlib; print(len(list(pathlib.Path(pyspark.__file__).parent.rglob('*.jar'))))"]
    assert subprocess.run([no_spark, *no_java], capture_output=True, text=True, check=True).stdout == "0\n"
    for mode in ("log", "queue"):
        directory = tmp_path / mode
        directory.mkdir()
        before = broker.published()
        settings = options(broker.endpoint, directory, mode, master=master, pause=0.01)
        Driver(directory, settings, python=no_spark).succeeds()
        assert broker.published() - before == MESSAGES
    copied = broker.ids(SINK, "id")
    assert (len(copied), set(copied)) == (2 * MESSAGES, set(broker.ids(SOURCE)))
    assert broker.claims().claimed() == ([], 0)
    script = tmp_path / "reads.py"  # PySpark takes `python -c` for its own doctests
    script.write_text(READS)
    read = subprocess.run(
        [no_spark, str(script), master, broker.endpoint],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""},
    )
    assert (read.stdout, read.stderr) == (f"{MESSAGES} {MESSAGES} b'{MESSAGES - 1}'\n", "")
    shell = Shell(broker.endpoint, tmp_path / "pipeline", master)
    assert shell.run("archive", python=no_spark)["messages"] == 3 * MESSAGES
    again = ("replay", "--topic", SOURCE, "--to", SINK)
    assert shell.run(*again, python=no_spark)["published"] == MESSAGES
    assert LogClient(broker.endpoint).bounds(SINK).last == 3 * MESSAGES
