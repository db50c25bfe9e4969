"""What the source costs the Python processes that Spark starts, where a query waits for each of them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from heliograph.engine.message import Message
from heliograph.wire import arrow

TOPIC = "projects/p/topics/t"
WORKED = """
import gc, sys
from importlib.machinery import ModuleSpec
sys.modules["__main__"].__spec__ = ModuleSpec({main!r}, None)
import heliograph.spark.source
import pyarrow
from heliograph.wire import arrow
with pyarrow.ipc.open_stream(sys.stdin.buffer) as stream:
    rows = sum(arrow.completed(batch, {topic!r}, 3, arrow.SCHEMA).num_rows for batch in stream)
print(rows, "pandas" in sys.modules, gc.get_freeze_count() > 0)
"""


@pytest.mark.parametrize(
    ("main", "freezes"), [("pyspark.daemon", True), ("pyspark.sql.streaming.python_streaming_source_runner", False)]
)
def test_a_worker_loads_no_pandas_and_one_that_is_used_again_never_looks_for_garbage_in_modules(
    main: str, freezes: bool
) -> None:
    schema = arrow.schema_of(arrow.carried(arrow.SCHEMA.names))
    batch = arrow.record_batch(TOPIC, 3, [Message(1, 1, b"one"), Message(2, 1, b"two")], schema)
    stream = b"".join((arrow.stream_start(schema), arrow.stream_part(batch), arrow.END_OF_STREAM))
    program = WORKED.format(main=main, topic=TOPIC)
    done = subprocess.run([sys.executable, "-c", program], input=stream, capture_output=True, check=True)
    assert done.stdout.decode().split() == ["2", "False", str(freezes)]


def test_what_is_not_sent_follows_from_what_is() -> None:
    messages = [Message(41, 1_500, b"one", {"a": "1"}), Message(43, 10**18 + 999, b"", {}, "key")]
    sent = arrow.record_batch(TOPIC, 10**7, messages, arrow.schema_of(arrow.carried(arrow.SCHEMA.names)))
    assert arrow.completed(sent, TOPIC, 10**7, arrow.SCHEMA) == arrow.record_batch(TOPIC, 10**7, messages, arrow.SCHEMA)
    assert not {"topic", "message_id", "publish_time"} & set(sent.schema.names)
