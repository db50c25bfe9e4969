"""The priority API: every argument that is wrong, and the error that says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.client.options import RetryPolicy, SubscriptionOptions, settings_of
from heliograph.client.priority import PriorityMessage, PriorityPubSub
from heliograph.engine.message import Draft
from heliograph.engine.settings import SubscriptionSettings
from heliograph.errors import (
    InvalidArgument,
    InvalidPriority,
    MessageTooLarge,
    TopicNotFound,
)
from tests.client.priority_world import SECONDS, Inbox, World, opened


@pytest.fixture
def world() -> Iterator[World]:
    yield from opened()


@pytest.fixture
def pubsub(world: World) -> PriorityPubSub:
    return world.open()


# ── bad input ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("priority", [0, 4, 9, -1, 1.0, "1", None, True, [1]])
def test_a_priority_other_than_one_two_three_is_refused_never_clamped(pubsub: PriorityPubSub, priority: Any) -> None:
    with pytest.raises(InvalidPriority, match="1 \\(high\\), 2 \\(medium\\) or 3 \\(low\\)") as caught:
        pubsub.publish("orders", 1, priority)
    assert (caught.value.code, caught.value.reason) == (3, "InvalidPriority")
    with pytest.raises(TopicNotFound):
        pubsub.dead_letters("orders")  # not even the topic was made


def _circle() -> list[Any]:
    circle: list[Any] = []
    circle.append({"again": circle})
    return circle


def _deep() -> list[Any]:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    return deep


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({1, 2}, "The message is set"),
        (object(), "The message is object"),
        (lambda: 0, "The message is function"),
        ({"a": [1, {"b": 1j}]}, r"The message\['a'\]\[1\]\['b'\] is complex"),
        ({"when": (1, 2)}, r"The message\['when'\] is a tuple"),
        ({"a": {1: 2}}, r"The message\['a'\] has a key that is no string: 1 \(int\)"),
        ({None: 1}, "has a key that is no string"),
        ([float("nan")], r"The message\[0\] is nan"),
        (float("inf"), "The message is inf"),
        ("\ud800", "lone surrogates"),
        (_circle(), "contains itself"),
        (_deep(), "nested too deeply"),
    ],
)
def test_what_json_cannot_give_back_is_refused_and_the_error_says_where(
    pubsub: PriorityPubSub, value: object, text: str
) -> None:
    with pytest.raises(InvalidArgument, match=text) as caught:
        pubsub.publish("orders", value)
    assert caught.value.code == 3


def test_a_message_above_ten_megabytes_is_refused(pubsub: PriorityPubSub) -> None:
    pubsub.publish("orders", b"x" * (10 * 1024 * 1024))
    with pytest.raises(MessageTooLarge):
        pubsub.publish("orders", b"x" * (10 * 1024 * 1024 + 1))


def test_publish_many_is_all_or_nothing(pubsub: PriorityPubSub) -> None:
    with pytest.raises(InvalidArgument):
        pubsub.publish_many("orders", ["good", {"bad"}])
    with pytest.raises(TopicNotFound):
        pubsub.dead_letters("orders")
    assert pubsub.publish_many("orders", []) == []
    for nothing_to_iterate in ("abc", b"abc", {"a": 1}, 7, None):
        with pytest.raises(InvalidArgument):
            pubsub.publish_many("orders", nothing_to_iterate)  # type: ignore[arg-type]  # on purpose


@pytest.mark.parametrize("topic", [None, 1, b"orders", "", "a..b", "x" * 256])
def test_every_method_refuses_what_is_no_topic(pubsub: PriorityPubSub, topic: Any) -> None:
    calls: list[Callable[[], object]] = [
        lambda: pubsub.publish(topic, 1),
        lambda: pubsub.subscribe(topic, print),
        lambda: pubsub.subscribe(topic),
        lambda: pubsub.unsubscribe(topic),
        lambda: pubsub.dead_letters(topic),
        lambda: pubsub.retry_dead_letters(topic),
        lambda: pubsub.purge_dead_letters(topic),
        lambda: pubsub.broker.dequeue(topic),
    ]
    for call in calls:
        with pytest.raises(InvalidArgument):
            call()


def test_unknown_topics_have_no_dead_letters_to_ask_for(pubsub: PriorityPubSub) -> None:
    for call in (pubsub.dead_letters, pubsub.retry_dead_letters, pubsub.purge_dead_letters, pubsub.unsubscribe):
        with pytest.raises(TopicNotFound) as caught:
            call("nowhere")
        assert (caught.value.code, caught.value.message) == (5, "Topic not found: nowhere")


async def _async_callback(message: PriorityMessage) -> None: ...


@pytest.mark.parametrize("callback", ["print", 7, _async_callback])
def test_a_callback_is_a_plain_function(pubsub: PriorityPubSub, callback: Any) -> None:
    with pytest.raises(InvalidArgument):
        pubsub.subscribe("orders", callback)


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_retries": -1},
        {"max_retries": 1.5},
        {"max_retries": True},
        {"max_retries": "3"},
        {"workers": 0},
        {"workers": 10_000},
        {"ack_deadline_seconds": 0},
        {"ack_deadline_seconds": 601},
        {"ack_deadline_seconds": float("nan")},
        {"ack_deadline_seconds": "30"},
        {"retry_policy": {"minimum_backoff": 2, "maximum_backoff": 1}},
        {"retry_policy": {"minimum_backoff": -1, "maximum_backoff": 1}},
        {"retry_policy": {"minimum_backoff": 1, "maximum_backoff": 601}},
        {"retry_policy": {"minimum_backoff": 1, "maximum_backoff": 2, "more": 3}},
        {"retry_policy": 7},
        {"broker": "localhost"},
        {"data_dir": 7},
        {"data_dir": ""},
        {"data_dir": "/tmp", "broker": LocalBroker()},
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        PriorityPubSub(**arguments)
    assert caught.value.code == 3


def test_wrong_arguments_of_subscribe_and_acknowledge_are_refused(pubsub: PriorityPubSub) -> None:
    calls: list[Callable[[], object]] = [
        lambda: pubsub.subscribe("orders", print, auto_acknowledge="yes"),  # type: ignore[call-overload]  # on purpose
        lambda: pubsub.subscribe("orders", print, workers=0),
        lambda: pubsub.acknowledge(17),  # type: ignore[arg-type]  # on purpose
        lambda: pubsub.retry_dead_letters("orders", "17"),
        lambda: pubsub.retry_dead_letters("orders", 17),  # type: ignore[arg-type]  # on purpose
        lambda: pubsub.join(-1),
        lambda: pubsub.join("1"),  # type: ignore[arg-type]  # on purpose
        lambda: pubsub.retry_dead_letters("orders", [17]),  # type: ignore[list-item]  # on purpose
    ]
    pubsub.publish("orders", 1)
    for call in calls:
        with pytest.raises(InvalidArgument):
            call()


def test_the_specs_spelling_of_the_retry_policy_and_an_object_are_as_good(world: World) -> None:
    for policy in (
        {"minimumBackoff": 1.5, "maximumBackoff": 3},
        RetryPolicy(minimum_backoff=1.5, maximum_backoff=3),
    ):
        settings = world.open(retry_policy=policy).broker.settings.retry_policy
        assert settings is not None
        assert (settings.minimum_backoff_ns, settings.maximum_backoff_ns) == (1_500_000_000, 3_000_000_000)


@pytest.mark.parametrize("policy", [{}, {"minimum_backoff": 1}, {"maximumBackoff": 20}])
def test_a_mapping_is_the_same_retry_policy_here_as_for_a_subscription(world: World, policy: dict[str, Any]) -> None:
    here = PriorityPubSub(retry_policy=policy, broker=world.broker).broker.settings.retry_policy
    there = settings_of(SubscriptionOptions(retry_policy=policy), with_flow_control=False).retry_policy
    assert here == there


def test_a_message_that_another_door_put_there_and_is_no_json_becomes_a_dead_letter(pubsub: PriorityPubSub) -> None:
    inbox = Inbox()
    pubsub.subscribe("orders", inbox)
    pubsub.broker.backing.publish(pubsub.broker.routing.queue("orders").resource, [Draft(b"{no json")])
    pubsub.publish("orders", "fine")
    assert pubsub.join(SECONDS)
    assert inbox.values == ["fine"]
    assert [letter.message for letter in pubsub.dead_letters("orders")] == [b"{no json"]


def test_a_message_of_another_door_without_a_priority_has_the_default_of_its_queue(world: World) -> None:
    for name, default in (("low", 0), ("high", 9)):
        settings = SubscriptionSettings(prioritised=True, default_priority=default)
        world.broker.create_queue(f"priority/{name}", settings).result()
        world.broker.publish(f"queues/priority/{name}", [Draft(b'"theirs"')]).result()
    pubsub = world.open()
    found = [pubsub.broker.dequeue(name) for name in ("low", "high")]
    assert [message.priority for message in found if message is not None] == [3, 1]
