"""Spark's way with a streaming source, without Spark: the order of calls of its MicroBatchExecution, a checkpoint that
survives what dies, and the points at which things die."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

from pyspark.sql.datasource import CaseInsensitiveDict, DataSourceStreamReader
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from heliograph.spark.source import HeliographDataSource


class Killed(Exception):
    """The driver is gone, and everything in its memory."""


class Query:
    """A streaming query, and its checkpoint.

    Args:
        options: of the source.
        column: of each row is kept as the output.
    """

    def __init__(self, column: str = "message_id", /, **options: str) -> None:
        self.options = options
        self.column = column
        self.offsets: list[str] = []  # the offset log: JSON of the ends of batches; the first is where it began
        self.commits = 0  # batches in the commit log
        self.output: dict[int, list[Any]] = {}  # by batch: the sink writes a batch once
        self.reader: DataSourceStreamReader | None = None

    def new_reader(self) -> DataSourceStreamReader:
        """As a process that starts makes it."""
        return HeliographDataSource(CaseInsensitiveDict(self.options)).streamReader(StructType())

    def run(self, *, available_now: bool = True, dies: str = "", at_batch: int = 0) -> None:
        """Start, or start again, and go on until nothing new comes.

        Args:
            available_now: as the trigger of this name.
            dies: "claimed", "planned", "read", "written" or "done": after which step of `at_batch` it is killed.
            at_batch: the number of the batch.
        """
        self.reader = reader = self.new_reader()

        def reached(step: str) -> None:
            if step == dies and len(self.offsets) - 2 == at_batch - (step == "claimed"):
                raise Killed(step)

        if not self.offsets:
            self.offsets.append(json.dumps(reader.initialOffset()))
        if len(self.offsets) - 1 > self.commits:
            self._execute(reader, reached)
        if available_now and isinstance(reader, SupportsTriggerAvailableNow):
            reader.prepareForTriggerAvailableNow()
        while True:
            start = json.loads(self.offsets[-1])
            end = reader.latestOffset(start, reader.getDefaultReadLimit())  # type: ignore[call-arg]
            if json.dumps(end) == self.offsets[-1]:
                return
            reached("claimed")
            self.offsets.append(json.dumps(end))
            if self.commits:
                reader.commit(start)
            reached("planned")
            self._execute(reader, reached)

    def _execute(self, reader: DataSourceStreamReader, reached: Callable[[str], None]) -> None:
        start, end = json.loads(self.offsets[-2]), json.loads(self.offsets[-1])
        rows: list[Any] = []
        task: DataSourceStreamReader = pickle.loads(pickle.dumps(self.new_reader()))
        for part in pickle.loads(pickle.dumps(reader.partitions(start, end))):
            for batch in task.read(part):
                rows += batch.column(self.column).to_pylist()  # type: ignore[attr-defined]
        reached("read")
        self.output.setdefault(len(self.offsets) - 2, rows)
        reached("written")
        self.commits = len(self.offsets) - 1
        reached("done")

    @property
    def rows(self) -> list[Any]:
        """Everything that is in the output."""
        return [row for rows in self.output.values() for row in rows]
