"""Readers of whole logs step back while others have work for the broker.

One interpreter does everything, and encoding a log keeps it busy for milliseconds at a time: a publisher that waits for
its turn each time would get a sixth of what it gets alone. So a stream rests after each of its parts, the longer the
more requests come in meanwhile. A publisher that sends one request after the other is back at its pace after a few
rests, and readers have a tenth of the time; where nobody else asks for anything they have all of it.
"""

from __future__ import annotations

import time

RESTS_MAX = 10.0
"""A stream rests at most so many times as long as it worked."""

REQUESTS_PER_REST = 50.0
"""So many requests a second make a rest as long as the work."""

LOOP_SHARE_FREE = 0.15
"""So much of the event loop's time the sending of streams itself may take."""

LOOP_RESTS = 20.0
"""Rests for the whole of the event loop's time beyond that: what long streams of deliveries cost."""


class Demand:
    """What others ask of this process; there is one, since the interpreter is one.

    Attributes:
        requests: that came in, other than for streams of logs.
        streams: of logs that are being sent.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.streams = 0


DEMAND = Demand()


class Courtesy:
    """How long one stream rests. Used from the event loop's thread only.

    Args:
        demand: what others ask for.
    """

    def __init__(self, demand: Demand = DEMAND) -> None:
        self._demand = demand
        self._note()

    def rest_seconds(self, worked_seconds: float) -> float:
        """How long to rest after having worked so long; looks at what happened since the last call."""
        requests, loop_seconds, now = self._requests, self._loop_seconds, self._now
        self._note()
        passed_seconds = max(self._now - now, 1e-6)
        by_requests = (self._requests - requests) / passed_seconds / REQUESTS_PER_REST
        by_loop = ((self._loop_seconds - loop_seconds) / passed_seconds - LOOP_SHARE_FREE) * LOOP_RESTS
        rests = min(max(by_requests, by_loop, 0.0), RESTS_MAX)
        return worked_seconds * rests * max(self._demand.streams, 1)

    def _note(self) -> None:
        self._requests = self._demand.requests
        self._loop_seconds = time.thread_time()
        self._now = time.monotonic()
