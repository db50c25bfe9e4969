"""A server in this process, and its broker as a client sees it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.broker.protocol import Broker
from heliograph.remote.broker import remote_broker
from heliograph.server.app import Serving
from tests.server.conftest import serving


class Pair(NamedTuple):
    """A broker, and the same one through a connection."""

    local: LocalBroker
    remote: Broker
    server: Serving


@pytest.fixture
def pair() -> Iterator[Pair]:
    local = LocalBroker()
    with serving(local) as server:
        remote = remote_broker(f"http://127.0.0.1:{server.port}")
        try:
            yield Pair(local, remote, server)
        finally:
            remote.close()
