"""The operations of claims: messages that a named consumer takes, reads as often as it likes, and acknowledges when
what it made of them is durable."""

from __future__ import annotations

from collections.abc import Iterator

from heliograph.broker.operations import Operations
from heliograph.broker.reply import Reply
from heliograph.engine.claims import Claim
from heliograph.engine.message import Message
from heliograph.errors import ClaimNotFound

READ_MESSAGES = 1_000
"""Messages that are read of a claim while the broker's lock is held."""


class Claims(Operations):
    """A part of `LocalBroker`."""

    def claim(
        self,
        subscription: str,
        consumer: str,
        max_messages: int,
        *,
        messages_per_claim: int,
        ttl_ns: int,
        max_bytes: int = 0,
    ) -> Reply[list[Claim]]:
        def operation(now_ns: int) -> list[Claim]:
            claims: list[Claim] = []
            left, bytes_left = max_messages, max_bytes
            while left > 0 and bytes_left >= 0:
                count = min(left, messages_per_claim)
                claim = self._engine.claim(
                    subscription,
                    consumer,
                    count,
                    ttl_ns,
                    now_ns,
                    max_bytes=bytes_left,
                    oversized_first=not claims,
                )
                if claim is None:
                    break
                claims.append(claim)
                left -= claim.messages
                if max_bytes:
                    bytes_left = (bytes_left - claim.bytes) or -1
            return claims

        return self._change(operation)

    def claims(self, subscription: str, consumer: str) -> list[Claim]:
        return self._change(lambda now_ns: self._engine.claims(subscription, consumer, now_ns)).provisional

    def read_claim(self, subscription: str, consumer: str, number: int) -> Iterator[list[tuple[Message, int]]]:
        def claimed(now_ns: int) -> list[tuple[int, int]]:
            return self._engine.claimed(subscription, consumer, number, now_ns)

        return self._read_claim(subscription, consumer, number, self._change(claimed).provisional)

    def _read_claim(
        self, subscription: str, consumer: str, number: int, claimed: list[tuple[int, int]]
    ) -> Iterator[list[tuple[Message, int]]]:
        for start in range(0, len(claimed), READ_MESSAGES):
            part = claimed[start : start + READ_MESSAGES]
            with self._lock:
                state = self._engine.subscription(subscription)
                leases = state.leases.by_sequence
                if any(sequence not in leases or leases[sequence].number != number for sequence, _ in part):
                    raise ClaimNotFound(number, consumer)
                messages = state.topic.log.select([sequence for sequence, _ in part])
            yield list(zip(messages, [attempt for _, attempt in part], strict=True))

    def acknowledge_claims(self, subscription: str, consumer: str, up_to: int) -> Reply[int]:
        return self._change(lambda now_ns: self._engine.acknowledge_claims(subscription, consumer, up_to, now_ns))

    def extend_claims(self, subscription: str, consumer: str, ttl_ns: int) -> Reply[int]:
        return self._change(lambda now_ns: self._engine.extend_claims(subscription, consumer, ttl_ns, now_ns))

    def release_claims(self, subscription: str, consumer: str) -> Reply[int]:
        return self._change(lambda now_ns: self._engine.release_claims(subscription, consumer, now_ns))
