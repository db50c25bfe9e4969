"""How many pushes of a subscription may be under way, and when the next one may begin (1.13.3). Numbers only."""

from __future__ import annotations

WINDOW_MAX = 200
"""Requests under way for one subscription. Over HTTP/1.1 each takes a connection; a process has about a thousand."""

BACKOFF_MIN_NS = 100_000_000
BACKOFF_MAX_NS = 60_000_000_000


class Pace:
    """A window that opens with every success, twice as wide after each round; and a pause after failures, doubled each
    time, that ends with the next success."""

    __slots__ = ("_failures", "_paused_ns", "resume_ns", "window")

    def __init__(self) -> None:
        self.window = 1
        self.resume_ns = 0
        """Nothing may begin before this instant; 0 = no pause."""
        self._failures = 0
        self._paused_ns = 0

    def room(self, outstanding: int, now_ns: int) -> int:
        """How many more requests may begin now."""
        return 0 if now_ns < self.resume_ns else max(self.window - outstanding, 0)

    def succeeded(self) -> None:
        """A message was acknowledged."""
        self._failures = 0
        self.resume_ns = 0
        self.window = min(self.window + 1, WINDOW_MAX)

    def failed(self, began_ns: int, now_ns: int) -> None:
        """A request failed, or was not answered in time. Those that were under way together count as one failure: with
        a wide window one bad moment would else be a pause of a minute.

        Args:
            began_ns: when the request began.
            now_ns: now.
        """
        if self._failures and began_ns <= self._paused_ns:
            return
        self._failures += 1
        self._paused_ns = now_ns
        self.window = max(self.window // 2, 1)
        self.resume_ns = now_ns + min(BACKOFF_MIN_NS << min(self._failures - 1, 20), BACKOFF_MAX_NS)
