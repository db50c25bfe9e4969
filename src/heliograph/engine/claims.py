"""Claims: hand-outs that a named consumer finds again, also after a restart, until it acknowledges them.

A claim is a lease of several messages at once, and its number is the lease's: so what holds for leases (they end, count
an attempt, survive in the journal, are void after a seek) holds for claims. What is added is that the consumer needs no
ack ids: it asks for its claims by number.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from heliograph.engine import facts as f
from heliograph.engine.limits import check_claim
from heliograph.engine.message import total_bytes
from heliograph.engine.selecting import Selecting
from heliograph.engine.subscription import Subscription
from heliograph.errors import ClaimNotFound, SubscriptionDetached

CLAIM_PREFIX = "claims/"
"""Before the names of consumers, so that those of claims and of pulls are never the same one."""


class Claim(msgspec.Struct, frozen=True, gc=False):
    """Messages that a named consumer took at once.

    Args:
        number: growing within a subscription.
        messages: how many.
        deadline_ns: when it ends unless it is extended.
        bytes: of its messages, where it was taken just now; 0 = not counted.
    """

    number: int
    messages: int
    deadline_ns: int
    bytes: int = 0


class Claims(Selecting):
    """`Selecting`, and the operations of claims."""

    def claim(
        self,
        subscription_name: str,
        consumer: str,
        max_messages: int,
        ttl_ns: int,
        now_ns: int,
        *,
        max_bytes: int = 0,
        oversized_first: bool = True,
    ) -> Claim | None:
        """Hand out up to `max_messages` ready ones to a named consumer as one claim; None if there are none. The bounds
        of bytes are those of `Broker.pull`. The prefetch does not bound claims: their size does.

        Raises:
            SubscriptionNotFound, SubscriptionDetached, InvalidArgument.
        """
        subscription = self.subscription(subscription_name)
        if subscription.detached:
            raise SubscriptionDetached(subscription_name)
        check_claim(consumer, ttl_ns)
        subscription.touched_ns = now_ns
        self.tick(now_ns)
        # None shall mean that there is none: a claim looks through all there is
        self._load(subscription, max_messages, now_ns, at_most=subscription.unloaded)
        sequences = self._select(subscription, max_messages, max_bytes, "", oversized_first, now_ns)
        if not sequences:
            return None
        number, deadline_ns, holder = subscription.lease_number + 1, now_ns + ttl_ns, CLAIM_PREFIX + consumer
        fact = f.MessagesLeased(subscription.name, number, sequences, now_ns, deadline_ns, holder)
        messages = self._record(fact)
        self._schedule(subscription)
        return Claim(number, len(sequences), deadline_ns, total_bytes(messages))

    def claims(self, subscription_name: str, consumer: str, now_ns: int) -> list[Claim]:
        """What a consumer has claimed and not acknowledged, by number. Raises: SubscriptionNotFound."""
        subscription = self.subscription(subscription_name)
        self.tick(now_ns)
        leases = subscription.leases.by_sequence
        return [
            Claim(number, len(sequences), leases[sequences[0]].deadline_ns)
            for number, sequences in subscription.leases.of_consumer(CLAIM_PREFIX + consumer).items()
        ]

    def claimed(self, subscription_name: str, consumer: str, number: int, now_ns: int) -> list[tuple[int, int]]:
        """(sequence, attempt) of each message of a claim, in the order of delivery.

        Raises:
            SubscriptionNotFound.
            ClaimNotFound: it is acknowledged, or has ended.
        """
        subscription = self.subscription(subscription_name)
        self.tick(now_ns)
        sequences = subscription.leases.of_consumer(CLAIM_PREFIX + consumer).get(number)
        if sequences is None:
            raise ClaimNotFound(number, consumer)
        return [(sequence, subscription.attempt(sequence)) for sequence in sequences]

    def acknowledge_claims(self, subscription_name: str, consumer: str, up_to: int, now_ns: int) -> int:
        """The messages of the claims up to number `up_to` are done. Returns how many that were. Raises:
        SubscriptionNotFound."""

        def settle(subscription: Subscription, _number: int, sequences: list[int]) -> None:
            self._record(f.MessagesAcknowledged(subscription.name, sequences))

        return self._settle_claims(subscription_name, consumer, up_to, now_ns, settle)

    def extend_claims(self, subscription_name: str, consumer: str, ttl_ns: int, now_ns: int) -> int:
        """All claims of the consumer now end at `now_ns + ttl_ns`. Returns how many messages they have. Raises:
        SubscriptionNotFound, InvalidArgument."""
        check_claim(consumer, ttl_ns)

        def extend(subscription: Subscription, number: int, sequences: list[int]) -> None:
            self._record(f.LeasesExtended(subscription.name, number, sequences, now_ns + ttl_ns))

        return self._settle_claims(subscription_name, consumer, None, now_ns, extend)

    def release_claims(self, subscription_name: str, consumer: str, now_ns: int) -> int:
        """All messages of the consumer go back to their places, and no failure is counted. Returns how many. Raises:
        SubscriptionNotFound."""

        def release(subscription: Subscription, _number: int, sequences: list[int]) -> None:
            self._fail(subscription, sequences, f.ReturnCause.RELEASED, now_ns)

        return self._settle_claims(subscription_name, consumer, None, now_ns, release)

    def _settle_claims(
        self,
        subscription_name: str,
        consumer: str,
        up_to: int | None,
        now_ns: int,
        settle: Callable[[Subscription, int, list[int]], None],
    ) -> int:
        subscription = self.subscription(subscription_name)
        subscription.touched_ns = now_ns
        self.tick(now_ns)
        held = subscription.leases.of_consumer(CLAIM_PREFIX + consumer)
        found = {number: sequences for number, sequences in held.items() if up_to is None or number <= up_to}
        for sequences in found.values():
            subscription.topic.log.fetch(sequences)
        for number, sequences in found.items():
            settle(subscription, number, sequences)
        self._schedule(subscription)
        return sum(map(len, found.values()))
