"""Tables grow batch by batch, each once, and stay right when small batches are put together or old days go."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heliograph.errors import FailedPrecondition, Internal
from heliograph.spark.pipeline.maintain import Retention, _forget, groups
from heliograph.spark.pipeline.table import Commit, File, Table, exactly, quoted

SERIES = "projects/p/topics/t"


def writer(first: int, last: int, day: str = "2013-07-01", hour: str = "12") -> Callable[[Path], None]:
    def write(target: Path) -> None:
        folder = target / f"dt={day}" / f"hr={hour}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"sequence": list(range(first, last + 1))}), folder / "part.parquet")

    return write


def add(table: Table, first: int, last: int, day: str = "2013-07-01", hour: str = "12") -> Commit:
    rows = exactly("test", last - first + 1)
    with table.changing():
        return table.write(Commit(SERIES, 1, first, last, []), writer(first, last, day, hour), rows)


def merged(table: Table, commits: list[Commit]) -> Commit:
    names = [commit.name for commit in commits]
    draft = Commit(SERIES, 1, commits[0].first, commits[-1].last, [], generation=1, replaces=names)
    with table.changing():
        return table.write(draft, writer(draft.first, draft.last), exactly("test", draft.last - draft.first + 1))


def visible(table: Table) -> list[int]:
    files = sorted(table.directory.glob("topic=*/dt=*/hr=*/*.parquet"))
    return sorted(sequence for file in files for sequence in pq.read_table(file)["sequence"].to_pylist())


@pytest.fixture
def table(tmp_path: Path) -> Table:
    return Table(tmp_path / "table")


def test_the_next_position_is_behind_the_last_commit_of_the_same_life(table: Table) -> None:
    assert table.next_position(SERIES, 1, 7) == 7
    add(table, 7, 9)
    assert (table.next_position(SERIES, 1, 1), table.next_position(SERIES, 2, 1)) == (10, 1)
    assert table.series() == [SERIES]


def test_small_batches_that_become_one_leave_rows_and_position_as_they_were(table: Table) -> None:
    small = [add(table, 1, 3), add(table, 4, 6), add(table, 7, 9)]
    merged(table, small[:2])
    assert visible(table) == list(range(1, 10))
    assert [(commit.first, commit.last) for commit in table.commits(SERIES)] == [(1, 6), (7, 9)]
    assert table.next_position(SERIES, 1, 1) == 10
    assert len(list(table.directory.glob("_commits/*/*.json"))) == 2


class Killed(BaseException):
    """The process ends here."""


def test_killed_after_batches_became_one_no_row_is_there_twice_and_all_are_in_the_end(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = [add(table, 1, 3), add(table, 4, 6)]

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Table, "_move", killed)
        with pytest.raises(Killed):
            merged(table, small)
    assert visible(table) == []
    assert [path.name for path in table.files(SERIES)] == ["000001-000000000001-000000000006-r1-00000.zstd.parquet"]
    assert visible(table) == list(range(1, 7))


def test_a_batch_with_the_wrong_number_of_rows_is_not_committed(table: Table) -> None:
    with table.changing(), pytest.raises(Internal, match="3 of 4 rows"):
        table.write(Commit(SERIES, 1, 1, 4, []), writer(1, 3), exactly("t", 4))
    assert (visible(table), table.commits(SERIES)) == ([], [])


def test_files_are_found_by_position(table: Table) -> None:
    add(table, 1, 3)
    add(table, 4, 6)
    assert len(table.files(SERIES, 5, 9)) == 1
    assert len(table.files(SERIES, 3, 4)) == 2
    assert table.files(SERIES, number=2) == []


def test_a_table_that_is_being_read_is_not_rewritten(table: Table) -> None:
    with table.reading(), pytest.raises(FailedPrecondition, match="Another run is reading"), table.rewriting():
        pass
    with table.rewriting():
        pass


def test_old_days_go_for_good_and_the_position_stays(table: Table) -> None:
    today = time.strftime("%Y-%m-%d", time.gmtime())
    add(table, 1, 3)
    add(table, 4, 6, today)
    with table.changing():
        assert _forget(table, SERIES, table.commits(SERIES), 86_400 * 2) == 3
    assert visible(table) == [4, 5, 6]
    assert table.next_position(SERIES, 1, 1) == 7
    assert (table.horizon(SERIES) > "2013-07-01", table.horizon("another")) == (True, "")
    assert table.strays() == []


def test_a_file_that_no_commit_names_is_a_stray(table: Table) -> None:
    add(table, 1, 3)
    stray = next(table.directory.glob("topic=*/dt=*/hr=*")) / "000001-000000000004-000000000006-00000.zstd.parquet"
    stray.write_bytes(b"")
    assert table.strays() == [stray]


def test_a_horizon_holds_for_its_series_and_one_of_an_earlier_version_for_all(table: Table) -> None:
    table.directory.mkdir(exist_ok=True)
    (table.directory / "_retention").write_text("2013-07-02")
    with table.changing():
        table.keep_horizon("a", "2013-07-05")
        table.keep_horizon("a", "2013-07-03")  # no day comes back
    assert [table.horizon(series) for series in ("a", "b")] == ["2013-07-05", "2013-07-02"]
    (table.directory / "_retention").write_text("{")
    with pytest.raises(FailedPrecondition, match="damaged"):
        table.horizon("a")


def test_what_killed_runs_have_left_is_swept_away_and_nothing_else(table: Table) -> None:
    add(table, 1, 3)
    heap = table.directory / "_staging" / "another" / "000001" / "dt=2013-07-01" / "part.parquet"
    heap.parent.mkdir(parents=True)
    heap.write_bytes(b"")
    next(table.directory.glob("_commits/*/*.json")).with_suffix(".partial").write_bytes(b"")
    with table.rewriting(), table.changing():
        assert (table.sweep(), table.sweep()) == (2, 0)
    assert visible(table) == [1, 2, 3]
    assert not (table.directory / "_staging").exists()


def test_rows_are_kept_as_long_as_their_table_says_else_their_topic_else_all() -> None:
    retention = Retention(90, {"orders": 365, "noise": 0}, {"quarantine": 30})
    kept = [retention.of(table, topic) for table in ("archive", "quarantine") for topic in ("orders", "noise", "x")]
    assert kept == [365, 0, 90, 30, 30, 30]


def test_files_that_tell_no_day_are_not_old(table: Table) -> None:
    """Metrics of earlier versions lie in no day; merging gives them one."""

    def write(target: Path) -> None:
        target.mkdir(parents=True)
        pq.write_table(pa.table({"sequence": [1]}), target / "part.parquet")

    with table.changing():
        table.write(Commit(SERIES, 1, 1, 1, []), write, exactly("a row", 1))
        assert _forget(table, SERIES, table.commits(SERIES), 86_400) == 0
    assert len(table.files(SERIES)) == 1


def commit(first: int, size: int, hour: str = "2013-07-01 12", number: int = 1) -> Commit:
    day, hour = hour.split()
    file = File(f"topic=t/dt={day}/hr={hour}/{first}.parquet", "", 1, size)
    return Commit(SERIES, number, first, first, [file])


def firsts(found: list[list[Commit]]) -> list[list[int]]:
    return [[each.first for each in group] for group in found]


def test_neighbours_become_one_up_to_a_size() -> None:
    commits = [commit(1, 60), commit(2, 40), commit(3, 50), commit(4, 50), commit(5, 500)]
    assert firsts(groups(commits, 100, "")) == [[1, 2], [3, 4]]


def test_batches_of_different_lives_or_of_hours_that_go_on_are_left_alone() -> None:
    commits = [commit(1, 1), commit(1, 1, number=2), commit(2, 1, number=2), commit(3, 1, "2013-07-01 13", number=2)]
    assert firsts(groups(commits, 100, "2013-07-01 12")) == [[1, 2]]


def test_a_commit_reads_as_it_was_written(table: Table) -> None:
    added = add(table, 1, 3)
    assert table.commits(SERIES) == [msgspec.structs.replace(added)]
    assert (added.rows, added.figures) == (3, {})


def test_a_sweep_removes_what_this_table_has_lost_and_nothing_of_somebody_else(table: Table) -> None:
    commit = add(table, 1, 3)
    place = (table.directory / commit.files[0].path).parent
    stray = place / "000001-000000000004-000000000006-00000.zstd.parquet"
    foreign = [place / "part-00000.zstd.parquet", table.directory / "topic=orders" / "year=2013" / "part-0.parquet"]
    for path in (stray, *foreign):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    with table.changing():
        assert table.sweep() == 1
    assert ([path.exists() for path in (stray, *foreign)], table.files(SERIES)) == (
        [False, True, True],
        [place / f"{commit.name}-00000.zstd.parquet"],
    )


@pytest.mark.parametrize("topic", ["L" * 255, "%" * 100])
def test_a_name_that_is_too_long_for_a_file_is_refused_with_what_to_do(topic: str) -> None:
    with pytest.raises(FailedPrecondition, match=r"cannot be kept in files.*--topic-pattern"):
        quoted(f"projects/p/topics/{topic}")
