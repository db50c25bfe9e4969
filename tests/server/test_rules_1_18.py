"""How many resources there may be (1.18)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.errors import ResourceExhausted
from heliograph.server.pubsub.profile import Profile
from heliograph.server.pubsub.quotas import Quota
from tests.server.clients import Failure, Rpc
from tests.server.conftest import serving

EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.fixture(scope="module")
def small() -> Iterator[Rpc]:
    with pytest.MonkeyPatch.context() as patch:
        profile = Profile(topics_max=3, subscriptions_max=4, topic_subscriptions_max=2, snapshots_max=2)
        patch.setattr("heliograph.server.app.STRICT", profile)
        with serving(LocalBroker()) as server, Rpc(server.port) as rpc:
            yield rpc


def code(rpc: Rpc, method: str, /, **fields: Any) -> grpc.StatusCode:
    with pytest.raises(Failure) as raised:
        rpc(method, **fields)
    return raised.value.code()


def test_1_18_a_project_has_a_maximum_of_topics(small: Rpc, project: str) -> None:
    names = [f"{project}/topics/topic-{number}" for number in range(5)]
    for name in names[:3]:
        small.create_topic(name)
    assert code(small, "CreateTopic", name=names[3]) is EXHAUSTED
    small.create_topic(f"{project}-other/topics/topic-1")
    small("DeleteTopic", topic=names[0])
    small.create_topic(names[3])
    assert code(small, "CreateTopic", name=names[4]) is EXHAUSTED


def test_1_18_a_refused_creation_does_not_count(small: Rpc, project: str) -> None:
    names = [f"{project}/topics/topic-{number}" for number in range(3)]
    small.create_topic(names[0])
    for _ in range(5):
        assert code(small, "CreateTopic", name=names[0]) is grpc.StatusCode.ALREADY_EXISTS
    for name in names[1:]:
        small.create_topic(name)


def test_1_18_a_topic_and_a_project_have_a_maximum_of_subscriptions(small: Rpc, project: str) -> None:
    one, two, three = [f"{project}/topics/topic-{number}" for number in range(3)]
    for name in (one, two, three):
        small.create_topic(name)
    subscriptions = [f"{project}/subscriptions/sub-{number}" for number in range(5)]
    small.create_subscription(subscriptions[0], one)
    small.create_subscription(subscriptions[1], one)
    assert code(small, "CreateSubscription", name=subscriptions[2], topic=one) is EXHAUSTED
    small.create_subscription(subscriptions[2], two)
    small.create_subscription(subscriptions[3], two)
    assert code(small, "CreateSubscription", name=subscriptions[4], topic=three) is EXHAUSTED


def test_1_18_a_project_has_a_maximum_of_snapshots(small: Rpc, project: str) -> None:
    topic, subscription = f"{project}/topics/topic-1", f"{project}/subscriptions/sub-1"
    small.create_topic(topic)
    small.create_subscription(subscription, topic)
    for _ in range(2):
        small("CreateSnapshot", subscription=subscription)
    assert code(small, "CreateSnapshot", subscription=subscription) is EXHAUSTED


def test_everything_is_counted_once_and_then_only_at_the_maximum() -> None:
    counted: list[str] = []

    def count(owner: str) -> int:
        counted.append(owner)
        return 0

    quota = Quota("things", 3, count)
    for _ in range(3):
        with quota.room("owner"):
            pass
    assert counted == ["owner"]
    with quota.room("owner"):
        pass
    assert counted == ["owner", "owner"]
    with pytest.raises(ResourceExhausted), Quota("things", 0, count).room("owner"):
        raise AssertionError
