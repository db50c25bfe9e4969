"""Every example runs by itself, to its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ON_SPARK = {"analyse_flights.py"}  # tests/spark/test_examples_on_spark.py runs it
EXAMPLES = sorted({path.name for path in (ROOT / "examples").glob("*.py")} - ON_SPARK)
SECONDS_MAX = 100  # it takes a second; two busy cores take longer


def test_each_example_of_the_specs_is_there() -> None:
    assert set(EXAMPLES) >= {
        "ack_nack.py",
        "basic_queue.py",
        "conditional_retry.py",
        "graceful_shutdown.py",
        "high_throughput.py",
        "long_running.py",
        "low_latency.py",
        "metadata.py",
        "ordered_processing.py",
        "ordered_queue.py",
    }


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_ends_by_itself_without_a_word_of_complaint(name: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / name],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        env=environment,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
