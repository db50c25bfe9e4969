"""A large backlog: what it costs in memory and speed, and how soon a broker that was killed goes on with it.

Each scenario waits for 1,000,000 messages; `BIG=1` in the environment makes it 10,000,000, which takes minutes and
several GB of disk. The broker is a process of its own, so that its memory is its own.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness import Figures, Load, Scale
from benchmarks.scenarios import BIG, suite

MESSAGES = 10_000_000 if BIG else 1_000_000
KINDS = ("plain", "prioritised", "ten_priorities")  # prioritised: all the same; ten_priorities: each message another
SECONDS_MAX = 300.0


@suite.scenario(
    target="at most 700 MB resident; publish and consume at least 0.5 × an empty broker's",
    messages=(MESSAGES,),
    subscription=KINDS,
    payload_bytes=(100,),
)
def backlog_waiting(scale: Scale, *, messages: int, subscription: str, payload_bytes: int) -> Iterator[Load]:
    """Publish durably until so many wait; then publish and consume, as on the empty broker before."""
    waiting = scale.count(messages, multiple_of=100)
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as directory:
        yield Load(lambda: _worker("compare", directory, subscription, waiting, payload_bytes), waiting, once=True)


@suite.scenario(
    target="30 s to recover" if BIG else "5 s to recover",
    messages=(MESSAGES,),
    subscription=KINDS,
    payload_bytes=(100,),
)
def backlog_recover(scale: Scale, *, messages: int, subscription: str, payload_bytes: int) -> Iterator[Load]:
    """Start a process on the directory of a broker that ended without closing, until the first delivery."""
    waiting = scale.count(messages, multiple_of=100)
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as directory:
        filled, used = Path(directory) / "filled", Path(directory) / "used"
        _worker("fill", filled, subscription, waiting, payload_bytes)

        def copy() -> None:
            shutil.rmtree(used, ignore_errors=True)
            shutil.copytree(filled, used)

        def run() -> Figures:
            return _worker("recover", used, subscription, waiting, payload_bytes)

        yield Load(run, waiting, prepare=copy, once=BIG)


def _worker(task: str, directory: str | Path, subscription: str, messages: int, payload_bytes: int) -> dict[str, float]:
    """Run `benchmarks.backlog_worker`; its figures."""
    command = [sys.executable, "-m", "benchmarks.backlog_worker", task, str(directory), subscription]
    done = subprocess.run(
        [*command, str(messages), str(payload_bytes)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{task} failed: {done.stderr.strip()[-500:]}")
    figures: dict[str, float] = json.loads(done.stdout)
    return figures
