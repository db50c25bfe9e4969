"""The archive's promise that nothing is in it by halves, with a small writer in Spark's place."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from heliograph.errors import FailedPrecondition, Internal, InvalidArgument, TopicNotFound, Unavailable
from heliograph.spark.door import Address
from heliograph.spark.log_client import LogBounds, LogClient
from heliograph.spark.pipeline import archive as archiving
from heliograph.spark.pipeline.archive import Archived, Limits
from heliograph.spark.pipeline.job import Outcome, Place, checked_pattern, silent
from heliograph.spark.pipeline.jobs import JobOptions, job_named
from heliograph.spark.pipeline.table import Table
from tests.spark.fakes import TOPIC, LogBroker, ServerThread, messages


def write_hours(_spark: Any, options: Mapping[str, str], target: Path, _file_messages: int) -> None:
    """Two files, as two of Spark's tasks would write them."""
    client = LogClient(options["endpoint"])
    number = client.bounds(options["topic"]).topic_number
    first, end = int(options["startingOffsets"]), int(options["endingOffsets"])
    middle = (first + end) // 2
    for hour, low, high in (("12", first, middle), ("13", middle, end)):
        folder = target / "dt=2013-07-01" / f"hr={hour}"
        folder.mkdir(parents=True)
        batches = list(client.read(options["topic"], number, low, high - 1, ["sequence", "data"]))
        pq.write_table(
            pa.Table.from_batches(batches, pa.schema([("sequence", pa.int64()), ("data", pa.binary())])),
            folder / "part-0.parquet",
        )


@pytest.fixture(autouse=True)
def small_writer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archiving, "write_hours", write_hours)


@pytest.fixture
def broker() -> LogBroker:
    return LogBroker({TOPIC: messages(100)})


class Runs:
    """Archive runs of one topic into one directory."""

    def __init__(self, endpoint: str, directory: Path) -> None:
        self.endpoint = endpoint
        self.directory = directory

    def run(self, **options: Any) -> Archived:
        no_spark: Any = None
        return archiving.archive(no_spark, endpoint=self.endpoint, topic=TOPIC, directory=self.directory, **options)

    def visible(self) -> list[int]:
        """The sequences that any reader of Parquet files sees."""
        files = sorted(self.directory.glob("topic=*/dt=*/hr=*/*.parquet"))
        return sorted(sequence for file in files for sequence in pq.read_table(file)["sequence"].to_pylist())

    def left_over(self) -> list[Path]:
        return [path for path in self.directory.glob("_staging/**/*") if path.is_file()]


@pytest.fixture
def runs(broker: LogBroker, tmp_path: Path) -> Iterator[Runs]:
    with ServerThread(broker) as server:
        yield Runs(server.endpoint, tmp_path / "archive")


def test_a_run_archives_everything_and_the_next_one_only_what_is_new(broker: LogBroker, runs: Runs) -> None:
    assert (runs.run().messages, runs.run().messages) == (100, 0)
    broker.logs[TOPIC] = messages(130)
    third = runs.run()
    assert (third.messages, third.messages_total) == (30, 130)
    assert runs.visible() == list(range(1, 131))
    assert runs.left_over() == []


def test_the_layout_is_topic_day_and_hour(runs: Runs) -> None:
    runs.run()
    folder = runs.directory / "topic=projects%2Fp%2Ftopics%2Fflights" / "dt=2013-07-01" / "hr=12"
    assert [path.name for path in folder.iterdir()] == ["000001-000000000001-000000000100-00000.zstd.parquet"]


def test_a_topic_without_messages_is_archived_as_nothing(broker: LogBroker, runs: Runs) -> None:
    broker.logs[TOPIC] = []
    assert (runs.run().messages, runs.visible()) == (0, [])


def test_a_topic_that_does_not_exist_leaves_nothing_behind(broker: LogBroker, runs: Runs) -> None:
    del broker.logs[TOPIC]
    with pytest.raises(TopicNotFound):
        runs.run()
    assert not runs.directory.exists()


class Killed(BaseException):
    """The process ends here."""


def killed(*_: object) -> None:
    raise Killed


@contextlib.contextmanager
def killed_at(owner: Any, name: str, replacement: Any) -> Iterator[None]:
    """Within the block `replacement` stands in for something that the run calls."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, replacement)
        with pytest.raises(Killed):
            yield


def test_killed_while_writing_nothing_is_visible_and_the_next_run_has_everything(runs: Runs) -> None:
    with killed_at(Table, "put", killed):
        runs.run()
    assert (runs.visible(), len(runs.left_over())) == ([], 2)
    assert runs.run().messages == 100
    assert (runs.visible(), runs.left_over()) == (list(range(1, 101)), [])


def test_killed_after_the_commit_the_next_run_moves_the_files_on_and_adds_nothing(runs: Runs) -> None:
    put = Table.put
    with killed_at(Table, "put", lambda *arguments: killed(put(*arguments))):
        runs.run()
    assert runs.visible() == []
    again = runs.run()
    assert (again.messages, again.messages_total) == (0, 100)
    assert (runs.visible(), runs.left_over()) == (list(range(1, 101)), [])


def test_killed_between_two_files_the_next_run_moves_the_other_one(runs: Runs) -> None:
    rename = Path.rename
    with killed_at(
        Path, "rename", lambda source, target: killed() if "hr=13" in str(target) else rename(source, target)
    ):
        runs.run()
    assert runs.visible() == list(range(1, 51))
    assert runs.run().messages == 0
    assert runs.visible() == list(range(1, 101))


def test_a_writer_that_loses_rows_archives_nothing(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    def lossy(spark: Any, options: Mapping[str, str], target: Path, file_messages: int) -> None:
        write_hours(spark, {**options, "endingOffsets": str(int(options["endingOffsets"]) - 1)}, target, file_messages)

    monkeypatch.setattr(archiving, "write_hours", lossy)
    with pytest.raises(Internal, match="99 of 100"):
        runs.run()
    assert runs.visible() == []


def test_messages_trimmed_since_the_last_run_are_an_error_unless_data_loss_is_allowed(
    broker: LogBroker, runs: Runs
) -> None:
    runs.run()
    broker.logs[TOPIC] = messages(20, first=111)
    with pytest.raises(FailedPrecondition, match=r"up to sequence 110.*--allow-data-loss"):
        runs.run()
    assert runs.run(fail_on_data_loss=False).messages == 20
    assert runs.visible() == [*range(1, 101), *range(111, 131)]


def test_a_topic_that_was_deleted_and_created_again_is_archived_from_its_beginning(
    broker: LogBroker, runs: Runs
) -> None:
    runs.run()
    broker.numbers[TOPIC] = 2
    broker.logs[TOPIC] = messages(10)
    again = runs.run()
    assert (again.messages, again.messages_total) == (10, 110)
    assert runs.visible() == sorted([*range(1, 101), *range(1, 11)])


def test_only_one_run_at_a_time_writes_to_an_archive(runs: Runs) -> None:
    runs.run()
    with (runs.directory / "_lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(FailedPrecondition, match="Another run"):
            runs.run()


def test_a_damaged_commit_is_refused(broker: LogBroker, runs: Runs) -> None:
    runs.run()
    commit = next(runs.directory.glob("_commits/*/*.json"))
    commit.write_text("{")
    with pytest.raises(FailedPrecondition, match="damaged"):
        runs.run()


def test_a_lost_file_is_noticed(runs: Runs) -> None:
    runs.run()
    next(runs.directory.glob("topic=*/dt=*/hr=12/*.parquet")).unlink()
    with pytest.raises(FailedPrecondition, match="is missing"):
        runs.run()


def test_without_a_broker_the_archive_stays_as_it_is(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heliograph.spark.door.FIRST_PAUSE_SECONDS", 0.0)
    runs.run()
    with pytest.raises(Unavailable):
        Runs("127.0.0.1:1", runs.directory).run()
    assert runs.visible() == list(range(1, 101))


def test_a_large_backlog_is_archived_in_batches_and_goes_on_where_it_was_killed(runs: Runs) -> None:
    batches: list[int] = []

    def second_batch_kills(messages: int, left: int) -> None:
        batches.append(messages)
        if len(batches) == 2:
            raise Killed

    with pytest.raises(Killed):
        runs.run(limits=Limits(batch_messages=30), progress=second_batch_kills)
    assert runs.visible() == list(range(1, 61))
    assert runs.run(limits=Limits(batch_messages=30)).messages == 40
    assert runs.visible() == list(range(1, 101))


def test_a_small_batch_waits_until_it_is_old_enough(broker: LogBroker, runs: Runs) -> None:
    waits = runs.run(limits=Limits(least_messages=101, age_seconds=1e9))
    assert (waits.messages, waits.lag) == (0, 100)
    assert runs.run(limits=Limits(least_messages=101, age_seconds=1)).messages == 100
    broker.logs[TOPIC] = messages(201)
    assert runs.run(limits=Limits(least_messages=101, age_seconds=1e9)).lag == 0


def test_a_batch_has_no_more_payload_than_about_so_much(broker: LogBroker, runs: Runs) -> None:
    broker.logs[TOPIC] = messages(25, data=b"x" * 1000)
    sizes: list[int] = []
    runs.run(limits=Limits(batch_bytes=10_000), progress=lambda rows, left: sizes.append(rows))
    assert (sizes, runs.visible()) == ([10, 10, 5], list(range(1, 26)))


def test_a_message_that_is_larger_than_a_batch_may_be_is_a_batch(broker: LogBroker, runs: Runs) -> None:
    broker.logs[TOPIC] = messages(3, data=b"x" * 1000)
    sizes: list[int] = []
    runs.run(limits=Limits(batch_bytes=10), progress=lambda rows, left: sizes.append(rows))
    assert sizes == [1, 1, 1]


def test_a_batch_waits_for_so_many_messages_or_so_much_payload_whichever_comes_first(
    broker: LogBroker, runs: Runs
) -> None:
    by_size = Limits(age_seconds=1e9, least_bytes=10_000)
    either = by_size._replace(least_messages=150)
    assert runs.run(limits=by_size).lag == 100  # of a hundred bytes each
    assert runs.run(limits=either).lag == 100
    broker.logs[TOPIC] = messages(101)
    assert runs.run(limits=by_size).messages == 101
    broker.logs[TOPIC] = messages(301)
    assert runs.run(limits=either._replace(least_bytes=10**9)).messages == 200


def archive_job(endpoint: str, directory: Path, *topics: str, pattern: str = "") -> Outcome:
    no_spark: Any = None
    place = Place(Address(endpoint), directory, topics, pattern)
    return job_named("archive").run(no_spark, place, JobOptions(), silent)


def archived(directory: Path) -> dict[str, int]:
    table = Table(directory / "archive")
    return {topic: sum(commit.rows for commit in table.commits(topic)) for topic in table.series()}


OTHER = "projects/p/topics/orders"


def test_topics_that_come_while_the_job_runs_on_are_met_and_those_that_go_stay_in_the_archive(
    broker: LogBroker, tmp_path: Path
) -> None:
    with ServerThread(broker) as server:
        archive_job(server.endpoint, tmp_path)
        broker.numbers[OTHER] = 2
        broker.logs[OTHER] = messages(7)
        archive_job(server.endpoint, tmp_path)
        del broker.logs[TOPIC]
        broker.logs[OTHER] = messages(9)
        archive_job(server.endpoint, tmp_path)
    assert archived(tmp_path) == {TOPIC: 100, OTHER: 9}


def test_a_topic_that_is_deleted_just_now_is_no_failure_unless_it_is_named(
    broker: LogBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = {"projects/p/topics/gone": LogBounds(9, 1, 5), TOPIC: LogBounds(1, 1, 100)}
    monkeypatch.setattr(Place, "bounds", lambda self: gone)
    with ServerThread(broker) as server:
        assert archive_job(server.endpoint, tmp_path).figures["messages"] == 100
        with pytest.raises(TopicNotFound):
            archive_job(server.endpoint, tmp_path, "projects/p/topics/gone")


def test_topics_are_chosen_by_name_by_pattern_or_by_both(broker: LogBroker, tmp_path: Path) -> None:
    for number, name in enumerate(("a1", "a2", "b1", "b2"), 2):
        broker.logs[f"projects/p/topics/{name}"] = messages(number)
        broker.numbers[f"projects/p/topics/{name}"] = number
    b1 = "projects/p/topics/b1"
    with ServerThread(broker) as server:
        archive_job(server.endpoint, tmp_path, pattern=".*/a.")
        archive_job(server.endpoint, tmp_path, b1, pattern=".*/a.")
    assert archived(tmp_path) == {"projects/p/topics/a1": 2, "projects/p/topics/a2": 3, b1: 4}
    with pytest.raises(InvalidArgument, match="no regular expression"):
        checked_pattern("(")


def test_a_topic_whose_name_no_file_can_have_does_not_keep_others_from_being_archived(
    broker: LogBroker, tmp_path: Path
) -> None:
    for number, name in enumerate(("a" * 255, "%" * 100, "z"), 2):
        broker.logs[f"projects/p/topics/{name}"] = messages(number)
        broker.numbers[f"projects/p/topics/{name}"] = number
    with ServerThread(broker) as server, pytest.raises(FailedPrecondition, match="cannot be kept in files"):
        archive_job(server.endpoint, tmp_path)
    assert archived(tmp_path) == {TOPIC: 100, "projects/p/topics/z": 4}
