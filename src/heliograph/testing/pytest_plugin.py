"""The fixture `heliograph_server`, which pytest knows wherever Heliograph is installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from heliograph.testing.server import Server


@pytest.fixture
def heliograph_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A Heliograph server of the test's own (`heliograph.testing.Server`), with `PUBSUB_EMULATOR_HOST` pointing to it
    while the test runs."""
    from heliograph.testing.server import Server

    with Server() as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        yield server
