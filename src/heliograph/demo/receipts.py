"""What a consumer has dealt with: each flight once, however often it came."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Receipts:
    """A set of flights (by `Flight.row`) per airline that wakes its waiter when it holds as many as expected.

    At-least-once delivery means that a flight may come again; that is counted, and is no fault.

    Args:
        expected: how many flights there will be; None = not known yet.
        on_first: called for each new one, from any thread; must be quick.
    """

    def __init__(self, expected: int | None = None, on_first: Callable[[], None] | None = None) -> None:
        self.repeated = 0
        self.complete = threading.Event()
        self.completed = 0.0
        self._expected = expected
        self._rows: dict[str, set[int]] = {}
        self._count = 0
        self._lock = threading.Lock()
        self._on_first = on_first or (lambda: None)

    def add(self, carrier: str, row: int) -> bool:
        """Note a flight; True = for the first time."""
        with self._lock:
            rows = self._rows.setdefault(carrier, set())
            if row in rows:
                self.repeated += 1
                return False
            rows.add(row)
            self._count += 1
            self._check()
        self._on_first()
        return True

    def expect(self, count: int) -> None:
        """Say how many there will be."""
        with self._lock:
            self._expected = count
            self._check()

    def __len__(self) -> int:
        """How many different flights."""
        return self._count

    def by_airline(self) -> dict[str, set[int]]:
        """The flights so far, by airline."""
        with self._lock:
            return {carrier: set(rows) for carrier, rows in self._rows.items()}

    def rows(self) -> set[int]:
        """The flights so far."""
        with self._lock:
            return {row for rows in self._rows.values() for row in rows}

    def _check(self) -> None:
        if self._expected is not None and self._count >= self._expected and not self.complete.is_set():
            self.completed = time.monotonic()
            self.complete.set()
