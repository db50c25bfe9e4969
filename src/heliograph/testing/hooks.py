"""Everything that a test may do to a running server, in one object: the server asks it before each call, and the
admin routes and `Server` use it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Sequence
from typing import Any

from heliograph.broker import staging
from heliograph.broker.broker import LocalBroker, open_store
from heliograph.broker.housekeeping import MEMORY_BUDGET_BYTES
from heliograph.broker.queues import QUEUE_PREFIX
from heliograph.errors import NotFound
from heliograph.server import log
from heliograph.server.pubsub import policies, schema_store
from heliograph.server.routing import Route
from heliograph.store.protocol import Durability
from heliograph.testing import admin
from heliograph.testing.clock import MovableClock, SteppingClock
from heliograph.testing.faults import Faults
from heliograph.testing.ledger import Ledger, PublishedMessage, recording

DOCUMENTS = (policies.COLLECTION, schema_store.COLLECTION, log.CURSORS, staging.LEDGER)
"""What `clear` deletes of the documents; the broker's own key, which signs pushes, stays."""


class TestHooks:
    """See the module.

    Args:
        clock: the broker's time; None = the machine's, which can be moved on.
        serves_admin: whether the server has the routes of `testing/admin.py`.
    """

    __test__ = False  # its name notwithstanding, nothing for pytest to collect

    def __init__(self, clock: MovableClock | None = None, *, serves_admin: bool = False) -> None:
        self.clock: MovableClock = clock or SteppingClock()
        self.faults = Faults()
        self._ledger = Ledger()
        self._serves_admin = serves_admin
        self._broker: LocalBroker | None = None

    def open_broker(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        durability: Durability = "full",
        memory_budget_bytes: int = MEMORY_BUDGET_BYTES,
        event_retention_ns: int = 0,
    ) -> LocalBroker:
        """A broker that these hooks see into.

        Args:
            data_dir: where it keeps things; None = in memory.
            durability, memory_budget_bytes, event_retention_ns: see `LocalBroker.open`.

        Raises:
            StoreRefused: see `LocalBroker.open`.
        """
        store = open_store(data_dir, durability=durability, event_retention_ns=event_retention_ns)
        self._broker = LocalBroker(
            recording(store, self._ledger),
            self.clock,
            memory_budget_bytes=None if data_dir is None else memory_budget_bytes,
            event_retention_ns=event_retention_ns,
        )
        return self._broker

    @property
    def broker(self) -> LocalBroker:
        """The one that was opened."""
        assert self._broker is not None, "open_broker comes first"
        return self._broker

    # ── what the server asks (`server.hooks.Hooks`) ─────────────────────────────────────────────────────────────────

    @property
    def routes(self) -> Sequence[Route]:
        """See `server.hooks.Hooks`."""
        return admin.routes(self) if self._serves_admin else ()

    def serves(self, methods: Collection[str]) -> None:
        """See `server.hooks.Hooks`."""
        self.faults.serves(methods)

    def before(self, method: str) -> None:
        """See `server.hooks.Hooks`."""
        self.faults.before(method)

    # ── what a test does ────────────────────────────────────────────────────────────────────────────────────────────

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass at once: leases end, backoffs pass, retention drops what it must. Not for the event loop's
        thread.

        Raises:
            ValueError: negative.
        """
        self.clock.advance(seconds)

    def fail(self, method: str, code: Any, *, times: int | None = 1, message: str = "") -> None:
        """See `Faults.fail`."""
        self.faults.fail(method, code, times=times, message=message)

    def messages(self, topic: str | None = None) -> list[PublishedMessage]:
        """See `Ledger.messages`."""
        return self._ledger.messages(topic)

    def clear(self) -> None:
        """Everything goes: topics, subscriptions, snapshots, schemas, policies, queues, orders to fail, the list of
        published messages. Streams on what is gone end with NOT_FOUND. The clock stays where it is. Not for the event
        loop's thread."""
        self.faults.clear()
        broker = self.broker
        for subscription in broker.list_subscriptions():
            with contextlib.suppress(NotFound):  # deleted meanwhile, by whoever else uses the server
                if subscription.name.startswith(QUEUE_PREFIX):
                    broker.delete_queue(subscription.name.removeprefix(QUEUE_PREFIX)).result()
                else:
                    broker.delete_subscription(subscription.name).result()
        for snapshot in broker.list_snapshots():
            with contextlib.suppress(NotFound):
                broker.delete_snapshot(snapshot.name).result()
        for topic in broker.list_topics():
            with contextlib.suppress(NotFound):
                broker.delete_topic(topic.name).result()
        for collection in DOCUMENTS:
            for name, _ in broker.list_documents(collection):
                with contextlib.suppress(NotFound):
                    broker.delete_document(collection, name).result()
        self._ledger.clear()
