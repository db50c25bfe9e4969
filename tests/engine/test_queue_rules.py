"""The rules of work queues (spec 003, queue-protocol.md) on the engine alone: one test per rule, named after it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from heliograph.engine.dead_letter import DeadLetterPolicy, DeadLetterReason
from heliograph.engine.engine import Engine
from heliograph.engine.facts import Fact
from heliograph.engine.message import Delivery, Draft, Extras
from heliograph.engine.retry import RetryPolicy
from heliograph.engine.settings import SECOND_NS, Capacity, SubscriptionSettings, TopicSettings
from heliograph.engine.statistics import Statistics
from heliograph.errors import InvalidArgument, MessageNotFound, QueueFull

BACKOFF = RetryPolicy(10 * SECOND_NS, 40 * SECOND_NS)


class Queue:
    """A work queue as its door makes it: 30 s to acknowledge, 3 retries, priority 5; a clock in seconds."""

    def __init__(
        self, *, max_retries: int = 3, kept_max: int = 10_000, depth_max: int = 100_000, **more: object
    ) -> None:
        settings: dict[str, object] = {
            "ack_deadline_ns": 30 * SECOND_NS,
            "dead_letter_policy": DeadLetterPolicy(None, max_retries + 1, kept_max),
            "capacity": Capacity(depth_max, 0, refuse=True),
            "default_priority": 5,
            "prioritised": True,
            "prefetch": 1_000,
        }
        self.engine = Engine()
        self.start = self.seconds = 1_000.0
        self.facts: list[Fact] = []
        self.engine.create_topic("q", TopicSettings(), self.now_ns)
        self.engine.create_subscription("q", "q", SubscriptionSettings(**settings | more), self.now_ns)  # type: ignore[arg-type]  # tests pass what they like

    @property
    def now_ns(self) -> int:
        return int(self.seconds * SECOND_NS)

    def at(self, seconds: float) -> Queue:
        """Move the clock to `seconds` after the start; what is due happens."""
        self.seconds = self.start + seconds
        self.engine.tick(self.now_ns)
        return self

    def publish(
        self,
        *names: str,
        priority: int = 5,
        ttl: float = 0,
        delay: float = 0,
        retries: int | None = None,
        key: str = "",
    ) -> list[str]:
        extras = Extras(
            priority=priority,
            expires_at_ns=self.now_ns + int(ttl * SECOND_NS) if ttl else 0,
            available_at_ns=self.now_ns + int(delay * SECOND_NS) if delay else 0,
            max_delivery_attempts=0 if retries is None else retries + 1,
        )
        drafts = [Draft(name.encode(), {"name": name}, ordering_key=key, extras=extras) for name in names]
        return self.engine.publish("q", drafts, self.now_ns)

    def consume(self, count: int = 10, consumer: str = "", ack_deadline: float = 0) -> list[Delivery]:
        deadline_ns = int(ack_deadline * SECOND_NS)
        return self.engine.pull("q", count, self.now_ns, ack_deadline_ns=deadline_ns, consumer=consumer)

    def one(self) -> Delivery:
        (delivery,) = self.consume(1)
        return delivery

    def names(self, count: int = 10) -> list[str]:
        return [delivery.message.data.decode() for delivery in self.consume(count)]

    def ack(self, *deliveries: Delivery) -> list[str]:
        return self.engine.acknowledge("q", [delivery.ack_id for delivery in deliveries], self.now_ns)

    def nack(self, *deliveries: Delivery) -> list[str]:
        return self.engine.modify_ack_deadline("q", [delivery.ack_id for delivery in deliveries], 0, self.now_ns)

    def nack_for_good(self, *deliveries: Delivery) -> list[str]:
        return self.engine.reject("q", [delivery.ack_id for delivery in deliveries], self.now_ns)

    def release(self, *deliveries: Delivery) -> list[str]:
        return self.engine.release("q", [delivery.ack_id for delivery in deliveries], self.now_ns)

    def dead(self) -> list[tuple[str, DeadLetterReason]]:
        return [
            (message.data.decode(), letter.reason) for letter, message in self.engine.dead_letters("q", self.now_ns)
        ]

    @property
    def stats(self) -> Statistics:
        return self.engine.statistics("q", self.now_ns)

    def restarted(self) -> Queue:
        """Another engine that knows the facts alone, at the same time."""
        self.facts += self.engine.take_facts()
        again = Queue.__new__(Queue)
        again.engine, again.start, again.seconds, again.facts = Engine(), self.start, self.seconds, list(self.facts)
        for fact in self.facts:
            again.engine.replay(fact)
        again.engine.recovered(again.now_ns)
        again.engine.take_facts()
        return again


# ── order ───────────────────────────────────────────────────────────────────────────────────────────────────────────


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


# ── ageing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


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


# ── acknowledgement and its deadline ────────────────────────────────────────────────────────────────────────────────


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


# ── retries ─────────────────────────────────────────────────────────────────────────────────────────────────────────


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


# ── dead letters ────────────────────────────────────────────────────────────────────────────────────────────────────


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
    assert (message.data, message.attributes, message.priority) == (b"a", {"name": "a"}, 8)
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


# ── TTL and delay ───────────────────────────────────────────────────────────────────────────────────────────────────


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


# ── prefetch ────────────────────────────────────────────────────────────────────────────────────────────────────────


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


# ── capacity ────────────────────────────────────────────────────────────────────────────────────────────────────────


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


# ── purge and statistics ────────────────────────────────────────────────────────────────────────────────────────────


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


def test_average_wait_survives_a_restart_after_the_store_has_trimmed() -> None:
    queue = Queue()
    queue.publish("a", "b")
    queue.ack(*queue.at(2).consume())
    queue.publish("c")
    queue.at(5).one()
    queue.facts += queue.engine.take_facts()
    again = Engine()
    for fact in queue.facts:
        messages = getattr(fact, "messages", None)
        if messages:
            first, last = messages[0].sequence, messages[-1].sequence
            kept = [message for message in messages if message.sequence > 2]
            fact = type(fact)(fact.topic, fact.topic_number, kept, first, last)
        again.replay(fact)
    again.recovered(queue.now_ns)
    assert again.statistics("q", queue.now_ns).average_wait_ns == 3 * SECOND_NS


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


# ── restarts ────────────────────────────────────────────────────────────────────────────────────────────────────────


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
