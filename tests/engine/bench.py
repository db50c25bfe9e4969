"""An engine with a topic, a subscription and a clock, for tests that tell a story."""

from __future__ import annotations

from heliograph.engine.engine import Engine
from heliograph.engine.facts import Fact
from heliograph.engine.message import Delivery, Draft, Extras
from heliograph.engine.settings import SECOND_NS, SubscriptionSettings, TopicSettings


class Bench:
    """An engine with topic `t`, a clock in seconds, and a record of all facts."""

    def __init__(self, **settings: object) -> None:
        self.engine = Engine()
        self.seconds = 1_000.0
        self.facts: list[Fact] = []
        self.engine.create_topic("t", TopicSettings(), self.now_ns)
        self.subscribe("s", **settings)

    @property
    def now_ns(self) -> int:
        return int(self.seconds * SECOND_NS)

    def subscribe(self, name: str, **settings: object) -> None:
        self.engine.create_subscription(name, "t", SubscriptionSettings(**settings), self.now_ns)  # type: ignore[arg-type]  # tests pass what they like

    def publish(self, *payloads: str, key: str = "", **extras: int) -> list[str]:
        drafts = [
            Draft(payload.encode(), ordering_key=key, extras=Extras(**extras) if extras else None)  # type: ignore[arg-type]  # ints only
            for payload in payloads
        ]
        return self.engine.publish("t", drafts, self.now_ns)

    def pull(self, count: int = 10, subscription: str = "s", **options: object) -> list[Delivery]:
        return self.engine.pull(subscription, count, self.now_ns, **options)  # type: ignore[arg-type]  # as above

    def payloads(self, count: int = 10, subscription: str = "s") -> list[str]:
        return [delivery.message.data.decode() for delivery in self.pull(count, subscription)]

    def ack(self, *deliveries: Delivery, subscription: str = "s") -> list[str]:
        return self.engine.acknowledge(subscription, [delivery.ack_id for delivery in deliveries], self.now_ns)

    def nack(self, *deliveries: Delivery, subscription: str = "s") -> list[str]:
        ids = [delivery.ack_id for delivery in deliveries]
        return self.engine.modify_ack_deadline(subscription, ids, 0, self.now_ns)
