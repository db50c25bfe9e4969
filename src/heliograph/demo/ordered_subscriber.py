"""The ordered subscriber: the official client's `subscribe()` on a subscription with message ordering.

What is provable about order: Pub/Sub promises that messages of one key arrive as the broker received them. A tail
number is a key, and 18 aircraft flew for two airlines in 2013, so two publishers share such a key; how their flights
interleave is decided by the network, and nobody could say what is right. Each publisher's own flights of a key,
however, keep their order, and so the check is per airline and aircraft: the legs, which the publisher numbered from 1,
must come without a gap and without a step back. A leg that came before may come again (at-least-once), also after later
ones, and proves nothing against the broker: what must be in order are first arrivals.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec
from google.cloud.pubsub_v1.subscriber.message import Message

from heliograph.demo.flights import Flight
from heliograph.demo.latency import Durations
from heliograph.demo.receipts import Receipts
from heliograph.demo.stream import Stream

VIOLATIONS_KEPT = 20


class LegOrder:
    """Checks that each aircraft's legs arrive in order. Thread-safe."""

    def __init__(self) -> None:
        self.checked = 0
        self.violations: list[str] = []
        self.violations_count = 0
        self._last: dict[tuple[str, str], int] = {}
        self._lock = threading.Lock()

    @property
    def aircraft(self) -> int:
        """How many there are, one that flew for two airlines counted twice."""
        return len(self._last)

    def arrived(self, flight: Flight) -> None:
        """A flight has come; those of an unknown aircraft have no order."""
        if flight.tailnum is None:
            return
        key = flight.carrier, flight.tailnum
        with self._lock:
            last = self._last.get(key, 0)
            if flight.leg <= last:
                return
            self.checked += 1
            if flight.leg != last + 1:
                self.violations_count += 1
                if len(self.violations) < VIOLATIONS_KEPT:
                    self.violations.append(
                        f"{flight.carrier} {flight.tailnum}: leg {flight.leg} arrived when leg {last + 1} was due"
                    )
            self._last[key] = flight.leg


class OrderedSubscriber:
    """Consumes a subscription until every flight was acknowledged.

    Args:
        subscription: full resource name.
        expected: how many different flights there are.
        on_first: see `Receipts`.
    """

    def __init__(self, subscription: str, expected: int, on_first: Callable[[], None] | None = None) -> None:
        self.acknowledged = Receipts(expected, on_first)
        self.order = LegOrder()
        self.delivery = Durations()
        self._subscription = subscription
        self._decode = msgspec.json.Decoder(Flight).decode
        self._stream: Stream | None = None

    def start(self) -> None:
        """Open the stream."""
        self._stream = Stream(self._subscription, self._receive)

    def failure(self) -> BaseException | None:
        """What ended the stream; None = it runs, or was stopped."""
        return None if self._stream is None else self._stream.failure()

    def stop(self) -> None:
        """Close the stream, the acknowledgements sent. Idempotent."""
        if self._stream is not None:
            self._stream.close()

    def _receive(self, message: Message) -> None:
        flight = self._decode(message.data)
        self.order.arrived(flight)
        message.ack()
        # a redelivery says how long a lease was, not how quick a delivery is
        if self.acknowledged.add(flight.carrier, flight.row):
            self.delivery.add(time.time_ns() - round(message.publish_time.timestamp() * 1e9))
