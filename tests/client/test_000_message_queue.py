"""Spec 000, MessageQueue: every requirement and acceptance criterion, by number. Time is a number here."""

from __future__ import annotations

import logging
import threading
from datetime import datetime

import pytest

from heliograph import (
    AlreadyExists,
    InternalMessage,
    InvalidAckId,
    InvalidArgument,
    LocalBroker,
    MessageQueue,
    MessageTooLarge,
    SimulatedClock,
    SubscriptionMetadata,
    SubscriptionNotFound,
    TopicNotFound,
)
from heliograph.engine.limits import MIB

HELLO = InternalMessage(
    id="msg-1",
    data=b"Hello",
    attributes={},
    publish_time=datetime.now().astimezone(),
    ordering_key=None,
    delivery_attempt=1,
)


class Bench:
    """A queue with topic `test-topic`, subscription `test-sub`, and a clock that stands until it is moved."""

    def __init__(self, **options: object) -> None:
        self.clock = SimulatedClock()
        self.queue = MessageQueue(LocalBroker(clock=self.clock))
        self.queue.register_topic("test-topic")
        self.queue.register_subscription("test-sub", "test-topic", **options)

    def publish(self, *payloads: str, key: str | None = None) -> list[str]:
        messages = [InternalMessage(data=payload.encode(), ordering_key=key) for payload in payloads]
        return self.queue.publish("test-topic", messages)

    def pull(self, count: int = 10, subscription: str = "test-sub") -> list[InternalMessage]:
        return self.queue.pull(subscription, count)

    def data(self, count: int = 10, subscription: str = "test-sub") -> list[str]:
        return [message.data.decode() for message in self.pull(count, subscription)]

    def ack(self, *messages: InternalMessage) -> None:
        for message in messages:
            self.queue.ack(message.ack_id)

    def nack(self, *messages: InternalMessage) -> None:
        for message in messages:
            self.queue.nack(message.ack_id)


# ── requirements ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_000_br_001_there_is_one_instance_whichever_thread_asks_first() -> None:
    MessageQueue._instance = None
    found: list[MessageQueue] = []
    barrier = threading.Barrier(8)

    def ask() -> None:
        barrier.wait()
        found.append(MessageQueue.get_instance())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(map(id, found))) == 1


def test_000_br_001_resetting_the_instance_empties_it() -> None:
    queue = MessageQueue.get_instance()
    queue.register_topic("test-topic")
    MessageQueue.reset_instance()
    assert MessageQueue.get_instance().get_all_topics() == []
    assert queue.get_all_topics() == []


def test_000_br_002_a_registered_topic_is_known_with_its_time_of_creation() -> None:
    bench = Bench()
    topic = bench.queue.get_topic("test-topic")
    assert topic is not None
    assert topic.name == "test-topic"
    assert topic.created.timestamp() == bench.clock.now_ns() / 1e9
    assert bench.queue.get_all_topics() == [topic]


def test_000_br_002_a_topic_is_registered_once() -> None:
    with pytest.raises(AlreadyExists, match="Topic already exists: test-topic") as failure:
        Bench().queue.register_topic("test-topic")
    assert failure.value.code == 6


def test_000_br_003_publishing_gives_ids_and_a_publish_time_to_the_nanosecond() -> None:
    bench = Bench()
    bench.clock.advance(0.000000123)
    ids = bench.publish("a", "b")
    messages = bench.pull()
    assert [message.id for message in messages] == ids
    assert len(set(ids)) == 2
    publish_time = messages[0].publish_time
    assert publish_time is not None
    assert publish_time.nanosecond == 123  # type: ignore[attr-defined]  # a DatetimeWithNanoseconds


def test_000_br_003_ids_are_unique_across_topics() -> None:
    bench = Bench()
    bench.queue.register_topic("other")
    assert bench.publish("a") != bench.queue.publish("other", [HELLO])


def test_000_br_004_what_is_published_without_subscriptions_is_gone() -> None:
    bench = Bench()
    bench.queue.register_topic("lonely")
    assert len(bench.queue.publish("lonely", [HELLO, HELLO])) == 2
    bench.queue.register_subscription("late", "lonely")
    assert bench.data(subscription="late") == []


def test_000_br_005_a_pull_leases_up_to_so_many_messages_each_with_its_own_ack_id() -> None:
    bench = Bench()
    bench.publish("a", "b", "c")
    first = bench.pull(2)
    assert [message.data for message in first] == [b"a", b"b"]
    assert len({message.ack_id for message in first}) == 2
    assert bench.data() == ["c"]
    assert bench.data() == []


def test_000_br_006_an_acknowledged_message_is_gone_for_good() -> None:
    bench = Bench()
    bench.publish("a")
    bench.ack(*bench.pull())
    bench.clock.advance(1_000)
    assert bench.data() == []
    assert bench.queue.statistics("test-sub").outstanding == 0


def test_000_br_007_a_nacked_message_is_ready_at_once_with_the_next_attempt() -> None:
    bench = Bench()
    bench.publish("a")
    for attempt in (1, 2, 3):
        (message,) = bench.pull()
        assert message.delivery_attempt == attempt
        bench.nack(message)


@pytest.mark.parametrize(("options", "seconds"), [({}, 10), ({"ack_deadline_seconds": 600}, 600)])
def test_000_br_008_a_lease_ends_at_its_deadline_and_counts_as_an_attempt(
    options: dict[str, int], seconds: int
) -> None:
    bench = Bench(**options)
    bench.publish("a")
    bench.pull()
    bench.clock.advance(seconds - 0.001)
    assert bench.pull() == []
    bench.clock.advance(0.001)
    assert bench.pull()[0].delivery_attempt == 2


def test_000_br_008_leases_end_without_anybody_calling() -> None:
    bench = Bench()
    bench.publish("a")
    bench.pull()
    woken: list[bool] = []
    bench.queue.broker.watch("test-sub", lambda: woken.append(True))
    bench.clock.advance(10)
    assert woken == [True]


@pytest.mark.parametrize("seconds", [1, 9.99, 601, -1])
def test_000_br_008_ack_deadlines_are_ten_to_six_hundred_seconds(seconds: float) -> None:
    queue = Bench().queue
    with pytest.raises(InvalidArgument, match="Ack deadline must be between 10 and 600 seconds"):
        queue.register_subscription("other", "test-topic", ack_deadline_seconds=seconds)
    assert not queue.subscription_exists("other")


def test_000_br_009_a_deadline_counts_from_now_and_can_be_moved_again_and_again() -> None:
    bench = Bench()
    bench.publish("a")
    (message,) = bench.pull()
    for _ in range(5):
        bench.clock.advance(9)
        bench.queue.modify_ack_deadline(message.ack_id, 10)
    bench.clock.advance(9.999)
    assert bench.pull() == []
    bench.clock.advance(0.001)
    assert bench.pull()[0].delivery_attempt == 2


def test_000_br_009_a_deadline_of_zero_is_a_nack() -> None:
    bench = Bench()
    bench.publish("a")
    bench.queue.modify_ack_deadline(bench.pull()[0].ack_id, 0)
    assert bench.pull()[0].delivery_attempt == 2


@pytest.mark.parametrize("seconds", [-1, 600.1, float("nan"), float("inf"), "10", None, True])
def test_000_br_009_a_deadline_out_of_bounds_is_refused_and_changes_nothing(seconds: float) -> None:
    bench = Bench()
    bench.publish("a")
    (message,) = bench.pull()
    with pytest.raises(InvalidArgument, match=r"^Ack deadline must be between 0 and 600 seconds$"):
        bench.queue.modify_ack_deadline(message.ack_id, seconds)
    bench.ack(message)


def test_000_br_010_keys_go_one_at_a_time_beside_each_other_and_block_nobody_else() -> None:
    bench = Bench(message_ordering=True)
    bench.publish("a1", "a2", key="a")
    bench.publish("b1", "b2", key="b")
    bench.publish("x", "y")
    first = bench.pull()
    assert sorted(message.data for message in first) == [b"a1", b"b1", b"x", b"y"]
    assert bench.pull() == []
    bench.ack(*[message for message in first if message.data == b"a1"])
    assert bench.data() == ["a2"]


def test_000_br_011_deleting_a_subscription_drops_its_messages_and_leases() -> None:
    bench = Bench()
    bench.publish("a", "b")
    (message,) = bench.pull(1)
    bench.queue.unregister_subscription("test-sub")
    assert bench.queue.get_subscription("test-sub") is None
    with pytest.raises(InvalidAckId):
        bench.ack(message)
    bench.queue.register_subscription("test-sub", "test-topic")
    bench.clock.advance(1_000)
    assert bench.data() == []


def test_000_br_012_deleting_a_topic_detaches_its_subscriptions_and_clears_their_messages() -> None:
    bench = Bench()
    bench.publish("a")
    bench.queue.unregister_topic("test-topic")
    subscription = bench.queue.get_subscription("test-sub")
    assert subscription is not None
    assert subscription.detached
    assert bench.data() == []


def test_000_br_013_flow_control_by_messages_returns_none_until_there_is_room() -> None:
    bench = Bench(flow_control={"maxMessages": 2})
    bench.publish("a", "b", "c")
    first = bench.pull()
    assert [message.data for message in first] == [b"a", b"b"]
    assert bench.pull() == []
    bench.ack(first[0])
    assert bench.data() == ["c"]


def test_000_br_013_flow_control_by_bytes_returns_none_until_there_is_room() -> None:
    bench = Bench(flow_control={"max_bytes": 1024})
    bench.publish("a" * 512, "b" * 512, "c" * 512)
    first = bench.pull()
    assert len(first) == 2
    assert bench.pull() == []
    bench.nack(first[1])
    assert len(bench.pull()) == 1


def test_000_br_013_a_message_larger_than_the_limit_is_delivered_alone() -> None:
    bench = Bench(flow_control={"max_bytes": 10})
    bench.publish("a" * 100, "b")
    (large,) = bench.pull()
    assert large.length == 100
    assert bench.pull() == []
    bench.ack(large)
    assert bench.data() == ["b"]


def test_000_br_014_messages_and_bytes_in_flight_are_counted() -> None:
    bench = Bench()
    bench.publish("12345", "123", "1")
    messages = bench.pull()
    statistics = bench.queue.statistics("test-sub")
    assert (statistics.outstanding, statistics.outstanding_bytes) == (3, 9)
    bench.ack(messages[0])
    bench.nack(messages[1])
    statistics = bench.queue.statistics("test-sub")
    assert (statistics.outstanding, statistics.outstanding_bytes) == (1, 1)


@pytest.mark.parametrize("nacked", [True, False])
def test_000_br_015_backoff_doubles_up_to_the_maximum(nacked: bool) -> None:
    bench = Bench(retry_policy={"minimumBackoff": 2, "maximumBackoff": 7})
    bench.publish("a")
    for backoff in (2, 4, 7, 7):
        (message,) = bench.pull()
        if nacked:
            bench.nack(message)
        else:
            bench.clock.advance(10)
        bench.clock.advance(backoff - 0.001)
        assert bench.pull() == []
        bench.clock.advance(0.001)


def test_000_br_015_without_a_policy_redelivery_is_immediate() -> None:
    bench = Bench()
    bench.publish("a")
    bench.nack(*bench.pull())
    assert bench.data() == ["a"]


def test_000_br_016_after_its_last_attempt_a_message_goes_to_the_dead_letter_topic_as_it_was() -> None:
    bench = Bench(dead_letter_policy={"deadLetterTopic": "graveyard", "maxDeliveryAttempts": 2})
    bench.queue.register_topic("graveyard")
    bench.queue.register_subscription("mourner", "graveyard")
    bench.queue.publish("test-topic", [{"data": b"a", "attributes": {"k": "v"}, "orderingKey": "o"}])
    (original,) = bench.pull()
    bench.nack(original)
    assert bench.pull(subscription="mourner") == []
    bench.clock.advance(1)
    bench.nack(*bench.pull())
    assert bench.pull() == []
    (dead,) = bench.pull(subscription="mourner")
    assert (dead.data, dead.attributes, dead.ordering_key) == (b"a", {"k": "v"}, "o")
    assert dead.publish_time == original.publish_time


def test_000_br_016_an_expired_lease_counts_as_an_attempt() -> None:
    bench = Bench(dead_letter_policy={"dead_letter_topic": "graveyard", "max_delivery_attempts": 1})
    bench.queue.register_topic("graveyard")
    bench.queue.register_subscription("mourner", "graveyard")
    bench.publish("a")
    bench.pull()
    bench.clock.advance(10)
    assert bench.data(subscription="mourner") == ["a"]
    assert bench.pull() == []


BAD_MESSAGES = {
    "data above 10 MB": {"data": bytes(10 * MIB + 1)},
    "data and attributes above 10 MB": {"data": bytes(10 * MIB - 1), "attributes": {"k": "v"}},
    "a key of 257 bytes": {"data": b"", "attributes": {"k" * 257: "v"}},
    "a key of 258 bytes in 129 letters": {"data": b"", "attributes": {"é" * 129: "v"}},
    "a value of 1025 bytes": {"data": b"", "attributes": {"k": "v" * 1025}},
    "an empty key": {"data": b"", "attributes": {"": "v"}},
    "a reserved key": {"data": b"", "attributes": {"googclient_x": "v"}},
    "a key of another reserved prefix": {"data": b"", "attributes": {"google": "v"}},
    "a value that is no string": {"data": b"", "attributes": {"k": 1}},
    "a key that is no string": {"data": b"", "attributes": {1: "v"}},
    "a value that is no text": {"data": b"", "attributes": {"k": "\ud800"}},
    "attributes that are no mapping": {"data": b"", "attributes": ["k"]},
    "text where bytes belong": {"data": "text"},
    "a number where bytes belong": {"data": 5},
    "no data": {"attributes": {"k": "v"}},
    "an ordering key that is no string": {"data": b"", "ordering_key": 5},
    "an ordering key that is no text": {"data": b"", "ordering_key": "\udfff"},
    "an ordering key of 1025 bytes": {"data": b"", "ordering_key": "k" * 1025},
    "a field that does not exist": {"data": b"", "atributes": {}},
    "no message": None,
}


@pytest.mark.parametrize("name", BAD_MESSAGES)
def test_000_br_017_a_bad_message_is_refused_with_all_that_came_with_it(name: str) -> None:
    bench = Bench()
    with pytest.raises(InvalidArgument) as failure:
        bench.queue.publish("test-topic", [HELLO, BAD_MESSAGES[name]])  # type: ignore[list-item]  # bad on purpose
    assert failure.value.code == 3
    assert bench.pull() == []


def test_000_br_017_ten_megabytes_are_allowed_and_one_byte_more_is_not() -> None:
    bench = Bench()
    bench.publish("x" * (10 * MIB))
    with pytest.raises(MessageTooLarge, match=r"^Message size exceeds maximum of 10MB$") as failure:
        bench.publish("x" * (10 * MIB + 1))
    assert failure.value.code == 3


def test_000_br_017_the_longest_attributes_are_allowed() -> None:
    bench = Bench()
    bench.queue.publish("test-topic", [{"data": b"", "attributes": {"k" * 256: "v" * 1024}}])
    assert bench.pull()[0].attributes == {"k" * 256: "v" * 1024}


def test_000_br_018_only_the_ack_id_of_the_current_delivery_is_valid() -> None:
    bench = Bench()
    bench.publish("a")
    (first,) = bench.pull()
    bench.nack(first)
    (second,) = bench.pull()
    assert first.ack_id != second.ack_id
    for use in (bench.ack, bench.nack):
        with pytest.raises(InvalidAckId, match=f"^Invalid ack ID: {first.ack_id}$") as failure:
            use(first)
        assert failure.value.code == 3
    bench.ack(second)


def test_000_br_018_an_expired_or_unknown_ack_id_is_invalid_for_every_use() -> None:
    bench = Bench()
    bench.publish("a")
    (message,) = bench.pull()
    bench.clock.advance(10)
    for bad in (message.ack_id, "abc123", "", "1-2", "1-2-3-4", "9-9-9", "x-y-z"):
        for use in (bench.queue.ack, bench.queue.nack, lambda bad: bench.queue.modify_ack_deadline(bad, 20)):
            with pytest.raises(InvalidAckId, match=f"^Invalid ack ID: {bad}$"):
                use(bad)


def test_000_br_018_an_ack_id_belongs_to_its_subscription() -> None:
    bench = Bench()
    bench.queue.register_subscription("other", "test-topic")
    bench.publish("a")
    (mine,), (theirs,) = bench.pull(), bench.pull(subscription="other")
    assert mine.ack_id != theirs.ack_id
    bench.ack(mine)
    assert bench.queue.statistics("other").outstanding == 1


def test_000_br_019_the_oldest_is_delivered_first_also_after_a_nack() -> None:
    bench = Bench()
    bench.publish("a", "b", "c")
    first, second = bench.pull(2)
    bench.nack(second)
    bench.nack(first)
    assert bench.data() == ["a", "b", "c"]


def test_000_br_020_nothing_is_kept_of_settled_leases() -> None:
    bench = Bench()
    for _ in range(50):
        bench.publish(*["x"] * 100)
        messages = bench.pull(100)
        bench.nack(*messages[:50])
        bench.ack(*messages[50:], *bench.pull(100))
    statistics = bench.queue.statistics("test-sub")
    assert (statistics.outstanding, statistics.ready) == (0, 0)
    broker = bench.queue.broker
    assert isinstance(broker, LocalBroker)
    subscription = broker._engine.subscriptions["test-sub"]
    assert not subscription.leases.by_sequence
    assert not subscription.failures
    assert subscription.leases.next_deadline_ns() is None


def test_000_br_021_deleting_a_topic_ends_leases_and_deliveries() -> None:
    bench = Bench()
    bench.publish("a", "b")
    (message,) = bench.pull(1)
    bench.queue.unregister_topic("test-topic")
    with pytest.raises(InvalidAckId):
        bench.ack(message)
    bench.clock.advance(1_000)
    assert bench.pull() == []
    assert bench.queue.statistics("test-sub").outstanding == 0


def test_000_br_022_at_ten_thousand_messages_newcomers_are_dropped_for_that_subscription_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    bench.publish(*["x"] * 10_000)
    bench.queue.register_subscription("other", "test-topic")
    bench.publish("too much")
    bench.publish("too much")
    assert bench.queue.statistics("test-sub").totals.dropped == 2
    assert bench.data(subscription="other") == ["too much", "too much"]
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert "test-sub" in warning.message
    assert "capacity" in warning.message


def test_000_br_022_leased_messages_count_and_settled_ones_make_room() -> None:
    bench = Bench()
    bench.publish(*["x"] * 10_000)
    messages = bench.pull(10)
    bench.publish("no")
    bench.ack(*messages)
    bench.publish("yes")
    assert bench.queue.statistics("test-sub").totals.dropped == 1
    assert "yes" in bench.data(10_000)


def test_000_br_022_the_warning_comes_once_for_each_time_that_it_is_full(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    for episode in (1, 2):
        bench.publish(*["x"] * 10_001)
        bench.publish("x")
        assert len(caplog.records) == episode
        bench.ack(*bench.pull(10_000))
        bench.publish("room again")
        bench.ack(*bench.pull())


def test_000_br_022_a_hundred_megabytes_are_a_limit_too() -> None:
    bench = Bench()
    for _ in range(11):
        bench.publish("x" * (9_600_000))
    assert bench.queue.statistics("test-sub").totals.dropped == 1


# ── acceptance criteria ─────────────────────────────────────────────────────────────────────────────────────────────


def test_000_ac_001_singleton_pattern() -> None:
    assert MessageQueue.get_instance() is MessageQueue.get_instance()


def test_000_ac_002_register_and_check_topic() -> None:
    queue = MessageQueue.get_instance()
    assert not queue.topic_exists("test-topic")
    queue.register_topic("test-topic")
    assert queue.topic_exists("test-topic")


def test_000_ac_003_publish_and_pull_messages() -> None:
    queue = MessageQueue.get_instance()
    queue.register_topic("test-topic")
    queue.register_subscription("test-sub", "test-topic")
    assert len(queue.publish("test-topic", [HELLO])) == 1
    pulled = queue.pull("test-sub", 10)
    assert len(pulled) == 1
    assert pulled[0].data.decode() == "Hello"


def test_000_ac_004_multiple_subscriptions_receive_copies() -> None:
    bench = Bench()
    bench.queue.register_subscription("sub-2", "test-topic")
    bench.publish("test")
    assert len(bench.pull()) == 1
    assert len(bench.pull(subscription="sub-2")) == 1


def test_000_ac_005_ack_removes_message() -> None:
    bench = Bench()
    bench.publish("test")
    pulled = bench.pull()
    assert len(pulled) == 1
    bench.ack(pulled[0])
    assert bench.pull() == []


def test_000_ac_006_nack_redelivers_immediately() -> None:
    bench = Bench()
    bench.publish("test")
    pulled = bench.pull()
    assert pulled[0].delivery_attempt == 1
    bench.nack(pulled[0])
    again = bench.pull()
    assert len(again) == 1
    assert again[0].delivery_attempt == 2


def test_000_ac_007_ack_deadline_expiry_redelivers() -> None:
    bench = Bench(ackDeadlineSeconds=10)
    bench.publish("test")
    assert len(bench.pull()) == 1
    bench.clock.advance(10.1)
    again = bench.pull()
    assert len(again) == 1
    assert again[0].delivery_attempt == 2


def test_000_ac_008_modify_ack_deadline() -> None:
    bench = Bench(ackDeadlineSeconds=10)
    bench.publish("test")
    pulled = bench.pull()
    bench.queue.modify_ack_deadline(pulled[0].ack_id, 15)
    bench.clock.advance(12)
    assert bench.pull() == []
    bench.ack(pulled[0])


def test_000_ac_009_message_ordering() -> None:
    bench = Bench(messageOrdering=True)
    bench.publish("first", "second", key="user-123")
    pulled = bench.pull()
    assert [message.data for message in pulled] == [b"first"]
    assert bench.pull() == []
    bench.ack(pulled[0])
    assert bench.data() == ["second"]


def test_000_ac_010_publish_without_subscriptions() -> None:
    queue = MessageQueue.get_instance()
    queue.register_topic("test-topic")
    assert len(queue.publish("test-topic", [HELLO])) == 1


def test_000_ac_011_get_subscriptions_for_topic() -> None:
    bench = Bench()
    bench.queue.register_subscription("sub-2", "test-topic")
    found = bench.queue.get_subscriptions_for_topic("test-topic")
    assert [subscription.name for subscription in found] == ["sub-2", "test-sub"]


def test_000_ac_012_unregister_topic_detaches_subscriptions() -> None:
    bench = Bench()
    bench.queue.unregister_topic("test-topic")
    assert not bench.queue.topic_exists("test-topic")
    assert bench.queue.subscription_exists("test-sub")
    subscription = bench.queue.get_subscription("test-sub")
    assert subscription is not None
    assert subscription.topic == "test-topic"


def test_000_ac_013_fifo_message_ordering_without_ordering_key() -> None:
    bench = Bench()
    bench.publish("A", "B", "C")
    assert bench.data() == ["A", "B", "C"]


# ── what is not there, and what cannot be ───────────────────────────────────────────────────────────────────────────


def test_000_a_missing_topic_or_subscription_is_named_with_code_5() -> None:
    queue = Bench().queue
    calls = [
        (TopicNotFound, "Topic not found: nope", lambda: queue.publish("nope", [HELLO])),
        (TopicNotFound, "Topic not found: nope", lambda: queue.unregister_topic("nope")),
        (TopicNotFound, "Topic not found: nope", lambda: queue.register_subscription("s", "nope")),
        (TopicNotFound, "Topic not found: nope", lambda: queue.get_subscriptions_for_topic("nope")),
        (SubscriptionNotFound, "Subscription not found: nope", lambda: queue.pull("nope", 1)),
        (SubscriptionNotFound, "Subscription not found: nope", lambda: queue.unregister_subscription("nope")),
        (SubscriptionNotFound, "Subscription not found: nope", lambda: queue.statistics("nope")),
    ]
    for error, text, call in calls:
        with pytest.raises(error, match=f"^{text}$") as failure:
            call()
        assert failure.value.code == 5


@pytest.mark.parametrize("name", ["", None, 5, b"bytes", ["list"], "\ud800"])
def test_000_a_name_is_a_string_with_something_in_it(name: str) -> None:
    queue = Bench().queue
    for call in (
        lambda: queue.register_topic(name),
        lambda: queue.register_subscription(name, "test-topic"),
        lambda: queue.register_subscription("s", name),
        lambda: queue.publish(name, [HELLO]),
        lambda: queue.pull(name, 1),
        lambda: queue.topic_exists(name),
        lambda: queue.subscription_exists(name),
        lambda: queue.unregister_topic(name),
        lambda: queue.unregister_subscription(name),
    ):
        with pytest.raises(InvalidArgument):
            call()
    assert [topic.name for topic in queue.get_all_topics()] == ["test-topic"]
    assert [found.name for found in queue.get_all_subscriptions()] == ["test-sub"]


@pytest.mark.parametrize("count", [0, -1, 2**31, 10**30, 1.5, "1", None, True])
def test_000_a_pull_takes_a_number_from_one_to_what_fits_32_bits(count: int) -> None:
    bench = Bench()
    bench.publish("a")
    with pytest.raises(InvalidArgument, match="max_messages"):
        bench.queue.pull("test-sub", count)
    assert bench.data(2**31 - 1) == ["a"]


@pytest.mark.parametrize("messages", [HELLO, {"data": b""}, b"bytes", "text", 5, None])
def test_000_publishing_takes_a_list(messages: object) -> None:
    bench = Bench()
    with pytest.raises(InvalidArgument):
        bench.queue.publish("test-topic", messages)  # type: ignore[arg-type]  # bad on purpose
    assert bench.pull() == []


@pytest.mark.parametrize("bad", [5, None, b"1-1-1"])
def test_000_an_ack_id_is_a_string(bad: str) -> None:
    queue = Bench().queue
    for use in (queue.ack, queue.nack, lambda bad: queue.modify_ack_deadline(bad, 5)):
        with pytest.raises(InvalidArgument):
            use(bad)


BAD_OPTIONS = [
    {"ack_deadline_seconds": "10"},
    {"ackDeadline": 5},
    {"ackDeadlineSeconds": 20, "ack_deadline_seconds": 20},
    {"message_ordering": 1},
    {"enable_exactly_once_delivery": "yes"},
    {"flow_control": {"max_messages": 0}},
    {"flow_control": {"maxMessages": -5}},
    {"flow_control": {"maxBytes": 1.5}},
    {"flow_control": {"maxBytes": 2**63}},
    {"flow_control": {"allowExcessMessages": None}},
    {"flow_control": {"max_mesages": 5}},
    {"flow_control": 5},
    {"retry_policy": {"minimumBackoff": -1}},
    {"retry_policy": {"maximumBackoff": 601}},
    {"retry_policy": {"minimumBackoff": 20, "maximumBackoff": 10}},
    {"retry_policy": {"minimum_backoff": float("nan")}},
    {"dead_letter_policy": {}},
    {"dead_letter_policy": {"deadLetterTopic": ""}},
    {"dead_letter_policy": {"deadLetterTopic": "t", "maxDeliveryAttempts": 0}},
    {"message_retention_duration": 1},
    {"streaming_options": {"maxStreams": 0}},
    {"streaming_options": {"highWaterMark": -1}},
    {"no_such_option": 1},
]


@pytest.mark.parametrize("options", BAD_OPTIONS, ids=str)
def test_000_a_bad_option_is_refused_and_no_subscription_made(options: dict[str, object]) -> None:
    queue = Bench().queue
    for call in (
        lambda: queue.register_subscription("other", "test-topic", options),
        lambda: queue.register_subscription("other", "test-topic", **options),
    ):
        with pytest.raises(InvalidArgument) as failure:
            call()
        assert failure.value.code == 3
    assert not queue.subscription_exists("other")


def test_000_options_are_given_back_as_they_were_registered() -> None:
    bench = Bench(
        ackDeadlineSeconds=30,
        messageOrdering=True,
        enableExactlyOnceDelivery=True,
        flowControl={"maxMessages": 5, "maxBytes": 1000},
        retryPolicy={"minimumBackoff": 1.5, "maximumBackoff": 60},
        deadLetterPolicy={"deadLetterTopic": "dead", "maxDeliveryAttempts": 7},
        messageRetentionDuration=3600,
    )
    subscription = bench.queue.get_subscription("test-sub")
    assert isinstance(subscription, SubscriptionMetadata)
    options = subscription.options
    assert options.ack_deadline_seconds == 30
    assert options.enable_message_ordering
    assert options.message_ordering
    assert options.enable_exactly_once_delivery
    assert options.flow_control is not None
    assert (options.flow_control.max_messages, options.flow_control.max_bytes) == (5, 1000)
    assert options.retry_policy is not None
    assert (options.retry_policy.minimum_backoff, options.retry_policy.maximum_backoff) == (1.5, 60)
    assert options.dead_letter_policy is not None
    assert options.dead_letter_policy.dead_letter_topic == "dead"
    assert options.dead_letter_policy.max_delivery_attempts == 7
    assert options.message_retention_duration == 3600


def test_000_a_message_keeps_what_was_published_whatever_happens_to_the_callers_objects() -> None:
    bench = Bench()
    data, attributes = bytearray(b"data"), {"k": "v"}
    bench.queue.publish("test-topic", [{"data": data, "attributes": attributes}])
    data[0] = 0
    attributes["k"] = "changed"
    (message,) = bench.pull()
    message.attributes["k"] = "changed"
    assert (message.data, message.attributes) == (b"data", {"k": "v"})


def test_000_several_threads_publish_and_pull_and_nothing_is_lost_or_doubled() -> None:
    queue = MessageQueue.get_instance()
    queue.register_topic("t")
    queue.register_subscription("s", "t")
    published: list[str] = []
    received: list[str] = []
    done = threading.Event()

    def publish(number: int) -> None:
        for index in range(200):
            published.extend(queue.publish("t", [InternalMessage(data=f"{number}-{index}".encode())]))

    def consume() -> None:
        while True:
            last = done.is_set()
            messages = queue.pull("s", 7)
            for message in messages:
                received.append(message.id)
                queue.ack(message.ack_id)
            if last and not messages:
                return

    publishers = [threading.Thread(target=publish, args=(number,)) for number in range(3)]
    consumers = [threading.Thread(target=consume) for _ in range(3)]
    for thread in publishers + consumers:
        thread.start()
    for thread in publishers:
        thread.join()
    done.set()
    for thread in consumers:
        thread.join()
    assert sorted(received) == sorted(published)
    assert len(published) == 600


def test_a_published_batch_is_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    checked = []
    monkeypatch.setattr("heliograph.engine.limits.check_draft", checked.append)
    queue = MessageQueue()
    queue.register_topic("t")
    queue.publish("t", [{"data": b"a", "attributes": {"k": "v"}}, {"data": b"b", "ordering_key": "k"}])
    assert [draft.data for draft in checked] == [b"a", b"b"]
