"""The store that fails on order."""

from __future__ import annotations

import pytest

from heliograph.engine.facts import Fact
from heliograph.store.memory import MemoryStore
from heliograph.testing.faulty_store import FaultyStore
from tests.store.facts import acknowledged, published, sequences


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore(keep_facts=True))


def kept(store: FaultyStore) -> list[Fact]:
    return list(store.recover())


def test_as_many_commits_fail_as_were_ordered(store: FaultyStore) -> None:
    store.fail_next(2)
    errors = [store.append([acknowledged(number)]).error for number in (1, 2, 3)]
    assert [type(error) for error in errors] == [OSError, OSError, type(None)]


def test_failed_facts_arrive_before_newer_ones(store: FaultyStore) -> None:
    store.fail_next(1)
    store.append([acknowledged(1)])
    assert kept(store) == []
    store.append([acknowledged(2)])
    assert kept(store) == [acknowledged(1), acknowledged(2)]


def test_the_error_can_be_chosen(store: FaultyStore) -> None:
    error = OSError("Input/output error")
    store.fail_next(1, error)
    assert store.append([acknowledged(1)]).error is error
    assert store.failing is error


def test_a_retry_writes_what_failed(store: FaultyStore) -> None:
    store.fail_next(1)
    store.append([acknowledged(1)])
    store.retry()
    assert (store.failing, kept(store)) == (None, [acknowledged(1)])


def test_an_empty_append_fails_while_the_store_does(store: FaultyStore) -> None:
    store.fail_next(1)
    store.append([acknowledged(1)])
    assert isinstance(store.append([]).error, OSError)


def test_a_held_commit_is_not_done_until_it_is_released(store: FaultyStore) -> None:
    store.hold()
    commit = store.append([published(1, 3)])
    assert commit is store.append([acknowledged(1)])
    assert (commit.done, sequences(store, 1, 9)) == (False, [])
    store.release()
    assert (commit.done, commit.error, sequences(store, 1, 9)) == (True, None, [1, 2, 3])


def test_a_held_commit_can_end_in_failure(store: FaultyStore) -> None:
    store.hold()
    commit = store.append([published(1, 3)])
    store.fail_next(1)
    store.release()
    assert (commit.done, commit.error, kept(store)) == (True, store.failing, [])
    assert store.failing is not None
