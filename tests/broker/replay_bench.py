"""A broker with a topic, a clock, and a store that outlives it, for tests of seeking and snapshots."""

from __future__ import annotations

from pathlib import Path

from heliograph.broker.broker import LocalBroker
from heliograph.broker.clock import SimulatedClock
from heliograph.engine.message import Delivery, Draft
from heliograph.engine.settings import SECOND_NS, SubscriptionSettings, TopicSettings
from heliograph.store.memory import MemoryStore
from heliograph.store.protocol import Store
from heliograph.store.sqlite import SqliteStore
from tests.engine.invariants import check_engine, differences, full_state
from tests.store.traffic import comparable

HOUR_NS = 3600 * SECOND_NS
RETAINED = TopicSettings(message_retention_ns=24 * HOUR_NS)


class Bench:
    """See the module.

    Args:
        kind: of store, "memory" or "sqlite".
        data_dir: for the latter.
        topic: settings of topic `t`.
        budget: of the broker's memory; None = everything stays in it.
        settings: of subscription `s`.
    """

    def __init__(
        self,
        kind: str,
        data_dir: Path,
        topic: TopicSettings = RETAINED,
        budget: int | None = None,
        **settings: object,
    ) -> None:
        self.kind = kind
        self.data_dir = data_dir
        self.budget = budget
        self.clock = SimulatedClock()
        self.memory = MemoryStore(keep_facts=True)
        self._open()
        self.broker.create_topic("t", topic).result(30)
        self.subscribe("s", **settings)

    def _open(self) -> None:
        store: Store = self.memory
        if self.kind == "sqlite":
            store = SqliteStore(self.data_dir, durability="none", trim_delay_seconds=0.0)
        self.broker = LocalBroker(store, self.clock, memory_budget_bytes=self.budget)

    @property
    def now_ns(self) -> int:
        return self.clock.now_ns()

    def subscribe(self, name: str, topic: str = "t", **settings: object) -> None:
        self.broker.create_subscription(name, topic, SubscriptionSettings(**settings)).result(30)  # type: ignore[arg-type]  # tests pass what they like

    def publish(self, *payloads: str, key: str = "", topic: str = "t") -> int:
        """Returns when: a second later than all before."""
        self.clock.advance(1)
        self.broker.publish(topic, [Draft(one.encode(), {"kind": one[0]}, key) for one in payloads]).result(30)
        return self.now_ns

    def pull(self, subscription: str = "s", count: int = 10_000) -> list[Delivery]:
        return self.broker.pull(subscription, count).result(30)

    def ack(self, deliveries: list[Delivery], subscription: str = "s") -> list[str]:
        return self.broker.acknowledge(subscription, [one.ack_id for one in deliveries]).result(30)

    def drain(self, subscription: str = "s") -> list[str]:
        """Everything that there is, acknowledged."""
        drained: list[str] = []
        while deliveries := self.pull(subscription):
            drained += [one.message.data.decode() for one in deliveries]
            self.ack(deliveries, subscription)
        return drained

    def sweep(self) -> None:
        """A look at retention, and what follows from it, is over."""
        self.clock.advance(61)
        assert self.broker._store.append(()).wait(30)

    def restart(self, *, checkpoint: bool) -> None:
        """Another broker on the same store is where this one was."""
        engine, now_ns = self.broker._engine, self.now_ns
        check_engine(engine)
        if checkpoint:
            assert self.broker._housekeeping.settle().wait(30)
        before = comparable(full_state(engine, now_ns))
        self.broker.close()
        self._open()
        assert differences(before, comparable(full_state(self.broker._engine, now_ns))) == []
        check_engine(self.broker._engine)
