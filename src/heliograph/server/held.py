"""Which connection holds which delivery, so that they go back when it ends, and so that whoever settles one frees that
connection's credit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from heliograph.broker.protocol import Broker
from heliograph.engine.message import Delivery, size_bytes
from heliograph.engine.settings import NEVER_NS
from heliograph.server.taking import give_back


class Pusher(Protocol):
    """What pushed deliveries by itself, and counts them."""

    earliest_ns: int
    """No lease on what it pushed ends before."""

    def add(self, size: int, deadline_ns: int) -> None:
        """A message of `size` bytes is about to be pushed."""

    def remove(self, size: int) -> None:
        """One is settled, or its lease has ended."""


class Holders:
    """Which connection holds a delivery, by ack id; so that whoever settles it frees that connection's credit."""

    def __init__(self) -> None:
        self._connections: dict[str, Connection] = {}
        self._subscribed: dict[str, Counter[str]] = {}

    def subscribed(self, name: str) -> Mapping[str, int]:
        """How many connections are subscribed to `name`, by consumer."""
        return self._subscribed.get(name, {})

    def join(self, name: str, consumer: str) -> None:
        """A connection subscribes."""
        self._subscribed.setdefault(name, Counter())[consumer] += 1

    def leave(self, name: str, consumer: str) -> None:
        """A subscription ends."""
        consumers = self._subscribed[name]
        consumers[consumer] -= 1
        self._subscribed[name] = +consumers
        if not self._subscribed[name]:
            del self._subscribed[name]

    def hold(self, connection: Connection, ack_ids: Sequence[str]) -> None:
        """`connection` holds these."""
        self._connections.update(dict.fromkeys(ack_ids, connection))

    def forget(self, ack_ids: Sequence[str]) -> None:
        """Nobody holds these any more, and nobody is told."""
        for ack_id in ack_ids:
            self._connections.pop(ack_id, None)

    def settled(self, ack_ids: Sequence[str]) -> None:
        """These were acknowledged or given back, or are stale."""
        if self._connections:
            for ack_id in ack_ids:
                connection = self._connections.pop(ack_id, None)
                if connection is not None:
                    connection.settled(ack_id)

    def extended(self, ack_ids: Sequence[str], deadline_ns: int) -> None:
        """The leases of these now end at `deadline_ns`."""
        if self._connections:
            for ack_id in ack_ids:
                connection = self._connections.get(ack_id)
                if connection is not None:
                    connection.extended(ack_id, deadline_ns)


class Held(NamedTuple):
    """A delivery that a connection holds.

    Args:
        name: of the subscription.
        deadline_ns: when the lease ends.
        size: as `engine.message.size_bytes` counts.
        pushed_by: what pushed it; None = the client asked for it.
    """

    name: str
    deadline_ns: int
    size: int
    pushed_by: Pusher | None


class Connection:
    """What one connection holds, and gives back at its end.

    Args:
        broker: who has the messages.
        holders: shared by all connections.
    """

    LOOK_AT_MIN = 10_000

    def __init__(self, broker: Broker, holders: Holders) -> None:
        self._broker = broker
        self._holders = holders
        self._held: dict[str, Held] = {}  # by ack id
        self._look_at = self.LOOK_AT_MIN
        self._closed = False

    def close(self) -> None:
        """It is gone: its leases go back at once, and count as no failure. Idempotent."""
        self._closed = True
        held, self._held = self._held, {}
        self._holders.forget(list(held))
        by_name: dict[str, list[str]] = {}
        for ack_id, one in held.items():
            by_name.setdefault(one.name, []).append(ack_id)
        for name, ack_ids in by_name.items():
            give_back(self._broker, name, ack_ids)

    def hold(self, name: str, deliveries: Sequence[Delivery], pushed_by: Pusher | None = None) -> None:
        """The client has got these, or is about to. If it is gone already, they go back."""
        ack_ids = [delivery.ack_id for delivery in deliveries]
        if self._closed:
            give_back(self._broker, name, ack_ids)
            return
        for delivery in deliveries:
            size = size_bytes(delivery.message)
            self._held[delivery.ack_id] = Held(name, delivery.deadline_ns, size, pushed_by)
            if pushed_by is not None:
                pushed_by.add(size, delivery.deadline_ns)
        self._holders.hold(self, ack_ids)
        if len(self._held) >= self._look_at:
            self.drop_ended()

    def drop_ended(self) -> None:
        """Those whose lease has ended are not held any more: so that a client that never acknowledges fills no memory,
        and gets what comes next."""
        now_ns = self._broker.now_ns()
        ended = [ack_id for ack_id, held in self._held.items() if held.deadline_ns <= now_ns]
        for ack_id in ended:
            held = self._held.pop(ack_id)
            if held.pushed_by is not None:
                held.pushed_by.remove(held.size)
        self._holders.forget(ended)
        self._look_at = max(self.LOOK_AT_MIN, 2 * len(self._held))

    def earliest_ns(self, pusher: Pusher) -> int:
        """When the first lease ends on what `pusher` pushed."""
        return min((one.deadline_ns for one in self._held.values() if one.pushed_by is pusher), default=NEVER_NS)

    def settled(self, ack_id: str) -> None:
        """It does not hold this one any more."""
        held = self._held.pop(ack_id)
        if held.pushed_by is not None:
            held.pushed_by.remove(held.size)
        self._freed(held.name)

    def extended(self, ack_id: str, deadline_ns: int) -> None:
        """The lease now ends then."""
        held = self._held[ack_id]
        self._held[ack_id] = held._replace(deadline_ns=deadline_ns)
        if held.pushed_by is not None:
            held.pushed_by.earliest_ns = min(held.pushed_by.earliest_ns, deadline_ns)

    def _freed(self, name: str) -> None:
        """It holds less of the subscription of that name."""
