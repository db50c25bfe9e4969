"""What a configuration asks to exist at the start."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.server.app import Application
from heliograph.server.closing import Closing
from heliograph.server.initial import Initial, Refused, Wanted
from heliograph.server.pubsub import proto

ORDERS = {"name": "orders", "labels": {"team": "sales"}}
BILLING = {
    "name": "billing",
    "topic": "orders",
    "ack_deadline_seconds": 60,
    "retryPolicy": {"minimum_backoff": "1.0s"},
    "dead_letter_policy": {"deadLetterTopic": "failed"},
}
AVRO = '{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}'


def establish(broker: LocalBroker, *wanted: tuple[str, dict[str, Any]], project: str = "shop") -> list[str]:
    """Returns what was told."""
    told: list[str] = []
    resources = [Wanted(kind, at, f"{kind}[{at}]", document) for at, (kind, document) in enumerate(wanted)]
    initial = Initial(resources, project, told.append)
    asyncio.run(initial.establish(broker, Application(broker, Closing()).methods))
    return told


def refusal(*wanted: tuple[str, dict[str, Any]], project: str = "shop") -> tuple[str, str]:
    """Why and which field."""
    with pytest.raises(Refused) as caught:
        establish(LocalBroker(), *wanted, project=project)
    return caught.value.message, caught.value.field


def test_resources_are_made_in_the_order_in_which_they_need_each_other() -> None:
    broker = LocalBroker()
    schema = {"name": "order", "type": "AVRO", "definition": AVRO}
    topic = {**ORDERS, "schema_settings": {"schema": "order", "encoding": "JSON"}}
    told = establish(
        broker,
        ("subscriptions", BILLING),
        ("topics", topic),
        ("topics", {"name": "projects/other/topics/failed"}),
        ("topics", {"name": "failed"}),
        ("schemas", schema),
        ("queues", {"name": "thumbnails", "ack_deadline_secs": 300, "retry_delays": [10, 60]}),
    )
    assert told == []
    assert [info.name for info in broker.list_topics()] == [
        "projects/other/topics/failed",
        "projects/shop/topics/failed",
        "projects/shop/topics/orders",
        "queues/thumbnails",
    ]
    info = broker.get_subscription("projects/shop/subscriptions/billing")
    subscription = proto.Subscription.FromString(info.settings.resource)
    assert subscription.ack_deadline_seconds == 60
    assert subscription.dead_letter_policy.dead_letter_topic == "projects/shop/topics/failed"
    made = proto.Topic.FromString(broker.get_topic("projects/shop/topics/orders").settings.resource)
    assert made.schema_settings.schema == "projects/shop/schemas/order"


def test_a_second_start_with_the_same_file_changes_and_tells_nothing() -> None:
    broker = LocalBroker()
    wanted = (
        ("schemas", {"name": "order", "type": "AVRO", "definition": AVRO}),
        ("topics", ORDERS),
        ("topics", {"name": "failed"}),
        ("subscriptions", BILLING),
        ("queues", {"name": "thumbnails", "prefetch": 3}),
    )
    establish(broker, *wanted)
    before = broker.list_topics(), broker.list_subscriptions()
    assert establish(broker, *wanted) == []
    assert (broker.list_topics(), broker.list_subscriptions()) == before


def test_a_difference_is_told_in_one_line_and_what_is_stored_stays() -> None:
    broker = LocalBroker()
    establish(broker, ("topics", ORDERS), ("topics", {"name": "failed"}), ("subscriptions", BILLING))
    changed = {**BILLING, "ack_deadline_seconds": 20, "retryPolicy": {"minimumBackoff": "2s"}, "labels": {"a": "b"}}
    assert establish(broker, ("subscriptions", changed), ("topics", {**ORDERS, "labels": {}})) == [
        "topics[1]: projects/shop/topics/orders exists already and stays as it is, although its labels is "
        "{'team': 'sales'}, not {}",
        "subscriptions[0]: projects/shop/subscriptions/billing exists already and stays as it is, although its "
        "ack_deadline_seconds is 60, not 20; retry_policy.minimum_backoff is 1s, not 2s; labels is {}, not {'a': 'b'}",
    ]
    info = broker.get_subscription("projects/shop/subscriptions/billing")
    assert info.settings.ack_deadline_ns == 60 * 10**9


def test_what_the_file_does_not_mention_is_no_difference() -> None:
    broker = LocalBroker()
    establish(broker, ("topics", ORDERS))
    assert establish(broker, ("topics", {"name": "orders"})) == []


def test_a_queue_with_other_settings_stays_as_it_is_and_is_told() -> None:
    broker = LocalBroker()
    establish(broker, ("queues", {"name": "thumbnails"}))
    assert establish(broker, ("queues", {"name": "thumbnails", "ack_deadline_secs": 60})) == [
        "queues[0]: thumbnails exists already and stays as it is, although its ack_deadline_ns is 30000000000, not "
        "60000000000"
    ]


@pytest.mark.parametrize(
    ("kind", "document", "why", "field"),
    [
        ("topics", {"name": "orders", "colour": 1}, "topics[0]: unknown key colour", "colour"),
        ("topics", {}, "topics[0]: it has no name", ""),
        ("topics", {"name": 7}, "topics[0]: Invalid value at 'name', ", "name"),
        ("topics", {"name": "x"}, "topics[0]: Invalid [topics] name: (name=projects/shop/topics/x)", ""),
        ("subscriptions", {"name": "sub", "topic": "gone"}, "subscriptions[0]: ", ""),
        (
            "subscriptions",
            {"name": "sub", "retry_policy": {"minimum": 1}},
            "subscriptions[0]: unknown key retry_policy.minimum",
            "retry_policy.minimum",
        ),
        (
            "subscriptions",
            {"name": "sub", "retry_policy": 1},
            "subscriptions[0]: Invalid value at 'retry_policy', an object is wanted, not 1",
            "retry_policy",
        ),
        (
            "subscriptions",
            {"name": "sub", "retry_policy": {"minimum_backoff": "1"}},
            "subscriptions[0]: Invalid value at 'retryPolicy.minimumBackoff', ",
            "retryPolicy.minimumBackoff",
        ),
        ("schemas", {"name": "order", "type": "AVRO", "definition": "{"}, "schemas[0]: ", ""),
        ("queues", {"name": "q", "prefech": 1}, "queues[0]: unknown key prefech; a queue has ", "prefech"),
        ("queues", {"name": "q", "prefetch": "x"}, "queues[0]: prefetch: Expected `int`, got `str`", "prefetch"),
        ("queues", {"name": "a/b"}, "queues[0]: A queue's name has", ""),
        ("queues", {}, "queues[0]: Object missing required field `name`", ""),
        ("queues", {"name": "q", "default_priority": 99}, "queues[0]: ", ""),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(kind: str, document: dict[str, Any], why: str, field: str) -> None:
    message, at = refusal((kind, document))
    assert message.startswith(why)
    assert at == field


def test_a_short_name_without_a_project_is_refused() -> None:
    message, field = refusal(("topics", {"name": "orders"}), project="")
    assert message == (
        "topics[0]: orders is not a full name, and no project is given: set --project, or project under [server]"
    )
    assert field == "name"
