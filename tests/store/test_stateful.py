"""Any sequence of operations on a store, against a model in a few lines."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from heliograph.engine.facts import CheckpointBegun, Fact, MessagesPublished, TopicRestored
from heliograph.engine.message import Message
from heliograph.engine.ranges import from_runs, to_runs
from heliograph.engine.settings import TopicSettings
from heliograph.store import rows, sqlite_file, sqlite_reader, trimming
from heliograph.store.memory import MemoryStore
from heliograph.store.protocol import Store
from heliograph.store.sqlite import SqliteStore
from tests.store.facts import acknowledged, committed, messages, published, recovered

TOPICS = st.integers(1, 3)


class StoreMachine(RuleBasedStateMachine):
    """Publishes, other facts, trims and restarts in any order."""

    store: Store

    def __init__(self) -> None:
        super().__init__()
        self.facts: list[Fact] = []
        self.next: dict[int, int] = {1: 1, 2: 1, 3: 1}
        self.trimmed: dict[int, int] = {1: 1, 2: 1, 3: 1}
        self.held: dict[int, set[int]] = {1: set(), 2: set(), 3: set()}  # below that, and kept

    def open(self) -> Store:
        raise NotImplementedError

    @initialize()
    def begin(self) -> None:
        self.store = self.open()

    @rule(batches=st.lists(st.tuples(TOPICS, st.integers(1, 90), st.booleans()), max_size=8), waits=st.booleans())
    def append(self, batches: list[tuple[int, int, bool]], waits: bool) -> None:
        facts: list[Fact] = []
        for topic, size, acknowledges in batches:
            first, last = self.next[topic], self.next[topic] + size - 1
            facts.append(published(first, last, topic_number=topic))
            self.next[topic] = last + 1
            if acknowledges:
                facts.append(acknowledged(first, last))
        self.facts += facts
        commit = self.store.append(facts)
        if waits:
            assert committed(commit)

    @rule(
        topic=TOPICS, share=st.floats(0, 1), holds=st.lists(st.tuples(st.floats(0, 1), st.integers(1, 40)), max_size=6)
    )
    def trim(self, topic: int, share: float, holds: list[tuple[float, int]]) -> None:
        """Behind a checkpoint, as it must be."""
        end = self.next[topic]
        up_to = round(1 + (end - 1) * share)
        there = self.held[topic] | set(range(self.trimmed[topic], end))
        wanted = {round(1 + where * end) + offset for where, count in holds for offset in range(count)}
        held = wanted & there
        self.facts = [CheckpointBegun(3)]
        self.facts += [TopicRestored(f"t{n}", n, TopicSettings(), 1, False, True, end) for n, end in self.next.items()]
        assert committed(self.store.checkpoint(self.facts))
        self.store.trim(topic, up_to, held=to_runs(sorted(held)))
        begins = max(self.trimmed[topic], up_to)
        still = {sequence for sequence in self.held[topic] if sequence >= up_to}
        still |= set(range(max(up_to, self.trimmed[topic]), begins))
        self.held[topic] = {sequence for sequence in held if sequence < up_to} | still
        self.trimmed[topic] = begins

    @rule(topic=TOPICS, first=st.integers(0, 300), size=st.integers(0, 300))
    def read(self, topic: int, first: int, size: int) -> None:
        assert committed(self.store.append([]))
        expected = list(range(max(first, self.trimmed[topic]), min(first + size, self.next[topic])))
        assert [message.sequence for message in self._read(topic, first, first + size - 1)] == expected

    def _read(self, topic: int, first: int, last: int, *, held: bool = False) -> list[Message]:
        return [message for batch in self.store.read_log(topic, first, last, held=held) for message in batch]

    @rule(topic=TOPICS)
    def read_held(self, topic: int) -> None:
        assert committed(self.store.append([]))
        end, begins = self.next[topic], self.trimmed[topic]
        read = self._read(topic, 1, end, held=True)
        sequences = [message.sequence for message in read]
        assert sequences == sorted(set(sequences))
        assert self.held[topic] | set(range(begins, end)) <= set(sequences)
        assert read == [message for sequence in sequences for message in messages(sequence, sequence)]
        assert self.held[topic] <= set(from_runs(self.store.held_below(topic))) < set(range(begins)) | {0}

    @rule()
    def restart(self) -> None:
        self.store.close()
        self.store = self.open()
        assert list(self.store.recover()) == [self._expected(fact) for fact in self.facts]

    def _expected(self, fact: Fact) -> Fact:
        if type(fact) is not MessagesPublished:
            return fact
        topic = fact.topic_number
        first, last = fact.messages[0].sequence, fact.messages[-1].sequence
        return recovered(first, last, topic_number=topic)

    @invariant()
    def bounds(self) -> None:
        if not hasattr(self, "store"):
            return
        assert committed(self.store.append([]))
        for topic, end in self.next.items():
            first, last = self.store.log_bounds(topic)
            if self.trimmed[topic] < end:
                assert (first, last) == (self.trimmed[topic], end - 1)
            else:
                assert last == first - 1

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()


class MemoryMachine(StoreMachine):
    def __init__(self) -> None:
        super().__init__()
        self.memory = MemoryStore(keep_facts=True)

    def open(self) -> Store:
        list(self.memory.recover())
        return self.memory


class SqliteMachine(StoreMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()

    def open(self) -> Store:
        return SqliteStore(Path(self.directory.name), durability="none", trim_delay_seconds=0.0)

    def teardown(self) -> None:
        super().teardown()
        self.directory.cleanup()


@pytest.fixture(autouse=True)
def small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that every cut happens within a few messages."""
    monkeypatch.setattr(rows, "GROUP_BYTES_MAX", 3_000)
    monkeypatch.setattr(rows, "SHARED_ROW_MESSAGES_MAX", 64)
    monkeypatch.setattr(sqlite_file, "TRIMMED_ROWS_MAX", 2)
    monkeypatch.setattr(trimming, "LOOKED_AT_MAX", 3)
    monkeypatch.setattr(sqlite_reader, "READ_ROWS", 3)


TestMemory = pytest.mark.usefixtures("small_bounds")(MemoryMachine.TestCase)
TestSqlite = pytest.mark.usefixtures("small_bounds")(SqliteMachine.TestCase)
TestMemory.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
TestSqlite.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
