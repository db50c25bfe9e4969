"""Stores of every kind, and what tests put into them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from heliograph.store.memory import MemoryStore
from heliograph.store.protocol import Store
from heliograph.store.sqlite import SqliteStore
from heliograph.testing.faulty_store import FaultyStore

Reopen = Callable[[], Store]


@pytest.fixture(params=["memory", "sqlite", "faulty around memory", "faulty around sqlite"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Reopen]:
    """Opens the store; called again, closes it and opens it anew, as a restart of the broker does."""
    memory = MemoryStore(keep_facts=True)
    opened: list[Store] = []

    def open_store() -> Store:
        if opened:
            opened[-1].close()
        store: Store = memory if "memory" in request.param else SqliteStore(tmp_path / "data")
        if "faulty" in request.param:
            store = FaultyStore(store)
        opened.append(store)
        return store

    yield open_store
    if opened:
        opened[-1].close()


@pytest.fixture
def store(reopen: Reopen) -> Store:
    """A new store, recovered."""
    store = reopen()
    assert list(store.recover()) == []
    return store
