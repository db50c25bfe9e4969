"""The tests of the priority API once more, with a server between it and the broker (spec 004)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from heliograph.broker.protocol import Broker
from heliograph.client.priority import PriorityPubSub
from heliograph.remote.broker import remote_broker
from tests.client import (
    test_priority,
    test_priority_arguments,
    test_priority_closing,
    test_priority_retries,
    test_priority_wildcards,
)
from tests.client.priority_world import World
from tests.server.conftest import serving

pytestmark = pytest.mark.slow

IN_PROCESS_ONLY = {
    # they end the broker's process, which the server of this test would survive
    "test_after_a_restart_those_who_subscribed_miss_nothing_before_they_subscribe_again",
    # between looking for the best of several queues and taking it lies a round trip, in which others take theirs
    "test_others_that_take_from_the_same_topics_do_not_upset_the_order",
}

for _module in (
    test_priority,
    test_priority_arguments,
    test_priority_closing,
    test_priority_retries,
    test_priority_wildcards,
):
    for _name, _value in vars(_module).items():
        if _name.startswith("test_") and _name not in IN_PROCESS_ONLY:
            globals()[_name] = _value


class WorldOfServer(World):
    """A broker behind a server."""

    def __init__(self) -> None:
        super().__init__()
        self._opened = ExitStack()
        self._remote: Broker | None = None

    def backing(self) -> Broker:
        if self._remote is None:
            server = self._opened.enter_context(serving(self.broker))
            self._remote = remote_broker(f"http://127.0.0.1:{server.port}")
            self._opened.callback(self._remote.close)
        return self._remote

    def close(self) -> None:
        for pubsub in self.opened:
            pubsub.close()
        self._opened.close()
        super().close()


@pytest.fixture
def world() -> Iterator[World]:
    opened = WorldOfServer()
    yield opened
    opened.close()


@pytest.fixture
def pubsub(world: World) -> PriorityPubSub:
    return world.open()
