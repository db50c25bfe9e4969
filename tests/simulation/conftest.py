"""Assertions outside test modules explain themselves, too."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "tests.engine.invariants",
    "tests.engine.machine",
    "tests.engine.model",
    "tests.simulation.ledger",
    "tests.simulation.world",
)


@pytest.fixture(autouse=True)
def _short_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics give back memory after a few messages already, so that it happens in small tests."""
    monkeypatch.setattr("heliograph.engine.log._CUT_AT_LEAST", 4, raising=False)
