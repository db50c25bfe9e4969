"""What can be done with dead letters: listed, published to their topic, retried, purged."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from heliograph.engine import facts as f
from heliograph.engine.dead_letter import DeadLetter, DeadLetterReason
from heliograph.engine.message import Message, split_message_id
from heliograph.engine.subscription import Subscription
from heliograph.engine.timekeeping import Timekeeping
from heliograph.errors import MessageNotFound


class DeadLettering(Timekeeping):
    """`Timekeeping`, and the operations on dead letters."""

    def dead_letters(
        self, subscription_name: str, now_ns: int, *, offset: int = 0, limit: int | None = None
    ) -> list[tuple[DeadLetter, Message]]:
        """Those that the subscription keeps, oldest first: after the first `offset`, up to `limit`; None = all.
        Raises: SubscriptionNotFound."""
        subscription = self.subscription(subscription_name)
        self.tick(now_ns)
        letters = list(islice(subscription.dead.values(), offset, None if limit is None else offset + limit))
        messages = subscription.topic.log.select([letter.sequence for letter in letters])
        return list(zip(letters, messages, strict=True))

    def forwarded(self, subscription_name: str, sequences: Sequence[int]) -> None:
        """These are durable in their dead letter topic."""
        subscription = self.subscriptions.get(subscription_name)
        left = [sequence for sequence in sequences if subscription is not None and sequence in subscription.dead]
        if left:
            self._record(f.DeadLettersForwarded(subscription_name, left))

    def retry_dead_letters(self, subscription_name: str, message_ids: Sequence[str] | None, now_ns: int) -> int:
        """Back to the waiting; those that are on their way to their topic have left. Returns how many. Raises:
        SubscriptionNotFound, MessageNotFound."""
        subscription = self.subscription(subscription_name)
        self.tick(now_ns)
        sequences = self._staying(subscription) if message_ids is None else self._dead_by_id(subscription, message_ids)
        if sequences:
            self._retry(subscription, sequences, now_ns)
        return len(sequences)

    def _staying(self, subscription: Subscription) -> list[int]:
        number = subscription.number
        return [sequence for sequence in subscription.dead if (number, sequence) not in self.on_their_way]

    def _retry(self, subscription: Subscription, sequences: list[int], now_ns: int) -> None:
        expiries = [_fresh_expiry_ns(subscription, sequence, now_ns) for sequence in sequences]
        self._record(f.DeadLettersRetried(subscription.name, sequences, expiries, now_ns))
        self._schedule(subscription)

    def _dead_by_id(self, subscription: Subscription, message_ids: Sequence[str]) -> list[int]:
        sequences: dict[int, None] = {}
        for id_of_message in message_ids:
            topic_number, sequence = split_message_id(id_of_message)
            if topic_number != subscription.topic.number or sequence not in subscription.dead:
                raise MessageNotFound(id_of_message)
            if (subscription.number, sequence) in self.on_their_way:
                raise MessageNotFound(id_of_message)
            sequences[sequence] = None
        return list(sequences)

    def purge_dead_letters(self, subscription_name: str) -> int:
        """Returns how many. Raises: SubscriptionNotFound."""
        subscription = self.subscription(subscription_name)
        sequences = list(subscription.dead)
        if sequences:
            self._record(f.DeadLettersPurged(subscription.name, sequences))
        return len(sequences)


def _fresh_expiry_ns(subscription: Subscription, sequence: int, now_ns: int) -> int:
    """A dead letter keeps its expiry (TTL counts from the first publish); one that died of it, or would do so at once,
    gets the same span again (queue-protocol.md)."""
    message = subscription.topic.log[sequence]
    expires_at_ns = subscription.first_expiry_ns(message)
    if not expires_at_ns:
        return 0
    if subscription.dead[sequence].reason is not DeadLetterReason.TTL_EXPIRED and expires_at_ns > now_ns:
        return expires_at_ns
    return now_ns + expires_at_ns - message.publish_time_ns
