"""A clock that goes like the machine's and can be moved on: time limits of hours pass in a test that takes none."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from heliograph.broker.clock import Clock, SystemClock, Timer
from heliograph.engine.settings import NEVER_NS


class MovableClock(Clock, Protocol):
    """A clock that tests may move."""

    def advance(self, seconds: float) -> None:
        """Move on by `seconds`, stopping at every instant for which a timer is set."""


class SteppingClock:
    """The machine's clock, ahead of it by as much as it was moved on. Thread-safe.

    For a clock that stands between steps take `heliograph.SimulatedClock`.
    """

    def __init__(self) -> None:
        self._base = SystemClock()
        self._ahead_ns = 0
        self._lock = threading.Lock()
        self._timers: list[_SteppingTimer] = []

    def now_ns(self) -> int:
        """Nanoseconds since the epoch, never less than before."""
        return self._base.now_ns() + self._ahead_ns

    def timer(self, callback: Callable[[], None]) -> Timer:
        """A timer that fires by itself, and in the thread that calls `advance` when that brings its time."""
        timer = _SteppingTimer(self, self._base, callback)
        with self._lock:
            self._timers.append(timer)
        return timer

    def advance(self, seconds: float) -> None:
        """Move on by `seconds`, stopping at every instant for which a timer is set, as if the time had passed.

        Raises:
            ValueError: `seconds` is negative: time does not run backwards.
        """
        if seconds < 0:
            raise ValueError("a clock cannot be moved back")
        target_ns = self.now_ns() + round(seconds * 1e9)
        while (timer := self._first_due(target_ns)) is not None:
            self._move_to(timer.instant_ns)
            timer.fire_if_due()
        self._move_to(target_ns)
        for timer in self._all():
            timer.arm()

    def forget(self, timer: _SteppingTimer) -> None:
        """A timer was closed."""
        with self._lock:
            if timer in self._timers:
                self._timers.remove(timer)

    def base_instant_ns(self, instant_ns: int) -> int:
        """When it will be on the machine's clock."""
        return instant_ns - self._ahead_ns

    def _all(self) -> list[_SteppingTimer]:
        with self._lock:
            return list(self._timers)

    def _first_due(self, target_ns: int) -> _SteppingTimer | None:
        timers = [timer for timer in self._all() if timer.instant_ns <= target_ns]
        return min(timers, key=lambda timer: timer.instant_ns, default=None)

    def _move_to(self, instant_ns: int) -> None:
        with self._lock:
            self._ahead_ns += max(0, instant_ns - self.now_ns())


class _SteppingTimer:
    def __init__(self, clock: SteppingClock, base: SystemClock, callback: Callable[[], None]) -> None:
        self.instant_ns = NEVER_NS
        self._clock = clock
        self._callback = callback
        self._lock = threading.Lock()
        self._inner = base.timer(self._on_time)

    def set(self, instant_ns: int) -> None:
        with self._lock:
            if instant_ns >= self.instant_ns:
                return
            self.instant_ns = instant_ns
        self.arm()

    def close(self) -> None:
        self._clock.forget(self)
        self._inner.close()

    def arm(self) -> None:
        """Let the machine's clock fire it, as things stand."""
        instant_ns = self.instant_ns
        if instant_ns != NEVER_NS:
            self._inner.set(self._clock.base_instant_ns(instant_ns))

    def fire_if_due(self) -> None:
        with self._lock:
            if self.instant_ns > self._clock.now_ns():
                return
            self.instant_ns = NEVER_NS
        self._callback()

    def _on_time(self) -> None:
        self.fire_if_due()
        self.arm()  # the inner timer fires at the first instant that it was set to, and forgets the others
