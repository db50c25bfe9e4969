"""What the store alone can do: `python benchmarks/store.py [DIRECTORY]` (default: a new one in the current directory).

Each figure is the median of five runs, with the lowest and the highest. Commits are counted, so that no one can take an
unsynced figure for a durable one.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from heliograph.engine.facts import MessagesPublished
from heliograph.engine.message import Message
from heliograph.store.sqlite import Durability, SqliteStore

RUNS = 5
BODY = b"x" * 100


class Publishers:
    """Threads that publish to one topic and wait for each commit, as callers of a broker do under its lock."""

    def __init__(self, store: SqliteStore, *, threads: int, batch: int, seconds: float) -> None:
        self.store = store
        self.batch = batch
        self.published = 0
        self._lock = threading.Lock()
        self._end = time.perf_counter() + seconds
        self._threads = [threading.Thread(target=self._publish) for _ in range(threads)]

    def run(self) -> None:
        """Publish until the time is over."""
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join()

    def _publish(self) -> None:
        while time.perf_counter() < self._end:
            with self._lock:
                first = self.published + 1
                now_ns = time.time_ns()
                messages = [Message(sequence, now_ns, BODY) for sequence in range(first, first + self.batch)]
                self.published += self.batch
                commit = self.store.append([MessagesPublished("topics/bench", 1, messages)])
            commit.wait()


def publish_rate(directory: Path, threads: int, batch: int, durability: Durability = "full") -> tuple[float, str]:
    """Messages per second."""
    store = SqliteStore(directory, durability=durability)
    publishers = Publishers(store, threads=threads, batch=batch, seconds=2.0)
    begin = time.perf_counter()
    publishers.run()
    elapsed = time.perf_counter() - begin
    store.close()
    return publishers.published / elapsed, f"{store.commits / elapsed:.0f} commits/s"


def commit_latency_ms(directory: Path) -> tuple[float, str]:
    """Median over 200 lone appends of one message."""
    store = SqliteStore(directory)
    latencies = []
    for sequence in range(1, 201):
        begin = time.perf_counter()
        store.append([MessagesPublished("topics/bench", 1, [Message(sequence, time.time_ns(), BODY)])]).wait()
        latencies.append((time.perf_counter() - begin) * 1e3)
    store.close()
    latencies.sort()
    return statistics.median(latencies), f"p99 {latencies[197]:.1f}, {store.commits} commits"


def recovery_seconds(directory: Path, count: int, batch: int) -> tuple[float, str]:
    """Recover `count` messages that were published in batches."""
    if not (directory / "heliograph.db").exists():
        store = SqliteStore(directory, durability="none")
        for first in range(1, count, batch):
            messages = [Message(sequence, time.time_ns(), BODY) for sequence in range(first, first + batch)]
            store.append([MessagesPublished("topics/bench", 1, messages)]).wait()
        store.close()
    store = SqliteStore(directory)
    begin = time.perf_counter()
    recovered = sum(len(fact.messages) for fact in store.recover() if isinstance(fact, MessagesPublished))
    elapsed = time.perf_counter() - begin
    store.close()
    assert recovered == count
    return elapsed, f"{(directory / 'heliograph.db').stat().st_size / count:.0f} bytes a message"


def read_rate(directory: Path) -> tuple[float, str]:
    """Messages per second through `read_log`, of the file that `recovery_seconds` made."""
    store = SqliteStore(directory)
    first, last = store.log_bounds(1)
    begin = time.perf_counter()
    batches = [len(batch) for batch in store.read_log(1, first, last)]
    elapsed = time.perf_counter() - begin
    store.close()
    return sum(batches) / elapsed, f"{sum(batches) / len(batches):.0f} a batch"


def main(parent: Path) -> None:
    """Run all and print a table."""
    print(f"{os.cpu_count()} processors, Python {sys.version.split()[0]}, in {parent}")

    def fresh(measure: Callable[[Path], tuple[float, str]]) -> Callable[[], tuple[float, str]]:
        def run() -> tuple[float, str]:
            with tempfile.TemporaryDirectory(dir=parent) as directory:
                return measure(Path(directory))

        return run

    with tempfile.TemporaryDirectory(dir=parent) as kept:
        million = Path(kept)
        scenarios: dict[str, Callable[[], tuple[float, str]]] = {
            "lone commit, ms": fresh(commit_latency_ms),
            "publish 64 threads x 100, messages/s": fresh(lambda path: publish_rate(path, 64, 100)),
            "publish 256 threads x 1, messages/s": fresh(lambda path: publish_rate(path, 256, 1)),
            "publish 1 thread x 100, messages/s": fresh(lambda path: publish_rate(path, 1, 100)),
            "the same, 64 x 100, unsynced": fresh(lambda path: publish_rate(path, 64, 100, "none")),
            "recover 1,000,000 in hundreds, s": lambda: recovery_seconds(million, 1_000_000, 100),
            "read_log, messages/s": lambda: read_rate(million),
        }
        for name, scenario in scenarios.items():
            results = [scenario() for _ in range(RUNS)]
            values = [value for value, _ in results]
            low, median, high = min(values), statistics.median(values), max(values)
            print(f"{name:40} {median:12,.2f}  ({low:,.2f} to {high:,.2f})  {results[-1][1]}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path.cwd())
