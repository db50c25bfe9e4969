"""The forwarder: subscribes to the topic, and puts what is late or cancelled into the work queue.

Both ends are at-least-once, so it remembers flights and not messages: it acknowledges a flight only after the queue has
answered, and puts none in twice unless an answer was lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec
from google.cloud.pubsub_v1.subscriber.message import Message

from heliograph.demo.commands import Commands
from heliograph.demo.delays import QUEUE, SETTINGS, priority
from heliograph.demo.flights import Flight
from heliograph.demo.latency import Durations
from heliograph.demo.receipts import Receipts
from heliograph.demo.stream import Stream


class Forwarder:
    """Subscribes to the topic and puts what is late or cancelled into the queue.

    Args:
        subscription: full resource name.
        commands: the work-queue door.
        expected: how many different flights the topic will carry.
        on_first: called for each flight looked at for the first time.
    """

    def __init__(
        self, subscription: str, commands: Commands, expected: int, on_first: Callable[[], None] | None = None
    ) -> None:
        self.seen = Receipts(expected, on_first)
        self.queued = Receipts()
        self.enqueue = Durations()
        self._subscription = subscription
        self._commands = commands
        self._decode = msgspec.json.Decoder(Flight).decode
        self._in_queue: set[int] = set()
        self._handing_in: set[int] = set()
        self._lock = threading.Lock()
        self._stream: Stream | None = None

    def start(self) -> None:
        """Make the queue, and open the stream."""
        self._commands.call("queue.create", SETTINGS)
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
        if (flight.cancelled or flight.late) and not self._forward(flight):
            message.nack()
            return
        message.ack()
        self.seen.add(flight.carrier, flight.row)

    def _forward(self, flight: Flight) -> bool:
        """Have the flight in the queue; False = another thread is just handing it in, and might fail."""
        with self._lock:
            if flight.row in self._in_queue:
                return True
            if flight.row in self._handing_in:
                return False
            self._handing_in.add(flight.row)
        try:
            job = {"flight": flight, "queued_ns": time.time_ns()}
            started_ns = time.perf_counter_ns()
            self._commands.call("queue.publish", {"queue": QUEUE, "message": job, "priority": priority(flight)})
            self.enqueue.add(time.perf_counter_ns() - started_ns)
            with self._lock:
                self._in_queue.add(flight.row)
        finally:
            with self._lock:
                self._handing_in.discard(flight.row)
        self.queued.add(flight.carrier, flight.row)
        return True
