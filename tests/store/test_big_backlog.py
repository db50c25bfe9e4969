"""A backlog many times the memory budget: all of it is there after a crash, in order, and memory stays small.

`BIG=10000000` in the environment makes it so many messages.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MESSAGES = int(os.environ.get("BIG", "0")) or 400_000
BUDGET_BYTES = 8 * 1024**2
# Python, its modules, SQLite's caches, and what is on its way to the disk; the messages alone would be 90 MB
RESIDENT_BYTES = 80 * 1024**2
BYTES_PER_MESSAGE = 24  # where it stands; without its content


def run(task: str, directory: Path, kind: str) -> dict[str, Any]:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.store.backlog_process", task, str(directory), kind]
    done = subprocess.run(
        [*command, str(MESSAGES), str(BUDGET_BYTES)],
        capture_output=True,
        text=True,
        cwd=root,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    figures: dict[str, Any] = json.loads(done.stdout)
    return figures


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not tell a process's memory")
@pytest.mark.timeout(600 + MESSAGES // 1_000)
@pytest.mark.parametrize("kind", ["plain", "queue"])
def test_a_backlog_beyond_memory_is_all_there_after_a_crash_and_memory_stays_small(tmp_path: Path, kind: str) -> None:
    figures = {task: run(task, tmp_path, kind) for task in ("fill", "consume")}
    for task, seen in figures.items():
        resident = f"{seen['peak_rss_bytes'] / 1024**2:.0f} MB at most"
        rate = f"{seen['messages_per_second']:,.0f} messages/s"
        print(f"{kind}, {MESSAGES:,} messages: {task} {rate}, {resident}, opened in {seen['opened_seconds']:.2f} s")
        assert seen["peak_rss_bytes"] < RESIDENT_BYTES + BYTES_PER_MESSAGE * MESSAGES
