"""Subscriptions that nobody uses expire (pubsub-protocol.md 1.5.4)."""

from __future__ import annotations

from pathlib import Path

import pytest

from heliograph.engine.facts import SubscriptionUsed
from heliograph.engine.settings import DAY_NS, SubscriptionSettings
from heliograph.errors import SubscriptionNotFound
from tests.broker.replay_bench import Bench

DAY = 86_400


class Expiring(Bench):
    def days_pass(self, days: float) -> None:
        """In steps, as a broker that runs would see them."""
        for _ in range(int(days * 24)):
            self.clock.advance(3_600)

    @property
    def names(self) -> list[str]:
        return [info.name for info in self.broker.list_subscriptions()]


@pytest.fixture(params=["memory", "sqlite"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Expiring:
    return Expiring(request.param, tmp_path, expires_after_ns=2 * DAY_NS)


def test_an_unused_one_is_deleted_with_what_it_holds(bench: Expiring) -> None:
    bench.subscribe("forever")
    bench.publish("a")
    bench.clock.advance(2 * DAY - 120)
    assert bench.names == ["forever", "s"]
    bench.clock.advance(240)
    assert bench.names == ["forever"]
    with pytest.raises(SubscriptionNotFound):
        bench.pull()
    bench.restart(checkpoint=False)
    assert bench.names == ["forever"]
    bench.broker.close()


def test_it_needs_no_message_to_be_noticed(bench: Expiring) -> None:
    bench.clock.advance(2 * DAY + 120)
    assert bench.names == []
    bench.broker.close()


@pytest.mark.parametrize("use", ["pull", "acknowledge", "update", "watch", "seek"])
def test_whatever_uses_it_keeps_it(bench: Expiring, use: str) -> None:
    bench.publish("a")
    (delivery,) = bench.pull()
    if use == "watch":
        watch = bench.broker.watch("s", lambda: None)
        bench.days_pass(5)
        watch.close()
    else:
        bench.clock.advance(1.5 * DAY)
    settings = SubscriptionSettings(expires_after_ns=2 * DAY_NS, labels={"a": "b"})
    uses = {
        "pull": lambda: bench.pull(),
        "acknowledge": lambda: bench.broker.acknowledge("s", [delivery.ack_id]).result(30),
        "update": lambda: bench.broker.update_subscription("s", settings).result(30),
        "seek": lambda: bench.broker.seek_to_time("s", 0).result(30),
        "watch": lambda: None,
    }
    uses[use]()
    bench.clock.advance(2 * DAY - 120)
    assert bench.names == ["s"]
    bench.clock.advance(240)
    assert bench.names == []
    bench.broker.close()


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_restart_remembers_it_to_within_an_hour_or_so(bench: Expiring, checkpoint: bool) -> None:
    for _ in range(3 * 24):
        bench.clock.advance(3_600)
        bench.pull()
    bench.restart(checkpoint=checkpoint)
    bench.clock.advance(2 * DAY - 2 * 3_600 - 120)
    assert bench.names == ["s"]
    bench.clock.advance(2 * 3_600 + 240)
    assert bench.names == []
    bench.broker.close()


def test_that_it_is_used_is_told_once_an_hour_at_most(bench: Expiring) -> None:
    bench.clock.advance(61)
    told: list[SubscriptionUsed] = []
    append = bench.broker._store.append

    def spy(facts: list[object]) -> object:
        told.extend(fact for fact in facts if isinstance(fact, SubscriptionUsed))
        return append(facts)  # type: ignore[arg-type]

    bench.broker._store.append = spy  # type: ignore[method-assign, assignment]
    for _ in range(10 * 60):
        bench.clock.advance(60)
        bench.pull()
    assert 8 <= len(told) <= 10
    bench.broker.close()


def test_one_that_comes_late_to_its_expiry_is_none_for_who_works_on_it(bench: Expiring) -> None:
    """An operation that finds it due by itself does not see it go: the timer takes it, between operations."""
    bench.clock.advance(2 * DAY - 60)
    engine = bench.broker._engine
    later_ns = bench.now_ns + 2 * DAY_NS
    assert engine.statistics("s", later_ns).ready == 0
    engine.update_subscription("s", SubscriptionSettings(), later_ns)
    bench.broker.close()
