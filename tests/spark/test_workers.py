"""What the source costs the Python processes that Spark starts, where a query waits for each of them."""

from __future__ import annotations

import subprocess
import sys

import pytest

IMPORTED = """
import gc, sys
from importlib.machinery import ModuleSpec
sys.modules["__main__"].__spec__ = ModuleSpec({main!r}, None)
import heliograph.spark.source
print("pandas" in sys.modules, gc.get_freeze_count() > 0)
"""


@pytest.mark.parametrize(
    ("main", "freezes"), [("pyspark.daemon", True), ("pyspark.sql.streaming.python_streaming_source_runner", False)]
)
def test_a_worker_imports_no_pandas_and_one_that_is_used_again_never_looks_for_garbage_in_modules(
    main: str, freezes: bool
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED.format(main=main)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", str(freezes)]
