"""The public test kit: a server inside the test's process, whose time can be moved on and whose calls can be made to
fail; a clock that stands; a store that fails on demand.

::

    from heliograph.testing import Server

    with Server() as server:
        publisher = pubsub_v1.PublisherClient()  # under server.environment()
        server.advance(seconds=600)
        server.fail("Publish", "UNAVAILABLE", times=2)
        (message,) = server.messages("projects/p/topics/t")
        assert message.acknowledgements == 1

Under pytest the fixture `heliograph_server` is such a server, with the environment set (`testing/pytest_plugin.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph.broker.clock import SimulatedClock

if TYPE_CHECKING:
    from heliograph.testing.clock import SteppingClock
    from heliograph.testing.faulty_store import FaultyStore
    from heliograph.testing.ledger import Counts, PublishedMessage
    from heliograph.testing.server import Server

_MODULES = {
    "Counts": "ledger",
    "FaultyStore": "faulty_store",
    "PublishedMessage": "ledger",
    "Server": "server",
    "SteppingClock": "clock",
}

__all__ = ["Counts", "FaultyStore", "PublishedMessage", "Server", "SimulatedClock", "SteppingClock"]


def __getattr__(name: str) -> object:
    # the server needs the extra `server`, and a second to load; the rest of the kit must not
    import importlib

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
