"""Which messages a pull or a claim may take."""

from __future__ import annotations

from heliograph.engine.administration import Administration
from heliograph.engine.capacity import within
from heliograph.engine.page import PAGE_MESSAGES
from heliograph.engine.subscription import Subscription

LOOKED_THROUGH = 20_000
"""Messages that a pull looks through for ready ones, about: a tenth of a second."""


class Selecting(Administration):
    """`Administration`, and the choice of what is delivered next."""

    def _select(
        self,
        subscription: Subscription,
        max_messages: int,
        max_bytes: int,
        consumer: str,
        oversized_first: bool,
        now_ns: int,
    ) -> list[int]:
        """What a pull may take now, within every bound there is."""
        settings = subscription.settings
        if settings.outstanding_messages_max:
            max_messages = min(max_messages, settings.outstanding_messages_max - len(subscription.leases))
        if settings.prefetch and consumer:
            max_messages = min(max_messages, settings.prefetch - self.outstanding(subscription, consumer))
        room = settings.outstanding_bytes_max - subscription.outstanding_bytes
        if max_messages <= 0 or (settings.outstanding_bytes_max and room <= 0):
            return []
        self._load(subscription, max_messages, now_ns)
        sequences = subscription.first(max_messages, now_ns)
        if max_bytes:
            sequences = within(subscription, sequences, max_bytes, alone_allowed=oversized_first)
        if settings.outstanding_bytes_max:
            # a large message never blocks for ever: where nothing is outstanding, the first goes alone
            sequences = within(subscription, sequences, room, alone_allowed=not len(subscription.leases))
        subscription.topic.log.fetch(sequences)
        return sequences

    def _load(self, subscription: Subscription, count: int, now_ns: int, *, at_most: int = LOOKED_THROUGH) -> None:
        """Have `count` ready messages, if there are so many. Eager subscriptions have all of theirs already. Where many
        wait for the turns of few ordering keys, whoever waits is woken to look further: nobody else shall wait long
        meanwhile."""
        looked = 0
        while subscription.backlog.count < count and subscription.unloaded:
            if looked >= at_most:
                self.woken.add(subscription.name)
                return
            before = subscription.unloaded
            # a page at least, once some of them turned out not to be ready
            subscription.load_more(max(count - subscription.backlog.count, PAGE_MESSAGES if looked else 1))
            looked += before - subscription.unloaded
            expired = subscription.expired(now_ns)
            if expired:
                self._expire(subscription, expired, now_ns)
            subscription.promote(now_ns)
            self._schedule(subscription)

    def outstanding(self, subscription: Subscription, consumer: str) -> int:
        """How many messages a named consumer holds."""
        return (subscription.leases.by_consumer or {}).get(consumer, 0)
