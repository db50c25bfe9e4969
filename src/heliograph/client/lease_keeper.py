"""Leases of the messages that this process has in hand: kept while a callback runs, given back at the end.

A message whose callback is running is extended in time, so that no other subscriber gets it meanwhile, however long it
takes. One that was handed out to be settled later has its ack deadline for that.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar

from heliograph.broker.protocol import Broker
from heliograph.engine.settings import SECOND_NS
from heliograph.errors import HeliographError

_log = logging.getLogger("heliograph")

_LOOKS_PER_DEADLINE = 3  # so that one look may come late


class _Named(Protocol):
    @property
    def resource(self) -> str:
        """What the broker calls it."""


class Leased(Protocol):
    """A message in hand."""

    @property
    def ack_id(self) -> str:
        """Names this delivery."""

    @property
    def queue(self) -> _Named:
        """Where it is from."""


M = TypeVar("M", bound=Leased)


class LeaseKeeper(Generic[M]):
    """Messages in hand, by ack id.

    Args:
        broker: whose leases they are.
        ack_deadline_seconds: how long a lease lasts.
    """

    def __init__(self, broker: Broker, ack_deadline_seconds: float) -> None:
        self._broker = broker
        self._deadline_seconds = ack_deadline_seconds
        self._changed = threading.Condition()
        self._held: dict[str, M] = {}
        self._ends: dict[str, float] = {}  # of those that nobody extends: when their lease has ended for certain
        self._thread: threading.Thread | None = None
        self._asleep = False
        self._closed = False

    def hold(self, message: M, *, extend: bool = False) -> None:
        """It was handed out just now; with `extend` its lease goes on until `returned`."""
        with self._changed:
            self._held[message.ack_id] = message
            if not extend:
                self._ends[message.ack_id] = time.monotonic() + self._deadline_seconds
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="heliograph-leases", daemon=True)
                self._thread.start()
            elif self._asleep:
                self._changed.notify()

    def returned(self, message: M) -> None:
        """Its callback has returned: from now on it has its ack deadline to be settled."""
        with self._changed:
            if message.ack_id in self._held:
                self._ends[message.ack_id] = time.monotonic() + self._deadline_seconds

    @property
    def count(self) -> int:
        """How many are in hand."""
        with self._changed:
            return len(self._held)

    def let_go(self, message: M) -> None:
        """It is being settled."""
        with self._changed:
            self._ends.pop(message.ack_id, None)
            self._held.pop(message.ack_id, None)

    def find(self, ack_id: str) -> M | None:
        """The message in hand by that ack id."""
        with self._changed:
            return self._held.get(ack_id)

    def close(self) -> None:
        """Give back everything in hand at once; it counts as no failure. Idempotent."""
        with self._changed:
            self._closed = True
            self._changed.notify()
            messages = list(self._held.values())
            self._held.clear()
        for resource, ack_ids in _by_resource(messages).items():
            try:
                self._broker.release(resource, ack_ids)
            except HeliographError as error:
                _log.debug("leases of %s could not be given back: %s", resource, error)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while self._wait():
            try:
                self._extend()
            except Exception:  # without this thread every lease would end unseen
                _log.exception("leases could not be extended; the next attempt follows")

    def _wait(self) -> bool:
        """Until it is time to look again; nothing in hand, nothing to look at. False once closed."""
        with self._changed:
            while not self._held and not self._closed:
                self._asleep = True
                self._changed.wait()
            self._asleep = False
            self._changed.wait_for(lambda: self._closed, self._deadline_seconds / _LOOKS_PER_DEADLINE)
            return not self._closed

    def _extend(self) -> None:
        with self._changed:
            now = time.monotonic()
            # copies: the collection of garbage may let go of messages here, in this thread, at any time
            for ack_id in [ack_id for ack_id, end in list(self._ends.items()) if end < now]:
                self._ends.pop(ack_id, None)
                self._held.pop(ack_id, None)
            messages = [message for ack_id, message in list(self._held.items()) if ack_id not in self._ends]
        for resource, ack_ids in _by_resource(messages).items():
            try:
                deadline_ns = round(self._deadline_seconds * SECOND_NS)
                stale = self._broker.modify_ack_deadline(resource, ack_ids, deadline_ns).provisional
            except HeliographError as error:
                _log.warning("leases of %s could not be extended: %s", resource, error)
                continue
            with self._changed:
                for ack_id in stale:  # settled through another door, or given to somebody else
                    self._held.pop(ack_id, None)


def _by_resource(messages: Iterable[Leased]) -> dict[str, list[str]]:
    groups: defaultdict[str, list[str]] = defaultdict(list)
    for message in messages:
        groups[message.queue.resource].append(message.ack_id)
    return groups
