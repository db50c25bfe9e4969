"""The engine and the naive model side by side, driven by Hypothesis, with every answer compared and the engine's inside
recounted after each step.

`pytest tests/engine/test_model.py --hypothesis-profile=search` looks for what the repeatable run does not reach.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from heliograph.broker.forwarding import dead_letter_draft
from heliograph.engine.dead_letter import DeadLetterPolicy
from heliograph.engine.engine import Engine
from heliograph.engine.facts import Fact
from heliograph.engine.message import Delivery, Draft, Extras
from heliograph.engine.retry import RetryPolicy
from heliograph.engine.settings import SECOND_NS, Capacity, SubscriptionSettings, TopicSettings
from heliograph.errors import HeliographError
from tests.engine.invariants import check_engine, full_state, recovered, state, stored
from tests.engine.model import Delivered, Model

TOPICS = ("t0", "t1", "graveyard")
SUBSCRIPTIONS = ("s0", "s1", "s2", "s3")
CONSUMERS = ("", "a", "b")
START_NS = 1_000_000 * SECOND_NS

seconds = st.sampled_from([1, 2, 3, 5, 10, 60]).map(lambda number: number * SECOND_NS)
few = st.integers(0, 3)


@st.composite
def retry_policies(draw: st.DrawFn) -> RetryPolicy | None:
    kind = draw(st.integers(0, 3))
    if kind < 2:
        return None
    if kind == 2:
        return RetryPolicy(minimum_backoff_ns=draw(seconds), maximum_backoff_ns=draw(seconds))
    return RetryPolicy(delays_ns=(SECOND_NS, 0, 5 * SECOND_NS))


@st.composite
def dead_letter_policies(draw: st.DrawFn) -> DeadLetterPolicy | None:
    if draw(st.booleans()):
        return None
    topic = draw(st.sampled_from([None, None, "graveyard", "t1"]))
    return DeadLetterPolicy(topic, draw(st.integers(1, 3)), kept_max=draw(st.sampled_from([1, 2, 10])))


@st.composite
def subscription_settings(draw: st.DrawFn) -> SubscriptionSettings:
    capacity = draw(st.sampled_from([None, None, Capacity(3, 100), Capacity(10, 12), Capacity(4, 0, refuse=True)]))
    return SubscriptionSettings(
        ack_deadline_ns=draw(st.sampled_from([2, 10])) * SECOND_NS,
        enable_message_ordering=draw(st.booleans()),
        retry_policy=draw(retry_policies()),
        dead_letter_policy=draw(dead_letter_policies()),
        capacity=capacity,
        outstanding_messages_max=draw(st.sampled_from([0, 0, 0, 2, 3])),
        outstanding_bytes_max=draw(st.sampled_from([0, 0, 0, 5, 9])),
        ttl_ns=draw(st.sampled_from([0, 0, 0, 3, 20])) * SECOND_NS,
        prioritised=draw(st.booleans()),
        default_priority=5,
        prefetch=draw(st.sampled_from([0, 0, 1, 2])),
    )


class EngineMachine(RuleBasedStateMachine):
    """Topics, subscriptions and consumers that come and go; time that passes; restarts."""

    engine_class = Engine

    def __init__(self) -> None:
        super().__init__()
        self.engine = self.engine_class()
        self.replica = self.engine_class()
        self.model = Model()
        self.now_ns = START_NS
        self.facts: list[Fact] = []
        self.ack_ids: list[tuple[str, str]] = []  # (subscription, ack id), also stale ones
        self.attempts: dict[tuple[str, str], int] = {}
        self.ticked = True
        self.pullable = self._pullable()

    # ── setting up ──────────────────────────────────────────────────────────────────────────────────────────────────

    @initialize(first=subscription_settings(), second=subscription_settings())
    def begin(self, first: SubscriptionSettings, second: SubscriptionSettings) -> None:
        for topic in ("t0", "t1"):
            self.create_topic(topic)
        self._create_subscription("s0", "t0", first)
        self._create_subscription("s1", "t0", second)

    def create_topic(self, name: str) -> None:
        if name not in self.model.topics:
            self.engine.create_topic(name, TopicSettings(), self.now_ns)
            self.model.create_topic(name)

    def _create_subscription(self, name: str, topic: str, settings: SubscriptionSettings) -> None:
        if name not in self.model.subscriptions and topic in self.model.topics:
            self.engine.create_subscription(name, topic, settings, self.now_ns)
            self.model.create_subscription(name, topic, settings)
            self.attempts = {key: attempt for key, attempt in self.attempts.items() if key[0] != name}

    @rule(name=st.sampled_from(TOPICS))
    def create_a_topic(self, name: str) -> None:
        self.create_topic(name)

    @rule(name=st.sampled_from(SUBSCRIPTIONS), topic=st.sampled_from(TOPICS), settings=subscription_settings())
    def create_a_subscription(self, name: str, topic: str, settings: SubscriptionSettings) -> None:
        self._create_subscription(name, topic, settings)

    @rule(name=st.sampled_from(TOPICS), clears=st.booleans(), really=few)
    def delete_a_topic(self, name: str, clears: bool, really: int) -> None:
        if name in self.model.topics and really == 0:
            self.engine.delete_topic(name, clears_backlog=clears, now_ns=self.now_ns)
            self.model.delete_topic(name, clears, self.now_ns)
            self.ticked = True

    @rule(name=st.sampled_from(SUBSCRIPTIONS), really=few)
    def delete_a_subscription(self, name: str, really: int) -> None:
        if name in self.model.subscriptions and really == 0:
            self.engine.delete_subscription(name)
            self.model.delete_subscription(name)

    # ── messages ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _both(self, ours: Callable[[], Any], theirs: Callable[[], Any]) -> Any:
        """Both answers, or both errors, are the same."""
        self.ticked = True
        try:
            expected = theirs()
        except HeliographError as error:
            with pytest.raises(type(error)):
                ours()
            return None
        actual = ours()
        assert actual == expected
        return actual

    @rule(
        topic=st.sampled_from(["t0", "t0", "t0", *TOPICS]),
        shapes=st.lists(st.tuples(st.integers(0, 6), st.sampled_from(["", "", "k", "l"]), few, few), max_size=4),
        extras=st.tuples(
            st.integers(0, 9), st.sampled_from([-1, 2, 5, 30]), st.sampled_from([-1, 1, 4, 30]), st.integers(0, 2)
        ),
    )
    def publish(self, topic: str, shapes: list[tuple[int, str, int, int]], extras: tuple[int, int, int, int]) -> None:
        priority, delay, life, attempts = extras
        drafts = []
        for size, key, plain, mask in shapes:
            own = None
            if plain == 0:
                own = Extras(
                    priority=priority,
                    available_at_ns=self.now_ns + delay * SECOND_NS if mask & 1 else 0,
                    expires_at_ns=self.now_ns + life * SECOND_NS if mask & 2 else 0,
                    max_delivery_attempts=attempts,
                )
            drafts.append(Draft(b"x" * size, ordering_key=key, extras=own))
        self._both(
            lambda: self.engine.publish(topic, drafts, self.now_ns),
            lambda: self.model.publish(topic, drafts, self.now_ns),
        )

    @rule(
        name=st.sampled_from(SUBSCRIPTIONS),
        count=st.integers(0, 6),
        max_bytes=st.sampled_from([0, 0, 1, 4, 10]),
        ack_deadline_ns=st.sampled_from([0, 0, SECOND_NS, 30 * SECOND_NS]),
        consumer=st.sampled_from(CONSUMERS),
    )
    def pull(self, name: str, count: int, max_bytes: int, ack_deadline_ns: int, consumer: str) -> None:
        options: Any = {"max_bytes": max_bytes, "ack_deadline_ns": ack_deadline_ns, "consumer": consumer}
        deliveries: list[Delivered] = self._both(
            lambda: [_seen(one) for one in self.engine.pull(name, count, self.now_ns, **options)],
            lambda: self.model.pull(name, count, self.now_ns, **options),
        )
        for delivery in deliveries or ():
            self.ack_ids.append((name, delivery.ack_id))
            key = (name, delivery.message_id)
            assert delivery.attempt >= self.attempts.get(key, 0), f"the attempts of {key} fell"
            self.attempts[key] = delivery.attempt

    @precondition(lambda self: self.ack_ids)
    @rule(
        action=st.sampled_from(["acknowledge", "acknowledge", "nack", "nack", "modify", "release", "reject"]),
        back=st.lists(st.integers(0, 11), min_size=1, max_size=4),
        ack_deadline_ns=seconds,
        elsewhere=st.sampled_from([None, None, None, None, None, *SUBSCRIPTIONS]),
    )
    def settle(self, action: str, back: list[int], ack_deadline_ns: int, elsewhere: str | None) -> None:
        name = elsewhere or self.ack_ids[-1 - back[0] % len(self.ack_ids)][0]
        known = [ack_id for owner, ack_id in self.ack_ids if owner == name] or [self.ack_ids[-1][1]]
        ack_ids = [known[-1 - index % len(known)] for index in back]
        operations: dict[str, Callable[[], list[str]]] = {
            "acknowledge": lambda: self.engine.acknowledge(name, ack_ids, self.now_ns),
            "nack": lambda: self.engine.modify_ack_deadline(name, ack_ids, 0, self.now_ns),
            "modify": lambda: self.engine.modify_ack_deadline(name, ack_ids, ack_deadline_ns, self.now_ns),
            "release": lambda: self.engine.release(name, ack_ids, self.now_ns),
            "reject": lambda: self.engine.reject(name, ack_ids, self.now_ns),
        }
        new_ns = ack_deadline_ns if action == "modify" else 0
        self._both(operations[action], lambda: self.model.settle(action, name, ack_ids, self.now_ns, new_ns))

    @rule(by_ns=st.one_of(seconds, st.just(SECOND_NS - 1), st.just(1)), ticks=few)
    def time_passes(self, by_ns: int, ticks: int) -> None:
        self.now_ns += by_ns
        self.ticked = ticks > 0
        if self.ticked:
            self._tick()

    @rule()
    def time_passes_to_the_next_deadline(self) -> None:
        deadline_ns = self.engine.next_deadline_ns()
        if deadline_ns is not None:
            self.now_ns = max(self.now_ns, deadline_ns)
            self.ticked = True
            self._tick()

    def _tick(self) -> None:
        self.engine.tick(self.now_ns)
        self.model.tick(self.now_ns)
        deadline_ns = self.engine.next_deadline_ns()
        assert deadline_ns is None or deadline_ns > self.now_ns, "what is due has happened"

    @rule(name=st.sampled_from(SUBSCRIPTIONS), really=few)
    def purge(self, name: str, really: int) -> None:
        if really == 0:
            self._both(lambda: self.engine.purge(name, self.now_ns), lambda: self.model.purge(name, self.now_ns))

    @rule(name=st.sampled_from(SUBSCRIPTIONS), every=st.booleans(), start=few)
    def retry_dead_letters(self, name: str, every: bool, start: int) -> None:
        subscription = self.model.subscriptions.get(name)
        ids = None
        if not every and subscription is not None:
            ids = [subscription.topic.message_id(entry) for entry in subscription.dead][start:] or ["1000000000999"]
        retried = self._both(
            lambda: self.engine.retry_dead_letters(name, ids, self.now_ns),
            lambda: self.model.retry_dead_letters(name, ids, self.now_ns),
        )
        if retried:  # they start afresh
            self.attempts = {key: attempt for key, attempt in self.attempts.items() if key[0] != name}

    @rule(name=st.sampled_from(SUBSCRIPTIONS))
    def purge_dead_letters(self, name: str) -> None:
        ticked = self.ticked
        self._both(lambda: self.engine.purge_dead_letters(name), lambda: self.model.drop_dead_letters(name))
        self.ticked = ticked

    @rule()
    def forward_dead_letters(self) -> None:
        """What a broker does with `forwards`."""
        forwards, self.engine.forwards = self.engine.forwards, []
        for name, sequence in dict.fromkeys(forwards):
            subscription = self.engine.subscriptions.get(name)
            if subscription is None or sequence not in subscription.dead:
                continue
            policy = subscription.settings.dead_letter_policy
            assert policy is not None
            assert policy.topic is not None
            if policy.topic not in self.engine.topics:
                self.engine.forwards.append((name, sequence))
                continue
            draft = dead_letter_draft(subscription, sequence)
            ours = self.engine.publish_dead_letters(policy.topic, [draft], self.now_ns)
            assert ours == self.model.publish(policy.topic, [draft], self.now_ns, limited=False)
            self.engine.forwarded(name, [sequence])
            self.model.drop_dead_letters(name, [sequence])
        waiting = [
            (name, entry.sequence)
            for name, subscription in self.model.subscriptions.items()
            for entry in subscription.dead
            if (policy := subscription.settings.dead_letter_policy) is not None and policy.topic is not None
        ]
        assert set(waiting) <= set(self.engine.forwards), "a dead letter that nobody will forward"

    # ── questions ───────────────────────────────────────────────────────────────────────────────────────────────────

    @rule(name=st.sampled_from(SUBSCRIPTIONS), count=st.integers(1, 4), priority=st.integers(0, 9))
    def ask(self, name: str, count: int, priority: int) -> None:
        subscription = self.model.subscriptions.get(name)
        if subscription is None:
            return
        now_ns, engine = self.now_ns, self.engine
        self._both(lambda: engine.statistics(name, now_ns), lambda: self.model.statistics(name, now_ns))
        ready = subscription.ready(now_ns)
        assert [message.sequence for message in engine.peek(name, count, now_ns)] == [e.sequence for e in ready[:count]]
        if engine.subscription(name).is_eager:
            ahead = sum(subscription.priority(entry) >= priority for entry in ready)
            assert engine.position(engine.subscription(name), priority) == ahead
        dead = [(e.sequence, e.reason, e.failures, e.dead_ns, e.draft.data) for e in subscription.dead]
        assert dead == [(*_fields(letter), message.data) for letter, message in engine.dead_letters(name, now_ns)]
        for consumer in CONSUMERS[1:]:
            held = sum(entry.lease is not None and entry.lease[2] == consumer for entry in subscription.held)
            assert engine.outstanding(engine.subscription(name), consumer) == held

    # ── restarts, and what must always be true ──────────────────────────────────────────────────────────────────────

    @rule()
    def restart(self) -> None:
        self.ticked = True
        self._tick()
        self._keep_facts()
        again = recovered(self.facts, self.now_ns, self.engine_class())
        assert full_state(again, self.now_ns) == full_state(self.engine, self.now_ns)
        assert not again.take_facts()
        again.woken |= self.engine.woken
        self.engine = again

    def teardown(self) -> None:
        self.restart()
        for _ in range(1_000):  # every deadline leads somewhere, and there is an end to them
            deadline_ns = self.engine.next_deadline_ns()
            if deadline_ns is None:
                break
            self.now_ns = deadline_ns
            self._tick()
        assert self.engine.next_deadline_ns() is None
        assert all(not subscription.leased() for subscription in self.model.subscriptions.values())

    def _keep_facts(self) -> None:
        facts = stored(self.engine.take_facts())
        for fact in facts:
            self.replica.replay(fact)
        self.facts += facts

    @invariant()
    def the_engine_is_sound(self) -> None:
        check_engine(self.engine)

    @invariant()
    def replaying_the_facts_gives_the_same_state(self) -> None:
        self._keep_facts()
        assert state(self.replica) == state(self.engine)

    @invariant()
    def every_message_is_where_the_model_has_it(self) -> None:
        for name, subscription in self.model.subscriptions.items():
            ours = self.engine.subscriptions[name]
            assert sorted(ours.leases.by_sequence) == [entry.sequence for entry in subscription.leased()]
            assert list(ours.dead) == [entry.sequence for entry in subscription.dead]
            assert sorted(ours.waiting_sequences()) == [entry.sequence for entry in subscription.waiting()]
            assert {s: ours.attempt(s) - 1 for s in ours.failures if ours.failures[s]} == {
                entry.sequence: entry.failures for entry in subscription.held if entry.failures
            }

    @invariant()
    def the_next_deadline_is_not_late(self) -> None:
        if not self.ticked:
            return
        instants = [
            instant
            for subscription in self.model.subscriptions.values()
            for instant in subscription.next_event_ns(self.now_ns)
        ]
        deadline_ns = self.engine.next_deadline_ns()
        if instants:
            assert deadline_ns is not None, f"something happens at {min(instants)}, and no timer is set"
            assert deadline_ns <= min(instants)

    @invariant()
    def whoever_waits_is_woken(self) -> None:
        if not self.ticked:
            return
        before, self.pullable = self.pullable, self._pullable()
        woken, self.engine.woken = self.engine.woken, set()
        for (name, consumer), sequences in self.pullable.items():
            new = sequences - before.get((name, consumer), set())
            assert not new or name in woken, f"{consumer or 'somebody'} may now pull {new} of {name}, and sleeps"

    def _pullable(self) -> dict[tuple[str, str], set[int]]:
        return {
            (name, consumer): {
                entry.sequence for entry in self.model.pullable(subscription, 100, self.now_ns, 0, consumer)
            }
            for name, subscription in self.model.subscriptions.items()
            for consumer in CONSUMERS
        }


def _seen(delivery: Delivery) -> Delivered:
    return Delivered(
        delivery.message_id, delivery.ack_id, delivery.attempt, delivery.deadline_ns, delivery.message.data
    )


def _fields(letter: Any) -> tuple[Any, ...]:
    return letter.sequence, letter.reason, letter.failures, letter.dead_lettered_ns


TestEngine = EngineMachine.TestCase
TestEngine.settings = hypothesis_settings(
    max_examples=int(os.environ.get("HELIOGRAPH_MODEL_EXAMPLES", "150")), stateful_step_count=40, deadline=None
)
