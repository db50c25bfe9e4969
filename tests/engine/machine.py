"""The engine and the naive model side by side, driven by Hypothesis: every answer is compared, and the engine's inside
is recounted after each step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from heliograph.broker.forwarding import dead_letter_draft
from heliograph.engine.administration import IMMUTABLE
from heliograph.engine.dead_letter import DeadLetterPolicy
from heliograph.engine.engine import Engine
from heliograph.engine.facts import Fact, MessagesPublished
from heliograph.engine.message import Delivery, Draft, Extras, Message
from heliograph.engine.retry import RetryPolicy
from heliograph.engine.settings import SECOND_NS, Capacity, SubscriptionSettings, TopicSettings
from heliograph.errors import (
    HeliographError,
    InvalidArgument,
    SubscriptionDetached,
    SubscriptionNotFound,
    TopicNotFound,
)
from tests.engine import model
from tests.engine.invariants import check_engine, full_state, recovered, state, stored
from tests.engine.model import Delivered, Model

TOPICS = ("t0", "t1", "graveyard")
SUBSCRIPTIONS = ("s0", "s1", "s2", "s3")
CONSUMERS = ("", "a", "b")
START_NS = 1_000_000 * SECOND_NS

seconds = st.sampled_from([1, 2, 3, 5, 10, 60]).map(lambda number: number * SECOND_NS)


def seldom(usual: Any, *others: Any) -> st.SearchStrategy[Any]:
    """Two times in three the usual."""
    return st.sampled_from([usual] * 2 * len(others) + list(others))


retry_policies = st.one_of(
    st.none(),
    st.builds(RetryPolicy, minimum_backoff_ns=seconds, maximum_backoff_ns=seconds),
    st.just(RetryPolicy(delays_ns=(SECOND_NS, 0, 5 * SECOND_NS))),
)
dead_letter_policies = st.one_of(
    st.none(),
    st.builds(
        DeadLetterPolicy,
        st.sampled_from([None, None, "graveyard", "t1"]),
        st.integers(1, 3),
        kept_max=st.sampled_from([10, 1, 2]),
    ),
)


def settings_with(**fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[SubscriptionSettings]:
    """Settings of all kinds, some of them given."""
    chosen: dict[str, st.SearchStrategy[Any]] = {
        "ack_deadline_ns": st.sampled_from([10 * SECOND_NS, 2 * SECOND_NS]),
        "enable_message_ordering": st.booleans(),
        "retry_policy": retry_policies,
        "dead_letter_policy": dead_letter_policies,
        "capacity": seldom(
            None, Capacity(3, 100), Capacity(10, 12), Capacity(4, 0, refuse=True), Capacity(9, 8, refuse=True)
        ),
        "outstanding_messages_max": seldom(0, 2, 3),
        "outstanding_bytes_max": seldom(0, 5, 9),
        "ttl_ns": seldom(0, 3 * SECOND_NS, 20 * SECOND_NS),
        "prioritised": st.booleans(),
        "default_priority": seldom(5, 3),
        "prefetch": seldom(0, 1, 2),
        "filter": seldom(*model.FILTERS),
    }
    return st.builds(SubscriptionSettings, **(chosen | fixed))


subscription_settings = settings_with()
kept = st.builds(DeadLetterPolicy, st.none(), st.integers(1, 3))
ordered_settings = settings_with(
    enable_message_ordering=st.just(True), capacity=st.none(), dead_letter_policy=kept, prioritised=seldom(False, True)
)
queue_settings = settings_with(
    prioritised=st.just(True), dead_letter_policy=kept, capacity=seldom(None, Capacity(20, 0, refuse=True))
)
shapes = st.fixed_dictionaries(
    {
        "size": st.integers(0, 6),
        "key": st.sampled_from(["", "k", "k", "l"]),
        "priority": seldom(None, 0, 3, 9),
        "delay": seldom(0, -1, 2, 5, 30),
        "life": seldom(0, -1, 1, 4, 30),
        "attempts": seldom(0, 1, 2),
        "kind": st.sampled_from(["", "a", "b"]),
    }
)

CALLS: dict[str, tuple[int, dict[str, st.SearchStrategy[Any]]]] = {
    # the method of the machine, how often, its arguments
    "publish": (5, {"topic": seldom("t0", "t1", "graveyard"), "drafts": st.lists(shapes, min_size=1, max_size=4)}),
    "pull": (
        7,
        {
            "who": st.integers(0, 7),
            "count": st.sampled_from([1, 2, 3, 5, 100, 0]),
            "max_bytes": seldom(0, 1, 4, 10),
            "oversized_first": seldom(True, False),
            "ack_deadline_ns": seldom(0, SECOND_NS, 30 * SECOND_NS),
            "consumer": st.sampled_from(CONSUMERS),
        },
    ),
    "settle": (
        8,
        {
            "who": st.integers(0, 7),
            "action": st.sampled_from(["acknowledge", "acknowledge", "nack", "nack", "modify", "release", "reject"]),
            "which": st.lists(st.integers(0, 9), min_size=1, max_size=4),
            "stale": seldom(None, 0, 1, 2),
            "ack_deadline_ns": seconds,
        },
    ),
    "time_passes": (
        3,
        {"by_ns": st.one_of(seconds, st.sampled_from([SECOND_NS - 1, 1, 0])), "ticks": seldom(True, False)},
    ),
    "retry_dead_letters": (2, {"who": st.integers(0, 7), "every": st.booleans(), "start": st.integers(0, 2)}),
    "forward_dead_letters": (2, {}),
    "ask": (2, {"who": st.integers(0, 7), "count": st.integers(1, 4), "priority": st.integers(0, 9)}),
    "restart": (1, {}),
    "administer": (
        2,
        {
            "what": st.sampled_from(
                [
                    *["topic", "topic", "subscription", "subscription", "update", "update", "document"],
                    *["-topic", "-subscription", "detach", "purge", "-dead"],
                ]
            ),
            "topic": st.sampled_from(TOPICS),
            "name": st.sampled_from(SUBSCRIPTIONS),
            "settings": subscription_settings,
            "clears": st.booleans(),
        },
    ),
}
# one strategy rather than a rule for each: Hypothesis leaves out rules at random, and few messages would get anywhere
calls = st.one_of(
    [
        st.tuples(st.just(name), st.fixed_dictionaries(arguments))
        for name, (times, arguments) in CALLS.items()
        for _ in range(times)
    ]
)


class EngineMachine(RuleBasedStateMachine):
    """Topics, subscriptions and consumers that come and go; time that passes; restarts."""

    engine_class = Engine

    def __init__(self) -> None:
        super().__init__()
        self.facts: list[Fact] = []
        self.engine = self._new_engine()
        self.replica = self._new_engine()
        self.model = Model()
        self.now_ns = START_NS
        self.ack_ids: list[str] = []  # also stale ones
        self.attempts: dict[tuple[str, str], int] = {}
        self.documents: dict[tuple[str, str], bytes] = {}
        self.ticked = True
        self.pullable: dict[tuple[str, str], set[int]] = {}

    def _new_engine(self) -> Engine:
        return self.engine_class()

    @initialize(settings=st.tuples(subscription_settings, subscription_settings))
    def begin(self, settings: tuple[SubscriptionSettings, SubscriptionSettings]) -> None:
        for topic in ("t0", "t1"):
            self._create_topic(topic)
        for name, chosen in zip(SUBSCRIPTIONS, settings, strict=False):
            self._create_subscription(name, "t0", chosen)

    @rule(call=calls)
    def step(self, call: tuple[str, dict[str, Any]]) -> None:
        name, arguments = call
        getattr(self, name)(**arguments)

    # ── topics and subscriptions ────────────────────────────────────────────────────────────────────────────────────

    def _create_topic(self, name: str) -> None:
        if name not in self.model.topics:
            self.engine.create_topic(name, TopicSettings(), self.now_ns)
            self.model.create_topic(name)

    def _create_subscription(self, name: str, topic: str, settings: SubscriptionSettings) -> None:
        if name not in self.model.subscriptions and topic in self.model.topics:
            self.engine.create_subscription(name, topic, settings, self.now_ns)
            self.model.create_subscription(name, topic, settings)
            self.attempts = {key: attempt for key, attempt in self.attempts.items() if key[0] != name}

    def administer(self, what: str, topic: str, name: str, settings: SubscriptionSettings, clears: bool) -> None:
        now_ns, engine, naive = self.now_ns, self.engine, self.model
        if what == "topic":
            self._create_topic(topic)
        elif what == "subscription":
            self._create_subscription(name, topic, settings)
        elif what == "-topic" and topic in naive.topics:
            engine.delete_topic(topic, clears_backlog=clears, now_ns=now_ns)
            naive.delete_topic(topic, clears, now_ns)
            self.ticked = True
        elif what == "-subscription" and name in naive.subscriptions:
            engine.delete_subscription(name)
            naive.delete_subscription(name)
        elif what == "update" and name in naive.subscriptions:
            self._update(name, settings)
        elif what == "detach":
            self._both(
                lambda: engine.detach_subscription(name, now_ns), lambda: naive.detach_subscription(name, now_ns)
            )
        elif what == "document":
            self._document(topic, name, clears)
        elif what == "purge":
            self._both(lambda: engine.purge(name, now_ns), lambda: naive.purge(name, now_ns))
        elif what == "-dead" and name in naive.subscriptions:
            assert engine.purge_dead_letters(name) == naive.drop_dead_letters(name)

    def _update(self, name: str, settings: SubscriptionSettings) -> None:
        old = self.model.subscriptions[name].settings
        kept = {field: getattr(old, field) for field in IMMUTABLE}
        if any(getattr(settings, field) != kept[field] for field in IMMUTABLE):
            with pytest.raises(InvalidArgument):
                self.engine.update_subscription(name, settings, self.now_ns)
        settings = msgspec.structs.replace(settings, **kept)
        had = len(self.model.subscriptions[name].dead)
        self._both(
            lambda: self.engine.update_subscription(name, settings, self.now_ns) and None,
            lambda: self.model.update_subscription(name, settings, self.now_ns),
        )
        if len(self.model.subscriptions[name].dead) < had:  # they start afresh
            self.attempts = {key: attempt for key, attempt in self.attempts.items() if key[0] != name}

    def _document(self, collection: str, name: str, clears: bool) -> None:
        if clears:
            self.engine.delete_document(collection, name)
            self.documents.pop((collection, name), None)
        else:
            self.engine.put_document(collection, name, b"%d" % self.now_ns)
            self.documents[collection, name] = b"%d" % self.now_ns

    def _one_of(self, who: int, wanted: Callable[[model.Subscription], bool] = lambda _: True) -> str:
        """A subscription of the wanted kind, if there is one; now and then any name."""
        there = [name for name, subscription in self.model.subscriptions.items() if wanted(subscription)]
        return there[who % len(there)] if there and who else SUBSCRIPTIONS[who % len(SUBSCRIPTIONS)]

    # ── messages ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _both(self, ours: Callable[[], Any], theirs: Callable[[], Any]) -> Any:
        """Both answers, or both errors, are the same."""
        try:
            expected = theirs()
        except HeliographError as error:
            self.ticked |= not isinstance(error, TopicNotFound | SubscriptionNotFound | SubscriptionDetached)
            with pytest.raises(type(error)):
                ours()
            return None
        self.ticked = True
        actual = ours()
        assert actual == expected
        return actual

    def publish(self, topic: str, drafts: list[dict[str, Any]]) -> None:
        made = [self._draft(**shape) for shape in drafts]
        self._both(
            lambda: self.engine.publish(topic, made, self.now_ns), lambda: self.model.publish(topic, made, self.now_ns)
        )

    def _draft(
        self, size: int, key: str, priority: int | None, delay: int, life: int, attempts: int, kind: str
    ) -> Draft:
        extras = Extras(
            priority=priority or 0,
            available_at_ns=self.now_ns + delay * SECOND_NS if delay else 0,
            expires_at_ns=self.now_ns + life * SECOND_NS if life else 0,
            max_delivery_attempts=attempts,
        )
        plain = priority is None and not (delay or life or attempts)
        attributes = {"kind": kind} if kind else {}
        return Draft(b"x" * size, attributes, ordering_key=key, extras=None if plain else extras)

    def pull(self, who: int, count: int, **options: Any) -> None:
        name = self._one_of(who, lambda subscription: bool(subscription.waiting()))
        deliveries: list[Delivered] = self._both(
            lambda: [_seen(one) for one in self.engine.pull(name, count, self.now_ns, **options)],
            lambda: self.model.pull(name, count, self.now_ns, **options),
        )
        for delivery in deliveries or ():
            self.ack_ids.append(delivery.ack_id)
            key = (name, delivery.message_id)
            assert delivery.attempt >= self.attempts.get(key, 0), f"the attempts of {key} fell"
            self.attempts[key] = delivery.attempt

    def settle(self, who: int, action: str, which: list[int], stale: int | None, ack_deadline_ns: int) -> None:
        name = self._one_of(who, lambda subscription: bool(subscription.leased()))
        subscription = self.model.subscriptions.get(name)
        known = [subscription.ack_id(entry) for entry in subscription.leased()] if subscription is not None else []
        ack_ids = [known[index % len(known)] for index in which if known]
        if stale is not None and self.ack_ids:
            ack_ids.append(self.ack_ids[-1 - stale % len(self.ack_ids)])
        operations: dict[str, Callable[[], list[str]]] = {
            "acknowledge": lambda: self.engine.acknowledge(name, ack_ids, self.now_ns),
            "nack": lambda: self.engine.modify_ack_deadline(name, ack_ids, 0, self.now_ns),
            "modify": lambda: self.engine.modify_ack_deadline(name, ack_ids, ack_deadline_ns, self.now_ns),
            "release": lambda: self.engine.release(name, ack_ids, self.now_ns),
            "reject": lambda: self.engine.reject(name, ack_ids, self.now_ns),
        }
        new_ns = ack_deadline_ns if action == "modify" else 0
        self._both(operations[action], lambda: self.model.settle(action, name, ack_ids, self.now_ns, new_ns))

    def time_passes(self, by_ns: int, ticks: bool) -> None:
        """By a while, or (0) to the next deadline; what is due happens now or with the next operation."""
        self.now_ns = max(self.now_ns + by_ns, (self.engine.next_deadline_ns() or 0) if by_ns == 0 else 0)
        self.ticked = ticks
        if self.ticked:
            self._tick()

    def _tick(self) -> None:
        self.engine.tick(self.now_ns)
        self.model.tick(self.now_ns)
        deadline_ns = self.engine.next_deadline_ns()
        assert deadline_ns is None or deadline_ns > self.now_ns, "what is due has happened"

    def retry_dead_letters(self, who: int, every: bool, start: int) -> None:
        name = self._one_of(who, lambda subscription: bool(subscription.dead))
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

    def forward_dead_letters(self) -> None:
        """What a broker does with `forwards`."""
        forwards, self.engine.forwards = self.engine.forwards, []
        for name, sequence in dict.fromkeys(forwards):
            subscription = self.engine.subscriptions.get(name)
            if subscription is None or sequence not in subscription.dead:
                continue
            policy = subscription.settings.dead_letter_policy
            if policy is None or policy.topic is None:
                continue
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

    def ask(self, who: int, count: int, priority: int) -> None:
        name = self._one_of(who)
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

    def restart(self) -> None:
        self.ticked = True
        self._tick()
        self._keep_facts()
        again = recovered(self.facts, self.now_ns, self._new_engine())
        assert full_state(again, self.now_ns) == full_state(self.engine, self.now_ns)
        assert not again.take_facts()
        checkpointed = recovered(stored(self.engine.checkpoint()), self.now_ns, Engine(self._durable))
        check_engine(checkpointed)
        assert full_state(checkpointed, self.now_ns) == full_state(self.engine, self.now_ns)
        again.woken |= self.engine.woken
        self.engine = again

    def teardown(self) -> None:
        self.restart()
        for _ in range(1_000):  # every deadline leads somewhere, and there is an end to them
            deadline_ns = self.engine.next_deadline_ns()
            if deadline_ns is None or not self.engine._timers:  # but for the look at retention, which has no end
                break
            self.now_ns = deadline_ns
            self._tick()
        assert not self.engine._timers
        assert all(not subscription.leased() for subscription in self.model.subscriptions.values())

    def _durable(self, topic_number: int, first: int, last: int) -> list[Message]:
        """What a store would read from the topic's log."""
        published = [fact for fact in self.facts if isinstance(fact, MessagesPublished)]
        messages = [message for fact in published if fact.topic_number == topic_number for message in fact.messages]
        return [message for message in messages if first <= message.sequence <= last]

    def _keep_facts(self) -> None:
        facts = stored(self.engine.take_facts())
        self.facts += facts
        for fact in facts:
            self.replica.replay(fact)

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
    def documents_are_what_was_put_last(self) -> None:
        self._keep_facts()
        for engine in (self.engine, self.replica):
            there = [(c, name, value) for c in TOPICS for name, value in engine.documents.listed(c)]
            assert sorted(there) == sorted((*where, value) for where, value in self.documents.items())

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
            more = len(sequences) > len(before.get((name, consumer), ()))
            assert not more or name in woken, f"{consumer or 'somebody'} may now pull {sequences} of {name}, and sleeps"

    def _pullable(self) -> dict[tuple[str, str], set[int]]:
        return {
            (name, consumer): {
                entry.sequence for entry in self.model.pullable(subscription, 100, self.now_ns, consumer=consumer)
            }
            for name, subscription in self.model.subscriptions.items()
            for consumer in CONSUMERS
        }


class QueueMachine(EngineMachine):
    """Work queues."""

    @initialize(settings=st.tuples(queue_settings, queue_settings))
    def begin(self, settings: tuple[SubscriptionSettings, SubscriptionSettings]) -> None:
        super().begin(settings)


class OrderedMachine(EngineMachine):
    """Keys, failures, and dead letters that come back."""

    @initialize(settings=st.tuples(ordered_settings, ordered_settings))
    def begin(self, settings: tuple[SubscriptionSettings, SubscriptionSettings]) -> None:
        super().begin(settings)


def _seen(delivery: Delivery) -> Delivered:
    return Delivered(
        delivery.message_id, delivery.ack_id, delivery.attempt, delivery.deadline_ns, delivery.message.data
    )


def _fields(letter: Any) -> tuple[Any, ...]:
    return letter.sequence, letter.reason, letter.failures, letter.dead_lettered_ns
