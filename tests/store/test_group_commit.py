"""The queue and its writer thread, without a file."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from heliograph.errors import Unavailable
from heliograph.store import rows
from heliograph.store.group_commit import GroupCommit
from heliograph.store.rows import Group, Trim, decode_facts
from tests.store.facts import acknowledged, committed, published

NEVER_SECONDS = 3600.0
AT_ONCE = (0.0, 0.0)


class Disk:
    """What the writer thread writes to. Attempts can be held up and made to fail."""

    def __init__(self) -> None:
        self.groups: list[Group] = []
        self.attempts = 0
        self.closed = 0
        self.unfinished: dict[int, Trim] = {}
        self.fail: Callable[[], bool] = lambda: False
        self.free = threading.Event()
        self.free.set()
        self.entered = threading.Semaphore(0)

    def write(self, group: Group) -> dict[int, Trim]:
        self.attempts += 1
        self.entered.release()
        assert self.free.wait(30)
        if self.fail():
            raise OSError(28, "No space left on device")
        self.groups.append(group)
        return self.unfinished

    def close(self) -> None:
        self.closed += 1

    @property
    def facts(self) -> list[object]:
        journal = [group.journal for group in self.groups if group.journal]
        return [fact for row in journal for fact in decode_facts(row.body, row.checksum)]


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def writing(disk: Disk) -> Iterator[GroupCommit]:
    writing = GroupCommit(disk.write, disk.close, retry_seconds=AT_ONCE, trim_delay_seconds=NEVER_SECONDS)
    yield writing
    disk.free.set()
    disk.fail = lambda: False
    writing.close()


def test_a_lone_append_is_a_commit_of_its_own(writing: GroupCommit, disk: Disk) -> None:
    assert [committed(writing.append([acknowledged(number)])) for number in (1, 2)] == [True, True]
    assert (writing.commits, writing.facts_written) == (2, 2)


def test_what_is_appended_while_a_commit_runs_shares_the_next_one(writing: GroupCommit, disk: Disk) -> None:
    disk.free.clear()
    first = writing.append([acknowledged(1)])
    disk.entered.acquire()
    rest = [writing.append([acknowledged(number)]) for number in (2, 3, 4)]
    assert {first.done, *[commit.done for commit in rest]} == {False}
    assert len(set(map(id, rest))) == 1
    assert rest[0] is not first
    disk.free.set()
    assert committed(rest[0])
    assert [group.fact_count for group in disk.groups] == [1, 3]
    assert disk.facts == [acknowledged(number) for number in (1, 2, 3, 4)]


def test_an_empty_append_waits_for_the_commit_that_runs(writing: GroupCommit, disk: Disk) -> None:
    disk.free.clear()
    first = writing.append([acknowledged(1)])
    disk.entered.acquire()
    assert writing.append([]) is first


def test_an_empty_append_waits_for_what_is_queued(writing: GroupCommit, disk: Disk) -> None:
    disk.free.clear()
    writing.append([acknowledged(1)])
    disk.entered.acquire()
    assert writing.append([acknowledged(2)]) is writing.append([])


def test_a_large_group_is_cut_between_appends(
    writing: GroupCommit, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "GROUP_BYTES_MAX", 2_000)
    disk.free.clear()
    writing.append([acknowledged(1)])
    disk.entered.acquire()
    for first in (1, 101, 201):
        commit = writing.append([published(first, first + 99), acknowledged(first)])
    disk.free.set()
    assert committed(commit)
    assert [group.fact_count for group in disk.groups] == [1, 2, 2, 2]


def test_the_latest_trim_goes_along_with_the_next_facts(writing: GroupCommit, disk: Disk) -> None:
    writing.trim(1, Trim(5))
    writing.trim(1, Trim(10, [(3, 4)]))
    assert disk.groups == []
    assert committed(writing.append([acknowledged(1)]))
    assert [(group.fact_count, group.trims) for group in disk.groups] == [(1, {1: Trim(10, [(3, 4)])})]


def test_a_trim_goes_alone_when_no_facts_come(disk: Disk) -> None:
    writing = GroupCommit(disk.write, disk.close, trim_delay_seconds=0.0)
    writing.trim(1, Trim(10))
    disk.entered.acquire()
    writing.close()
    assert [(group.fact_count, group.trims) for group in disk.groups] == [(0, {1: Trim(10)})]


def test_an_unfinished_trim_goes_on_with_the_next_facts(writing: GroupCommit, disk: Disk) -> None:
    writing.trim(1, Trim(10))
    disk.unfinished = {1: Trim(10, (), 7)}
    assert committed(writing.append([acknowledged(1)]))
    disk.unfinished = {}
    assert committed(writing.append([acknowledged(2)]))
    assert committed(writing.append([acknowledged(3)]))
    assert [group.trims for group in disk.groups] == [{1: Trim(10)}, {1: Trim(10, (), 7)}, {}]


def test_a_trim_is_written_at_close(writing: GroupCommit, disk: Disk) -> None:
    writing.trim(1, Trim(10))
    writing.close()
    assert [group.trims for group in disk.groups] == [{1: Trim(10)}]


# ── failures ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Broken:
    """A disk that fails until it is repaired, one attempt at a time."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.broken = True
        disk.free.clear()
        disk.fail = lambda: self.broken

    def fail_once(self, writing: GroupCommit) -> None:
        """Let the attempt that is under way fail, and wait for the next one to begin."""
        self.disk.fail = lambda: False
        attempts = self.disk.attempts

        def fail() -> bool:
            self.disk.free.clear()
            return self.disk.attempts == attempts

        self.disk.fail = fail
        self.disk.free.set()
        self.disk.entered.acquire()


@pytest.fixture
def broken(writing: GroupCommit, disk: Disk) -> Broken:
    """Its first commit, of fact 1, has failed; the retry is under way."""
    broken = Broken(disk)
    commit = writing.append([acknowledged(1)])
    disk.entered.acquire()
    queued = writing.append([acknowledged(2)])
    broken.fail_once(writing)
    assert not committed(commit)
    assert not committed(queued)
    return broken


def repair(disk: Disk) -> None:
    disk.fail = lambda: False
    disk.free.set()


def test_while_it_fails_the_reason_is_known(writing: GroupCommit, broken: Broken) -> None:
    assert isinstance(writing.failing, OSError)


def test_while_it_fails_every_append_has_failed_at_once(writing: GroupCommit, broken: Broken) -> None:
    commits = [writing.append([acknowledged(3)]), writing.append([])]
    assert [(commit.done, commit.error) for commit in commits] == [(True, writing.failing)] * 2


def test_what_failed_is_written_before_anything_newer(writing: GroupCommit, disk: Disk, broken: Broken) -> None:
    writing.append([acknowledged(3)])
    broken.fail_once(writing)
    writing.append([acknowledged(4)])
    repair(disk)
    writing.close()
    assert disk.facts == [acknowledged(number) for number in (1, 2, 3, 4)]
    assert disk.attempts == 4


def test_all_is_well_after_a_retry_succeeded(writing: GroupCommit, disk: Disk, broken: Broken) -> None:
    repair(disk)
    disk.entered.acquire()  # the group after the one that failed: fact 2
    assert writing.failing is None
    assert committed(writing.append([acknowledged(3)]))
    assert disk.facts == [acknowledged(number) for number in (1, 2, 3)]


def test_closing_tries_once_more_and_tells_what_is_lost(writing: GroupCommit, disk: Disk, broken: Broken) -> None:
    attempts = disk.attempts
    disk.fail = lambda: True
    disk.free.set()
    with pytest.raises(Unavailable, match="No space left"):
        writing.close()
    assert disk.closed == 1
    assert disk.attempts > attempts
    writing.close()


def test_closing_does_not_wait_for_the_pause_between_retries(disk: Disk) -> None:
    writing = GroupCommit(disk.write, disk.close, retry_seconds=(NEVER_SECONDS, NEVER_SECONDS))
    disk.fail = lambda: disk.attempts == 1
    assert not committed(writing.append([acknowledged(1)]))
    writing.close()
    assert disk.facts == [acknowledged(1)]


def test_a_fact_that_cannot_be_encoded_stops_the_store_instead_of_leaving_a_hole(disk: Disk) -> None:
    writing = GroupCommit(disk.write, disk.close)
    assert not committed(writing.append([acknowledged(2**70)]))
    assert not committed(writing.append([acknowledged(1)]))
    assert isinstance(writing.failing, OverflowError)
    assert disk.facts == []
    with pytest.raises(Unavailable):
        writing.close()


def defect() -> None:
    raise RuntimeError("Event loop is closed")


def test_a_callback_that_raises_harms_nobody(writing: GroupCommit, disk: Disk) -> None:
    disk.free.clear()
    commit = writing.append([acknowledged(1)])
    called = threading.Event()
    commit.add_done_callback(defect)
    commit.add_done_callback(called.set)
    disk.free.set()
    assert called.wait(30)
    assert committed(writing.append([acknowledged(2)]))
