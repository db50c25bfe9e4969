"""Defects that the model, the simulation or a reader found once, each as the shortest story that shows it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.broker.clock import SimulatedClock
from heliograph.broker.watches import SubscriptionWatch, Watches
from heliograph.engine.dead_letter import DeadLetterPolicy
from heliograph.engine.engine import Engine
from heliograph.engine.message import Delivery, Draft, Extras
from heliograph.engine.retry import RetryPolicy
from heliograph.engine.settings import SECOND_NS, Capacity, SubscriptionSettings, TopicSettings
from heliograph.errors import InvalidArgument, QueueFull, TopicNotFound
from heliograph.store.memory import MemoryStore
from heliograph.store.sqlite import SqliteStore
from heliograph.testing.faulty_store import FaultyStore
from tests.engine.invariants import check_engine, full_state, recovered

NOW_NS = 1_000 * SECOND_NS
TO_GRAVEYARD = DeadLetterPolicy("graveyard", 1)
KEPT = DeadLetterPolicy(None, 1)


def engine_with(**settings: object) -> Engine:
    """An engine with topic `t` and subscription `s`."""
    engine = Engine()
    engine.create_topic("t", TopicSettings(), NOW_NS)
    engine.create_subscription("s", "t", SubscriptionSettings(**settings), NOW_NS)  # type: ignore[arg-type]  # tests pass what they like
    return engine


def keyed(*payloads: bytes) -> list[Draft]:
    return [Draft(payload, ordering_key="k") for payload in payloads]


def ids(deliveries: list[Delivery]) -> list[str]:
    return [delivery.ack_id for delivery in deliveries]


def payloads(deliveries: list[Delivery]) -> list[bytes]:
    return [delivery.message.data for delivery in deliveries]


# ── the engine ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_messages_past_their_expiry_and_others_may_be_nacked_in_one_call() -> None:
    engine = engine_with()
    short = Extras(expires_at_ns=NOW_NS + SECOND_NS)
    engine.publish("t", [Draft(b"stays"), Draft(b"goes", extras=short)], NOW_NS)
    taken = ids(engine.pull("s", 2, NOW_NS))
    engine.modify_ack_deadline("s", taken, 0, NOW_NS + 2 * SECOND_NS)
    check_engine(engine)
    assert payloads(engine.pull("s", 2, NOW_NS + 2 * SECOND_NS)) == [b"stays"]


@pytest.mark.parametrize("settle", ["acknowledge", "reject"])
def test_a_delayed_message_whose_key_becomes_free_has_a_timer(settle: str) -> None:
    engine = engine_with(
        enable_message_ordering=True, dead_letter_policy=KEPT, prioritised=True, ack_deadline_ns=600 * SECOND_NS
    )
    delayed = Extras(available_at_ns=NOW_NS + 60 * SECOND_NS)
    engine.publish("t", [Draft(b"first", ordering_key="k"), Draft(b"second", ordering_key="k", extras=delayed)], NOW_NS)
    taken = ids(engine.pull("s", 1, NOW_NS))
    getattr(engine, settle)("s", taken, NOW_NS)
    assert payloads(engine.pull("s", 1, NOW_NS + 59 * SECOND_NS)) == []
    assert payloads(engine.pull("s", 1, NOW_NS + 60 * SECOND_NS)) == [b"second"]


def test_a_delay_that_passed_while_the_key_was_busy_does_not_hold_the_message_for_ever() -> None:
    engine = engine_with(enable_message_ordering=True, prioritised=True, ack_deadline_ns=600 * SECOND_NS)
    delayed = Extras(available_at_ns=NOW_NS + SECOND_NS)
    engine.publish("t", [Draft(b"first", ordering_key="k"), Draft(b"second", ordering_key="k", extras=delayed)], NOW_NS)
    taken = ids(engine.pull("s", 1, NOW_NS))
    engine.acknowledge("s", taken, NOW_NS + 2 * SECOND_NS)
    assert payloads(engine.pull("s", 1, NOW_NS + 2 * SECOND_NS)) == [b"second"]


def test_a_message_with_an_expiry_of_its_own_expires_also_where_nobody_ever_pulled() -> None:
    engine = engine_with(dead_letter_policy=KEPT)
    engine.publish("t", [Draft(b"a"), Draft(b"b", extras=Extras(expires_at_ns=NOW_NS + SECOND_NS))], NOW_NS)
    assert engine.next_deadline_ns() == NOW_NS + SECOND_NS
    assert engine.statistics("s", NOW_NS + SECOND_NS).dead_letters == 1
    assert payloads(engine.pull("s", 10, NOW_NS + SECOND_NS)) == [b"a"]


def test_a_delayed_message_is_counted_as_delayed_before_anybody_pulled() -> None:
    engine = engine_with()
    engine.publish("t", [Draft(b"a", extras=Extras(available_at_ns=NOW_NS + SECOND_NS))], NOW_NS)
    assert engine.purge("s", NOW_NS) == (0, 1)


def test_a_retried_dead_letter_with_a_key_survives_a_restart() -> None:
    engine = engine_with(enable_message_ordering=True, dead_letter_policy=KEPT)
    engine.publish("t", keyed(b"1", b"2"), NOW_NS)
    engine.reject("s", ids(engine.pull("s", 10, NOW_NS)), NOW_NS)
    engine.retry_dead_letters("s", None, NOW_NS)
    assert payloads(engine.pull("s", 10, NOW_NS)) == [b"2"]
    again = recovered(engine.take_facts(), NOW_NS, Engine())
    check_engine(again)
    assert full_state(again, NOW_NS) == full_state(engine, NOW_NS)


def test_a_retried_dead_letter_goes_before_the_younger_ones_of_its_key_that_still_wait() -> None:
    engine = engine_with(enable_message_ordering=True, dead_letter_policy=KEPT)
    engine.publish("t", keyed(b"1", b"2", b"3"), NOW_NS)
    engine.reject("s", ids(engine.pull("s", 10, NOW_NS)), NOW_NS)
    engine.retry_dead_letters("s", None, NOW_NS)
    order = []
    while deliveries := engine.pull("s", 10, NOW_NS):
        order += payloads(deliveries)
        engine.acknowledge("s", ids(deliveries), NOW_NS)
    assert order == [b"2", b"1", b"3"]


@pytest.mark.parametrize("keys", [("", ""), ("k", "k")])
def test_a_retried_dead_letter_keeps_a_delay_that_is_not_over_whether_or_not_it_has_a_key(
    keys: tuple[str, str],
) -> None:
    engine = engine_with(enable_message_ordering=True, dead_letter_policy=KEPT, ttl_ns=SECOND_NS)
    long = Extras(expires_at_ns=NOW_NS + 60 * SECOND_NS)
    delayed = Extras(available_at_ns=NOW_NS + 10 * SECOND_NS)
    drafts = [Draft(b"1", ordering_key=keys[0], extras=long), Draft(b"2", ordering_key=keys[1], extras=delayed)]
    engine.publish("t", drafts, NOW_NS)
    first = ids(engine.pull("s", 1, NOW_NS))
    now_ns = NOW_NS + 9 * SECOND_NS + SECOND_NS // 2
    assert engine.retry_dead_letters("s", None, now_ns) == 1
    engine.acknowledge("s", first, now_ns)
    assert payloads(engine.pull("s", 1, now_ns)) == []
    assert payloads(engine.pull("s", 1, NOW_NS + 10 * SECOND_NS)) == [b"2"]


def test_a_dead_letter_is_offered_for_forwarding_once_after_a_restart() -> None:
    engine = engine_with(dead_letter_policy=TO_GRAVEYARD)
    engine.publish("t", [Draft(b"a"), Draft(b"b")], NOW_NS)
    engine.reject("s", ids(engine.pull("s", 2, NOW_NS)), NOW_NS)
    engine.forwarded("s", [1])
    assert recovered(engine.take_facts(), NOW_NS, Engine()).forwards == [("s", 2)]


def test_the_first_message_may_exceed_the_callers_bytes_also_while_others_are_outstanding() -> None:
    engine = engine_with(outstanding_bytes_max=1_000)
    engine.publish("t", [Draft(b"a"), Draft(b"b" * 100), Draft(b"c")], NOW_NS)
    engine.pull("s", 1, NOW_NS)
    assert payloads(engine.pull("s", 2, NOW_NS, max_bytes=10)) == [b"b" * 100]


def test_a_message_delayed_twice_until_the_same_instant_is_ready_once() -> None:
    engine = engine_with(retry_policy=RetryPolicy(delays_ns=(2 * SECOND_NS,)))
    engine.publish("t", [Draft(b"a", extras=Extras(available_at_ns=NOW_NS + 3 * SECOND_NS))], NOW_NS - 10 * SECOND_NS)
    # in a replay nothing is promoted before it is leased, so the first delay leaves its mark
    subscription = engine.subscription("s")
    subscription.load(1)
    subscription._delayed.remove(1)  # type: ignore[union-attr]
    subscription._delay(1, NOW_NS + 3 * SECOND_NS)
    subscription.promote(NOW_NS + 3 * SECOND_NS)
    check_engine(engine)


@pytest.mark.parametrize(
    "extras",
    [
        Extras(available_at_ns=2**70),
        Extras(expires_at_ns=2**70),
        Extras(available_at_ns=-1),
        Extras(expires_at_ns=-1),
        Extras(max_delivery_attempts=-1),
        Extras(max_delivery_attempts=2**70),
    ],
)
def test_a_number_that_no_store_can_keep_is_refused(extras: Extras) -> None:
    engine = engine_with()
    with pytest.raises(InvalidArgument):
        engine.publish("t", [Draft(b"", extras=extras)], NOW_NS)


def test_a_publish_time_that_no_store_can_keep_is_refused() -> None:
    with pytest.raises(InvalidArgument):
        engine_with().publish("t", [Draft(b"", publish_time_ns=2**64)], NOW_NS)


@pytest.mark.parametrize("ack_deadline_ns", [-1, 601 * SECOND_NS, 2**70])
def test_an_ack_deadline_is_at_most_ten_minutes_and_never_negative(ack_deadline_ns: int) -> None:
    engine = engine_with()
    engine.publish("t", [Draft(b"")], NOW_NS)
    with pytest.raises(InvalidArgument):
        engine.pull("s", 1, NOW_NS, ack_deadline_ns=ack_deadline_ns)
    taken = ids(engine.pull("s", 1, NOW_NS))
    with pytest.raises(InvalidArgument):
        engine.modify_ack_deadline("s", taken, ack_deadline_ns, NOW_NS)


def test_half_a_surrogate_pair_is_refused_wherever_text_comes_in() -> None:
    engine = engine_with()
    engine.publish("t", [Draft(b"")], NOW_NS)
    broken = "\ud800"
    attempts = [
        lambda: engine.create_topic(broken, TopicSettings(), NOW_NS),
        lambda: engine.create_subscription(broken, "t", SubscriptionSettings(), NOW_NS),
        lambda: engine.create_topic("labelled", TopicSettings(labels={"a": broken}), NOW_NS),
        lambda: engine.create_subscription("labelled", "t", SubscriptionSettings(filter=broken), NOW_NS),
        lambda: engine.pull("s", 1, NOW_NS, consumer=broken),
        lambda: engine.publish("t", [Draft(b"", ordering_key=broken)], NOW_NS),
        lambda: engine.publish("t", [Draft(b"", attributes={"a": broken})], NOW_NS),
        lambda: engine.publish("t", [Draft(b"", attributes={broken: "a"})], NOW_NS),
        lambda: engine.publish("t", [Draft(b"", extras=Extras(content_type=broken))], NOW_NS),
    ]
    for attempt in attempts:
        with pytest.raises(InvalidArgument):
            attempt()
    assert engine.statistics("s", NOW_NS).ready == 1


def test_settings_that_no_store_can_keep_are_refused() -> None:
    engine = engine_with()
    with pytest.raises(InvalidArgument):
        engine.create_subscription("s2", "t", SubscriptionSettings(ttl_ns=2**70), NOW_NS)
    with pytest.raises(InvalidArgument):
        engine.create_subscription("s2", "t", SubscriptionSettings(retry_policy=RetryPolicy(2**70, 2**70)), NOW_NS)


@pytest.mark.parametrize("goes", ["purged", "expired"])
def test_a_long_queue_behind_one_key_goes_at_once(goes: str) -> None:
    engine = engine_with(enable_message_ordering=True, ttl_ns=60 * SECOND_NS)
    engine.publish("t", keyed(b"") * 40_000, NOW_NS)
    began = time.process_time()
    if goes == "purged":
        engine.purge("s", NOW_NS)
    else:
        engine.tick(NOW_NS + 60 * SECOND_NS)
    # it takes a tenth of a second; when each looked through all the others it took seven
    assert time.process_time() - began < 2
    assert engine.statistics("s", NOW_NS).ready == 0


def test_timers_of_deadlines_that_moved_do_not_pile_up() -> None:
    engine = engine_with(ttl_ns=1_000_000 * SECOND_NS)
    engine.publish("t", [Draft(b"")], NOW_NS)
    for second in range(2_000):  # each delay is the next deadline for a while, and then it is the expiry again
        now_ns = NOW_NS + second * SECOND_NS
        engine.publish("t", [Draft(b"", extras=Extras(available_at_ns=now_ns + 1))], now_ns)
        engine.tick(now_ns + 1)
    assert len(engine._timers) < 200


# ── the broker ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def broker(clock: SimulatedClock) -> Iterator[LocalBroker]:
    broker = LocalBroker(MemoryStore(), clock)
    broker.create_topic("t")
    yield broker
    broker.close()


def give_up(broker: LocalBroker, count: int = 1, subscription: str = "s") -> None:
    broker.reject(subscription, ids(broker.pull(subscription, count).result()))


def test_peeking_at_a_delayed_message_sets_the_timer_for_who_waits(broker: LocalBroker, clock: SimulatedClock) -> None:
    broker.create_subscription("s", "t", SubscriptionSettings(outstanding_messages_max=1))
    broker.publish("t", [Draft(b"a", extras=Extras(available_at_ns=clock.now_ns() + SECOND_NS))])
    broker.peek("s", 1)
    calls: list[str] = []
    broker.watch("s", lambda: calls.append("woken"))
    clock.advance(1)
    assert calls[-1:] == ["woken"]
    assert payloads(broker.pull("s", 1).result()) == [b"a"]


class LateClock(SimulatedClock):
    """A clock whose time can move before its timers get to run, as on a busy machine."""

    def jump(self, seconds: float) -> None:
        self._now_ns += round(seconds * 1e9)


@pytest.mark.parametrize(
    "question",
    [
        lambda broker: broker.statistics("s"),
        lambda broker: broker.peek("s", 1),
        lambda broker: broker.dead_letters("s"),
        lambda broker: broker.create_subscription("other", "t"),
        lambda broker: broker.create_queue("q", SubscriptionSettings()),
    ],
)
def test_who_waits_is_woken_whatever_operation_comes_before_the_timer(question: object) -> None:
    clock = LateClock()
    broker = LocalBroker(MemoryStore(), clock)
    broker.create_topic("t")
    broker.create_subscription("s", "t", SubscriptionSettings(ack_deadline_ns=SECOND_NS))
    broker.publish("t", [Draft(b"a")])
    broker.pull("s", 1)
    calls: list[str] = []
    broker.watch("s", lambda: calls.append("woken"))
    clock.jump(2)
    broker.statistics("s")  # ends the lease
    question(broker)  # type: ignore[operator]
    clock.advance(0)
    assert calls
    broker.close()


def test_a_refused_publish_does_not_keep_from_others_what_it_found_due() -> None:
    clock = LateClock()
    broker = LocalBroker(MemoryStore(), clock)
    broker.create_topic("t")
    broker.create_subscription("s", "t", SubscriptionSettings(ack_deadline_ns=SECOND_NS))
    broker.create_subscription("full", "t", SubscriptionSettings(capacity=Capacity(1, 0, refuse=True)))
    broker.publish("t", [Draft(b"a")])
    broker.pull("s", 1)
    calls: list[str] = []
    broker.watch("s", lambda: calls.append("woken"))
    clock.jump(2)
    with pytest.raises(QueueFull):
        broker.publish("t", [Draft(b"b")])
    broker.create_subscription("other", "t")
    assert calls
    broker.close()


def test_a_queue_whose_topic_is_gone_can_be_deleted(broker: LocalBroker) -> None:
    broker.create_queue("q", SubscriptionSettings())
    broker.delete_topic("queues/q")
    broker.delete_queue("q").result()
    assert broker.list_subscriptions() == []
    broker.create_queue("q", SubscriptionSettings()).result()


def test_a_dead_letter_that_waits_for_its_topic_arrives_there_once(broker: LocalBroker) -> None:
    broker.create_subscription("s", "t", SubscriptionSettings(dead_letter_policy=TO_GRAVEYARD))
    broker.publish("t", [Draft(b"a")])
    give_up(broker)
    broker.retry_dead_letters("s")
    give_up(broker)  # it waits for its topic a second time now
    broker.create_topic("graveyard")
    assert broker.get_topic("graveyard").next_sequence == 2


def test_dead_letters_of_a_restarted_broker_arrive_once(clock: SimulatedClock) -> None:
    store = MemoryStore(keep_facts=True)
    first = LocalBroker(store, clock)
    first.create_topic("t")
    first.create_subscription("s", "t", SubscriptionSettings(dead_letter_policy=TO_GRAVEYARD))
    first.publish("t", [Draft(b"a")])
    give_up(first)
    first.close()
    second = LocalBroker(store, clock)
    second.create_topic("graveyard")
    assert second.get_topic("graveyard").next_sequence == 2
    assert second.dead_letters("s") == []
    second.close()


def test_dead_letters_without_a_topic_cost_other_operations_nothing(broker: LocalBroker) -> None:
    broker.create_subscription("s", "t", SubscriptionSettings(dead_letter_policy=TO_GRAVEYARD))
    broker.publish("t", [Draft(b"a")] * 1_000)
    give_up(broker, 1_000)
    broker.publish("t", [Draft(b"b")])
    assert broker._engine.forwards == []
    broker.create_queue("other", SubscriptionSettings())
    broker.create_topic("graveyard")
    assert broker.get_topic("graveyard").next_sequence == 1_001
    assert broker.dead_letters("s") == []


def test_a_message_that_expires_does_not_chase_round_between_topics_without_end(
    broker: LocalBroker, clock: SimulatedClock
) -> None:
    settings = SubscriptionSettings(ttl_ns=SECOND_NS, dead_letter_policy=DeadLetterPolicy("t", 5))
    broker.create_subscription("s", "t", settings)
    broker.publish("t", [Draft(b"a")])
    clock.advance(10.5)
    assert broker.get_topic("t").next_sequence == 12


def test_a_dead_letter_whose_commit_failed_is_not_published_again() -> None:
    store = FaultyStore(MemoryStore(keep_facts=True))
    broker = LocalBroker(store, SimulatedClock())
    for topic in ("t", "graveyard"):
        broker.create_topic(topic)
    broker.create_subscription("s", "t", SubscriptionSettings(dead_letter_policy=TO_GRAVEYARD))
    broker.publish("t", [Draft(b"a")])
    taken = ids(broker.pull("s", 1).result())
    store.hold()
    store.fail_next()
    broker.reject("s", taken)
    store.release()
    store.retry()
    broker.publish("t", [Draft(b"b")])
    assert broker.get_topic("graveyard").next_sequence == 2
    assert broker.dead_letters("s") == []


def test_a_broker_that_closes_remembers_what_it_has_forwarded(tmp_path: Path) -> None:
    broker = LocalBroker(SqliteStore(tmp_path, durability="none"))
    for topic in ("t", "graveyard"):
        broker.create_topic(topic)
    broker.create_subscription("s", "t", SubscriptionSettings(dead_letter_policy=TO_GRAVEYARD)).result()
    broker.publish("t", [Draft(b"a")]).result()
    give_up(broker)
    broker.close()
    again = LocalBroker(SqliteStore(tmp_path, durability="none"))
    assert again.get_topic("graveyard").next_sequence == 2
    assert again.dead_letters("s") == []
    again.close()


def test_what_a_refused_operation_carried_out_survives_closing(clock: SimulatedClock) -> None:
    store = MemoryStore(keep_facts=True)
    broker = LocalBroker(store, clock)
    broker.create_topic("t")
    broker.create_subscription("s", "t")
    broker.publish("t", [Draft(b"a")])
    (ack_id,) = ids(broker.pull("s", 1).result())
    broker.acknowledge_later("s", ack_id)
    with pytest.raises(TopicNotFound):
        broker.publish("nowhere", [Draft(b"b")])  # carries out the acknowledgement, and fails
    broker.close()
    again = LocalBroker(store, clock)
    assert again.statistics("s").outstanding == 0
    again.close()


def test_who_waits_is_called_outside_the_brokers_lock_also_for_dead_letters(broker: LocalBroker) -> None:
    broker.create_topic("graveyard")
    broker.create_subscription("s", "t", SubscriptionSettings(dead_letter_policy=TO_GRAVEYARD))
    broker.create_subscription("graves", "graveyard")
    free: list[bool] = []

    def try_the_lock() -> None:
        def other_thread() -> None:
            free.append(broker._lock.acquire(timeout=10))
            if free[-1]:
                broker._lock.release()

        thread = threading.Thread(target=other_thread)
        thread.start()
        thread.join()

    broker.publish("t", [Draft(b"a")])
    broker.watch("graves", try_the_lock)
    broker.watch("s", try_the_lock)
    give_up(broker)
    assert free
    assert all(free)


def test_a_watch_that_closes_while_another_begins_does_not_take_it_along() -> None:
    watches = Watches()
    first = watches.add("s", lambda: None)

    class Slow(dict[str, tuple[SubscriptionWatch, ...]]):
        """Between the reading and the writing of `add`, somebody else closes the first watch."""

        closing: threading.Thread | None = None

        def get(self, key: str, default: object = None) -> tuple[SubscriptionWatch, ...]:  # type: ignore[override]
            found = super().get(key, ())
            if self.closing is None:
                self.closing = threading.Thread(target=first.close)
                self.closing.start()
                self.closing.join(0.2)
            return found

    slow = watches._by_subscription = Slow(watches._by_subscription)
    second = watches.add("s", lambda: None)
    assert slow.closing is not None
    slow.closing.join()
    assert watches.of(["s"]) == [second]


def test_a_failed_timer_call_is_not_the_last() -> None:
    """A daemon thread that dies silently would leave every lease to last for ever."""
    from heliograph.broker.clock import SystemClock

    clock, called = SystemClock(), threading.Event()
    answers = iter([RuntimeError("the first call fails")])

    def callback() -> None:
        for error in answers:
            raise error
        called.set()

    timer = clock.timer(callback)
    timer.set(clock.now_ns())
    for _ in range(100):
        timer.set(clock.now_ns())
        if called.wait(0.05):
            break
    timer.close()
    assert called.is_set()


def test_a_broker_without_a_memory_budget_starts_from_a_checkpoint(tmp_path: Path) -> None:
    """What a checkpoint tells of is in the store alone: the broker could not read it, and did not start."""
    store = SqliteStore(tmp_path, durability="none")
    broker = LocalBroker(store, SimulatedClock())
    broker.create_topic("t")
    broker.create_subscription("s", "t")
    broker.publish("t", [Draft(b"a"), Draft(b"b")])
    store.checkpoint(broker._engine.checkpoint())
    broker.close()
    again = LocalBroker(SqliteStore(tmp_path, durability="none"), SimulatedClock())
    assert [delivery.message.data for delivery in again.pull("s", 10).result()] == [b"a", b"b"]
    again.close()
