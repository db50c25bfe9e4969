"""The rules of work queues (spec 003, queue-protocol.md) on the engine alone, one test each, named after it: prefetch,
capacity, cost, statistics."""

from __future__ import annotations

import time

import pytest

from heliograph.engine.settings import SECOND_NS, Capacity
from heliograph.errors import QueueFull
from tests.engine.work_queue import Queue

# ── prefetch ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_consumer_holds_at_most_its_prefetch_and_gets_more_as_it_settles() -> None:
    queue = Queue(prefetch=2)
    queue.publish("a", "b", "c", "d", "e", "f")
    held = queue.consume(consumer="one")
    assert len(held) == 2
    assert queue.consume(consumer="one") == []
    queue.ack(held[0])
    assert len(queue.consume(consumer="one")) == 1
    queue.nack(held[1])
    assert len(queue.consume(consumer="one")) == 1


def test_prefetch_leaves_messages_to_other_consumers() -> None:
    queue = Queue(prefetch=2)
    queue.publish("a", "b", "c", "d")
    counts = [len(queue.consume(consumer=consumer)) for consumer in ("one", "two", "three")]
    assert counts == [2, 2, 0]


def test_a_lease_that_ends_gives_its_consumer_room_again() -> None:
    queue = Queue(prefetch=1)
    queue.publish("a", "b")
    queue.consume(consumer="one")
    assert len(queue.at(30).consume(consumer="one")) == 1


# ── capacity ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_full_queue_refuses_the_whole_batch_and_stores_nothing() -> None:
    queue = Queue(depth_max=2)
    queue.publish("a")
    with pytest.raises(QueueFull):
        queue.publish("b", "c")
    assert (queue.stats.ready, queue.stats.totals.published, queue.names()) == (1, 1, ["a"])


def test_ready_and_delayed_messages_count_towards_the_depth() -> None:
    queue = Queue(depth_max=2)
    queue.publish("ready")
    queue.publish("delayed", delay=100)
    with pytest.raises(QueueFull):
        queue.publish("one too many")


def test_a_depth_limit_never_drops_a_message_that_is_leased() -> None:
    queue = Queue(depth_max=2)
    queue.publish("a", "b")
    leased = queue.consume()
    queue.publish("c", "d")
    queue.nack(*leased)
    assert (queue.stats.ready, queue.names()) == (4, ["a", "b", "c", "d"])


def test_dead_letters_do_not_count_towards_the_depth() -> None:
    queue = Queue(depth_max=1)
    queue.publish("a")
    queue.nack_for_good(queue.one())
    queue.publish("b")
    assert queue.names() == ["b"]


def test_a_bound_in_bytes_refuses_too_and_does_not_count_what_is_leased() -> None:
    queue = Queue(capacity=Capacity(100, 30, refuse=True))
    queue.publish("12345")  # 5 bytes, and its header's 9
    queue.publish("67890")
    with pytest.raises(QueueFull):
        queue.publish("1")
    queue.one()
    queue.publish("1")


# ── cost ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _work_seconds(queue: Queue) -> float:
    """Processor time of publishing and consuming 500 messages of mixed priorities: the best of several, for whoever
    shares the machine."""
    best = 1e9
    for _ in range(5):
        begin = time.process_time()
        for index in range(500):
            queue.publish("x", priority=index * 7 % 10)
        for _ in range(500):
            queue.ack(queue.one())
        queue.engine.take_facts()
        best = min(best, time.process_time() - begin)
    return best


@pytest.mark.parametrize("aging_ns", [0, 3_600 * SECOND_NS])
def test_publishing_and_consuming_cost_the_same_in_a_queue_a_hundred_thousand_deep(aging_ns: int) -> None:
    shallow, deep = Queue(priority_aging_ns=aging_ns), Queue(depth_max=1_000_000, priority_aging_ns=aging_ns)
    for priority in range(10):
        shallow.publish("x", priority=priority)
        deep.publish(*["x"] * 10_000, priority=priority)
    assert _work_seconds(deep) < 3 * _work_seconds(shallow)  # one scan would make it a hundredfold


def test_taking_one_of_very_many_returned_messages_does_not_look_at_them_all() -> None:
    shallow, deep = Queue(), Queue(depth_max=1_000_000, prefetch=0)
    shallow.publish("x", "y")
    deep.publish(*["x"] * 50_001)
    deep.release(*deep.consume(50_000))
    assert _work_seconds(deep) < 3 * _work_seconds(shallow)


# ── purge and statistics ─────────────────────────────────────────────────────────────────────────────────────────────


def test_purge_removes_ready_and_delayed_messages_never_leased_ones_nor_dead_letters() -> None:
    queue = Queue()
    queue.publish("dead")
    queue.nack_for_good(queue.one())
    queue.publish("leased", "ready")
    queue.publish("delayed", delay=5)
    leased = queue.one()
    assert queue.engine.purge("q", queue.now_ns) == (1, 1)
    assert queue.at(6).names() == []
    assert (queue.ack(leased), len(queue.dead())) == ([], 1)


def test_statistics_count_depth_and_what_is_outstanding_and_delayed() -> None:
    queue = Queue()
    queue.publish("a", "b", priority=9)
    queue.publish("c", priority=2)
    queue.publish("d", delay=10)
    queue.consume(1, consumer="one")
    stats = queue.stats
    assert (stats.ready, stats.delayed, stats.outstanding, stats.consumers) == (2, 1, 1, 1)
    assert stats.depth_by_priority == {9: 1, 2: 1}


def test_statistics_count_consumers_that_hold_a_lease() -> None:
    queue = Queue()
    queue.publish("a", "b", "c")
    (one,) = queue.consume(1, consumer="one")
    queue.consume(1, consumer="two")
    assert queue.stats.consumers == 2
    queue.ack(one)
    assert queue.stats.consumers == 1


def test_statistics_total_what_was_published_consumed_acked_nacked_expired_and_dead_lettered() -> None:
    queue = Queue(max_retries=1)
    queue.publish("acked", "nacked", "expired", "rejected")
    acked, nacked, _, rejected = queue.consume()
    queue.ack(acked)
    queue.nack(nacked)
    queue.nack_for_good(rejected)
    queue.nack(queue.one())
    queue.at(30)
    totals = queue.stats.totals
    assert (totals.published, totals.delivered, totals.redelivered) == (4, 5, 1)
    assert (totals.acknowledged, totals.nacked, totals.expired, totals.dead_lettered) == (1, 3, 1, 2)


def test_average_wait_is_from_publication_to_the_first_hand_out_only() -> None:
    queue = Queue(max_retries=0)
    queue.publish("a", "b")
    a, _ = queue.at(2).consume()
    queue.publish("c")
    queue.at(6).one()
    queue.nack(a)
    queue.at(1_000).engine.retry_dead_letters("q", None, queue.now_ns)
    queue.consume()
    assert queue.stats.average_wait_ns == (2 + 2 + 4) * SECOND_NS // 3


def test_oldest_message_age_looks_at_what_waits_and_oldest_unacked_at_what_is_leased_too() -> None:
    queue = Queue()
    queue.publish("leased", priority=1)
    queue.one()
    queue.at(5).publish("low", priority=0)
    queue.at(7).publish("high", priority=9)
    stats = queue.at(10).stats
    assert queue.now_ns - stats.oldest_waiting_ns == 5 * SECOND_NS
    assert queue.now_ns - stats.oldest_unacknowledged_ns == 10 * SECOND_NS


def test_an_empty_queue_has_no_oldest_message() -> None:
    stats = Queue().stats
    assert (stats.oldest_waiting_ns, stats.oldest_unacknowledged_ns, stats.average_wait_ns) == (0, 0, 0)


def test_messages_that_differ_in_nothing_but_their_payload_share_what_says_their_priority() -> None:
    queue = Queue()
    queue.publish("a", priority=7)
    queue.publish("b", priority=7)
    first, second = queue.engine.peek("q", 2, queue.now_ns)
    assert first.extras is second.extras
