"""A broker that recovers is where one would be that was never interrupted."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.broker.clock import SimulatedClock
from heliograph.broker.compaction import compact
from heliograph.engine.message import Draft, Message
from heliograph.engine.retention import SWEEP_NS
from heliograph.engine.settings import SECOND_NS, SubscriptionSettings
from heliograph.errors import StoreRefused
from heliograph.store.backup import backup
from heliograph.store.inspection import stats
from heliograph.store.sqlite import SqliteStore
from heliograph.store.verification import check
from tests.engine.invariants import check_engine, differences, full_state
from tests.portions import quick_first
from tests.store.traffic import Traffic, comparable, small_limits


@pytest.fixture(autouse=True)
def _small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    small_limits(monkeypatch)


@pytest.mark.parametrize("seed", quick_first(range(8), 2))
@pytest.mark.parametrize("memory_budget_bytes", [None, 0, 20_000])
def test_after_every_restart_the_state_is_that_of_a_broker_that_never_stopped(
    tmp_path: Path, seed: int, memory_budget_bytes: int | None
) -> None:
    traffic = Traffic(tmp_path, seed, memory_budget_bytes=memory_budget_bytes)
    for _ in range(5):
        for _ in range(40):
            traffic.step()
        traffic.restart()
        check_engine(traffic.engine)
        now_ns = traffic.clock.now_ns()
        ours = comparable(full_state(traffic.engine, now_ns))
        assert differences(ours, traffic.expected(len(traffic.store.appends))) == []
    traffic.broker.close()


# ── found once ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Bench:
    """A broker with a topic and a subscription on a file, whose checkpoints happen when they are told to."""

    def __init__(self, data_dir: Path, memory_budget_bytes: int | None = 0) -> None:
        self.data_dir = data_dir
        self.memory_budget_bytes = memory_budget_bytes
        self.clock = SimulatedClock()
        self.restart()
        self.broker.create_topic("t").result(30)
        self.broker.create_subscription("s", "t").result(30)

    def restart(self) -> None:
        if hasattr(self, "broker"):
            self.broker.close()
        self.store = Obedient(self.data_dir, durability="none", trim_delay_seconds=0.0)
        self.broker = LocalBroker(self.store, self.clock, memory_budget_bytes=self.memory_budget_bytes)

    def publish(self, count: int) -> None:
        for _ in range(count):
            self.broker.publish("t", [Draft(b"x" * 100)]).result(30)

    def pull(self, count: int) -> list[str]:
        return [delivery.ack_id for delivery in self.broker.pull("s", count).result(30)]

    def checkpoint(self) -> None:
        self.store.checkpoint_due = True
        self.broker.publish("t", []).result(30)
        self.store.checkpoint_due = False

    def trim(self) -> None:
        """Time for retention to be looked at, and its trims are written."""
        self.clock.advance(SWEEP_NS / SECOND_NS + 1)
        self.broker.publish("t", []).result(30)
        self.broker._store.append([]).wait(30)


class Obedient(SqliteStore):
    checkpoint_due = False  # type: ignore[assignment]  # a property in real life
    reads = 0

    def read_log(self, topic_number: int, first: int, last: int, *, held: bool = False) -> Iterator[list[Message]]:
        self.reads += 1
        return super().read_log(topic_number, first, last, held=held)


@pytest.fixture(params=[None, 0], ids=["no memory budget", "no memory at all"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path, request.param)
    yield bench
    bench.broker.close()


def test_messages_that_a_checkpoint_holds_are_there_until_the_next_one_also_when_they_are_acknowledged_and_trimmed(
    bench: Bench,
) -> None:
    bench.publish(10)
    ack_ids = bench.pull(5)
    bench.checkpoint()
    bench.broker.acknowledge("s", ack_ids).result(30)
    bench.trim()
    bench.restart()
    assert bench.broker.statistics("s").ready == 5
    assert bench.broker.statistics("s").outstanding_bytes == 0


def test_what_is_settled_is_trimmed_behind_a_checkpoint_of_its_own(bench: Bench) -> None:
    bench.publish(10)
    ack_ids = bench.pull(5)
    bench.checkpoint()
    bench.broker.acknowledge("s", ack_ids).result(30)
    bench.trim()
    assert bench.broker.log_bounds("t") == (6, 10)
    bench.restart()
    assert bench.broker.statistics("s").ready == 5


def test_what_the_checkpoint_of_an_earlier_broker_holds_is_not_trimmed_either(bench: Bench) -> None:
    bench.publish(10)
    bench.checkpoint()
    bench.restart()
    bench.broker.acknowledge("s", bench.pull(5)).result(30)
    bench.trim()
    bench.restart()
    assert bench.broker.statistics("s").ready == 5


def test_facts_about_trimmed_messages_are_replayed_though_no_memory_is_left_for_their_pages(bench: Bench) -> None:
    bench.broker.publish("t", [Draft(b"x")] * 2_000).result(30)
    bench.broker.acknowledge("s", bench.pull(1_500)).result(30)
    bench.publish(3)
    bench.broker.acknowledge("s", bench.pull(502)).result(30)
    bench.trim()
    assert bench.broker.log_bounds("t") == (2003, 2003)
    bench.restart()
    assert bench.broker.statistics("s").ready == 1


@pytest.fixture
def straggling(bench: Bench) -> Bench:
    """Of 3,000 messages 5 is leased, all others to 2,048 are done and gone, and the rest waits."""
    for _ in range(30):
        bench.broker.publish("t", [Draft(b"x" * 100)] * 100).result(30)
    ack_ids = bench.pull(2_048)
    bench.broker.modify_ack_deadline("s", [ack_ids.pop(4)], 600 * SECOND_NS).result(30)
    bench.broker.acknowledge("s", ack_ids).result(30)
    bench.trim()
    assert bench.broker.log_bounds("t") == (2_049, 3_000)
    return bench


def held(bench: Bench) -> tuple[int, int]:
    """How many are leased, and wait."""
    statistics = bench.broker.statistics("s")
    return statistics.outstanding, statistics.ready


def test_a_straggler_stays_when_all_around_it_is_trimmed_and_is_acknowledged_after_a_restart(straggling: Bench) -> None:
    straggling.restart()
    assert held(straggling) == (1, 952)
    straggling.clock.advance(600)
    ack_ids = straggling.pull(3)
    assert straggling.broker.acknowledge("s", ack_ids).result(30) == []
    straggling.trim()
    assert straggling.broker.log_bounds("t") == (2_051, 3_000)
    straggling.restart()
    assert held(straggling) == (0, 950)


def test_a_straggler_that_is_lost_is_found_and_the_store_refused(straggling: Bench) -> None:
    straggling.broker.close()
    connection = sqlite3.connect(straggling.data_dir / "heliograph.db")
    assert connection.execute("DELETE FROM messages WHERE last_sequence < 100").rowcount == 1
    connection.commit()
    connection.close()
    (finding,) = check(straggling.data_dir).findings
    assert (finding.first_sequence, finding.last_sequence, finding.subscriptions) == (5, 5, ["s"])
    with pytest.raises(StoreRefused, match="messages from 5 on of topic t are needed, and gone"):
        LocalBroker(SqliteStore(straggling.data_dir), straggling.clock)


def test_a_straggler_stays_through_a_compaction_and_a_backup(straggling: Bench, tmp_path: Path) -> None:
    straggling.broker.close()
    compact(straggling.data_dir, now_ns=straggling.clock.now_ns())
    backup(straggling.data_dir, tmp_path / "copy")
    assert check(tmp_path / "copy").findings == []
    assert stats(tmp_path / "copy").topics[0].held_before == 1
    straggling.data_dir = tmp_path / "copy"
    straggling.restart()
    assert held(straggling) == (1, 952)


def test_messages_of_a_deleted_topic_go_though_a_checkpoint_held_them(bench: Bench) -> None:
    bench.publish(5)
    ack_ids = bench.pull(3)
    bench.checkpoint()
    bench.broker.acknowledge("s", ack_ids).result(30)
    bench.broker.delete_subscription("s").result(30)
    bench.broker.delete_topic("t").result(30)
    bench.broker.create_topic("t").result(30)
    bench.trim()
    bench.restart()
    assert bench.broker.list_subscriptions() == []
    assert bench.store.topic_numbers() == set()


def test_a_broker_starts_again_when_its_only_topic_was_deleted(bench: Bench) -> None:
    bench.publish(5)
    bench.broker.delete_subscription("s").result(30)
    bench.broker.delete_topic("t").result(30)
    bench.restart()
    bench.restart()
    assert bench.broker.list_topics() == []
    assert bench.store.topic_numbers() == set()


def test_a_broker_starts_again_when_a_topic_lived_for_a_moment_beside_others_that_rested(bench: Bench) -> None:
    bench.publish(1)
    bench.trim()
    bench.broker.create_topic("brief").result(30)
    bench.broker.publish("brief", [Draft(b"x")]).result(30)
    bench.broker.delete_topic("brief").result(30)
    bench.trim()
    bench.restart()
    assert [topic.name for topic in bench.broker.list_topics()] == ["t"]


def test_a_recovery_reads_no_message_a_second_time_to_know_its_priority(bench: Bench) -> None:
    """It would have all of them in memory at once."""
    bench.broker.create_subscription("queue", "t", SubscriptionSettings(prioritised=True)).result(30)
    for _ in range(5):
        bench.broker.publish("t", [Draft(b"x")] * 600).result(30)
    bench.restart()
    assert bench.store.reads <= 1  # the end of the last page, if it was full
    assert bench.broker.statistics("queue").ready == 3_000
