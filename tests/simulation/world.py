"""A whole broker in simulated time: publishers, consumers with all their faults, restarts. `ledger.py` knows what
must have become of every message.

Everything follows from the seed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from heliograph.broker.broker import LocalBroker
from heliograph.broker.clock import SimulatedClock
from heliograph.broker.protocol import Watch
from heliograph.engine.dead_letter import DeadLetterPolicy
from heliograph.engine.message import SEQUENCES_PER_TOPIC, Draft, Extras, Message, split_message_id
from heliograph.engine.retry import RetryPolicy
from heliograph.engine.settings import SECOND_NS, Capacity, SubscriptionSettings
from heliograph.errors import QueueFull
from heliograph.store.protocol import Store
from tests.engine.invariants import check_engine, differences, full_state
from tests.simulation.ledger import Ledger, Record

GRAVEYARD = "graveyard"
TOPICS = ("orders", "events")
QUEUE = "queues/jobs"


class Held(NamedTuple):
    """A delivery in somebody's hand."""

    record: Record
    ack_id: str


class Consumer:
    """Somebody who pulls when woken, and only then."""

    def __init__(self, world: World, ledger: Ledger, name: str) -> None:
        self.world = world
        self.ledger = ledger
        self.name = name
        self.hand: list[Held] = []
        self.holds_max = world.random.choice([1, 3, 10])
        self.awake = False
        self.watch: Watch | None = None

    def attach(self) -> None:
        if self.watch is not None:
            self.watch.close()
        self.watch = self.world.broker.watch(self.ledger.name, self._wake)

    def _wake(self) -> None:
        self.awake = True

    def pull(self) -> None:
        room = self.holds_max - len(self.hand)
        if not self.awake or room <= 0:
            return
        self.awake = False
        world = self.world
        options: dict[str, Any] = {"consumer": self.name, "max_bytes": world.random.choice([0, 0, 0, 40])}
        if world.random.random() < 0.2:
            options["ack_deadline_ns"] = world.random.choice([1, 5, 120]) * SECOND_NS
        deliveries = world.broker.pull(self.ledger.name, world.random.randint(1, room), **options).result(30)
        world.read_logs()
        self.ledger.refresh(world.now_ns)
        records = self.ledger.pulled(deliveries, self.name, world.now_ns)
        self.hand += [Held(record, record.ack_id) for record in records]
        self.awake |= bool(deliveries)  # there may be more

    def work(self) -> None:
        """Do something with a message or some, not always what one should."""
        choice, broker, name = self.world.random, self.world.broker, self.ledger.name
        choice.shuffle(self.hand)
        taken = [self.hand.pop() for _ in range(min(len(self.hand), choice.choice([1, 1, 2, 4])))]
        action = choice.choices(
            ["acknowledge", "later", "nack", "extend", "hold", "forget", "release", "reject", "again"],
            [30, 15, 15, 10, 10, 8, 5, 3, 4],
        )[0]
        if action == "hold":
            self.hand += taken
        elif action == "extend":
            span_ns = choice.choice([1, 10, 60]) * SECOND_NS
            for record in self._answer(taken, lambda ids: broker.modify_ack_deadline(name, ids, span_ns)):
                record.lease_ns = self.world.now_ns + span_ns
                self.hand.append(Held(record, record.ack_id))
        elif action == "nack":
            for record in self._answer(taken, lambda ids: broker.modify_ack_deadline(name, ids, 0)):
                self.ledger.fail(record, self.world.now_ns)
        elif action == "reject":
            for record in self._answer(taken, lambda ids: broker.reject(name, ids)):
                record.failures += 1
                self.ledger.bury(record, "acknowledged")
        elif action == "release":
            self.release(taken)
        elif action == "later":
            self.acknowledge_later(taken)
        elif action != "forget":
            self.acknowledge(taken)
            if action == "again":
                ids = [held.ack_id for held in taken]
                assert broker.acknowledge(name, ids).result(30) == ids, "acknowledged twice"

    def acknowledge(self, taken: list[Held]) -> None:
        for record in self._answer(taken, lambda ids: self.world.broker.acknowledge(self.ledger.name, ids)):
            record.lease_ns, record.fate = 0, "acknowledged"

    def acknowledge_later(self, taken: list[Held]) -> None:
        self.ledger.refresh(self.world.now_ns)
        for held in taken:
            self.world.broker.acknowledge_later(self.ledger.name, held.ack_id)
            if held.record.ack_id == held.ack_id and held.record.lease_ns:
                held.record.lease_ns, held.record.fate = 0, "acknowledged"
        if self.world.random.random() < 0.5:  # else the next operation, or the end of a lease, carries it out
            self.world.broker.acknowledge(self.ledger.name, []).result(30)

    def release(self, taken: list[Held]) -> None:
        for record in self._answer(taken, lambda ids: self.world.broker.release(self.ledger.name, ids)):
            record.lease_ns = record.earliest_ns = 0
            if 0 < record.expires_ns <= self.world.now_ns:
                self.ledger.bury(record, "expired")

    def die(self) -> None:
        """The connection goes away, and another one comes."""
        hand, self.hand = self.hand, []
        self.release(hand)
        self.attach()

    def _answer(self, taken: list[Held], settle: Callable[[list[str]], Any]) -> list[Record]:
        """An answer counts exactly as long as the lease holds. Returns the messages for which it did."""
        self.ledger.refresh(self.world.now_ns)
        good = [held for held in taken if held.record.lease_ns and held.record.ack_id == held.ack_id]
        stale = settle([held.ack_id for held in taken]).result(30)
        expected = [held.ack_id for held in taken if held not in good]
        assert stale == expected, f"{self.ledger.name}: {stale} were refused, not {expected}"
        return [held.record for held in good]


class World:
    """The broker, its clock, and everybody who uses it.

    Args:
        seed: what happens follows from it.
        open_store: gives the store, again and again the same.
    """

    def __init__(self, seed: int, open_store: Callable[[], Store]) -> None:
        self.random = random.Random(seed)
        self.open_store = open_store
        self.clock = SimulatedClock()
        self.store = open_store()
        self.broker = LocalBroker(self.store, self.clock)
        self.ledgers: list[Ledger] = []
        self.consumers: list[Consumer] = []
        self.published = 0
        # of a subscription: what it had, and the next sequence of its topic
        self.snapshots: dict[str, tuple[Ledger, set[str], int]] = {}
        self.payloads: dict[bytes, str] = {}  # to ordering key
        self.direct: Counter[str] = Counter()  # published to each topic by us
        self.closed: list[Ledger] = []  # of subscriptions that were deleted
        self._build()

    @property
    def now_ns(self) -> int:
        return self.clock.now_ns()

    # ── building ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _build(self) -> None:
        for topic in TOPICS:
            self.broker.create_topic(topic).result(30)
            for index in range(self.random.randint(1, 2)):
                self._subscribe(f"{topic}-{index}", topic, self._settings())
        settings = self._settings(prioritised=True, retry_dead=True)
        self.broker.create_queue(QUEUE.removeprefix("queues/"), settings).result(30)
        self._adopt(Ledger(QUEUE, QUEUE, settings, 1))

    def _subscribe(self, name: str, topic: str, settings: SubscriptionSettings) -> None:
        self.broker.create_subscription(name, topic, settings).result(30)
        self._adopt(Ledger(name, topic, settings, self.broker.get_topic(topic).next_sequence))

    def unsubscribe(self, ledger: Ledger) -> None:
        """Deleted with all that it holds, leased or not, and made anew under its name."""
        if ledger.topic not in TOPICS:
            return
        ledger.refresh(self.now_ns)
        self.broker.delete_subscription(ledger.name).result(30)
        self.ledgers.remove(ledger)
        if self.has_graveyard():  # else its dead letters still waited there, and went with it
            self.closed.append(ledger)
        self.consumers = [consumer for consumer in self.consumers if consumer.ledger is not ledger]
        self._subscribe(ledger.name, ledger.topic, self._settings())

    def _adopt(self, ledger: Ledger) -> None:
        self.ledgers.append(ledger)
        for name in self.random.sample(["", "anna", "bert"], self.random.randint(1, 3)):
            consumer = Consumer(self, ledger, name)
            consumer.attach()
            self.consumers.append(consumer)

    def _settings(self, *, prioritised: bool = False, retry_dead: bool = False) -> SubscriptionSettings:
        choice = self.random.choice
        to_topic = DeadLetterPolicy(GRAVEYARD, self.random.randint(1, 4))
        kept = DeadLetterPolicy(None, self.random.randint(1, 4))
        return SubscriptionSettings(
            ack_deadline_ns=choice([5, 10, 30]) * SECOND_NS,
            enable_message_ordering=choice([False, True]),
            enable_exactly_once_delivery=choice([False, True]),
            retry_policy=choice([None, RetryPolicy(SECOND_NS, 20 * SECOND_NS), RetryPolicy(delays_ns=(SECOND_NS, 0))]),
            dead_letter_policy=kept if retry_dead else choice([None, to_topic, to_topic, kept]),
            capacity=choice([None, None, Capacity(12, 10_000), Capacity(15, 0, refuse=True)]),
            outstanding_messages_max=choice([0, 0, 5]),
            outstanding_bytes_max=choice([0, 0, 60]),
            ttl_ns=choice([0, 0, 0, 40]) * SECOND_NS,
            prioritised=prioritised or choice([False, False, True]),
            default_priority=5,
            prefetch=choice([0, 0, 2]),
            priority_aging_ns=choice([0, 0, 3 * SECOND_NS]),
            filter=choice(["", "", 'attributes.kind = "a"']),
            retain_acked_messages=choice([False, True]),
        )

    # ── what happens ────────────────────────────────────────────────────────────────────────────────────────────────

    def step(self) -> None:
        action = self.random.choices(
            [self.publish, self.consume, self.wait, self.restart, self.administer, self.death], [20, 60, 14, 1, 5, 2]
        )[0]
        action()
        self.settle()
        self.check()

    def publish(self) -> None:
        topic = self.random.choice([*TOPICS, QUEUE])
        drafts = [self._draft() for _ in range(self.random.choice([1, 1, 2, 5]))]
        attached = [ledger for ledger in self.ledgers if ledger.topic == topic]
        try:
            ids = self.broker.publish(topic, drafts).result(30)
        except QueueFull as error:
            full = next(ledger for ledger in attached if ledger.name == error.name)
            assert full.settings.capacity is not None
            assert full.settings.capacity.refuse
            return
        self.direct[topic] += len(ids)
        self.payloads.update({draft.data: draft.ordering_key for draft in drafts})
        self.read_logs()
        for ledger in attached:
            came = [(one, draft) for one, draft in zip(ids, drafts, strict=True) if one in ledger.records]
            assert [ledger.records[one].message.data for one, _ in came] == [draft.data for _, draft in came]
            assert len(came) == len(drafts) or ledger.settings.filter

    def _draft(self) -> Draft:
        self.published += 1
        choice = self.random.choice
        extras = None
        if self.random.random() < 0.4:
            extras = Extras(
                priority=self.random.randint(0, 9),
                available_at_ns=choice([0, 0, self.now_ns + choice([1, 7, 30]) * SECOND_NS]),
                expires_at_ns=choice([0, 0, 0, self.now_ns + choice([5, 60]) * SECOND_NS]),
                max_delivery_attempts=choice([0, 0, 2]),
            )
        data = b"%d" % self.published + b"." * choice([0, 0, 10, 50])
        kind = choice([{"kind": "a"}, {"kind": "a"}, {"kind": "b"}, {}])
        return Draft(data, kind, choice(["", "", "k1", "k2"]), extras)

    def read_logs(self) -> None:
        """The ledgers learn what is new in the topics: what was published, and the dead letters."""
        for topic in {ledger.topic for ledger in self.ledgers}:
            info = self.broker.get_topic(topic)
            attached = [ledger for ledger in self.ledgers if ledger.topic == topic]
            first = min(ledger.next_sequence for ledger in attached)
            if first >= info.next_sequence:
                continue
            self.store.append([]).wait(30)
            for batch in self.broker.read_log(topic, first, info.next_sequence - 1):
                for message in batch:
                    self._arrived(topic, info.number, message)
            for ledger in attached:
                self._drop(ledger, info.number)

    def _arrived(self, topic: str, number: int, message: Message) -> None:
        assert message.data in self.payloads, f"{topic}: nobody published {message.data!r}"
        assert message.ordering_key == self.payloads[message.data]
        for ledger in self.ledgers:
            if ledger.topic == topic and ledger.next_sequence == message.sequence:
                ledger.receive(message, str(number * SEQUENCES_PER_TOPIC + message.sequence))
                ledger.next_sequence += 1

    def _drop(self, ledger: Ledger, number: int) -> None:
        """What a full subscription dropped are the latest that came to it."""
        dropped = self.broker.statistics(ledger.name).totals.dropped
        records = list(ledger.records.values())
        for record in records[len(records) - (dropped - ledger.dropped) :]:
            capacity = ledger.settings.capacity
            assert capacity is not None
            assert not capacity.refuse
            record.fate = "dropped"
        ledger.dropped = dropped
        capacity = ledger.settings.capacity
        comes_back = any(record.revived or record.sought for record in ledger.alive())
        if capacity is not None and not capacity.refuse and not comes_back:
            ledger.refresh(self.now_ns)
            assert len(ledger.alive()) <= capacity.messages

    def consume(self) -> None:
        consumer = self.random.choice(self.consumers)
        consumer.pull()
        consumer.work()

    def death(self) -> None:
        self.random.choice(self.consumers).die()

    def wait(self) -> None:
        self.clock.advance(self.random.choice([0, 0.001, 0.5, 1, 3, 11, 45]))

    def restart(self) -> None:
        """Another broker on the same store: everything is as it was, ack ids and leases too."""
        self.read_logs()
        before = self.broker
        before.close()
        self.store = self.open_store()
        self.broker = LocalBroker(self.store, self.clock)
        self.settle()
        with self.broker._lock:
            ours = full_state(self.broker._engine, self.now_ns)
        changed = differences(full_state(before._engine, self.now_ns), ours)
        assert changed == []
        for consumer in self.consumers:
            consumer.attach()

    def administer(self) -> None:
        ledger = self.random.choice(self.ledgers)
        what = self.random.choice(
            [
                *["purge", "retry", "retry", "graveyard", "ask", "unsubscribe"],
                *["seek", "seek", "snapshot", "snapshot", "update"],
            ]
        )
        self.read_logs()
        if what == "purge" and self.random.random() < 0.3:
            ledger.refresh(self.now_ns)
            waiting = [record for record in ledger.records.values() if not record.fate and not record.lease_ns]
            assert sum(self.broker.purge(ledger.name).result(30)) == len(waiting)
            for record in waiting:
                record.fate = "purged"
        elif what == "retry":
            self.retry(ledger)
        elif what == "unsubscribe" and self.random.random() < 0.3:
            self.unsubscribe(ledger)
        elif what == "graveyard":
            self.open_graveyard()
        elif what == "seek":
            self.seek(ledger)
        elif what == "snapshot":
            self.snapshot(ledger)
        elif what == "update":
            self.update(ledger)
        elif what == "ask":
            self.broker.peek(ledger.name, self.random.randint(1, 5))
            self.broker.position(ledger.name, 5)

    def retry(self, ledger: Ledger) -> None:
        policy = ledger.settings.dead_letter_policy
        if policy is None or policy.topic is not None:
            return
        letters = self.broker.dead_letters(ledger.name)
        ids = [
            str(self.broker.get_topic(ledger.topic).number * SEQUENCES_PER_TOPIC + one.sequence) for one, _ in letters
        ]
        ledger.refresh(self.now_ns)
        assert sorted(ids) == sorted(record.message_id for record in ledger.dead)
        chosen = [one for one in ids if self.random.random() < 0.7]
        assert self.broker.retry_dead_letters(ledger.name, chosen).result(30) == len(chosen)
        for one in chosen:
            record = ledger.records[one]
            ledger.dead.remove(record)
            record.fate, record.failures, record.revived = "", 0, True
            record.earliest_ns = (record.message.extras or Extras()).available_at_ns
            sequence = split_message_id(one)[1]
            record.expires_ns = self.broker._engine.subscription(ledger.name).expires_at_ns(sequence)

    def seek(self, ledger: Ledger) -> None:
        """To when some message was published, or purging; messages of one instant stay together."""
        ledger.refresh(self.now_ns)
        instants = [record.message.publish_time_ns for record in ledger.records.values()]
        instant_ns = self.random.choice([*instants, self.now_ns + 1])
        buried = self._buried(ledger)
        self.broker.seek_to_time(ledger.name, instant_ns).result(30)
        wanted = {
            record.message_id
            for record in ledger.records.values()
            if record.message.publish_time_ns >= instant_ns
            and (not record.fate or ledger.settings.retain_acked_messages)
        }
        ledger.seek(wanted, buried)

    def snapshot(self, ledger: Ledger) -> None:
        """Made, or sought to."""
        name = f"of {ledger.name}"
        if name not in self.snapshots:
            ledger.refresh(self.now_ns)
            self.broker.create_snapshot(name, ledger.name).result(30)
            self.snapshots[name] = (ledger, {record.message_id for record in ledger.alive()}, ledger.next_sequence)
            return
        made_for, held, next_sequence = self.snapshots[name]
        if made_for is ledger:
            since = {one for one, record in ledger.records.items() if record.message.sequence >= next_sequence}
            ledger.refresh(self.now_ns)
            buried = self._buried(ledger)
            self.broker.seek_to_snapshot(ledger.name, name).result(30)
            ledger.seek(held | since, buried)
        self.broker.delete_snapshot(name).result(30)
        del self.snapshots[name]

    def _buried(self, ledger: Ledger) -> set[str]:
        """Its dead letters that have not left it."""
        number = self.broker.get_topic(ledger.topic).number
        return {
            str(number * SEQUENCES_PER_TOPIC + letter.sequence) for letter, _ in self.broker.dead_letters(ledger.name)
        }

    def update(self, ledger: Ledger) -> None:
        """Some of what can be updated; the rest of its settings stay."""
        new = self._settings()
        settings = msgspec.structs.replace(
            ledger.settings,
            ack_deadline_ns=new.ack_deadline_ns,
            retry_policy=new.retry_policy,
            prefetch=new.prefetch,
            outstanding_messages_max=new.outstanding_messages_max,
            retain_acked_messages=new.retain_acked_messages,
        )
        ledger.refresh(self.now_ns)
        self.broker.update_subscription(ledger.name, settings).result(30)
        ledger.settings = settings

    def has_graveyard(self) -> bool:
        return any(ledger.topic == GRAVEYARD for ledger in self.ledgers)

    def open_graveyard(self) -> None:
        if self.has_graveyard():
            return
        # its subscription gets the dead letters that waited for the topic only if both are there at once
        self.broker.create_topic(GRAVEYARD).result(30)
        settings = SubscriptionSettings(enable_message_ordering=self.random.random() < 0.5)
        self._subscribe("graves", GRAVEYARD, settings)

    # ── what must be true ───────────────────────────────────────────────────────────────────────────────────────────

    def settle(self) -> None:
        """Dead letters on their way have arrived: in a file that takes a moment."""
        with self.broker._forwarded:
            assert self.broker._forwarded.wait_for(lambda: not self.broker._forwarding, 30)

    def check(self) -> None:
        with self.broker._lock:
            check_engine(self.broker._engine)

    def finish(self) -> None:
        """Everybody works as they should until nothing is left; then every message is accounted for."""
        self.open_graveyard()
        self.settle()
        for _ in range(10_000):
            for consumer in self.consumers:
                self._work_off(consumer)
            self.settle()
            due_ns = self.broker._engine.next_deadline_ns()
            if due_ns is None and not any(consumer.awake for consumer in self.consumers):
                break
            if not any(consumer.awake for consumer in self.consumers):
                assert due_ns is not None
                self.clock.advance(max(due_ns - self.now_ns, 0) / 1e9)
        self.read_logs()
        self.check()
        for ledger in self.ledgers:
            self._account(ledger)
        self._account_for_the_graveyard()

    def _work_off(self, consumer: Consumer) -> None:
        while consumer.awake:
            consumer.pull()
            hand, consumer.hand = consumer.hand, []
            consumer.acknowledge(hand)

    def _account(self, ledger: Ledger) -> None:
        ledger.refresh(self.now_ns)
        lost = [record.message_id for record in ledger.records.values() if not record.fate]
        subscription = self.broker._engine.subscription(ledger.name)
        assert not lost, f"{ledger.name} lost {lost}, it has {subscription.unacknowledged()}"
        totals = subscription.totals
        assert totals.published == len(ledger.records)
        letters = [letter.sequence for letter, _ in self.broker.dead_letters(ledger.name)]
        policy = ledger.settings.dead_letter_policy
        if policy is not None and policy.topic is None:
            assert sorted(letters) == sorted(record.message.sequence for record in ledger.dead)
        else:
            assert letters == []
        assert subscription.unacknowledged() == sorted(letters)

    def _account_for_the_graveyard(self) -> None:
        expected = Counter(
            record.message.data
            for ledger in [*self.ledgers, *self.closed]
            for record in ledger.dead
            if (policy := ledger.settings.dead_letter_policy) is not None and policy.topic is not None
        )
        number = self.broker.get_topic(GRAVEYARD).number
        log = self.store.read_log(number, 1, self.broker.get_topic(GRAVEYARD).next_sequence)
        buried = Counter(message.data for batch in log for message in batch)
        missing = self.broker.get_topic(GRAVEYARD).next_sequence - 1 - sum(buried.values())
        if missing:  # trimmed
            assert sum(expected.values()) == sum(buried.values()) + missing
        else:
            assert buried == expected, "dead letters were lost or doubled"
