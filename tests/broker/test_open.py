"""A broker on a directory, as an application opens it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from heliograph import InvalidArgument, LocalBroker, SimulatedClock, Statistics
from heliograph.broker.housekeeping import MEMORY_BUDGET_BYTES, Housekeeping
from heliograph.engine.message import Draft


def test_a_broker_opened_on_a_directory_goes_on_from_what_is_there(tmp_path: Path) -> None:
    broker = LocalBroker.open(tmp_path / "new" / "data")
    broker.create_topic("orders")
    broker.create_subscription("billing", "orders")
    broker.publish("orders", [Draft(b"a")]).result()
    broker.close()
    again = LocalBroker.open(str(tmp_path / "new" / "data"))
    try:
        assert [delivery.message.data for delivery in again.pull("billing", 10).result()] == [b"a"]
        statistics: Statistics = again.statistics("billing")
        assert statistics.outstanding == 1
    finally:
        again.close()


def test_it_keeps_time_and_promises_as_it_was_told(tmp_path: Path) -> None:
    clock = SimulatedClock()
    broker = LocalBroker.open(tmp_path, clock=clock, durability="process")
    try:
        assert (broker.health().durability, broker.now_ns()) == ("process", clock.now_ns())
    finally:
        broker.close()


@pytest.mark.parametrize("budget", [{}, {"memory_budget_bytes": None}, {"memory_budget_bytes": 5}])
def test_its_memory_is_bounded_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: dict[str, Any]
) -> None:
    budgets = []
    monkeypatch.setattr(
        "heliograph.broker.operations.Housekeeping",
        lambda store, bytes_, events_ns: budgets.append(bytes_) or Housekeeping(store, bytes_, events_ns),
    )
    LocalBroker.open(tmp_path, **budget).close()
    assert budgets == [budget.get("memory_budget_bytes", MEMORY_BUDGET_BYTES)]


@pytest.mark.parametrize("arguments", [{"data_dir": 7}, {"data_dir": ""}, {"data_dir": None}, {"durability": "most"}])
def test_what_cannot_be_opened_is_refused_with_code_3(tmp_path: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        LocalBroker.open(**{"data_dir": tmp_path} | arguments)
    assert caught.value.code == 3
    assert list(tmp_path.iterdir()) == []
