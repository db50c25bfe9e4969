"""Leases are kept whatever happens beside them (`heliograph.client.lease_keeper`)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, cast

import pytest

from heliograph.broker.protocol import Broker
from heliograph.broker.reply import Reply
from heliograph.client.lease_keeper import LeaseKeeper
from heliograph.client.queue_message import Lease, QueueName
from heliograph.store.protocol import COMMITTED

QUEUE = QueueName("tasks", "queues/tasks")


class Extended:
    """A broker that notes what is extended; the first attempt fails as `failure` says."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.ack_ids: list[str] = []
        self.told = threading.Event()
        self._failure = failure

    def modify_ack_deadline(self, _name: str, ack_ids: Sequence[str], _deadline_ns: int) -> Reply[list[str]]:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        self.ack_ids += ack_ids
        self.told.set()
        return Reply([], COMMITTED)

    def release(self, *_lease: Any) -> None:
        pass


def keeper_of(broker: Extended) -> LeaseKeeper[Lease]:
    return LeaseKeeper(cast(Broker, broker), 0.03)


def test_a_failure_that_nobody_expected_does_not_end_the_extending(caplog: pytest.LogCaptureFixture) -> None:
    broker = Extended(RuntimeError("a defect"))
    keeper = keeper_of(broker)
    keeper.hold(Lease("1-1-1", QUEUE), extend=True)
    assert broker.told.wait(30)
    keeper.close()
    assert "leases could not be extended" in caplog.text


def test_a_message_that_is_collected_while_leases_are_looked_through_does_not_stop_them() -> None:
    broker = Extended()
    keeper = keeper_of(broker)

    class Collects(str):
        """An ack id; looking at it has garbage collected, another message of which is let go."""

        __slots__ = ()

        def __hash__(self) -> int:
            if threading.current_thread().name == "heliograph-leases":
                keeper.let_go(Lease("1-2-1", QUEUE))
            return str.__hash__(self)

        __eq__ = str.__eq__

    keeper.hold(Lease(Collects("1-1-1"), QUEUE), extend=True)
    keeper.hold(Lease("1-2-1", QUEUE), extend=True)
    keeper.hold(Lease("1-3-1", QUEUE), extend=True)
    assert broker.told.wait(30)
    assert {"1-1-1", "1-3-1"} <= set(broker.ack_ids)
    keeper.close()
