"""What doors keep durably."""

from __future__ import annotations

from pathlib import Path

import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.errors import InvalidArgument
from heliograph.store.memory import MemoryStore
from heliograph.store.protocol import Store
from heliograph.store.sqlite import SqliteStore


@pytest.fixture(params=["memory", "sqlite"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Bench:
    """A broker that starts again on what its store has, from the facts or from a checkpoint."""

    def __init__(self, kind: str, data_dir: Path) -> None:
        self.kind = kind
        self.data_dir = data_dir
        self.memory = MemoryStore(keep_facts=True)
        self.broker = LocalBroker(self._store())

    def _store(self) -> Store:
        return self.memory if self.kind == "memory" else SqliteStore(self.data_dir, durability="none")

    def restart(self, *, checkpoint: bool = False) -> None:
        if checkpoint:
            assert self.broker._housekeeping.settle().wait(30)
        self.broker.close()
        self.broker = LocalBroker(self._store())


@pytest.mark.parametrize("checkpoint", [False, True])
def test_documents_survive_a_restart_the_latest_of_each_name(kind: str, tmp_path: Path, checkpoint: bool) -> None:
    bench = Bench(kind, tmp_path)
    bench.broker.put_document("iam", "topics/b", b"first").result(30)
    bench.broker.put_document("iam", "topics/b", b"second").result(30)
    bench.broker.put_document("iam", "topics/a", b"\x00\xff").result(30)
    bench.broker.put_document("schemas", "topics/a", b"other").result(30)
    bench.broker.put_document("iam", "topics/c", b"gone").result(30)
    bench.broker.delete_document("iam", "topics/c").result(30)
    bench.restart(checkpoint=checkpoint)
    assert bench.broker.list_documents("iam") == [("topics/a", b"\x00\xff"), ("topics/b", b"second")]
    assert bench.broker.get_document("schemas", "topics/a") == b"other"
    assert bench.broker.get_document("iam", "topics/c") is None
    bench.broker.close()


def test_deleting_what_is_not_there_changes_nothing(kind: str, tmp_path: Path) -> None:
    bench = Bench(kind, tmp_path)
    bench.broker.delete_document("iam", "x").result(30)
    assert bench.broker.list_documents("iam") == []
    bench.broker.close()


def test_a_name_that_is_no_text_is_refused_before_anything_is_kept() -> None:
    broker = LocalBroker()
    with pytest.raises(InvalidArgument):
        broker.put_document("iam", "\ud800", b"")
    assert broker.list_documents("iam") == []
    broker.close()
