"""When a message that failed may be delivered again."""

from __future__ import annotations

import msgspec


class RetryPolicy(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Backoff between deliveries; a nack and an expired lease count alike (design §5).

    Args:
        minimum_backoff_ns: the wait after the first failure.
        maximum_backoff_ns: no wait is longer.
        delays_ns: explicit waits, one per failure, the last repeated; they win over the two bounds.
    """

    minimum_backoff_ns: int = 0
    maximum_backoff_ns: int = 0
    delays_ns: tuple[int, ...] = ()

    def backoff_ns(self, attempt: int) -> int:
        """The wait after delivery `attempt` (from 1) failed.

        min(minimum_backoff · 2^(attempt-1), maximum_backoff): spec 000, BR-015.
        """
        if self.delays_ns:
            return self.delays_ns[min(attempt, len(self.delays_ns)) - 1]
        # beyond 2^63 every backoff is at its maximum, and the shift would only grow a large number
        return min(self.minimum_backoff_ns << min(attempt - 1, 63), self.maximum_backoff_ns)
