"""The rules of work queues (spec 003, queue-protocol.md) on the engine alone, one test each, named after it: TTL,
delay, ageing."""

from __future__ import annotations

import pytest

from heliograph.engine.dead_letter import DeadLetterReason
from heliograph.engine.retry import RetryPolicy
from heliograph.engine.settings import SECOND_NS, SubscriptionSettings
from tests.engine.work_queue import Queue

# ── TTL and delay ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "where", ["behind one without TTL", "behind a longer one", "in a lower band", "delayed", "key"]
)
def test_a_ttl_that_is_due_takes_effect_wherever_the_message_stands(where: str) -> None:
    queue = Queue(enable_message_ordering=True)
    if where == "behind a longer one":
        queue.publish("stays", ttl=100)
    else:
        queue.publish("stays", key="k" if where == "key" else "")
    queue.publish(
        "goes",
        ttl=5,
        priority=1 if where == "in a lower band" else 5,
        delay=50 if where == "delayed" else 0,
        key="k" if where == "key" else "",
    )
    assert queue.at(4.9).dead() == []
    assert queue.at(5).dead() == [("goes", DeadLetterReason.TTL_EXPIRED)]
    assert queue.names() == ["stays"]


def test_ttl_ends_a_message_that_waits_for_its_backoff() -> None:
    queue = Queue(retry_policy=RetryPolicy(100 * SECOND_NS, 100 * SECOND_NS))
    queue.publish("a", ttl=20)
    queue.nack(queue.one())
    assert queue.at(20).dead() == [("a", DeadLetterReason.TTL_EXPIRED)]


def test_ttl_never_ends_a_leased_message_and_is_checked_when_it_returns() -> None:
    for back in ("nack", "release", "expire"):
        queue = Queue()
        queue.publish("a", ttl=5)
        delivery = queue.one()
        assert queue.at(29).dead() == []
        if back == "expire":
            queue.at(30)
        else:
            getattr(queue, back)(delivery)
        assert queue.dead() == [("a", DeadLetterReason.TTL_EXPIRED)], back


def test_a_leased_message_past_its_ttl_can_still_be_acknowledged() -> None:
    queue = Queue()
    queue.publish("a", ttl=5)
    delivery = queue.one()
    assert queue.at(10).ack(delivery) == []
    assert queue.dead() == []


def test_ttl_of_the_queue_holds_for_messages_without_their_own() -> None:
    queue = Queue(ttl_ns=10 * SECOND_NS)
    queue.publish("of the queue")
    queue.publish("its own", ttl=20)
    assert [name for name, _ in queue.at(10).dead()] == ["of the queue"]
    assert [name for name, _ in queue.at(20).dead()] == ["of the queue", "its own"]


def test_ttl_counts_from_the_first_publish_whatever_happens_meanwhile() -> None:
    queue = Queue()
    queue.publish("a", ttl=20)
    queue.at(10).nack(queue.one())
    assert queue.at(20).dead() == [("a", DeadLetterReason.TTL_EXPIRED)]


def test_a_dead_letter_of_ttl_gets_a_fresh_one_when_it_is_retried() -> None:
    queue = Queue()
    queue.publish("a", ttl=20)
    queue.at(50).engine.retry_dead_letters("q", None, queue.now_ns)
    assert queue.at(69.9).dead() == []
    assert queue.at(70).dead() == [("a", DeadLetterReason.TTL_EXPIRED)]


def test_a_dead_letter_of_retries_keeps_its_ttl_when_it_is_retried_in_time() -> None:
    queue = Queue(max_retries=0)
    queue.publish("a", ttl=20)
    queue.nack(queue.one())
    queue.at(10).engine.retry_dead_letters("q", None, queue.now_ns)
    assert queue.at(19.9).dead() == []
    assert queue.at(20).dead() == [("a", DeadLetterReason.TTL_EXPIRED)]


def test_a_dead_letter_retried_after_its_ttl_does_not_die_at_once() -> None:
    queue = Queue(max_retries=0)
    queue.publish("a", ttl=20)
    queue.nack(queue.one())
    queue.at(100).engine.retry_dead_letters("q", None, queue.now_ns)
    assert queue.at(119.9).dead() == []
    assert queue.at(120).dead() == [("a", DeadLetterReason.TTL_EXPIRED)]


def test_a_message_past_its_ttl_is_never_delivered_also_where_nothing_is_loaded_ahead() -> None:
    queue = Queue(prioritised=False, capacity=None)
    queue.publish("gone", ttl=5)
    queue.publish("here")
    assert queue.at(6).names(1) == ["here"]
    assert queue.dead() == [("gone", DeadLetterReason.TTL_EXPIRED)]


def test_expired_and_returned_messages_in_one_batch_both_find_their_way_without_dead_letters() -> None:
    queue = Queue(dead_letter_policy=None, enable_message_ordering=True)
    queue.publish("goes", ttl=5, key="k")
    queue.publish("follows", key="k")
    queue.publish("stays")
    queue.at(10 - 5.5).consume(2)
    queue.at(34.5)
    assert queue.names() == ["follows", "stays"]
    assert queue.stats.totals.expired == 2


def test_a_delayed_message_is_delivered_when_its_delay_is_over_not_before() -> None:
    queue = Queue()
    queue.publish("a", delay=10)
    assert (queue.stats.ready, queue.stats.delayed) == (0, 1)
    assert queue.at(9.9).names() == []
    assert queue.at(10).names() == ["a"]


def test_a_short_delay_is_not_stuck_behind_a_long_one() -> None:
    queue = Queue()
    queue.publish("long", delay=100)
    queue.publish("short", delay=1)
    assert queue.at(1).names() == ["short"]


def test_a_delayed_message_takes_its_place_by_priority_and_age() -> None:
    queue = Queue()
    queue.publish("delayed", priority=5, delay=1)
    queue.publish("later", priority=5)
    queue.publish("higher", priority=6)
    assert queue.at(1).names() == ["higher", "delayed", "later"]


@pytest.mark.parametrize("settle", ["ack", "nack_for_good"])
def test_a_delayed_message_whose_key_comes_free_waits_for_its_own_time_only(settle: str) -> None:
    queue = Queue(enable_message_ordering=True)
    queue.publish("first", key="k")
    queue.publish("second", key="k", delay=10)
    delivery = queue.one()
    getattr(queue.at(2), settle)(delivery)
    queue.engine.woken.clear()
    assert (queue.engine.next_deadline_ns() or 0) <= int((queue.start + 10) * SECOND_NS)
    queue.at(10)
    assert "q" in queue.engine.woken
    assert queue.names() == ["second"]


def test_a_delayed_message_whose_key_comes_free_late_is_ready_at_once() -> None:
    queue = Queue(enable_message_ordering=True)
    queue.publish("first", key="k")
    queue.publish("second", key="k", delay=10)
    delivery = queue.one()
    queue.at(20).ack(delivery)
    assert queue.names() == ["second"]


# ── ageing ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_ageing_lifts_a_waiting_message_one_band_per_period() -> None:
    queue = Queue(priority_aging_ns=10 * SECOND_NS)
    queue.publish("old", priority=3)
    for seconds, expected in ((9.9, "young"), (10, "young"), (19.9, "young"), (20, "old")):
        queue.at(seconds).publish("young", priority=5)
        (delivery,) = queue.consume(1)
        assert delivery.message.data.decode() == expected, f"after {seconds} s"
        queue.ack(delivery)


def test_ageing_puts_a_risen_message_before_the_younger_ones_of_its_band() -> None:
    queue = Queue(priority_aging_ns=10 * SECOND_NS)
    queue.publish("risen", priority=4)
    queue.at(10).publish("native", priority=5)
    assert queue.names() == ["risen", "native"]


def test_ageing_ends_at_nine_where_the_oldest_goes_first() -> None:
    queue = Queue(priority_aging_ns=10 * SECOND_NS)
    queue.publish("first", priority=0)
    queue.publish("second", priority=9)
    assert queue.at(1_000_000).names() == ["first", "second"]


def test_ageing_lets_no_message_starve() -> None:
    queue = Queue(priority_aging_ns=10 * SECOND_NS)
    queue.publish("low", priority=0)
    for seconds in range(0, 200, 2):
        queue.at(seconds).publish("high", priority=9)
        if queue.names(1) == ["low"]:
            assert seconds == 90
            return
    pytest.fail("the message of priority 0 was never delivered")


def test_ageing_of_a_delayed_message_begins_when_its_delay_is_over() -> None:
    queue = Queue(priority_aging_ns=10 * SECOND_NS)
    queue.publish("delayed", priority=1, delay=1_000)
    queue.at(1_000).publish("five")
    assert queue.names() == ["five", "delayed"]


def test_ageing_of_a_retried_dead_letter_begins_anew() -> None:
    queue = Queue(priority_aging_ns=10 * SECOND_NS)
    queue.publish("dead", priority=1)
    queue.nack_for_good(queue.one())
    queue.at(1_000).engine.retry_dead_letters("q", None, queue.now_ns)
    queue.publish("five")
    assert queue.names() == ["five", "dead"]
    assert queue.restarted().engine.subscription("q")._revived_ns is not None


def test_ageing_keeps_the_counters_of_the_priorities_as_published() -> None:
    queue = Queue(priority_aging_ns=10 * SECOND_NS)
    queue.publish("a", priority=2)
    assert queue.at(50).stats.depth_by_priority == {2: 1}


def test_ageing_gives_the_same_order_after_a_restart() -> None:
    queue = Queue(priority_aging_ns=10 * SECOND_NS)
    for index in range(60):
        queue.at(index * 1.7).publish(str(index), priority=index * 7 % 10, delay=index % 4)
        if index % 5 == 0:
            (delivery,) = queue.consume(1)
            queue.nack(delivery)
    queue.at(105)
    again = queue.restarted()
    assert again.names(60) == queue.names(60)


def test_ageing_is_off_unless_asked_for() -> None:
    assert SubscriptionSettings().priority_aging_ns == 0
