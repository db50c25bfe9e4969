"""Assertions outside test modules explain themselves, too."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    "tests.engine.invariants", "tests.engine.machine", "tests.engine.model", "tests.simulation.world"
)
