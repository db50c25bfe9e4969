"""Taking messages for a client, without a door around it."""

from __future__ import annotations

import asyncio

import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.engine.message import Draft
from heliograph.server.feed import Feeds
from heliograph.server.taking import take_or_wait
from heliograph.store.memory import MemoryStore
from heliograph.testing.faulty_store import FaultyStore


def test_who_is_cancelled_while_its_leases_become_durable_holds_nothing() -> None:
    store = FaultyStore(MemoryStore())
    broker = LocalBroker(store)
    broker.create_topic("t")
    broker.create_subscription("s", "t")
    broker.publish("t", [Draft(b"x")])
    store.hold()

    async def go() -> None:
        taking = asyncio.ensure_future(
            take_or_wait(Feeds(broker), broker, "s", lambda: 1, lambda room: broker.pull("s", room), None)
        )
        await asyncio.sleep(0)
        assert broker.statistics("s").outstanding == 1
        taking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await taking

    asyncio.run(go())
    assert broker.statistics("s").outstanding == 0
    store.release()
    broker.close()
