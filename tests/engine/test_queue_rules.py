"""The rules of work queues (spec 003, queue-protocol.md) on the engine alone, one test each, named after it: order,
acknowledgement, retries, dead letters, restarts."""

from __future__ import annotations

from itertools import pairwise

import pytest

from heliograph.engine.dead_letter import DeadLetterReason
from heliograph.engine.message import Draft, Extras
from heliograph.engine.retry import RetryPolicy
from heliograph.engine.settings import SECOND_NS
from heliograph.errors import InvalidArgument, MessageNotFound
from tests.engine.work_queue import BACKOFF, Queue

# ── order ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_equal_priorities_are_first_in_first_out() -> None:
    queue = Queue()
    queue.publish("a", "b", "c")
    assert queue.names() == ["a", "b", "c"]


def test_each_of_the_ten_priorities_goes_before_the_lower_ones() -> None:
    queue = Queue()
    for priority in (3, 0, 9, 5, 1, 8, 2, 7, 4, 6):
        queue.publish(str(priority), priority=priority)
    assert "".join(queue.names()) == "9876543210"


def test_a_message_that_names_no_priority_has_the_default_of_the_queue() -> None:
    queue = Queue()
    queue.publish("lower", priority=4)
    queue.engine.publish("q", [Draft(b"default")], queue.now_ns)
    queue.publish("higher", priority=6)
    assert queue.names() == ["higher", "default", "lower"]


@pytest.mark.parametrize("priority", [-1, 10])
def test_a_priority_outside_zero_to_nine_is_refused_never_clamped(priority: int) -> None:
    queue = Queue()
    with pytest.raises(InvalidArgument):
        queue.publish("a", priority=priority)
    assert queue.stats.ready == 0


def test_strict_priority_a_steady_flow_of_high_ones_holds_back_a_low_one() -> None:
    queue = Queue()
    queue.publish("low", priority=0)
    for round_number in range(100):
        queue.publish("high", priority=9)
        assert queue.at(60.0 * round_number).names(1) == ["high"]


def test_a_requeue_keeps_the_priority_and_the_place() -> None:
    queue = Queue()
    queue.publish("a", "b", priority=7)
    queue.publish("c", priority=6)
    queue.nack(*queue.consume(3))
    assert queue.names() == ["a", "b", "c"]


def test_position_counts_ready_messages_of_equal_or_higher_priority() -> None:
    queue = Queue()
    queue.publish("a", "b", priority=9)
    queue.publish("c", priority=5)
    queue.publish("delayed", priority=9, delay=5)
    subscription = queue.engine.subscription("q")
    assert [queue.engine.position(subscription, priority) for priority in (9, 6, 5, 0)] == [2, 2, 3, 3]


def test_peek_shows_what_comes_next_and_leases_nothing() -> None:
    queue = Queue()
    queue.publish("low", priority=1)
    queue.publish("high", priority=8)
    assert [message.data for message in queue.engine.peek("q", 5, queue.now_ns)] == [b"high", b"low"]
    assert (queue.stats.outstanding, queue.names()) == (0, ["high", "low"])


# ── acknowledgement and its deadline ─────────────────────────────────────────────────────────────────────────────────


def test_an_acknowledged_message_is_removed_and_never_times_out() -> None:
    queue = Queue()
    queue.publish("a")
    queue.ack(queue.one())
    queue.at(1_000_000)
    assert (queue.names(), queue.dead(), queue.stats.totals.expired) == ([], [], 0)


def test_a_message_not_acknowledged_in_time_is_requeued_with_its_retry_counted() -> None:
    queue = Queue()
    queue.publish("a")
    queue.one()
    assert queue.at(29.9).names() == []
    assert queue.at(30).one().attempt == 2


def test_the_deadline_of_a_consume_wins_over_that_of_the_queue() -> None:
    queue = Queue()
    queue.publish("a")
    queue.consume(ack_deadline=60)
    assert queue.at(59.9).names() == []
    assert queue.at(60).names() == ["a"]


def test_an_extended_lease_counts_from_now() -> None:
    queue = Queue()
    queue.publish("a")
    delivery = queue.one()
    queue.at(20).engine.modify_ack_deadline("q", [delivery.ack_id], 30 * SECOND_NS, queue.now_ns)
    assert queue.at(49.9).names() == []
    assert queue.at(50).names() == ["a"]


def test_a_stale_lease_settles_nothing_and_the_present_holder_is_untouched() -> None:
    queue = Queue()
    queue.publish("a")
    stale = queue.one()
    current = queue.at(30).one()
    for settle in (queue.ack, queue.nack, queue.nack_for_good, queue.release):
        assert settle(stale) == [stale.ack_id]
    assert queue.ack(current) == []


def test_by_message_id_the_current_lease_is_found_and_nobody_s_is_an_error() -> None:
    queue = Queue()
    (message_id,) = queue.publish("a")
    with pytest.raises(MessageNotFound):
        queue.engine.current_ack_id("q", message_id, queue.now_ns)
    delivery = queue.one()
    assert queue.engine.current_ack_id("q", message_id, queue.now_ns) == delivery.ack_id
    queue.ack(delivery)
    with pytest.raises(MessageNotFound):
        queue.engine.current_ack_id("q", message_id, queue.now_ns)


@pytest.mark.parametrize("message_id", ["", "x", "1", "-1", "9" * 40, "²"])
def test_an_id_that_names_no_message_is_an_error(message_id: str) -> None:
    with pytest.raises(MessageNotFound):
        Queue().engine.current_ack_id("q", message_id, 0)


# ── retries ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_three_retries_are_four_deliveries_then_it_is_a_dead_letter() -> None:
    queue = Queue(max_retries=3)
    queue.publish("a")
    attempts = []
    while delivery := next(iter(queue.consume(1)), None):
        attempts.append(delivery.attempt)
        queue.nack(delivery)
    assert (attempts, queue.dead()) == ([1, 2, 3, 4], [("a", DeadLetterReason.MAX_RETRIES_EXCEEDED)])


def test_expiries_and_nacks_count_alike_towards_the_retries() -> None:
    queue = Queue(max_retries=1)
    queue.publish("a")
    queue.one()
    queue.at(30).nack(queue.one())
    assert queue.dead() == [("a", DeadLetterReason.MAX_RETRIES_EXCEEDED)]


def test_a_message_may_have_a_retry_limit_of_its_own() -> None:
    queue = Queue(max_retries=3)
    queue.publish("never", retries=0)
    queue.publish("often", retries=5)
    for _ in range(5):
        queue.nack(*queue.consume())
    assert queue.dead() == [("never", DeadLetterReason.MAX_RETRIES_EXCEEDED)]
    assert queue.one().attempt == 6


def test_the_backoff_doubles_per_attempt_up_to_its_maximum() -> None:
    queue = Queue(max_retries=9, retry_policy=BACKOFF)
    queue.publish("a")
    seconds = 0
    for wait in (10, 20, 40, 40):
        queue.nack(queue.one())
        assert queue.at(seconds + wait - 0.1).names() == []
        seconds += wait
        queue.at(seconds)


def test_retry_delays_are_used_in_turn() -> None:
    queue = Queue(retry_policy=RetryPolicy(delays_ns=(10 * SECOND_NS, 60 * SECOND_NS, 300 * SECOND_NS)))
    queue.publish("a")
    seconds = 0
    for wait in (10, 60, 300):
        queue.nack(queue.one())
        assert queue.at(seconds + wait - 0.1).names() == []
        seconds += wait
        queue.at(seconds)
    queue.nack(queue.one())
    assert queue.dead() == [("a", DeadLetterReason.MAX_RETRIES_EXCEEDED)]


def test_a_nack_waits_its_backoff_as_an_expiry_does() -> None:
    nacked, expired = Queue(retry_policy=BACKOFF), Queue(retry_policy=BACKOFF)
    nacked.publish("a")
    nacked.nack(nacked.one())
    expired.publish("a")
    expired.consume(ack_deadline=0.001)
    expired.at(0.001)
    for queue in (nacked, expired):
        assert queue.at(9.9).names() == []
        assert queue.at(10.001).names() == ["a"]


def test_delivery_counts_never_fall_and_survive_a_restart() -> None:
    queue = Queue(max_retries=9)
    queue.publish("a")
    attempts = []
    for settle in ("nack", "release", "expire", "release", "nack"):
        delivery = queue.one()
        attempts.append(delivery.attempt)
        if settle == "expire":
            queue.at(queue.seconds - queue.start + 30)
        else:
            getattr(queue, settle)(delivery)
        queue = queue.restarted()
    assert all(earlier <= later for earlier, later in pairwise(attempts))
    assert queue.one().attempt == 4


def test_a_lost_connection_returns_its_leases_at_once_and_is_no_failure() -> None:
    queue = Queue(max_retries=0, retry_policy=BACKOFF)
    queue.publish("a")
    queue.release(queue.one())
    again = queue.one()
    assert (again.attempt, queue.stats.totals.delivered, queue.stats.totals.redelivered) == (1, 2, 1)


def test_a_batch_held_by_a_crashing_consumer_does_not_dead_letter_the_innocent_ones() -> None:
    queue = Queue(max_retries=2)
    queue.publish("a", "b", "poison", "c")
    for _ in range(50):
        queue.release(*queue.consume())
    assert (queue.dead(), queue.names()) == ([], ["a", "b", "poison", "c"])


# ── dead letters ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_nack_without_requeue_never_loses_the_message() -> None:
    queue = Queue()
    queue.publish("a")
    queue.nack_for_good(queue.one())
    assert (queue.dead(), queue.names()) == ([("a", DeadLetterReason.EXPLICIT_NACK)], [])


def test_a_dead_letter_keeps_the_message_its_headers_retries_reason_and_time() -> None:
    queue = Queue(max_retries=1)
    queue.publish("a", priority=8)
    queue.nack(queue.one())
    queue.at(7).nack(queue.one())
    ((letter, message),) = queue.engine.dead_letters("q", queue.now_ns)
    assert (message.data, message.attributes, message.extras) == (b"a", {"name": "a"}, Extras(priority=8))
    assert (letter.reason, letter.failures) == (DeadLetterReason.MAX_RETRIES_EXCEEDED, 2)
    assert letter.dead_lettered_ns == queue.now_ns


def test_dead_letters_are_retried_all_or_by_id_to_their_place_with_a_fresh_count() -> None:
    queue = Queue(max_retries=0)
    ids = queue.publish("a", "b", "c", priority=7)
    queue.nack(*queue.consume())
    queue.publish("d", priority=6)
    assert queue.engine.retry_dead_letters("q", [ids[1]], queue.now_ns) == 1
    assert [name for name, _ in queue.dead()] == ["a", "c"]
    assert queue.engine.retry_dead_letters("q", None, queue.now_ns) == 2
    deliveries = queue.consume()
    assert [delivery.message.data for delivery in deliveries] == [b"a", b"b", b"c", b"d"]
    assert {delivery.attempt for delivery in deliveries} == {1}


def test_retrying_an_unknown_dead_letter_retries_none() -> None:
    queue = Queue(max_retries=0)
    (known,) = queue.publish("a")
    queue.nack(queue.one())
    with pytest.raises(MessageNotFound):
        queue.engine.retry_dead_letters("q", [known, "17"], queue.now_ns)
    assert len(queue.dead()) == 1


def test_dead_letters_are_bounded_the_oldest_goes_and_is_counted() -> None:
    queue = Queue(max_retries=0, kept_max=2)
    queue.publish("a", "b", "c", "d")
    for _ in range(4):
        queue.nack(queue.one())
    totals = queue.stats.totals
    assert [name for name, _ in queue.dead()] == ["c", "d"]
    assert (totals.dead_lettered, totals.dead_letters_dropped) == (4, 2)


def test_purging_dead_letters_leaves_the_queue_alone() -> None:
    queue = Queue(max_retries=0)
    queue.publish("a")
    queue.nack(queue.one())
    queue.publish("b")
    assert queue.engine.purge_dead_letters("q") == 1
    assert (queue.dead(), queue.names()) == ([], ["b"])


# ── restarts ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_ids_survive_a_restart_so_a_late_ack_still_finds_its_message() -> None:
    queue = Queue()
    (message_id,) = queue.publish("a")
    delivery = queue.one()
    again = queue.restarted()
    assert again.engine.current_ack_id("q", message_id, again.now_ns) == delivery.ack_id
    assert again.ack(delivery) == []
    assert again.stats.outstanding == 0


def test_everything_survives_a_restart() -> None:
    queue = Queue(max_retries=1, retry_policy=BACKOFF, enable_message_ordering=True)
    queue.publish("dead", priority=9)
    queue.nack_for_good(queue.one())
    queue.publish("leased", priority=8)
    queue.consume(1, consumer="one")
    queue.publish("backoff", priority=7)
    queue.nack(queue.one())
    queue.publish("delayed", delay=50)
    queue.publish("ttl", ttl=60)
    queue.publish("keyed", "keyed too", key="k")
    again = queue.restarted()
    assert again.stats == queue.stats
    assert again.dead() == queue.dead()
    for seconds in (5, 10, 30, 45, 50, 60, 100):
        assert again.at(seconds).names() == queue.at(seconds).names(), f"after {seconds} s"
        assert again.dead() == queue.dead(), f"after {seconds} s"
