"""Where time comes from. The engine takes it as a number; only the broker asks a clock."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

_log = logging.getLogger(__name__)


class Timer(Protocol):
    """Calls back at one instant; setting it again moves the instant."""

    def set(self, instant_ns: int) -> None:
        """Call back at `instant_ns`, or earlier if it was set to an earlier instant before."""

    def close(self) -> None:
        """No call comes after this returns, save one under way. Idempotent."""


class Clock(Protocol):
    """Nanoseconds since the epoch, and timers on them."""

    def now_ns(self) -> int:
        """The time now."""

    def timer(self, callback: Callable[[], None]) -> Timer:
        """A timer that calls `callback()` from a thread of the clock's choice."""


SET_NS = 1_000_000_000
"""By how much the machine's clock must be ahead to count as set: the two readings are not taken at once."""

WAIT_SECONDS_MAX = 60.0
"""A timer looks at the clock so often at least: while the machine sleeps, its waits do not get shorter."""


class SystemClock:
    """The machine's clock, held from running backwards: an ack deadline must not move because the clock was set.

    It follows the clock forwards, though: while a machine sleeps its monotonic clock stands still, and a broker that
    was late ever after would give messages publish times before the instants that clients seek to.
    """

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def now_ns(self) -> int:
        """Nanoseconds since the epoch, never less than before."""
        wall_ns = time.time_ns()
        awake_ns = time.monotonic_ns()
        if wall_ns - awake_ns - self._offset_ns > SET_NS:
            # not added to: another thread may have seen it as well
            self._offset_ns = max(self._offset_ns, wall_ns - awake_ns)
        return awake_ns + self._offset_ns

    def timer(self, callback: Callable[[], None]) -> Timer:
        """A timer with a daemon thread of its own, started when it is first set."""
        return _ThreadTimer(self, callback)


class _ThreadTimer:
    def __init__(self, clock: SystemClock, callback: Callable[[], None]) -> None:
        self._clock = clock
        self._callback = callback
        self._changed = threading.Condition()
        self._instant_ns: int | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def set(self, instant_ns: int) -> None:
        earlier_ns = self._instant_ns
        if earlier_ns is not None and earlier_ns <= instant_ns:
            return  # the usual case, without the lock: the callback to come is early enough
        with self._changed:
            if self._closed or (self._instant_ns is not None and self._instant_ns <= instant_ns):
                return
            self._instant_ns = instant_ns
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="heliograph-timer", daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        while self._wait():
            try:
                self._callback()
            except Exception:  # without this thread no lease would ever end
                _log.exception("a timer's callback failed")

    def _wait(self) -> bool:
        """Until the instant has come; False once closed."""
        with self._changed:
            while not self._closed:
                left_ns = None if self._instant_ns is None else self._instant_ns - self._clock.now_ns()
                if left_ns is not None and left_ns <= 0:
                    self._instant_ns = None
                    return True
                self._changed.wait(None if left_ns is None else min(left_ns / 1e9, WAIT_SECONDS_MAX))
        return False


class SimulatedClock:
    """A clock that stands until it is told to move, for tests: no test of time needs to sleep.

    Args:
        now_ns: where it starts, nanoseconds since the epoch.
    """

    def __init__(self, now_ns: int = 1_000_000_000_000_000_000) -> None:
        self._now_ns = now_ns
        self._timers: list[_SimulatedTimer] = []

    def now_ns(self) -> int:
        """The simulated time, nanoseconds since the epoch."""
        return self._now_ns

    def timer(self, callback: Callable[[], None]) -> Timer:
        """A timer that `advance` fires, in the thread that calls it."""
        timer = _SimulatedTimer(self, callback)
        self._timers.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        """Move on by `seconds`, stopping at every instant for which a timer is set."""
        target_ns = self._now_ns + round(seconds * 1e9)
        while True:
            due = [timer for timer in self._timers if timer.instant_ns is not None and timer.instant_ns <= target_ns]
            if not due:
                break
            timer = min(due, key=lambda timer: timer.instant_ns or 0)
            self._now_ns = max(self._now_ns, timer.instant_ns or 0)
            timer.instant_ns = None
            timer.callback()
        self._now_ns = target_ns

    def forget(self, timer: _SimulatedTimer) -> None:
        """A timer was closed."""
        if timer in self._timers:
            self._timers.remove(timer)


class _SimulatedTimer:
    def __init__(self, clock: SimulatedClock, callback: Callable[[], None]) -> None:
        self._clock = clock
        self.callback = callback
        self.instant_ns: int | None = None

    def set(self, instant_ns: int) -> None:
        if self.instant_ns is None or instant_ns < self.instant_ns:
            self.instant_ns = instant_ns

    def close(self) -> None:
        self._clock.forget(self)
