"""A broker whose time moves on when its clients extend their leases, and only then."""

from __future__ import annotations

import threading
from typing import Any

from heliograph.broker.broker import LocalBroker
from heliograph.broker.clock import SimulatedClock


class Extensions:
    """After each extension the broker's clock goes on by nine tenths of the deadline.

    So a lease that nobody extends ends, and one that is extended does not, however late a busy machine does it.

    Args:
        broker: whose `modify_ack_deadline` is called; it has `clock`.
        deadline_seconds: how long a lease lasts.
    """

    def __init__(self, broker: LocalBroker, clock: SimulatedClock, deadline_seconds: float) -> None:
        self._extend = broker.modify_ack_deadline
        self._clock = clock
        self._step_seconds = 0.9 * deadline_seconds
        self._left = 3
        self._done = threading.Event()
        broker.modify_ack_deadline = self  # type: ignore[method-assign, assignment]  # on purpose

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        reply = self._extend(*arguments, **named)
        self._clock.advance(self._step_seconds)
        self._left -= 1
        if self._left == 0:
            self._done.set()
        return reply

    def wait(self) -> None:
        """Until nearly three deadlines have passed."""
        assert self._done.wait(30)
