"""The priority API: patterns. A pattern is a queue of its own, as in RabbitMQ (docs/adr/0004)."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from heliograph.client.priority import PriorityMessage, PriorityPubSub
from heliograph.client.priority_sources import Sources
from heliograph.client.topic_pattern import matches
from heliograph.errors import InvalidArgument, TopicNotFound
from tests.client.priority_world import AT_ONCE, SECONDS, Inbox, World, drained, opened, settled


@pytest.fixture
def world() -> Iterator[World]:
    yield from opened()


@pytest.fixture
def pubsub(world: World) -> PriorityPubSub:
    return world.open()


# ── who gets what ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_pattern_gets_what_is_published_to_every_topic_that_it_matches(pubsub: PriorityPubSub) -> None:
    star, many = Inbox(), Inbox()
    pubsub.subscribe("orders.*", star)
    pubsub.subscribe("orders.#", many)
    for topic in ("orders", "orders.new", "orders.new.eu", "bills.new"):
        pubsub.publish(topic, topic)
    assert pubsub.join(SECONDS)
    assert star.values == ["orders.new"]
    assert many.values == ["orders", "orders.new", "orders.new.eu"]


def test_a_message_of_a_pattern_tells_its_topic_and_the_id_that_publish_returned(pubsub: PriorityPubSub) -> None:
    literal, pattern = Inbox(), Inbox()
    pubsub.subscribe("orders.new", literal)
    pubsub.subscribe("orders.*", pattern)
    message_id = pubsub.publish("orders.new", 1, priority=1)
    assert pubsub.join(SECONDS)
    (own,), (copy,) = literal.messages, pattern.messages
    assert (own.id, own.published_id, copy.published_id) == (message_id, message_id, message_id)
    assert copy.id != message_id
    assert (copy.topic, copy.priority, copy.retries) == ("orders.new", 1, 0)


def test_a_topic_that_is_new_after_the_subscription_reaches_it(pubsub: PriorityPubSub) -> None:
    inbox = Inbox()
    pubsub.subscribe("orders.#", inbox)
    for number in range(20):
        pubsub.publish(f"orders.{number}", number)
    assert pubsub.join(SECONDS)
    assert inbox.values == list(range(20))


def test_what_topics_kept_before_anyone_subscribed_goes_to_the_first_pattern_that_matches(
    pubsub: PriorityPubSub,
) -> None:
    ids = [pubsub.publish(f"orders.{number}", number) for number in range(5)]
    pubsub.publish("bills.1", "not ours")
    first, second = Inbox(), Inbox()
    pubsub.subscribe("orders.*", first)
    assert pubsub.join(SECONDS)
    pubsub.subscribe("orders.#", second)
    pubsub.publish("orders.0", "new")
    assert pubsub.join(SECONDS)
    assert (first.values, second.values) == ([0, 1, 2, 3, 4, "new"], ["new"])
    assert [message.id for message in first.messages[:5]] == ids
    assert drained(pubsub, "bills.1") == ["not ours"]


def test_topics_known_before_and_after_the_subscription_behave_alike(pubsub: PriorityPubSub) -> None:
    pubsub.publish("orders.old", "kept")
    inbox = Inbox()
    pubsub.subscribe("orders.*", inbox)
    assert pubsub.join(SECONDS)
    pubsub.publish("orders.old", 1)
    pubsub.publish("orders.new", 2)
    assert pubsub.join(SECONDS)
    assert inbox.values == ["kept", 1, 2]


def test_a_literal_subscriber_and_a_pattern_both_get_every_message_once(pubsub: PriorityPubSub) -> None:
    worker, audit = Inbox(), Inbox()
    pubsub.subscribe("orders.new", worker)
    pubsub.subscribe("orders.#", audit)
    pubsub.publish_many("orders.new", list(range(50)))
    assert pubsub.join(SECONDS)
    assert (worker.values, audit.values) == (list(range(50)), list(range(50)))


def test_a_literal_subscriber_that_comes_later_gets_what_is_published_from_then_on(pubsub: PriorityPubSub) -> None:
    worker, audit = Inbox(), Inbox()
    pubsub.subscribe("orders.#", audit)
    pubsub.publish("orders.new", "before")
    assert pubsub.join(SECONDS)
    pubsub.subscribe("orders.new", worker)
    pubsub.publish("orders.new", "after")
    assert pubsub.join(SECONDS)
    assert (worker.values, audit.values) == (["after"], ["before", "after"])


def test_what_a_topic_kept_is_the_literal_subscribers_from_the_moment_that_there_is_one(world: World) -> None:
    pubsub = world.open()
    pubsub.publish_many("orders.new", [1, 2, 3])
    running, go_on = threading.Event(), threading.Event()

    def hold(_message: PriorityMessage) -> None:
        running.set()
        go_on.wait(SECONDS)

    audit, worker = Inbox(then=hold), Inbox()
    pubsub.subscribe("orders.#", audit)
    running.wait(SECONDS)  # it has taken the first of the three
    pubsub.subscribe("orders.new", worker)
    pubsub.publish("orders.new", 4)
    go_on.set()
    assert pubsub.join(SECONDS)
    assert (audit.values, worker.values) == ([1, 4], [2, 3, 4])


def test_a_kept_message_that_fails_with_a_pattern_goes_on_with_the_topics_own_subscriber(world: World) -> None:
    pubsub = world.open(retry_policy=AT_ONCE)
    pubsub.publish("orders.new", 1)
    running, go_on = threading.Event(), threading.Event()

    def fail(_message: PriorityMessage) -> None:
        running.set()
        go_on.wait(SECONDS)
        raise RuntimeError("not me")

    audit, worker = Inbox(then=fail), Inbox()
    pubsub.subscribe("orders.#", audit)
    running.wait(SECONDS)
    pubsub.subscribe("orders.new", worker)
    go_on.set()
    assert worker.wait(1) == [1]
    assert pubsub.join(SECONDS)
    assert (audit.values, [message.retries for message in worker.messages]) == ([1], [1])


def test_overlapping_patterns_each_get_every_message_once(pubsub: PriorityPubSub) -> None:
    patterns = ["#", "orders.#", "orders.*", "*.new", "orders.new", "#.new.#", "bills.#"]
    inboxes = {pattern: Inbox() for pattern in patterns}
    for pattern, inbox in inboxes.items():
        pubsub.subscribe(pattern, inbox)
    topics = ["orders.new", "orders.old", "bills.new", "orders.new.eu", "other"]
    for topic in topics:
        pubsub.publish(topic, topic)
    assert pubsub.join(SECONDS)
    for pattern, inbox in inboxes.items():
        assert inbox.values == [topic for topic in topics if matches(pattern, topic)], pattern


def test_subscribers_of_one_pattern_share_its_messages(pubsub: PriorityPubSub) -> None:
    both_run = threading.Barrier(2)
    inboxes = [Inbox(then=lambda message: both_run.wait(SECONDS) if message.message < 2 else None) for _ in range(2)]
    for inbox in inboxes:
        pubsub.subscribe("orders.*", inbox)
    for number in range(60):
        pubsub.publish(f"orders.{number % 7}", number)
    assert pubsub.join(SECONDS)
    assert all(inbox.values for inbox in inboxes)
    assert sorted(inboxes[0].values + inboxes[1].values) == list(range(60))


def test_two_subscribers_of_one_pattern_share_what_topics_have_kept(pubsub: PriorityPubSub) -> None:
    for number in range(60):
        pubsub.publish(f"orders.{number % 7}", number)
    inboxes = [Inbox(), Inbox()]
    for inbox in inboxes:
        pubsub.subscribe("orders.*", inbox)
    assert pubsub.join(SECONDS)
    assert sorted(inboxes[0].values + inboxes[1].values) == list(range(60))


def test_nothing_is_kept_twice_where_a_pattern_takes_everything(pubsub: PriorityPubSub) -> None:
    pubsub.subscribe("orders.#", Inbox())
    for _ in range(10):
        pubsub.publish("orders.new", 1)
    assert pubsub.join(SECONDS)
    with pytest.raises(TopicNotFound):
        pubsub.dead_letters("orders.new")  # the topic never needed a queue of its own


# ── priority across topics ──────────────────────────────────────────────────────────────────────────────────────────


def test_priority_holds_across_the_topics_of_a_pattern(pubsub: PriorityPubSub) -> None:
    pubsub.subscribe("orders.*", Inbox()).close()
    for number, priority in enumerate((3, 1, 2, 3, 1, 2)):
        pubsub.publish(f"orders.{number}", (priority, number).__repr__(), priority)
    assert drained(pubsub, "orders.*") == ["(1, 1)", "(1, 4)", "(2, 2)", "(2, 5)", "(3, 0)", "(3, 3)"]


def test_priority_holds_across_what_topics_have_kept_and_what_is_new(pubsub: PriorityPubSub, world: World) -> None:
    for number, priority in enumerate((3, 1, 2, 3, 1, 2)):
        world.clock.advance(1)
        pubsub.publish(f"orders.{number % 3}", f"{priority} {number}", priority)
    running, go_on = threading.Event(), threading.Event()

    def hold(_message: PriorityMessage) -> None:
        running.set()
        go_on.wait(SECONDS)

    inbox = Inbox(then=hold)
    pubsub.subscribe("orders.*", inbox)
    running.wait(SECONDS)
    world.clock.advance(1)
    pubsub.publish("orders.9", "1 new", 1)
    pubsub.publish("orders.9", "3 new", 3)
    go_on.set()
    assert pubsub.join(SECONDS)
    assert inbox.values == ["1 1", "1 4", "1 new", "2 2", "2 5", "3 0", "3 3", "3 new"]


def test_dequeue_on_a_pattern_takes_the_highest_priority_of_all(pubsub: PriorityPubSub, world: World) -> None:
    for topic, priority in (("orders.a", 3), ("orders.b", 1), ("orders.c", 2)):
        world.clock.advance(1)
        pubsub.publish(topic, topic, priority)
    assert drained(pubsub, "orders.*") == ["orders.b", "orders.c", "orders.a"]


def test_others_that_take_from_the_same_topics_do_not_upset_the_order(world: World) -> None:
    pubsub = world.open()
    for number in range(30):
        world.clock.advance(1)
        pubsub.publish(f"orders.{number % 5}", (number * 7 % 3) + 1, (number * 7 % 3) + 1)
    inboxes = [Inbox(), Inbox(), Inbox()]
    for inbox in inboxes:
        pubsub.subscribe("orders.*", inbox)
    assert pubsub.join(SECONDS)
    for inbox in inboxes:
        assert inbox.values == sorted(inbox.values)
    assert sum(len(inbox.values) for inbox in inboxes) == 30


def test_a_front_that_somebody_else_took_meanwhile_is_looked_at_once_more(pubsub: PriorityPubSub, world: World) -> None:
    for topic, name, priority in (("t.1", "first", 1), ("t.3", "old", 3), ("t.2", "taken", 2), ("t.2", "young", 3)):
        world.clock.advance(1)
        pubsub.publish(topic, name, priority)
    queues = pubsub.broker.routing.subscribe("t.*", pubsub.broker.settings)
    sources = Sources(pubsub.broker, queues, "us")
    order = [_taken(sources)]
    pubsub.broker.pull(pubsub.broker.routing.queue("t.2"), "somebody else")
    order += [_taken(sources), _taken(sources)]
    assert (order, sources.take()) == (["first", "old", "young"], None)
    sources.close()


def _taken(sources: Sources) -> str:
    taken = sources.take()
    assert taken is not None
    (delivery,) = taken[1].result()
    return str(json.loads(delivery.message.data))


# ── settling ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_each_copy_is_acknowledged_for_itself(pubsub: PriorityPubSub) -> None:
    literal, pattern = Inbox(), Inbox()
    pubsub.subscribe("orders.new", literal, auto_acknowledge=False)
    pubsub.subscribe("orders.*", pattern, auto_acknowledge=False)
    message_id = pubsub.publish("orders.new", 1)
    literal.wait(1)
    pattern.wait(1)
    pubsub.acknowledge(message_id)
    assert not pubsub.join(0)
    pubsub.acknowledge(pattern.messages[0].id)
    assert pubsub.join(SECONDS)


def test_each_copy_is_retried_and_given_up_for_itself(world: World) -> None:
    pubsub = world.open(max_retries=1, retry_policy=AT_ONCE)
    good, bad = Inbox(), Inbox(failures=None)
    pubsub.subscribe("orders.new", good)
    pubsub.subscribe("orders.*", bad)
    pubsub.publish("orders.new", 1)
    assert pubsub.join(SECONDS)
    assert (good.values, bad.values) == ([1], [1, 1])
    assert pubsub.dead_letters("orders.new") == []
    assert [(letter.topic, letter.retries) for letter in pubsub.dead_letters("orders.*")] == [("orders.new", 1)]
    assert pubsub.retry_dead_letters("orders.*") == 1


def test_core_methods_take_the_pattern_or_the_topic_of_a_copy(pubsub: PriorityPubSub, world: World) -> None:
    pubsub.subscribe("orders.*", Inbox()).close()
    pubsub.publish("orders.new", 1)
    for name in ("orders.*", "orders.new"):
        message = pubsub.broker.dequeue("orders.*")
        assert message is not None
        pubsub.broker.retry_message(name, message)
        world.clock.advance(40)
    message = pubsub.broker.dequeue("orders.*")
    assert message is not None
    with pytest.raises(InvalidArgument):
        pubsub.broker.move_to_dlq("bills.*", message)


# ── the end of a subscription ───────────────────────────────────────────────────────────────────────────────────────


def test_a_closed_pattern_goes_on_collecting_for_its_next_subscriber(pubsub: PriorityPubSub) -> None:
    pubsub.subscribe("orders.*", Inbox()).close()
    pubsub.publish("orders.new", 1)
    inbox = Inbox()
    pubsub.subscribe("orders.*", inbox)
    assert inbox.wait(1) == [1]


def test_an_unsubscribed_pattern_gets_nothing_and_topics_keep_their_messages_again(pubsub: PriorityPubSub) -> None:
    inbox = Inbox()
    pubsub.subscribe("orders.*", inbox)
    pubsub.unsubscribe("orders.*")
    pubsub.publish("orders.new", 1)
    assert drained(pubsub, "orders.new") == [1]
    assert inbox.values == []
    with pytest.raises(TopicNotFound):
        pubsub.unsubscribe("orders.*")


def test_an_unsubscribed_topic_leaves_its_messages_to_the_patterns(pubsub: PriorityPubSub) -> None:
    literal, pattern = Inbox(), Inbox()
    pubsub.subscribe("orders.new", literal)
    pubsub.subscribe("orders.*", pattern)
    pubsub.unsubscribe("orders.new")
    pubsub.publish("orders.new", 1)
    assert pubsub.join(SECONDS)
    assert (literal.values, pattern.values) == ([], [1])


def test_unsubscribing_ends_the_subscribers_of_others_on_the_same_broker(world: World) -> None:
    one, other = world.open(), world.open()
    subscription = one.subscribe("orders.*", Inbox())
    other.unsubscribe("orders.*")
    for thread in subscription._threads:
        thread.join(SECONDS)
    assert subscription.closed
    assert one.join(SECONDS)


def test_a_queue_deleted_through_another_door_is_made_again(pubsub: PriorityPubSub) -> None:
    pubsub.publish("orders", 1)
    pubsub.broker.backing.delete_queue("priority/orders").result()
    pubsub.publish("orders", 2)
    assert drained(pubsub, "orders") == [2]


def test_a_kept_topic_deleted_through_another_door_does_not_end_a_pattern(pubsub: PriorityPubSub) -> None:
    pubsub.publish("orders.old", 1)
    inbox = Inbox()
    pubsub.subscribe("orders.*", inbox)
    inbox.wait(1)
    settled(pubsub, "orders.old")
    pubsub.broker.backing.delete_queue("priority/orders.old").result()
    pubsub.publish("orders.new", 2)
    assert inbox.wait(2) == [1, 2]


# ── everything at once ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(6))
def test_whoever_comes_and_goes_nothing_is_lost_and_no_subscriber_gets_anything_twice(seed: int) -> None:
    chance, world = random.Random(seed), World()
    pubsub = world.open(max_retries=1_000, retry_policy=AT_ONCE)
    names = ["a.x", "a.y", "b.x", "a.*", "*.x", "#", "a.#"]
    inboxes: dict[str, list[Inbox]] = {name: [] for name in names}
    subscribed_at: dict[str, int] = {}
    published: list[tuple[str, int]] = []
    stop = threading.Event()

    def publish() -> None:
        while not stop.is_set() and len(published) < 400:
            topic = chance.choice(["a.x", "a.y", "b.x", "c"])
            published.append((topic, len(published)))
            pubsub.publish(topic, published[-1][1], chance.choice([1, 2, 3]))

    publisher = threading.Thread(target=publish)
    publisher.start()
    subscriptions = []
    for _ in range(20):
        name = random.Random(f"{seed}{len(subscriptions)}").choice(names)
        inbox = Inbox(failures=len(subscriptions) % 3)
        inboxes[name].append(inbox)
        subscriptions.append(pubsub.subscribe(name, inbox))
        subscribed_at.setdefault(name, len(published))  # what is being published just now may come, or not
        if len(subscriptions) % 4 == 0:
            subscriptions[len(subscriptions) // 2].close()
    publisher.join(SECONDS)
    stop.set()
    for name in names:
        inboxes[name].append(Inbox())
        pubsub.subscribe(name, inboxes[name][-1])
        subscribed_at.setdefault(name, len(published))
    assert pubsub.join(SECONDS)
    world.close()
    got_by_anyone: Counter[int] = Counter()
    for name, of_name in inboxes.items():
        handled = Counter(value for inbox in of_name for value in inbox.values[inbox.failures or 0 :])
        got_by_anyone += handled
        assert not [value for value, count in handled.items() if count > 1], name
        expected = {value for topic, value in published[subscribed_at[name] + 1 :] if matches(name, topic)}
        assert expected <= set(handled), name
        assert all(matches(name, topic) for topic, value in published if value in handled), name
    assert set(got_by_anyone) == {value for _, value in published}
