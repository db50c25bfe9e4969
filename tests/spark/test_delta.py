"""The archive as Delta tables: what deltalake reads is what the archive's commits name."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heliograph.spark.pipeline.maintain import _forget
from heliograph.spark.pipeline.table import Commit, Table, exactly

deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
delta = pytest.importorskip("heliograph.spark.pipeline.delta")
mirror, tidy = delta.mirror, delta.tidy

SERIES = "projects/p/topics/t"
ARROW = pa.schema([("sequence", pa.int64()), ("publish_time", pa.timestamp("us", tz="UTC"))])


def add(table: Table, first: int, last: int, day: str = "2013-07-01", replaces: tuple[Commit, ...] = ()) -> Commit:
    def write(target: Path) -> None:
        folder = target / f"dt={day}" / "hr=07"
        folder.mkdir(parents=True)
        rows = pa.table([list(range(first, last + 1)), [0] * (last - first + 1)], ARROW)
        pq.write_table(rows, folder / "part.parquet")

    names = [commit.name for commit in replaces]
    draft = Commit(SERIES, 1, first, last, [], generation=1 if replaces else 0, replaces=names)
    with table.changing():
        return table.write(draft, write, exactly("t", last - first + 1))


def sequences(table: Table) -> list[int]:
    rows = deltalake.DeltaTable(str(table.directory)).to_pyarrow_table()
    assert set(rows.column_names) == {"sequence", "publish_time", "topic", "dt", "hr"}
    assert set(rows["topic"].to_pylist()) == {SERIES}
    return sorted(rows["sequence"].to_pylist())


def test_batches_become_visible_once_however_often_the_log_is_brought_up_to_date(tmp_path: Path) -> None:
    table = Table(tmp_path)
    assert mirror(table) == 0
    add(table, 1, 3)
    assert (mirror(table), mirror(table)) == (1, 0)
    add(table, 4, 5, "2013-07-02")
    assert mirror(table) == 1
    assert sequences(table) == [1, 2, 3, 4, 5]
    assert deltalake.DeltaTable(str(table.directory)).version() == 1
    assert table.strays() == []


def test_what_compaction_and_retention_take_away_goes_from_the_log(tmp_path: Path) -> None:
    table = Table(tmp_path)
    small = (add(table, 1, 3), add(table, 4, 5))
    add(table, 6, 6, "2999-01-01")
    mirror(table)
    add(table, 1, 5, replaces=small)
    assert mirror(table) == 3
    assert sequences(table) == [1, 2, 3, 4, 5, 6]
    with table.changing():
        _forget(table, SERIES, table.commits(SERIES), 86_400)
    assert mirror(table) == 1
    assert sequences(table) == [6]


def test_a_log_is_put_together_and_says_the_same(tmp_path: Path) -> None:
    table = Table(tmp_path)
    tidy(table)  # there is none yet
    add(table, 1, 3)
    mirror(table)
    add(table, 4, 4)
    mirror(table)
    tidy(table)
    assert [path.name for path in (tmp_path / "_delta_log").glob("*.checkpoint.parquet")] == [
        "00000000000000000001.checkpoint.parquet"
    ]
    assert sequences(table) == [1, 2, 3, 4]
    assert mirror(table) == 0
