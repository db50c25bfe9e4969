"""A work queue on the engine alone, as its door makes it, for the tests of its rules."""

from __future__ import annotations

from heliograph.engine.dead_letter import DeadLetterPolicy, DeadLetterReason
from heliograph.engine.engine import Engine
from heliograph.engine.facts import Fact
from heliograph.engine.message import Delivery, Draft, Extras
from heliograph.engine.retry import RetryPolicy
from heliograph.engine.settings import SECOND_NS, Capacity, SubscriptionSettings, TopicSettings
from heliograph.engine.statistics import Statistics

BACKOFF = RetryPolicy(10 * SECOND_NS, 40 * SECOND_NS)


class Queue:
    """A work queue as its door makes it: 30 s to acknowledge, 3 retries, priority 5; a clock in seconds."""

    def __init__(
        self, *, max_retries: int = 3, kept_max: int = 10_000, depth_max: int = 100_000, **more: object
    ) -> None:
        settings: dict[str, object] = {
            "ack_deadline_ns": 30 * SECOND_NS,
            "dead_letter_policy": DeadLetterPolicy(None, max_retries + 1, kept_max),
            "capacity": Capacity(depth_max, 0, refuse=True),
            "default_priority": 5,
            "prioritised": True,
            "prefetch": 1_000,
        }
        self.engine = Engine()
        self.start = self.seconds = 1_000.0
        self.facts: list[Fact] = []
        self.engine.create_topic("q", TopicSettings(), self.now_ns)
        self.engine.create_subscription("q", "q", SubscriptionSettings(**settings | more), self.now_ns)  # type: ignore[arg-type]  # tests pass what they like

    @property
    def now_ns(self) -> int:
        return int(self.seconds * SECOND_NS)

    def at(self, seconds: float) -> Queue:
        """Move the clock to `seconds` after the start; what is due happens."""
        self.seconds = self.start + seconds
        self.engine.tick(self.now_ns)
        return self

    def publish(
        self,
        *names: str,
        priority: int = 5,
        ttl: float = 0,
        delay: float = 0,
        retries: int | None = None,
        key: str = "",
    ) -> list[str]:
        extras = Extras(
            priority=priority,
            expires_at_ns=self.now_ns + int(ttl * SECOND_NS) if ttl else 0,
            available_at_ns=self.now_ns + int(delay * SECOND_NS) if delay else 0,
            max_delivery_attempts=0 if retries is None else retries + 1,
        )
        drafts = [Draft(name.encode(), {"name": name}, ordering_key=key, extras=extras) for name in names]
        return self.engine.publish("q", drafts, self.now_ns)

    def consume(self, count: int = 10, consumer: str = "", ack_deadline: float = 0) -> list[Delivery]:
        deadline_ns = int(ack_deadline * SECOND_NS)
        return self.engine.pull("q", count, self.now_ns, ack_deadline_ns=deadline_ns, consumer=consumer)

    def one(self) -> Delivery:
        (delivery,) = self.consume(1)
        return delivery

    def names(self, count: int = 10) -> list[str]:
        return [delivery.message.data.decode() for delivery in self.consume(count)]

    def ack(self, *deliveries: Delivery) -> list[str]:
        return self.engine.acknowledge("q", [delivery.ack_id for delivery in deliveries], self.now_ns)

    def nack(self, *deliveries: Delivery) -> list[str]:
        return self.engine.modify_ack_deadline("q", [delivery.ack_id for delivery in deliveries], 0, self.now_ns)

    def nack_for_good(self, *deliveries: Delivery) -> list[str]:
        return self.engine.reject("q", [delivery.ack_id for delivery in deliveries], self.now_ns)

    def release(self, *deliveries: Delivery) -> list[str]:
        return self.engine.release("q", [delivery.ack_id for delivery in deliveries], self.now_ns)

    def dead(self) -> list[tuple[str, DeadLetterReason]]:
        return [
            (message.data.decode(), letter.reason) for letter, message in self.engine.dead_letters("q", self.now_ns)
        ]

    @property
    def stats(self) -> Statistics:
        return self.engine.statistics("q", self.now_ns)

    def restarted(self) -> Queue:
        """Another engine that knows the facts alone, at the same time."""
        self.facts += self.engine.take_facts()
        again = Queue.__new__(Queue)
        again.engine, again.start, again.seconds, again.facts = Engine(), self.start, self.seconds, list(self.facts)
        for fact in self.facts:
            again.engine.replay(fact)
        again.engine.recovered(again.now_ns)
        again.engine.take_facts()
        return again
