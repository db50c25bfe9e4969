"""What machine the figures are from: without it they say nothing."""

from __future__ import annotations

import os
import platform
import re
import sqlite3
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

PACKAGES = ("heliograph", "msgspec", "h2corn", "google-cloud-pubsub", "grpcio", "protobuf", "pyarrow", "pyspark")


class Machine(msgspec.Struct):
    """Hardware and software that took part."""

    processor: str
    cores: int
    cores_usable: int
    memory_bytes: int
    kernel: str
    python: str
    sqlite: str
    packages: dict[str, str]
    commit: str
    load_average: float

    def __str__(self) -> str:
        memory_gib = self.memory_bytes / 1024**3
        return (
            f"{self.processor}, {self.cores_usable} of {self.cores} cores, {memory_gib:.0f} GiB; {self.kernel}; "
            f"Python {self.python}, SQLite {self.sqlite}; commit {self.commit}; load {self.load_average:.1f}"
        )


def describe() -> Machine:
    """This machine, now."""
    cores = os.cpu_count() or 1
    return Machine(
        processor=_first_match(Path("/proc/cpuinfo"), r"model name\s*:\s*(.+)") or platform.processor() or "unknown",
        cores=cores,
        cores_usable=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores,
        memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        kernel=f"{platform.system()} {platform.release()}",
        python=f"{platform.python_version()} ({platform.python_implementation()})",
        sqlite=sqlite3.sqlite_version,
        packages={name: found for name in PACKAGES if (found := _version(name))},
        commit=_commit(),
        load_average=os.getloadavg()[0],
    )


def _first_match(path: Path, pattern: str) -> str | None:
    try:
        found = re.search(pattern, path.read_text())
    except OSError:
        return None
    return found.group(1).strip() if found else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str:
    """The commit that the code is at, with `+` when it was changed since; "unknown" outside a clone."""
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return described.stdout.strip()
