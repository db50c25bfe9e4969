"""A table by topic, day and hour as a Delta table, too: the same files, and beside them a `_delta_log` that names them.

The table's commits are what holds; the Delta log is brought to say the same, which may be done at any time and as
often as one likes. So a run that is killed between the two costs nothing but a moment in which readers of Delta see
less.
"""

from __future__ import annotations

import json
import time
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, Schema
from deltalake.exceptions import TableNotFoundError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from heliograph.spark.pipeline.table import File, Table

PARTITION = ["topic", "dt", "hr"]


def mirror(table: Table) -> int:
    """Make the Delta log name the files that the commits name. Within `Table.changing`.

    Args:
        table: the archive, or another one that is partitioned as it is.

    Returns:
        How many files were added or removed.
    """
    commits = [commit for series in table.series() for commit in table.commits(series)]
    wanted = {file.path: file for commit in commits for file in commit.files}
    try:
        delta = DeltaTable(str(table.directory))
    except TableNotFoundError:
        if wanted:
            added = [_added(file) for file in wanted.values()]
            schema = _schema(table, next(iter(wanted.values())))
            create_table_with_add_actions(str(table.directory), schema, added, partition_by=PARTITION)
        return len(wanted)
    present = {_path(uri) for uri in delta.file_uris()}
    added = [_added(file) for path, file in wanted.items() if path not in present]
    removed = [_removed(path) for path in sorted(present - wanted.keys())]
    if added or removed:
        delta.create_write_transaction([*removed, *added], "append", delta.schema(), partition_by=PARTITION)
    return len(added) + len(removed)


def tidy(table: Table) -> None:
    """Put the Delta log together, and remove what of it is older than the table's settings keep (30 days). Within
    `Table.changing`."""
    try:
        delta = DeltaTable(str(table.directory))
    except TableNotFoundError:
        return
    delta.create_checkpoint()
    delta.cleanup_metadata()


def _path(uri: str) -> str:
    """A file's place within the table, from what deltalake calls it."""
    path = unquote(urlsplit(uri).path) if "://" in uri else uri
    return str(PurePosixPath(*PurePosixPath(path).parts[-len(PARTITION) - 1 :]))


def _added(file: File) -> AddAction:
    rewritten = "-r" in PurePosixPath(file.path).name  # by compaction: the rows are not new
    return AddAction(
        path=file.path,
        size=file.bytes,
        partition_values=_partition(file.path),
        modification_time=_now_ms(),
        data_change=not rewritten,
        stats=json.dumps({"numRecords": file.rows}),
    )


def _removed(path: str) -> Any:
    return RemoveAction(
        path=path,
        data_change=False,
        deletion_timestamp=_now_ms(),
        partition_values=_partition(path),
    )


def _partition(path: str) -> dict[str, str | None]:
    parts = (part.partition("=") for part in PurePosixPath(path).parent.parts)
    return {name: unquote(value) for name, _, value in parts}


def _schema(table: Table, file: File) -> Schema:
    fields = pq.read_schema(table.directory / file.path)
    return Schema.from_arrow(pa.schema([*fields, *(pa.field(name, pa.string()) for name in PARTITION)]))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
