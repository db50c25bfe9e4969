"""Deliberately broken engines: the model and the simulation must notice each, or they prove nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from heliograph.broker.broker import LocalBroker
from heliograph.engine import engine as engine_module
from heliograph.engine import failure, seek
from heliograph.engine.backlog import Backlog
from heliograph.engine.engine import Engine
from heliograph.engine.facts import Fact, LeasesExtended, ReturnCause, SubscriptionUpdated
from heliograph.engine.leases import Leases
from heliograph.engine.loading import Loading
from heliograph.engine.ordering import OrderingKeys
from heliograph.engine.ranges import unpack_runs
from heliograph.engine.snapshots import Snapshot
from heliograph.engine.subscription import Subscription
from heliograph.store.memory import MemoryStore
from tests.engine.machine import EngineMachine
from tests.engine.seeking_machine import SeekingMachine
from tests.portions import quick_first
from tests.simulation.world import World

Breakage = Callable[[pytest.MonkeyPatch], None]

MODEL_EXAMPLES = 100
SIMULATION_SEEDS = range(1, 11)
SIMULATION_STEPS = 400


def expiry_forgets_the_attempt(patch: pytest.MonkeyPatch) -> None:
    real = Subscription._count_failures

    def count(self: Subscription, sequences: Any, cause: ReturnCause | None) -> None:
        real(self, sequences, ReturnCause.RELEASED if cause is ReturnCause.EXPIRED else cause)

    patch.setattr(Subscription, "_count_failures", count)


def acknowledging_does_not_free_the_key(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OrderingKeys, "pass_on", lambda self, key: None)


def a_nack_loses_the_message(patch: pytest.MonkeyPatch) -> None:
    real = Subscription.put_back

    def put_back(self: Subscription, sequences: Any, available_at_ns: Any, cause: ReturnCause) -> None:
        if cause is ReturnCause.NACKED and len(sequences) > 1:
            self._end_leases(sequences[1:])
            sequences = sequences[:1]
        real(self, sequences, available_at_ns, cause)

    patch.setattr(Subscription, "put_back", put_back)


def dead_lettering_comes_one_attempt_late(patch: pytest.MonkeyPatch) -> None:
    real = Subscription.attempt
    spent = failure._is_spent

    def is_spent(subscription: Subscription, sequence: int) -> bool:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Subscription, "attempt", lambda self, sequence: real(self, sequence) - 1)
            return spent(subscription, sequence)

    patch.setattr(failure, "_is_spent", is_spent)


def a_lease_is_granted_twice(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Backlog, "take_first", lambda self, sequences: len(self._bands) == 1)


def what_a_consumer_holds_is_never_counted_down(patch: pytest.MonkeyPatch) -> None:
    def end(self: Leases, sequences: Any) -> None:
        for sequence in sequences:
            del self.by_sequence[sequence]

    patch.setattr(Leases, "end", end)


def outstanding_bytes_drift(patch: pytest.MonkeyPatch) -> None:
    real = Subscription.acknowledge

    def acknowledge(self: Subscription, sequences: Any) -> None:
        real(self, sequences)
        self.outstanding_bytes += 1

    patch.setattr(Subscription, "acknowledge", acknowledge)


def recovery_misses_extended_leases(patch: pytest.MonkeyPatch) -> None:
    real = Engine.replay

    def replay(self: Engine, fact: Fact) -> None:
        if type(fact) is not LeasesExtended:
            real(self, fact)

    patch.setattr(Engine, "replay", replay)


def recovery_offers_dead_letters_twice(patch: pytest.MonkeyPatch) -> None:
    real = Engine.recovered

    def recovered(self: Engine, now_ns: int) -> None:
        real(self, now_ns)
        for name, sequence in self.forwards:  # before the broker had a look at it
            del self.subscriptions[name].dead[sequence]

    patch.setattr(Engine, "recovered", recovered)


def a_retried_dead_letter_takes_a_turn_that_depends_on_what_is_loaded(patch: pytest.MonkeyPatch) -> None:
    real = Subscription.revive

    def revive(self: Subscription, *arguments: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Subscription, "load", lambda self, last: None)
            real(self, *arguments)

    patch.setattr(Subscription, "revive", revive)


def delays_are_ignored(patch: pytest.MonkeyPatch) -> None:
    def wait_for_time(self: Subscription, message: Any) -> None:
        self.backlog.add(message.sequence, self.priority_of(message))

    patch.setattr(Subscription, "_wait_for_time", wait_for_time)


def backoff_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(failure, "_available_at_ns", lambda *_: 0)


def a_key_that_goes_on_sets_no_timer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Engine, "_schedule_following", lambda *_: None)


def nobody_is_woken_when_messages_come_back(patch: pytest.MonkeyPatch) -> None:
    def returned(self: Engine, fact: Any) -> None:
        self.subscriptions[fact.subscription].put_back(fact.sequences, fact.available_at_ns, fact.cause)

    patch.setattr(Engine, "_on_messages_returned", returned)


def messages_outlive_their_expiry(patch: pytest.MonkeyPatch) -> None:
    real = Subscription.expired
    patch.setattr(Subscription, "expired", lambda self, now_ns: real(self, now_ns)[:0])


def priorities_are_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Subscription, "priority_of", lambda *_: 0)


def prefetch_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Engine, "outstanding", lambda *_: 0)


def a_full_subscription_takes_one_more(patch: pytest.MonkeyPatch) -> None:
    real = engine_module.fitting
    patch.setattr(engine_module, "fitting", lambda sub, messages: min(real(sub, messages) + 1, len(messages)))


def purging_takes_leased_messages_too(patch: pytest.MonkeyPatch) -> None:
    real = Subscription.waiting_sequences

    def waiting(self: Subscription) -> Any:
        yield from real(self)
        yield from self.leases.by_sequence

    patch.setattr(Subscription, "waiting_sequences", waiting)


def dead_letters_never_reach_their_topic(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LocalBroker, "_topic_exists_now", lambda *_: None)


def a_durable_dead_letter_stays_where_it_was(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Engine, "forwarded", lambda *_: None)


def filters_let_everything_pass(patch: pytest.MonkeyPatch) -> None:
    real = Loading.pass_over
    patch.setattr(Loading, "pass_over", lambda self, first, stop, matched: real(self, first, stop, [(first, stop)]))


def a_seek_leaves_leases_as_they_are(patch: pytest.MonkeyPatch) -> None:
    real = Subscription._begin_anew

    def begin_anew(self: Subscription, unloaded: Any) -> None:
        leases = self.leases
        real(self, unloaded)
        self.leases = leases

    patch.setattr(Subscription, "_begin_anew", begin_anew)


def a_seek_does_not_bring_back_what_was_acknowledged(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(seek, "_retained_from", lambda *_: [])


def a_snapshot_forgets_what_came_since(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Snapshot, "needed", lambda self: unpack_runs(self.held))


def recovery_misses_changed_settings(patch: pytest.MonkeyPatch) -> None:
    real = Engine.replay

    def replay(self: Engine, fact: Fact) -> None:
        if type(fact) is not SubscriptionUpdated:
            real(self, fact)

    patch.setattr(Engine, "replay", replay)


SEEN_BY_THE_MODEL: list[Breakage] = [
    acknowledging_does_not_free_the_key,
    a_lease_is_granted_twice,
    what_a_consumer_holds_is_never_counted_down,
    outstanding_bytes_drift,
    delays_are_ignored,
    backoff_is_ignored,
    nobody_is_woken_when_messages_come_back,
    messages_outlive_their_expiry,
    priorities_are_ignored,
    prefetch_is_ignored,
    purging_takes_leased_messages_too,
    filters_let_everything_pass,
    a_seek_leaves_leases_as_they_are,
    a_seek_does_not_bring_back_what_was_acknowledged,
    a_snapshot_forgets_what_came_since,
    recovery_misses_changed_settings,
]
SEEN_BY_SEEKING = [
    a_seek_leaves_leases_as_they_are,
    a_seek_does_not_bring_back_what_was_acknowledged,
    a_snapshot_forgets_what_came_since,
]
SEEN_BY_THE_SIMULATION: list[Breakage] = [
    expiry_forgets_the_attempt,
    acknowledging_does_not_free_the_key,
    a_nack_loses_the_message,
    dead_lettering_comes_one_attempt_late,
    a_lease_is_granted_twice,
    what_a_consumer_holds_is_never_counted_down,
    outstanding_bytes_drift,
    recovery_misses_extended_leases,
    recovery_offers_dead_letters_twice,
    delays_are_ignored,
    backoff_is_ignored,
    a_key_that_goes_on_sets_no_timer,
    nobody_is_woken_when_messages_come_back,
    messages_outlive_their_expiry,
    priorities_are_ignored,
    prefetch_is_ignored,
    a_full_subscription_takes_one_more,
    purging_takes_leased_messages_too,
    dead_letters_never_reach_their_topic,
    a_durable_dead_letter_stays_where_it_was,
    filters_let_everything_pass,
    a_seek_leaves_leases_as_they_are,
    a_seek_does_not_bring_back_what_was_acknowledged,
]


def model_runs(machine: type[EngineMachine]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=MODEL_EXAMPLES,
            stateful_step_count=50,
            derandomize=True,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        ),
    )


def simulation_runs() -> None:
    for seed in SIMULATION_SEEDS:
        store = MemoryStore(keep_facts=True)
        world = World(seed, lambda store=store: store)  # type: ignore[misc]  # bound now, not when it is called
        for _ in range(SIMULATION_STEPS):
            world.step()
        world.finish()
        world.broker.close()


@pytest.mark.parametrize("breakage", quick_first(SEEN_BY_THE_MODEL, 5), ids=lambda one: one.__name__)
def test_the_model_notices_that(breakage: Breakage, monkeypatch: pytest.MonkeyPatch) -> None:
    breakage(monkeypatch)
    with pytest.raises(Exception):  # noqa: B017, PT011  # an assertion of ours, or the engine's own confusion
        model_runs(SeekingMachine if breakage in SEEN_BY_SEEKING else EngineMachine)


@pytest.mark.parametrize("breakage", quick_first(SEEN_BY_THE_SIMULATION, 5), ids=lambda one: one.__name__)
def test_the_simulation_notices_that(breakage: Breakage, monkeypatch: pytest.MonkeyPatch) -> None:
    breakage(monkeypatch)
    with pytest.raises(Exception):  # noqa: B017, PT011  # as above
        simulation_runs()
