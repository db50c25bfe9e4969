"""The rules of delivery, on the engine alone. Time is a number here."""

from __future__ import annotations

import pytest

from heliograph.engine.dead_letter import DeadLetterPolicy, DeadLetterReason
from heliograph.engine.engine import Engine
from heliograph.engine.message import Draft
from heliograph.engine.retry import RetryPolicy
from heliograph.engine.settings import SECOND_NS, Capacity, TopicSettings
from heliograph.errors import (
    InvalidAckId,
    InvalidArgument,
    InvalidPriority,
    QueueFull,
    SubscriptionDetached,
    SubscriptionNotFound,
    TopicNotFound,
)
from tests.engine.bench import Bench


def test_a_message_is_delivered_once_while_its_lease_holds() -> None:
    bench = Bench()
    bench.publish("a", "b")
    assert bench.payloads() == ["a", "b"]
    assert bench.payloads() == []


def test_every_subscription_gets_its_own_copy() -> None:
    bench = Bench()
    bench.subscribe("s2")
    bench.publish("a")
    assert bench.payloads() == ["a"]
    assert bench.payloads(subscription="s2") == ["a"]


def test_an_acknowledged_message_is_gone_and_leaves_memory() -> None:
    bench = Bench()
    bench.publish("a")
    (delivery,) = bench.pull()
    assert bench.ack(delivery) == []
    bench.seconds += 1_000
    assert bench.payloads() == []
    assert bench.engine.topics["t"].log.get(1) is None


def test_a_message_stays_in_memory_until_its_last_subscription_has_acknowledged() -> None:
    bench = Bench()
    bench.subscribe("s2")
    bench.publish("a")
    bench.ack(*bench.pull())
    assert bench.payloads(subscription="s2") == ["a"]


def test_a_nacked_message_is_delivered_again_at_once_before_younger_ones() -> None:
    bench = Bench()
    bench.publish("a", "b", "c")
    first, _ = bench.pull(2)
    bench.nack(first)
    again, last = bench.pull()
    assert (again.message.data, again.attempt, last.message.data) == (b"a", 2, b"c")


def test_a_lease_that_ends_brings_the_message_back_at_its_deadline_not_before() -> None:
    bench = Bench(ack_deadline_ns=10 * SECOND_NS)
    bench.publish("a")
    bench.pull()
    bench.seconds += 9.999
    assert bench.payloads() == []
    bench.seconds += 0.001
    assert [delivery.attempt for delivery in bench.pull()] == [2]


def test_a_new_deadline_counts_from_now_and_may_be_shorter() -> None:
    bench = Bench(ack_deadline_ns=10 * SECOND_NS)
    bench.publish("a", "b")
    longer, shorter = bench.pull()
    bench.engine.modify_ack_deadline("s", [longer.ack_id], 60 * SECOND_NS, bench.now_ns)
    bench.engine.modify_ack_deadline("s", [shorter.ack_id], 1 * SECOND_NS, bench.now_ns)
    bench.seconds += 1
    assert bench.payloads() == ["b"]
    bench.seconds += 58.999
    assert bench.ack(longer) == []


def test_the_next_deadline_is_the_earliest_lease() -> None:
    bench = Bench(ack_deadline_ns=10 * SECOND_NS)
    assert bench.engine.next_deadline_ns() is None
    bench.publish("a")
    bench.pull()
    assert bench.engine.next_deadline_ns() == bench.now_ns + 10 * SECOND_NS


def test_only_the_latest_ack_id_of_a_message_is_valid() -> None:
    bench = Bench()
    bench.publish("a")
    (old,) = bench.pull()
    bench.nack(old)
    (new,) = bench.pull()
    assert bench.ack(old) == [old.ack_id]
    assert bench.ack(new) == []
    assert bench.ack(new) == [new.ack_id]


def test_an_ack_id_named_twice_in_one_call_counts_once() -> None:
    bench = Bench()
    bench.publish("a")
    (delivery,) = bench.pull()
    assert bench.ack(delivery, delivery) == [delivery.ack_id]


def test_an_ack_id_of_another_subscription_settles_nothing() -> None:
    bench = Bench()
    bench.subscribe("s2")
    bench.publish("a")
    (delivery,) = bench.pull()
    (other,) = bench.pull(subscription="s2")
    assert bench.ack(delivery, subscription="s2") == [delivery.ack_id]
    assert bench.ack(other, subscription="s2") == []


@pytest.mark.parametrize("ack_id", ["", "x", "1-2", "1-2-3-4", "1-2-x", "é-1-1"])
def test_a_malformed_ack_id_is_refused_and_nothing_is_acknowledged(ack_id: str) -> None:
    bench = Bench()
    bench.publish("a")
    (delivery,) = bench.pull()
    with pytest.raises(InvalidAckId) as caught:
        bench.engine.acknowledge("s", [delivery.ack_id, ack_id], bench.now_ns)
    assert caught.value.ack_ids == [ack_id]
    assert bench.ack(delivery) == []


def test_ordering_one_message_of_a_key_is_outstanding_others_are_not_blocked() -> None:
    bench = Bench(enable_message_ordering=True)
    bench.publish("k1", "k2", key="k")
    bench.publish("j1", key="j")
    bench.publish("free")
    deliveries = bench.pull()
    assert [delivery.message.data for delivery in deliveries] == [b"k1", b"j1", b"free"]
    bench.ack(deliveries[0])
    assert bench.payloads() == ["k2"]


def test_ordering_a_key_in_backoff_stays_blocked() -> None:
    bench = Bench(enable_message_ordering=True, retry_policy=RetryPolicy(10 * SECOND_NS, 600 * SECOND_NS))
    bench.publish("k1", "k2", key="k")
    bench.nack(*bench.pull())
    bench.seconds += 9.9
    assert bench.payloads() == []
    bench.seconds += 0.1
    assert bench.payloads() == ["k1"]


def test_order_within_a_key_outranks_priority() -> None:
    bench = Bench(enable_message_ordering=True, prioritised=True)
    bench.publish("low", key="k", priority=1)
    bench.publish("high", key="k", priority=9)
    (first,) = bench.pull()
    assert first.message.data == b"low"
    bench.ack(first)
    assert bench.payloads() == ["high"]


def test_priority_nine_is_delivered_first_and_equals_keep_their_order() -> None:
    bench = Bench(prioritised=True, default_priority=5)
    bench.publish("1a", priority=1)
    bench.publish("9a", priority=9)
    bench.publish("5a")
    bench.publish("9b", priority=9)
    assert bench.payloads() == ["9a", "9b", "5a", "1a"]


def test_a_returned_message_keeps_its_priority_and_its_place() -> None:
    bench = Bench(prioritised=True)
    bench.publish("a", "b", "c", priority=4)
    a, b = bench.pull(2)
    bench.nack(b)
    bench.nack(a)
    assert bench.payloads() == ["a", "b", "c"]


def test_br_015_backoff_doubles_up_to_the_maximum() -> None:
    bench = Bench(retry_policy=RetryPolicy(10 * SECOND_NS, 35 * SECOND_NS))
    bench.publish("a")
    for wait in (10, 20, 35, 35):
        bench.nack(*bench.pull())
        bench.seconds += wait - 0.5
        assert bench.payloads() == []
        bench.seconds += 0.5
    assert [delivery.attempt for delivery in bench.pull()] == [5]


def test_explicit_retry_delays_are_used_in_turn_and_the_last_is_repeated() -> None:
    bench = Bench(retry_policy=RetryPolicy(delays_ns=(1 * SECOND_NS, 6 * SECOND_NS)))
    bench.publish("a")
    for wait in (1, 6, 6):
        bench.nack(*bench.pull())
        bench.seconds += wait - 0.5
        assert bench.payloads() == []
        bench.seconds += 0.5


def test_an_expired_lease_waits_its_backoff_like_a_nack() -> None:
    bench = Bench(ack_deadline_ns=10 * SECOND_NS, retry_policy=RetryPolicy(5 * SECOND_NS, 5 * SECOND_NS))
    bench.publish("a")
    bench.pull()
    bench.seconds += 10
    assert bench.payloads() == []
    bench.seconds += 5
    assert bench.payloads() == ["a"]


def test_a_message_is_given_up_after_exactly_its_delivery_attempts() -> None:
    bench = Bench(dead_letter_policy=DeadLetterPolicy(None, 5))
    bench.publish("a")
    for attempt in range(1, 6):
        (delivery,) = bench.pull()
        assert delivery.attempt == attempt
        bench.nack(delivery)
    assert bench.pull() == []
    ((letter, message),) = bench.engine.dead_letters("s", bench.now_ns)
    assert (letter.reason, letter.failures, message.data) == (DeadLetterReason.MAX_RETRIES_EXCEEDED, 5, b"a")


@pytest.mark.parametrize("priority", [-1, 10])
def test_a_priority_outside_0_to_9_is_an_invalid_priority_and_changes_nothing(priority: int) -> None:
    bench = Bench()
    with pytest.raises(InvalidPriority):
        bench.publish("a", priority=priority)
    with pytest.raises(InvalidPriority):
        bench.subscribe("other", default_priority=priority)
    assert (bench.payloads(), list(bench.engine.subscriptions)) == ([], ["s"])


def test_a_nack_tells_which_messages_it_gave_up_and_which_ids_were_not_current() -> None:
    bench = Bench(dead_letter_policy=DeadLetterPolicy(None, 3))
    bench.publish("a", max_delivery_attempts=1)
    bench.publish("b")
    bench.publish("c", expires_at_ns=bench.now_ns + 5 * SECOND_NS)
    deliveries = bench.pull()
    bench.seconds += 6
    ack_ids = [delivery.ack_id for delivery in deliveries]
    settled = bench.engine.nack("s", [*ack_ids, ack_ids[0]], bench.now_ns)
    assert settled == ([ack_ids[0]], [deliveries[0].message_id, deliveries[2].message_id])


def test_dead_letters_are_listed_in_parts() -> None:
    bench = Bench(dead_letter_policy=DeadLetterPolicy(None, 1))
    bench.publish("a", "b", "c", "d")
    bench.nack(*bench.pull())
    parts = [
        bench.engine.dead_letters("s", bench.now_ns, offset=offset, limit=limit)
        for offset, limit in ((0, 2), (1, 2), (3, 9), (4, 1), (1, None), (0, 0))
    ]
    told = ["".join(message.data.decode() for _, message in part) for part in parts]
    assert told == ["ab", "bc", "d", "", "bcd", ""]


def test_a_dead_letter_for_a_topic_is_offered_for_forwarding_and_leaves_when_it_is_durable_there() -> None:
    bench = Bench(dead_letter_policy=DeadLetterPolicy("dead", 1))
    bench.publish("a")
    bench.nack(*bench.pull())
    assert bench.engine.forwards == [("s", 1)]
    assert bench.engine.topics["t"].log.get(1) is not None
    bench.engine.forwarded("s", [1])
    assert bench.engine.topics["t"].log.get(1) is None


def test_a_key_goes_on_after_its_message_was_given_up() -> None:
    bench = Bench(enable_message_ordering=True, dead_letter_policy=DeadLetterPolicy(None, 1))
    bench.publish("k1", "k2", key="k")
    bench.nack(*bench.pull())
    assert bench.payloads() == ["k2"]


def test_a_released_message_does_not_count_as_failed() -> None:
    bench = Bench(dead_letter_policy=DeadLetterPolicy(None, 1))
    bench.publish("a")
    (delivery,) = bench.pull()
    bench.engine.release("s", [delivery.ack_id], bench.now_ns)
    (again,) = bench.pull()
    assert (again.attempt, again.ack_id == delivery.ack_id) == (1, False)


def test_a_rejected_message_is_a_dead_letter_at_once() -> None:
    bench = Bench(dead_letter_policy=DeadLetterPolicy(None, 4))
    bench.publish("a")
    (delivery,) = bench.pull()
    bench.engine.reject("s", [delivery.ack_id], bench.now_ns)
    ((letter, _),) = bench.engine.dead_letters("s", bench.now_ns)
    assert letter.reason is DeadLetterReason.EXPLICIT_NACK


def test_retried_dead_letters_start_afresh() -> None:
    bench = Bench(dead_letter_policy=DeadLetterPolicy(None, 1))
    bench.publish("a")
    bench.nack(*bench.pull())
    assert bench.engine.retry_dead_letters("s", None, bench.now_ns) == 1
    (delivery,) = bench.pull()
    assert (delivery.attempt, bench.engine.dead_letters("s", bench.now_ns)) == (1, [])


def test_dead_letters_beyond_the_bound_go_oldest_first_and_are_counted() -> None:
    bench = Bench(dead_letter_policy=DeadLetterPolicy(None, 1, kept_max=2))
    bench.publish("a", "b", "c")
    bench.nack(*bench.pull())
    assert [message.data for _, message in bench.engine.dead_letters("s", bench.now_ns)] == [b"b", b"c"]
    assert bench.engine.statistics("s", bench.now_ns).totals.dead_letters_dropped == 1


def test_ttl_takes_effect_on_its_due_second_also_behind_a_message_without_ttl() -> None:
    bench = Bench(prioritised=True, dead_letter_policy=DeadLetterPolicy(None, 4))
    bench.publish("stays")
    bench.publish("goes", expires_at_ns=bench.now_ns + 5 * SECOND_NS)
    bench.seconds += 4.9
    assert bench.engine.dead_letters("s", bench.now_ns) == []
    bench.seconds += 0.1
    ((letter, message),) = bench.engine.dead_letters("s", bench.now_ns)
    assert (letter.reason, message.data) == (DeadLetterReason.TTL_EXPIRED, b"goes")
    assert bench.payloads() == ["stays"]


def test_ttl_never_ends_a_message_while_it_is_leased_but_when_it_comes_back() -> None:
    bench = Bench(prioritised=True, dead_letter_policy=DeadLetterPolicy(None, 4), ack_deadline_ns=60 * SECOND_NS)
    bench.publish("a", expires_at_ns=bench.now_ns + 5 * SECOND_NS)
    (delivery,) = bench.pull()
    bench.seconds += 10
    assert bench.engine.dead_letters("s", bench.now_ns) == []
    bench.nack(delivery)
    assert [letter.reason for letter, _ in bench.engine.dead_letters("s", bench.now_ns)] == [
        DeadLetterReason.TTL_EXPIRED
    ]


def test_a_short_delay_is_not_stuck_behind_a_long_one() -> None:
    bench = Bench(prioritised=True)
    bench.publish("long", available_at_ns=bench.now_ns + 100 * SECOND_NS)
    bench.publish("short", available_at_ns=bench.now_ns + 1 * SECOND_NS)
    bench.seconds += 1
    assert bench.payloads() == ["short"]


def test_br_022_a_full_subscription_drops_the_newcomer_for_itself_alone() -> None:
    bench = Bench(capacity=Capacity(2, 1_000))
    bench.subscribe("roomy")
    bench.publish("a", "b", "c")
    assert bench.payloads(subscription="roomy") == ["a", "b", "c"]
    first, _ = bench.pull()
    assert bench.engine.statistics("s", bench.now_ns).totals.dropped == 1
    bench.publish("d")
    bench.ack(first)
    bench.publish("e")
    assert bench.payloads() == ["e"]


def test_br_022_capacity_counts_bytes_too() -> None:
    bench = Bench(capacity=Capacity(100, 10))
    bench.publish("123456", "78901", "2")
    assert bench.payloads() == ["123456"]


def test_a_full_queue_refuses_the_publisher_and_stores_nothing() -> None:
    bench = Bench(prioritised=True, capacity=Capacity(2, 1_000, refuse=True))
    bench.publish("a")
    with pytest.raises(QueueFull):
        bench.publish("b", "c")
    assert bench.payloads() == ["a"]
    bench.publish("b", "c")  # a leased message does not count


def test_br_013_flow_control_holds_back_by_count_and_by_bytes() -> None:
    by_count = Bench(outstanding_messages_max=2)
    by_count.publish("a", "b", "c")
    first, _ = by_count.pull()
    assert by_count.payloads() == []
    by_count.ack(first)
    assert by_count.payloads() == ["c"]
    by_bytes = Bench(outstanding_bytes_max=10)
    by_bytes.publish("12345", "67890", "1")
    assert by_bytes.payloads() == ["12345", "67890"]
    assert by_bytes.payloads() == []


def test_a_message_larger_than_the_byte_limit_is_delivered_alone() -> None:
    bench = Bench(outstanding_bytes_max=10)
    bench.publish("x" * 100, "y")
    assert bench.payloads() == ["x" * 100]
    assert bench.payloads() == []


def test_prefetch_bounds_what_one_consumer_holds() -> None:
    bench = Bench(prefetch=2)
    bench.publish("a", "b", "c")
    held = bench.pull(consumer="one")
    assert len(held) == 2
    assert bench.pull(consumer="one") == []
    assert len(bench.pull(consumer="two")) == 1
    bench.ack(held[0])
    bench.publish("d")
    assert len(bench.pull(consumer="one")) == 1


def test_deleting_a_topic_leaves_its_subscriptions_and_with_clearing_takes_their_messages() -> None:
    for clears in (True, False):
        bench = Bench()
        bench.publish("a")
        bench.engine.delete_topic("t", clears_backlog=clears, now_ns=bench.now_ns)
        assert bench.engine.subscriptions["s"].detached == clears
        if clears:
            with pytest.raises(SubscriptionDetached):
                bench.pull()
        else:
            assert bench.payloads() == ["a"]


def test_deleting_a_subscription_frees_what_only_it_held() -> None:
    bench = Bench()
    bench.subscribe("s2")
    bench.publish("a")
    bench.ack(*bench.pull())
    bench.engine.delete_subscription("s2")
    assert bench.engine.topics["t"].log.get(1) is None
    with pytest.raises(SubscriptionNotFound):
        bench.pull(subscription="s2")


def test_purge_takes_what_waits_and_leaves_what_is_leased() -> None:
    bench = Bench(prioritised=True)
    bench.publish("leased", "ready", "ready too")
    bench.publish("delayed", available_at_ns=bench.now_ns + SECOND_NS)
    (leased,) = bench.pull(1)
    assert bench.engine.purge("s", bench.now_ns) == (2, 1)
    bench.seconds += 2
    assert bench.payloads() == []
    bench.nack(leased)
    assert bench.payloads() == ["leased"]


def test_publishing_validates_everything_before_it_stores_anything() -> None:
    bench = Bench()
    with pytest.raises(InvalidArgument):
        bench.engine.publish("t", [Draft(b"good"), Draft(b"bad", {"goog-x": "1"})], bench.now_ns)
    with pytest.raises(InvalidArgument, match="Message size exceeds maximum of 10MB"):
        bench.engine.publish("t", [Draft(b"good"), Draft(b"x" * (10 * 1024 * 1024 + 1))], bench.now_ns)
    with pytest.raises(TopicNotFound):
        bench.engine.publish("nowhere", [Draft(b"x")], bench.now_ns)
    assert bench.payloads() == []


def test_message_ids_are_unique_across_topics_and_grow_within_one() -> None:
    bench = Bench()
    bench.engine.create_topic("other", TopicSettings(), bench.now_ns)
    ids = bench.publish("a", "b") + bench.engine.publish("other", [Draft(b"c")], bench.now_ns)
    assert len(set(ids)) == 3
    assert int(ids[0]) < int(ids[1])


def test_replaying_the_facts_gives_the_same_state() -> None:
    bench = Bench(enable_message_ordering=True, dead_letter_policy=DeadLetterPolicy(None, 2))
    bench.publish("k1", "k2", "k3", key="k")
    bench.publish("a", "b")
    deliveries = bench.pull()
    bench.nack(deliveries[0])
    bench.ack(deliveries[1])
    bench.nack(*bench.pull())
    recovered = Engine()
    for fact in bench.engine.take_facts():
        recovered.replay(fact)
    recovered.recovered(bench.now_ns)
    live, again = bench.engine.subscriptions["s"], recovered.subscriptions["s"]
    assert again.unacknowledged() == live.unacknowledged()
    assert again.statistics() == live.statistics()
    assert again.leases.by_sequence == live.leases.by_sequence
    assert recovered.next_deadline_ns() == bench.engine.next_deadline_ns()


def test_a_pull_may_forbid_a_first_message_that_is_larger_than_its_bytes() -> None:
    bench = Bench()
    bench.publish("x" * 100, "y")
    assert bench.pull(max_bytes=10, oversized_first=False) == []
    assert len(bench.pull(max_bytes=10)) == 1
    assert bench.pull(max_bytes=10, oversized_first=False)[0].message.data == b"y"


def test_a_subscription_that_begins_to_drop_is_told_of_once_until_it_has_room_again() -> None:
    bench = Bench(capacity=Capacity(messages=10, bytes=1_000))
    bench.publish(*"0123456789")
    assert bench.engine.filled == []
    bench.publish("a")
    bench.publish("b")
    assert bench.engine.filled == ["s"]
    bench.ack(*bench.pull(1))
    bench.publish("c", "d")  # at its limit all the time: nothing new to tell
    assert bench.engine.filled == ["s"]
    bench.ack(*bench.pull(5))
    bench.publish("e")
    bench.publish(*"fghijk")
    assert bench.engine.filled == ["s", "s"]


def test_an_ack_id_leads_to_its_subscription() -> None:
    bench = Bench()
    bench.publish("a")
    (delivery,) = bench.pull()
    assert bench.engine.subscription_of(delivery.ack_id) == "s"
    bench.engine.delete_subscription("s")
    for ack_id in (delivery.ack_id, "9-9-9", "nonsense", ""):
        with pytest.raises(InvalidAckId, match=f"Invalid ack ID: {ack_id}"):
            bench.engine.subscription_of(ack_id)
