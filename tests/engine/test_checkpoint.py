"""A checkpoint's facts recreate the engine; and messages out of memory change nothing that anybody sees."""

from __future__ import annotations

import random

import pytest

from heliograph.engine.dead_letter import DeadLetterPolicy
from heliograph.engine.engine import Engine
from heliograph.engine.facts import CheckpointBegun, MessagesPublished
from heliograph.engine.message import Draft, Extras, Message
from heliograph.engine.retry import RetryPolicy
from heliograph.engine.settings import SECOND_NS, Capacity, SubscriptionSettings, TopicSettings
from tests.engine.invariants import check_engine, full_state, recovered, stored
from tests.portions import quick_first

SETTINGS = {
    "plain": SubscriptionSettings(),
    "ordered": SubscriptionSettings(enable_message_ordering=True, retry_policy=RetryPolicy(SECOND_NS, 8 * SECOND_NS)),
    "queue": SubscriptionSettings(
        prioritised=True,
        default_priority=5,
        priority_aging_ns=20 * SECOND_NS,
        dead_letter_policy=DeadLetterPolicy(None, 2, kept_max=5),
        ttl_ns=30 * SECOND_NS,
    ),
    "capped": SubscriptionSettings(capacity=Capacity(50, 2_000), outstanding_messages_max=9),
}


class Driver:
    """An engine that random operations happen to, and the durable log behind it."""

    def __init__(self, seed: int, *, pages_leave: bool, plain: bool = False) -> None:
        self.chance = random.Random(seed)
        self.pages_leave = pages_leave
        self.plain = plain  # no message has extras, so that most subscriptions load what they have when it is due
        self.logs: dict[int, list[Message]] = {}
        self.now_ns = 1_000 * SECOND_NS
        self.engine = Engine(self.read)
        self.ack_ids: dict[str, list[str]] = {name: [] for name in SETTINGS}
        for topic in ("a", "b"):
            self.engine.create_topic(topic, TopicSettings(), self.now_ns)
        for name, settings in SETTINGS.items():
            self.engine.create_subscription(name, "b" if name == "queue" else "a", settings, self.now_ns)

    def read(self, topic_number: int, first: int, last: int) -> list[Message]:
        return [message for message in self.logs.get(topic_number, []) if first <= message.sequence <= last]

    def step(self) -> None:
        chance, name = self.chance, self.chance.choice(list(SETTINGS))
        kind = chance.random()
        if kind < 0.4:
            drafts = [self._draft() for _ in range(chance.choice([1, 3, 200]))]
            self.engine.publish(chance.choice("ab"), drafts, self.now_ns)
        elif kind < 0.65:
            consumer = chance.choice(["", "c1", "c2"])
            deliveries = self.engine.pull(name, chance.choice([1, 5, 150]), self.now_ns, consumer=consumer)
            self.ack_ids[name] += [delivery.ack_id for delivery in deliveries]
        elif kind < 0.9 and self.ack_ids[name]:
            chosen = [self.ack_ids[name].pop(0) for _ in range(min(chance.choice([1, 100]), len(self.ack_ids[name])))]
            settle = chance.choice(
                [self.engine.acknowledge] * 4 + [self.engine.release, self.engine.reject, self._nack]
            )
            settle(name, chosen, self.now_ns)
        elif kind < 0.92:
            self.engine.retry_dead_letters("queue", None, self.now_ns)
        else:
            self.now_ns += chance.choice([1, 5, 12]) * SECOND_NS
        self._take_facts()

    def _nack(self, name: str, ack_ids: list[str], now_ns: int) -> list[str]:
        return self.engine.modify_ack_deadline(name, ack_ids, self.chance.choice([0, 0, 30 * SECOND_NS]), now_ns)

    def _draft(self) -> Draft:
        chance = self.chance
        extras = None
        if chance.random() < 0.2 and not self.plain:
            delay_ns = chance.choice([0, 0, 3]) * SECOND_NS
            extras = Extras(priority=chance.randrange(10), available_at_ns=self.now_ns + delay_ns if delay_ns else 0)
        return Draft(b"x" * chance.randrange(9), ordering_key=chance.choice(["", "k1", "k2"]), extras=extras)

    def _take_facts(self) -> None:
        for fact in self.engine.take_facts():
            if isinstance(fact, MessagesPublished):
                self.logs.setdefault(fact.topic_number, []).extend(fact.messages)
        if self.pages_leave:
            self.engine.shed_memory(0, 10**9)


@pytest.mark.parametrize("seed", quick_first(range(6), 2))
@pytest.mark.parametrize("pages_leave", [False, True])
@pytest.mark.parametrize("plain", [False, True])
def test_an_engine_recovered_from_a_checkpoint_is_the_engine_that_made_it(
    seed: int, pages_leave: bool, plain: bool
) -> None:
    driver = Driver(seed, pages_leave=pages_leave, plain=plain)
    for _ in range(6):
        for _ in range(25):
            driver.step()
        checkpoint = stored(driver.engine.checkpoint())
        again = recovered(checkpoint, driver.now_ns, Engine(driver.read))
        check_engine(again)
        assert full_state(again, driver.now_ns) == full_state(driver.engine, driver.now_ns)
        check_engine(driver.engine)
        # what is due at one instant in several subscriptions happens in any order
        assert sorted(driver.engine.take_facts(), key=repr) == sorted(again.take_facts(), key=repr)


def test_what_happens_after_a_checkpoint_is_replayed_on_it() -> None:
    driver = Driver(1, pages_leave=False)
    for _ in range(40):
        driver.step()
    facts = stored(driver.engine.checkpoint())
    driver.engine.publish("a", [Draft(b"later")], driver.now_ns)
    driver.engine.pull("plain", 3, driver.now_ns)
    facts += stored(driver.engine.take_facts())
    assert full_state(recovered(facts, driver.now_ns, Engine(driver.read)), driver.now_ns) == full_state(
        driver.engine, driver.now_ns
    )


def test_a_deleted_topic_lives_on_in_its_subscriptions_and_another_may_have_its_name() -> None:
    driver = Driver(1, pages_leave=False)
    driver.engine.publish("a", [Draft(b"old")], driver.now_ns)
    driver._take_facts()
    driver.engine.delete_topic("a", clears_backlog=False, now_ns=driver.now_ns)
    driver.engine.create_topic("a", TopicSettings(), driver.now_ns)
    checkpoint = stored(driver.engine.checkpoint())
    assert isinstance(checkpoint[0], CheckpointBegun)
    again = recovered(checkpoint, driver.now_ns, Engine(driver.read))
    assert [delivery.message.data for delivery in again.pull("plain", 9, driver.now_ns)] == [b"old"]
    assert again.topics["a"].number != again.subscriptions["plain"].topic.number
