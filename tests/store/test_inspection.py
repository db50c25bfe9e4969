"""`store stats`: what is in a store, counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.broker.clock import SimulatedClock
from heliograph.errors import StoreRefused
from heliograph.store.inspection import SubscriptionStats, stats
from heliograph.store.sqlite import SqliteStore
from tests.store.directories import contents, fill, flip, make, offset_of


def test_topics_are_counted_with_their_bounds_and_their_oldest_message(tmp_path: Path) -> None:
    found = stats(make(tmp_path / "data"))
    counted = [(t.name, t.number, t.messages, t.first_sequence, t.last_sequence) for t in found.topics]
    assert counted == [("a", 1, 1_000, 1, 1_000), ("b", 3, 1_000, 1, 1_000)]
    assert {topic.oldest_publish_time_ns for topic in found.topics} == {SimulatedClock().now_ns()}


def test_trimmed_messages_do_not_count_even_if_their_row_is_left(tmp_path: Path) -> None:
    store = SqliteStore(make(tmp_path / "data"))
    assert list(store.recover())
    store.trim(1, 151)
    store.close()
    topic = stats(tmp_path / "data").topics[0]
    assert (topic.messages, topic.first_sequence) == (850, 151)


def test_sizes_are_those_of_the_files_and_live_bytes_are_what_is_needed(tmp_path: Path) -> None:
    found = stats(make(tmp_path / "data"))
    assert found.file_bytes == (tmp_path / "data" / "heliograph.db").stat().st_size
    assert found.log_bytes == 0
    assert found.live_bytes == found.message_bytes + found.journal_bytes
    assert 2_000 * 120 < found.message_bytes < found.file_bytes


def test_the_journal_is_counted_from_its_checkpoint_on(tmp_path: Path) -> None:
    without, found = stats(make(tmp_path / "a")), stats(make(tmp_path / "b", checkpoint=True))
    assert (without.journal_rows, without.checkpoint_bytes) == (26, 0)
    assert found.journal_rows == 1
    assert found.checkpoint_bytes == found.journal_bytes > 0


def test_subscriptions_are_counted_when_asked_for(tmp_path: Path) -> None:
    data_dir = make(tmp_path / "data")
    assert stats(data_dir).subscriptions is None
    assert stats(data_dir, subscriptions=True).subscriptions == [
        SubscriptionStats("a-reader", "a", waiting=700, delayed=0, outstanding=100, dead_letters=0),
        SubscriptionStats("b-reader", "b", waiting=1_000, delayed=0, outstanding=0, dead_letters=0),
    ]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_deleted_topic_is_listed_as_long_as_it_has_messages(tmp_path: Path, checkpoint: bool) -> None:
    store = SqliteStore(make(tmp_path / "data"))
    broker = LocalBroker(store, SimulatedClock())
    broker.delete_topic("b").result()
    broker.delete_subscription("b-reader").result()
    if checkpoint:
        store.checkpoint(broker._engine.checkpoint()).wait()
    broker.close()
    deleted = [(topic.name, topic.messages) for topic in stats(tmp_path / "data").topics if topic.deleted]
    assert deleted == [("" if checkpoint else "b", 1_000)]


def test_a_broker_may_serve_meanwhile(tmp_path: Path) -> None:
    broker = LocalBroker(SqliteStore(tmp_path / "data"))
    fill(broker)
    found = stats(tmp_path / "data", subscriptions=True)
    assert (found.in_use, sum(topic.messages for topic in found.topics)) == (True, 2_000)
    assert found.log_bytes > 0
    broker.close()


def test_nothing_is_changed(tmp_path: Path) -> None:
    data_dir = make(tmp_path / "data")
    before = contents(data_dir)
    stats(data_dir, subscriptions=True)
    assert contents(data_dir) == before


def test_a_damaged_store_is_refused(tmp_path: Path) -> None:
    file = make(tmp_path / "data") / "heliograph.db"
    flip(file, offset_of(file, b"b-reader"))
    with pytest.raises(StoreRefused, match="is damaged, and was left as it is"):
        stats(tmp_path / "data")
