"""A broker on a file that random operations happen to, with a record of everything that it gave to its store: so that
whatever a crash leaves can be held against a broker that never crashed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from heliograph.broker.broker import LocalBroker
from heliograph.broker.clock import SimulatedClock
from heliograph.engine.dead_letter import DeadLetterPolicy
from heliograph.engine.engine import Engine
from heliograph.engine.facts import Fact
from heliograph.engine.message import Draft, Extras
from heliograph.engine.retry import RetryPolicy
from heliograph.engine.settings import SECOND_NS, Capacity, SubscriptionSettings, TopicSettings
from heliograph.errors import HeliographError
from heliograph.store import sqlite, sqlite_file, trimming
from heliograph.store.protocol import Commit
from heliograph.store.sqlite import SqliteStore
from tests.engine.invariants import full_state, recovered, stored

SETTINGS = {
    "plain": SubscriptionSettings(),
    "once": SubscriptionSettings(enable_exactly_once_delivery=True, ack_deadline_ns=30 * SECOND_NS),
    "ordered": SubscriptionSettings(enable_message_ordering=True, retry_policy=RetryPolicy(SECOND_NS, 8 * SECOND_NS)),
    "buried": SubscriptionSettings(dead_letter_policy=DeadLetterPolicy("graves", 2, source_attributes=True)),
    "capped": SubscriptionSettings(capacity=Capacity(900, 50_000), outstanding_messages_max=90),
    "filtered": SubscriptionSettings(filter='attributes.kind = "a"', enable_message_ordering=True),
    "graves": SubscriptionSettings(message_retention_ns=600 * SECOND_NS),
    "queue": SubscriptionSettings(
        prioritised=True,
        default_priority=5,
        priority_aging_ns=20 * SECOND_NS,
        dead_letter_policy=DeadLetterPolicy(None, 2, kept_max=20),
        ttl_ns=90 * SECOND_NS,
    ),
}
TOPICS = {"graves": "graves", "queue": "jobs"}  # of the others: "a"


class RecordingStore(SqliteStore):
    """Remembers what was appended, and with which commit. Small limits, so that everything happens often."""

    def __init__(self, data_dir: Path, *, connect: Callable[..., Any] | None = None) -> None:
        options = {} if connect is None else {"connect": connect}
        super().__init__(data_dir, durability="process", trim_delay_seconds=0.0, retry_seconds=(0.0, 0.01), **options)
        self.appends: list[tuple[list[Fact], Commit]] = []
        self.checkpoints: list[Commit] = []

    def append(self, facts: Sequence[Fact]) -> Commit:
        commit = super().append(facts)
        if facts:
            self.appends.append((list(facts), commit))
        return commit

    def checkpoint(self, facts: Sequence[Fact]) -> Commit:
        self.checkpoints.append(super().checkpoint(facts))
        return self.checkpoints[-1]


class Traffic:
    """See the module.

    Args:
        data_dir: for the store.
        seed: everything follows from it, save what shares a commit.
        memory_budget_bytes: see `LocalBroker`.
        connect: see `SqliteStore`.
    """

    def __init__(
        self,
        data_dir: Path,
        seed: int,
        *,
        memory_budget_bytes: int | None = 20_000,
        connect: Callable[..., Any] | None = None,
    ) -> None:
        self.data_dir = data_dir
        self.chance = random.Random(seed)
        self.clock = SimulatedClock()
        self.connect = connect
        self.memory_budget_bytes = memory_budget_bytes
        self.before: list[Fact] = []  # of earlier brokers on the directory
        self.refused = 0
        self.resting = 0  # for so many steps
        self.ack_ids: dict[str, list[str]] = {name: [] for name in SETTINGS}
        self._open()
        for name, settings in SETTINGS.items():
            topic = TOPICS.get(name, "a")
            if topic not in [info.name for info in self.broker.list_topics()]:
                self.broker.create_topic(topic).result()
            self.broker.create_subscription(name, topic, settings).result()

    def _open(self) -> None:
        self.store = RecordingStore(self.data_dir, connect=self.connect)
        self.broker = LocalBroker(self.store, self.clock, memory_budget_bytes=self.memory_budget_bytes)

    @property
    def engine(self) -> Engine:
        return self.broker._engine

    def restart(self) -> None:
        """In order, on the same directory."""
        self.broker.close()
        self.before += [fact for facts, _ in self.store.appends for fact in facts]
        self._open()

    def settle(self) -> None:
        """Wait until everything that was appended is written."""
        assert self.store.append([]).wait(30)

    # ── what happens to it ──────────────────────────────────────────────────────────────────────────────────────────

    def step(self) -> None:
        """One operation, or some time. Now and then the topics rest, and only what is created and deleted changes."""
        name, kind = self.chance.choice(list(SETTINGS)), self.chance.random()
        self.resting = max(self.resting - 1, 0) or (12 if kind > 0.99 else 0)
        try:
            if self.resting and kind < 0.9:
                self._manage()
            elif kind < 0.35:
                self._publish()
            elif kind < 0.6:
                consumer = self.chance.choice(["", "c1", "c2"])
                deliveries = self.broker.pull(name, self.chance.choice([1, 5, 150, 700]), consumer=consumer).result(30)
                self.ack_ids[name] += [delivery.ack_id for delivery in deliveries]
            elif kind < 0.85:
                self._settle_some(name)
            elif kind < 0.9:
                self._manage()
            elif kind < 0.93:
                self._work_off()
            else:
                self.clock.advance(self.chance.choice([1, 1, 5, 12, 40, 130]))
        except HeliographError:
            self.refused += 1

    def _publish(self) -> None:
        chance = self.chance
        drafts = [self._draft() for _ in range(chance.choice([1, 1, 3, 30, 200, 600]))]
        self.broker.publish(chance.choice(["a", "a", "jobs"]), drafts).result(30)

    def _draft(self) -> Draft:
        chance = self.chance
        extras = None
        if chance.random() < 0.05:
            delay_ns = chance.choice([0, 0, 3]) * SECOND_NS
            available_at_ns = self.clock.now_ns() + delay_ns if delay_ns else 0
            extras = Extras(priority=chance.randrange(10), available_at_ns=available_at_ns)
        size = chance.choice([0, 9, 9, 9, 9, 9, 9, 90]) if chance.random() < 0.995 else 9_000
        attributes = {"kind": chance.choice("ab")} if chance.random() < 0.3 else {}
        return Draft(chance.randbytes(size), attributes, chance.choice(["", "", "k1", "k2", "k3"]), extras)

    def _settle_some(self, name: str) -> None:
        chance, broker, held = self.chance, self.broker, self.ack_ids[name]
        chosen = [held.pop(0) for _ in range(min(chance.choice([1, 100, 700]), len(held)))]
        deadline_ns = chance.choice([0, 0, 30 * SECOND_NS])
        settle: Callable[[], Any] = chance.choice(
            [
                *[lambda: broker.acknowledge(name, chosen)] * 6,
                lambda: broker.modify_ack_deadline(name, chosen, deadline_ns),
                lambda: broker.release(name, chosen),
                lambda: broker.reject(name, chosen),
            ]
        )
        settle().result(30)

    def _work_off(self) -> None:
        """Nearly everything is done, so that there is something to trim."""
        for name, held in self.ack_ids.items():
            self.broker.acknowledge(name, held).result(30)
            self.broker.purge(name).result(30)
        self.clock.advance(61)

    def _manage(self) -> None:
        chance, broker = self.chance, self.broker
        name = f"extra-{chance.randrange(3)}"
        operations: list[Callable[[], Any]] = [
            lambda: broker.retry_dead_letters("queue"),
            lambda: broker.purge_dead_letters("queue"),
            lambda: broker.purge(chance.choice(list(SETTINGS))),
            lambda: broker.create_topic(name),
            lambda: broker.create_subscription(name, chance.choice(["a", name]), chance.choice([*SETTINGS.values()])),
            lambda: broker.update_subscription(name, chance.choice([*SETTINGS.values()])),
            lambda: broker.update_topic(name, TopicSettings(chance.choice([0, 99]) * SECOND_NS)),
            lambda: broker.detach_subscription(name),
            lambda: broker.put_document("iam", name, chance.randbytes(9)),
            lambda: broker.delete_document("iam", name),
            lambda: broker.publish(name, [self._draft() for _ in range(90)]),
            lambda: broker.delete_topic(name, clears_backlog=chance.random() < 0.5),
            lambda: broker.delete_subscription(name),
        ]
        chance.choice(operations)().result(30)

    # ── what must be left of it ─────────────────────────────────────────────────────────────────────────────────────

    def answered(self) -> int:
        """How many appends are surely committed."""
        done = [commit.done and commit.error is None for _, commit in self.store.appends]
        return done.index(False) if False in done else len(done)

    def twin(self, appends: int, now_ns: int = 0) -> Engine:
        """A broker that was never interrupted, after so many appends of the present store, at `now_ns`; 0 = now."""
        facts = [*self.before, *(fact for group, _ in self.store.appends[:appends] for fact in group)]
        return recovered(stored(facts), now_ns or self.clock.now_ns(), Engine())

    def expected(self, appends: int) -> dict[str, Any]:
        """What a recovery after so many appends must lead to."""
        return comparable(full_state(self.twin(appends), self.clock.now_ns()))


def comparable(state: dict[str, Any]) -> dict[str, Any]:
    """A full state without what recovery need not know: see `Totals`."""
    for subscription in state["subscriptions"].values():
        del subscription["totals"]["wait_ns"], subscription["totals"]["first_deliveries"]
    return state


def small_limits(patch: Any) -> None:
    """Checkpoints, trims and given-back pages happen within a few operations."""
    patch.setattr(sqlite, "CHECKPOINT_BYTES_MIN", 30_000)
    patch.setattr(sqlite, "CHECKPOINT_GROWTH", 1)
    patch.setattr("heliograph.broker.housekeeping.CHECKPOINT_SHARE", 1e9)
    patch.setattr(sqlite_file, "TRIMMED_ROWS_MAX", 7)
    patch.setattr(trimming, "LOOKED_AT_MAX", 11)
    patch.setattr(sqlite_file, "FREE_PAGES_MIN", 8)
    patch.setattr(sqlite_file, "VACUUM_PAGES", 16)
