"""Settings for all tests: the same run everywhere, every time."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# Examples are derived from the test alone, so a run never fails by chance; look for new ones with
# `pytest --hypothesis-profile=search`. Two cores that others use too make time limits meaningless.
settings.register_profile(
    "repeatable", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("search", deadline=None, max_examples=2_000, print_blob=True)
settings.load_profile("repeatable")

# What tests share and assert in; before anything imports it.
pytest.register_assert_rewrite(
    "tests.engine.invariants",
    "tests.engine.machine",
    "tests.engine.bench",
    "tests.engine.work_queue",
    "tests.simulation.world",
    "tests.simulation.ledger",
)
