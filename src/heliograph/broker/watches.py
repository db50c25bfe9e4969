"""Who wants to be told when a subscription may have messages."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence

_log = logging.getLogger("heliograph")


class SubscriptionWatch:
    """One wish; see `Broker.watch`."""

    __slots__ = ("_callback", "_subscription", "_watches")

    def __init__(self, watches: Watches, subscription: str, callback: Callable[[], None]) -> None:
        self._watches = watches
        self._subscription = subscription
        self._callback = callback

    def close(self) -> None:
        """No call comes after this, save one under way in another thread. Idempotent."""
        self._watches.remove(self._subscription, self)

    def wake(self) -> None:
        """Tell it."""
        self._callback()


class Watches:
    """Watches by subscription. A watch may be closed at any time, so they have a lock of their own; waking works on a
    copy, outside it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_subscription: dict[str, tuple[SubscriptionWatch, ...]] = {}

    def add(self, subscription: str, callback: Callable[[], None]) -> SubscriptionWatch:
        """Watch `subscription` until the watch is closed."""
        watch = SubscriptionWatch(self, subscription, callback)
        with self._lock:
            self._by_subscription[subscription] = (*self._by_subscription.get(subscription, ()), watch)
        return watch

    def remove(self, subscription: str, watch: SubscriptionWatch) -> None:
        """Tell `watch` nothing more."""
        with self._lock:
            left = tuple(other for other in self._by_subscription.get(subscription, ()) if other is not watch)
            if left:
                self._by_subscription[subscription] = left
            else:
                self._by_subscription.pop(subscription, None)

    def __contains__(self, subscription: object) -> bool:
        """Whether anybody watches it."""
        return subscription in self._by_subscription

    def of(self, subscriptions: Iterable[str]) -> list[SubscriptionWatch]:
        """The watches of those subscriptions."""
        if not self._by_subscription:
            return []
        return [watch for name in subscriptions for watch in self._by_subscription.get(name, ())]


def wake(watches: Sequence[SubscriptionWatch]) -> None:
    """Outside the broker's lock: a callback may do what it likes, and its failure is its own."""
    for watch in watches:
        try:
            watch.wake()
        except Exception:
            _log.exception("a watch's callback failed")
