"""The jobs of the data pipeline, with a broker as a process of its own: how fast, and what they hold in memory.

`archive` runs as people run it, as a command with a JVM of its own, and with 10,000,000 messages when `BIG=1` is in the
environment; the others run in the session of this process, like all of Spark here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.pubsub_v1 import types

from benchmarks.harness import Figures, Load, Scale
from benchmarks.resident import Resident
from benchmarks.scenarios import BIG, suite
from benchmarks.scenarios.spark import BATCH, SUBSCRIPTION, TOPIC, Bench, session
from benchmarks.server import ROOT, ServerProcess, server_process

if TYPE_CHECKING:
    from heliograph.spark.pipeline.job import Outcome, Place

MESSAGES = 1_000_000
ARCHIVED = 10_000_000 if BIG else MESSAGES
MEASURED = 200_000  # published, delivered and acknowledged
CLAIMED = 10_000
CLAIM_SECONDS = 3600.0
ARCHIVE_SECONDS_MAX = 900.0
MEGABYTE = 1_000_000


@suite.scenario(messages=(ARCHIVED,), target="4,000 MB in all")
def pipeline_archive(scale: Scale, *, messages: int) -> Iterator[Load]:
    """`heliograph pipeline run archive`: a topic of 100-byte messages; the peak of memory, in all and apart."""
    count = scale.count(messages, multiple_of=BATCH)
    with server_process("sqlite") as broker, tempfile.TemporaryDirectory() as directory:
        Bench(broker.endpoint, count)
        tables = Path(directory) / "tables"
        yield Load(
            lambda: _archive(broker, tables, count),
            count,
            prepare=lambda: shutil.rmtree(tables, ignore_errors=True),
            once=BIG,
        )


def _archive(broker: ServerProcess, tables: Path, messages: int) -> Figures:
    command = [sys.executable, "-m", "heliograph", "pipeline", "run", "archive", "--master", "local[2]"]
    command += ["--server", f"http://{broker.endpoint}", "--topic", TOPIC, "--directory", str(tables), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        resident = Resident({"pipeline MB": process.pid, "broker MB": broker.pid})
        with resident.watched():
            said, complaint = process.communicate(timeout=ARCHIVE_SECONDS_MAX)
    if process.returncode:
        raise RuntimeError(f"archive failed: {complaint.decode().strip()[-500:]}")
    rows = json.loads(said)["rows"]
    if rows != messages:
        raise RuntimeError(f"{rows} of {messages} messages were archived")
    seconds = _seconds_of_last_run(tables, "archive")
    peaks = {group: peak / MEGABYTE for group, peak in resident.peaks_bytes.items()}
    return {"in all MB": resident.peak_bytes / MEGABYTE, **peaks, "messages/s once Spark is up": messages / seconds}


@suite.scenario(schema=("none",))
def pipeline_refine(scale: Scale, *, schema: str) -> Iterator[Load]:
    """Archived JSON of 100 bytes is parsed, held against earlier messages of its id, and written."""
    assert schema == "none"
    count = scale.count(MESSAGES, multiple_of=BATCH)
    with server_process("sqlite") as broker, tempfile.TemporaryDirectory() as directory:
        bench = Bench(broker.endpoint, 0)
        _publish_json(bench, count)
        place = _place(broker, Path(directory))
        _run("archive", place)

        def clear() -> None:
            for table in ("refined", "quarantine"):
                shutil.rmtree(place.table(table), ignore_errors=True)

        yield Load(lambda: _check("refine", place, "refined", count), count, prepare=clear)


@suite.scenario()
def pipeline_metrics(scale: Scale) -> Iterator[Load]:
    """The event log of messages that were published, claimed and acknowledged becomes figures by window."""
    count = scale.count(MEASURED, multiple_of=CLAIMED)
    with server_process("sqlite") as broker, tempfile.TemporaryDirectory() as directory:
        Bench(broker.endpoint, count)
        _consume(broker, count)
        place = _place(broker, Path(directory))

        def clear() -> None:
            for table in ("metrics", "metrics-by-window"):
                shutil.rmtree(place.table(table), ignore_errors=True)

        events = 3 * count
        yield Load(lambda: _check("metrics", place, "events", events), events, unit="events", prepare=clear)


def _place(broker: ServerProcess, directory: Path) -> Place:
    from heliograph.spark.door import Address
    from heliograph.spark.pipeline.job import Place

    return Place(Address(broker.endpoint), directory, (TOPIC,))


def _run(job: str, place: Place) -> Outcome:
    from heliograph.spark.pipeline.jobs import JobOptions, job_named, run_once

    return run_once(session(), job_named(job), place, JobOptions())


def _check(job: str, place: Place, counted: str, expected: int) -> None:
    """Run a job that is to count so much of something."""
    figures: Mapping[str, Any] = _run(job, place).figures
    if figures[counted] != expected:
        raise RuntimeError(f"{job}: {figures[counted]} {counted} in place of {expected}")


def _publish_json(bench: Bench, messages: int) -> None:
    """A thousand different ones, again and again."""
    payloads = [
        b'{"carrier": "UA", "flight": %d, "origin": "EWR", "dest": "IAH", "air_time": 227.0}' % n for n in range(BATCH)
    ]
    drafts = [types.PubsubMessage(data=payload.ljust(100)) for payload in payloads]
    bench.publish(messages, drafts)


def _consume(broker: ServerProcess, messages: int) -> None:
    from heliograph.spark.claim_client import ClaimClient
    from heliograph.spark.door import Address

    client = ClaimClient(Address(broker.endpoint), SUBSCRIPTION, "bench")
    for _ in range(messages // CLAIMED):
        claims = client.claim(CLAIMED, 0, CLAIMED, CLAIM_SECONDS)
        client.acknowledge(claims[-1].number)


def _seconds_of_last_run(tables: Path, job: str) -> float:
    from heliograph.spark.pipeline.job import runs

    return runs(tables, job)[-1].seconds
