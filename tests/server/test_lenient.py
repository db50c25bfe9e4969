"""The lenient profile (`--lenient`): what tests that were written against the official emulator expect."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest

from heliograph.broker.broker import LocalBroker
from tests.server.clients import Failure, Rpc
from tests.server.conftest import serving

TOPIC, SUBSCRIPTION = "projects/p/topics/t", "projects/p/subscriptions/s"


@pytest.fixture(scope="module")
def lenient() -> Iterator[Rpc]:
    with serving(LocalBroker(), lenient=True) as server, Rpc(server.port) as rpc:
        rpc.create_topic(TOPIC)
        rpc.create_subscription(SUBSCRIPTION, TOPIC, ack_deadline_seconds=1)
        yield rpc


def test_short_names_are_accepted_everywhere(lenient: Rpc) -> None:
    assert lenient("GetTopic", topic=TOPIC).name == TOPIC
    assert [topic.name for topic in lenient("ListTopics", project="projects/p").topics] == [TOPIC]
    with lenient.stream(SUBSCRIPTION) as stream:
        stream.response()


def test_short_deadlines_are_accepted_of_subscriptions_and_streams(lenient: Rpc) -> None:
    assert lenient("GetSubscription", subscription=SUBSCRIPTION).ack_deadline_seconds == 1
    with lenient.stream(SUBSCRIPTION, stream_ack_deadline_seconds=1) as stream:
        stream.response()


def test_1_4_6_several_ordering_keys_are_accepted_in_one_publish(lenient: Rpc) -> None:
    messages = [{"data": b"x", "ordering_key": key} for key in ("a", "b")]
    assert len(lenient("Publish", topic=TOPIC, messages=messages).message_ids) == 2


@pytest.mark.parametrize("name", ["", "t", "projects/p", "projects/p/topics/", "projects/p/topics/a/b"])
def test_what_is_no_name_at_all_stays_invalid(lenient: Rpc, name: str) -> None:
    with pytest.raises(Failure) as raised:
        lenient("CreateTopic", name=name)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
