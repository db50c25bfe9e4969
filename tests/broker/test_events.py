"""The event log: what happened to which message, as rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.broker.clock import SimulatedClock
from heliograph.broker.compaction import compact
from heliograph.engine.dead_letter import DeadLetterPolicy
from heliograph.engine.facts import DeadLettersRetried, Fact, SubscriptionSought
from heliograph.engine.message import Draft, Extras
from heliograph.engine.settings import MILLISECOND_NS, SECOND_NS, Capacity, SubscriptionSettings, TopicSettings
from heliograph.errors import FailedPrecondition
from heliograph.store.memory import MemoryStore
from heliograph.store.protocol import Store
from heliograph.store.sqlite import SqliteStore
from heliograph.wire.arrow_events import SCHEMA, EventRows

HOUR_NS = 3600 * SECOND_NS


class Bench:
    """A broker with an event log, on a simulated clock."""

    def __init__(self, store: Store) -> None:
        self.clock = SimulatedClock()
        self.store = store
        self.broker = LocalBroker(store, self.clock, event_retention_ns=24 * HOUR_NS)
        self.topic = self.broker.create_topic("t", TopicSettings()).result(30)

    def subscribe(self, name: str = "s", **settings: Any) -> None:
        self.broker.create_subscription(name, "t", SubscriptionSettings(**settings)).result(30)

    def publish(self, *payloads: bytes, extras: Extras | None = None) -> None:
        self.broker.publish("t", [Draft(payload, extras=extras) for payload in payloads]).result(30)

    def pull(self, count: int = 10, name: str = "s", consumer: str = "") -> list[str]:
        return [delivery.ack_id for delivery in self.broker.pull(name, count, consumer=consumer).result(30)]

    def advance(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds / 1_000)

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        commit = self.store.append([])
        assert commit.wait(30)
        rows = EventRows({info.number: info.name for info in self.broker.list_topics()})
        for position, facts in self.broker.read_events(*self.broker.event_bounds()):
            rows.add(position, facts)
        return [tuple(row[column] for column in columns) for row in rows.record_batch(SCHEMA).to_pylist()]


@pytest.fixture(params=["memory", "sqlite"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    sqlite = request.param == "sqlite"
    store: Store = (
        SqliteStore(tmp_path, durability="none", events_bytes_max=10**6) if sqlite else MemoryStore(events_max=10**6)
    )
    bench = Bench(store)
    yield bench
    bench.broker.close()


def test_a_message_that_is_delivered_and_acknowledged_is_three_rows_with_their_times(bench: Bench) -> None:
    bench.subscribe()
    bench.publish(b"a", b"b")
    bench.advance(250)
    ack_ids = bench.pull(consumer="worker")
    bench.advance(40)
    bench.broker.acknowledge("s", ack_ids[:1]).result(30)
    began_ns = bench.clock.now_ns() - 290 * MILLISECOND_NS
    first, second = f"{bench.topic.number}000000000001", f"{bench.topic.number}000000000002"
    assert bench.rows("event", "message_id", "attempt", "consumer", "wait_us", "processing_us", "event_time_ns") == [
        ("published", first, None, None, None, None, began_ns),
        ("published", second, None, None, None, None, began_ns),
        ("delivered", first, 1, "worker", 250_000, None, began_ns + 250 * MILLISECOND_NS),
        ("delivered", second, 1, "worker", 250_000, None, began_ns + 250 * MILLISECOND_NS),
        ("acknowledged", first, 1, None, None, 40_000, began_ns + 290 * MILLISECOND_NS),
    ]
    assert set(bench.rows("topic", "subscription")) == {("t", None), ("t", "s")}


def test_a_nack_an_expiry_and_a_release_are_told_apart_with_their_attempts(bench: Bench) -> None:
    bench.subscribe()
    bench.publish(b"a")
    bench.broker.nack("s", bench.pull()).result(30)
    bench.pull()
    bench.advance(11_000)
    bench.broker.statistics("s")
    bench.broker.release("s", bench.pull()).result(30)
    bench.broker.acknowledge("s", bench.pull()).result(30)
    assert bench.rows("event", "attempt")[1:] == [
        ("delivered", 1),
        ("nacked", 1),
        ("delivered", 2),
        ("expired", 2),
        ("delivered", 3),
        ("released", 3),
        ("delivered", 3),
        ("acknowledged", 3),
    ]


def test_a_dead_letter_tells_its_reason_and_what_led_to_it(bench: Bench) -> None:
    bench.subscribe(dead_letter_policy=DeadLetterPolicy(None, 1))
    bench.publish(b"a")
    bench.broker.nack("s", bench.pull()).result(30)
    assert bench.rows("event", "attempt", "reason")[2:] == [
        ("nacked", 1, None),
        ("dead_lettered", 1, "MaxRetriesExceeded"),
    ]


def test_what_expires_while_it_waits_was_never_delivered(bench: Bench) -> None:
    bench.subscribe(ttl_ns=SECOND_NS, dead_letter_policy=DeadLetterPolicy(None, 5))
    bench.publish(b"a")
    bench.advance(2_000)
    bench.broker.statistics("s")
    assert bench.rows("event", "attempt", "processing_us", "reason")[1:] == [
        ("dead_lettered", None, None, "TTLExpired")
    ]


def test_what_is_dropped_or_purged_is_told(bench: Bench) -> None:
    bench.subscribe(capacity=Capacity(messages=1, bytes=1_000))
    bench.publish(b"a", b"b")
    bench.broker.purge("s").result(30)
    assert bench.rows("event", "sequence")[2:] == [("dropped", 2), ("purged", 1)]


def test_every_row_has_its_own_name(bench: Bench) -> None:
    bench.subscribe()
    bench.subscribe("other")
    bench.publish(b"a", b"b", b"c")
    for name in ("s", "other"):
        bench.broker.nack(name, bench.pull(name=name)).result(30)
        bench.broker.acknowledge(name, bench.pull(name=name)).result(30)
    names = bench.rows("position", "event", "subscription", "message_id", "attempt")
    assert len(set(names)) == len(names) == 3 + 2 * 3 * 4


def test_the_event_log_is_found_by_time(bench: Bench) -> None:
    instants = []
    for _ in range(40):
        bench.publish(b"a")
        instants.append(bench.clock.now_ns())
        bench.advance(1_000)
    for place, instant_ns in enumerate(instants):
        offset = bench.broker.event_offset(instant_ns)
        rows = EventRows({})
        for position, facts in bench.broker.read_events(offset, bench.broker.event_bounds()[1]):
            rows.add(position, facts)
        assert rows.record_batch(SCHEMA).column("event_time_ns").to_pylist() == instants[place:]
    assert bench.broker.event_offset(bench.clock.now_ns()) == bench.broker.event_bounds()[1] + 1


def test_a_broker_without_an_event_log_says_so() -> None:
    broker = LocalBroker()
    with pytest.raises(FailedPrecondition, match="event-retention"):
        broker.event_bounds()


def test_a_broker_without_an_event_log_tells_the_store_nothing_more(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path, durability="none")
    broker = LocalBroker(store)
    broker.create_topic("t")
    broker.publish("t", [Draft(b"a")]).result(30)
    assert [getattr(fact, "details", None) for _, facts in store.read_events(1, 9) for fact in facts] == [None, None]
    broker.close()


# ── in a file ───────────────────────────────────────────────────────────────────────────────────────────────────────


def sqlite_bench(directory: Path, events_bytes_max: int = 10**6) -> Bench:
    return Bench(SqliteStore(directory, durability="none", events_bytes_max=events_bytes_max))


def checkpoint(bench: Bench) -> None:
    assert bench.store.checkpoint(bench.broker._engine.checkpoint()).wait(30)


def test_a_checkpoint_takes_no_event_away_and_adds_none(tmp_path: Path) -> None:
    bench = sqlite_bench(tmp_path)
    bench.subscribe()
    bench.publish(b"a")
    before = bench.rows("event", "position")
    checkpoint(bench)
    checkpoint(bench)
    assert bench.rows("event", "position") == before
    bench.publish(b"b")
    assert [event for event, _ in bench.rows("event", "position")] == ["published", "published"]
    bench.broker.close()


def test_events_survive_a_restart_and_recovery_does_not_see_them(tmp_path: Path) -> None:
    bench = sqlite_bench(tmp_path)
    bench.publish(b"a")
    checkpoint(bench)
    bench.broker.close()
    store = SqliteStore(tmp_path, events_bytes_max=10**6)
    assert [type(fact).__name__ for fact in store.recover()] == ["CheckpointBegun", "TopicRestored"]
    assert len(list(store.read_events(1, 99))) == 2
    store.close()


def test_old_events_go_with_a_checkpoint(tmp_path: Path) -> None:
    bench = sqlite_bench(tmp_path)
    bench.publish(b"old")
    bench.advance(25 * 3_600_000)
    bench.publish(b"new")
    bench.advance(120_000)
    bench.publish(b"newest")  # it sweeps, so that the store learns what is old
    checkpoint(bench)
    assert [sequence for (sequence,) in bench.rows("sequence")] == [2, 3]
    bench.broker.close()


def test_the_event_log_keeps_within_its_bytes(tmp_path: Path) -> None:
    bench = sqlite_bench(tmp_path, events_bytes_max=2_000)
    for number in range(200):
        bench.publish(b"%d" % number)
    checkpoint(bench)
    sequences = [sequence for (sequence,) in bench.rows("sequence")]
    assert sequences == list(range(sequences[0], 201))
    assert 5 < len(sequences) < 60
    bench.broker.close()


@pytest.mark.parametrize("had_one", [True, False])
def test_a_compaction_keeps_the_event_log_where_there_is_one(tmp_path: Path, had_one: bool) -> None:
    bench = sqlite_bench(tmp_path, 10**6 if had_one else 0)
    bench.publish(b"a")
    checkpoint(bench)
    bench.broker.close()
    compact(tmp_path, now_ns=bench.clock.now_ns())
    store = SqliteStore(tmp_path, events_bytes_max=10**6)
    facts = [type(fact).__name__ for _, facts in store.read_events(1, 99) for fact in facts]
    assert facts == (["TopicCreated", "MessagesPublished"] if had_one else [])
    store.close()


def test_a_file_whose_event_log_is_turned_off_loses_it(tmp_path: Path) -> None:
    bench = sqlite_bench(tmp_path)
    bench.publish(b"a")
    checkpoint(bench)
    bench.broker.close()
    store = SqliteStore(tmp_path)
    facts = list(store.recover())
    assert store.checkpoint(facts).wait(30)
    assert list(store.read_events(1, 99)) == []
    store.close()


def test_a_seek_is_a_row_and_one_for_each_run_of_messages_that_are_open_afterwards(bench: Bench) -> None:
    bench.subscribe()
    bench.publish(b"a", b"b")
    bench.advance(1_000)
    then_ns = bench.clock.now_ns()
    bench.publish(b"c", b"d")
    bench.broker.seek_to_time("s", then_ns).result(30)
    bench.broker.create_snapshot("n", "s").result(30)
    bench.broker.acknowledge("s", bench.pull()).result(30)
    bench.broker.seek_to_time("s", then_ns + 1).result(30)
    rows = bench.rows("event", "sequence", "last_sequence", "subscription", "topic", "reason", "event_time_ns")
    assert [row for row in rows if row[0] == "sought"] == [
        ("sought", None, None, "s", "t", f"time {then_ns}", then_ns),
        ("sought", 3, 4, "s", "t", f"time {then_ns}", then_ns),
        ("sought", None, None, "s", "t", f"time {then_ns + 1}", then_ns),
    ]
    ids = [row[1] for row in bench.rows("event", "message_id") if row[0] == "sought"]
    assert ids == [None, f"{bench.topic.number}000000000003", None]
    assert {row[2] for row in rows if row[0] != "sought"} == {None}


def test_a_seek_to_a_snapshot_names_it(bench: Bench) -> None:
    bench.subscribe()
    bench.publish(b"a")
    bench.broker.create_snapshot("n", "s").result(30)
    bench.broker.seek_to_snapshot("s", "n").result(30)
    assert [row for row in bench.rows("event", "sequence", "reason") if row[0] == "sought"] == [
        ("sought", None, "snapshot n"),
        ("sought", 1, "snapshot n"),
    ]


def test_dead_letters_that_are_retried_are_events(bench: Bench) -> None:
    bench.subscribe(dead_letter_policy=DeadLetterPolicy(None, 1))
    bench.publish(b"a")
    bench.broker.nack("s", bench.pull()).result(30)
    bench.broker.retry_dead_letters("s").result(30)
    assert [row[0] for row in bench.rows("event", "sequence")] == [
        "published",
        "delivered",
        "nacked",
        "dead_lettered",
        "retried",
    ]


def test_facts_of_seeks_from_before_they_were_events_are_read_and_tell_nothing() -> None:
    old = msgspec.msgpack.encode([["SubscriptionSought", "s", b"", 5], ["DeadLettersRetried", "s", [1], [0]]])
    facts = msgspec.msgpack.Decoder(list[Fact]).decode(old)
    rows = EventRows({})
    rows.add(1, facts)
    assert len(rows) == 0
    assert facts == [SubscriptionSought("s", b"", 5), DeadLettersRetried("s", [1], [0])]


def test_what_is_not_acknowledged_is_told_as_of_an_instant_that_the_event_log_covers(bench: Bench) -> None:
    bench.subscribe()
    bench.publish(b"a", b"b", b"c", b"d")
    bench.broker.acknowledge("s", bench.pull(count=2)[:1]).result(30)
    found = bench.broker.unacknowledged("s").result(30)
    assert (found.at_ns, found.topic_number, found.runs) == (bench.clock.now_ns(), bench.topic.number, [(2, 5)])
    assert [row[0] for row in bench.rows("event")][-1] == "acknowledged"
