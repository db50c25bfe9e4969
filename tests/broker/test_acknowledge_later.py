"""`Broker.acknowledge_later`: cheap, and as good as `acknowledge` for everything that happens afterwards."""

from __future__ import annotations

import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.broker.clock import SimulatedClock
from heliograph.engine.message import Draft
from heliograph.store.memory import MemoryStore


class Bench:
    def __init__(self, store: MemoryStore | None = None) -> None:
        self.clock = SimulatedClock()
        self.broker = LocalBroker(store, self.clock)

    def lease(self, count: int = 3) -> list[str]:
        """So many messages, published and leased for ten seconds; their ack ids."""
        self.broker.create_topic("t")
        self.broker.create_subscription("s", "t")
        self.broker.publish("t", [Draft(b"x")] * count)
        return [delivery.ack_id for delivery in self.broker.pull("s", count).result()]


def test_it_takes_effect_before_the_next_operation() -> None:
    bench = Bench()
    for ack_id in bench.lease():
        bench.broker.acknowledge_later("s", ack_id)
    statistics = bench.broker.statistics("s")
    assert (statistics.outstanding, statistics.totals.acknowledged) == (0, 3)


def test_it_takes_effect_before_a_lease_that_ends_later() -> None:
    bench = Bench()
    first, *_ = bench.lease(2)
    bench.clock.advance(9)
    bench.broker.acknowledge_later("s", first)
    bench.clock.advance(1)
    assert len(bench.broker.pull("s", 10).result()) == 1
    assert bench.broker.statistics("s").totals.acknowledged == 1


def test_it_counts_as_of_its_call_though_the_next_operation_comes_after_the_lease_has_ended() -> None:
    bench = Bench()
    (ack_id,) = bench.lease(1)
    bench.broker.acknowledge_later("s", ack_id)
    bench.clock._now_ns += 60 * 10**9  # time passes and no timer is heard
    assert bench.broker.pull("s", 10).result() == []


def test_an_empty_acknowledgement_carries_it_out() -> None:
    bench = Bench()
    (ack_id,) = bench.lease(1)
    bench.broker.acknowledge_later("s", ack_id)
    woken: list[bool] = []
    bench.broker.watch("s", lambda: woken.append(True))
    bench.broker.acknowledge("s", [])
    assert woken == [True]


def test_what_is_stale_malformed_or_gone_is_ignored_and_hinders_nothing() -> None:
    bench = Bench()
    first, second, third = bench.lease()
    bench.broker.acknowledge("s", [first])
    for ack_id in (first, "nonsense", second):
        bench.broker.acknowledge_later("s", ack_id)
    bench.broker.acknowledge_later("gone", third)
    statistics = bench.broker.statistics("s")
    assert (statistics.outstanding, statistics.totals.acknowledged) == (1, 2)


def test_it_survives_a_close() -> None:
    store = MemoryStore(keep_facts=True)
    bench = Bench(store)
    (ack_id,) = bench.lease(1)
    bench.broker.acknowledge_later("s", ack_id)
    bench.broker.close()
    bench.broker.acknowledge_later("s", ack_id)
    again = LocalBroker(store, bench.clock)
    assert again.statistics("s").totals.acknowledged == 1


@pytest.mark.parametrize("count", [1, 100])
def test_many_become_one_fact(count: int) -> None:
    store = MemoryStore(keep_facts=True)
    bench = Bench(store)
    for ack_id in bench.lease(count):
        bench.broker.acknowledge_later("s", ack_id)
    bench.broker.acknowledge("s", [])
    facts = [type(fact).__name__ for fact in store.recover()]
    assert facts.count("MessagesAcknowledged") == 1
