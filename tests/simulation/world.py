"""A whole broker in simulated time: publishers, consumers with all their faults, restarts; and a ledger that knows what
must have become of every message.

Everything follows from the seed. The ledger shares nothing with the engine: it is told what was published, sees what
is delivered and how it is answered, and knows the rules.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from heliograph.broker.broker import LocalBroker
from heliograph.broker.clock import SimulatedClock
from heliograph.broker.protocol import Watch
from heliograph.engine.dead_letter import DeadLetterPolicy
from heliograph.engine.message import SEQUENCES_PER_TOPIC, Delivery, Draft, Extras, Message, split_message_id
from heliograph.engine.retry import RetryPolicy
from heliograph.engine.settings import SECOND_NS, Capacity, SubscriptionSettings
from heliograph.errors import QueueFull
from heliograph.store.memory import MemoryStore
from heliograph.store.protocol import Store
from tests.engine.invariants import check_engine, differences, full_state, topics_of

GRAVEYARD = "graveyard"
TOPICS = ("orders", "events")
QUEUE = "queues/jobs"


@dataclass(eq=False)
class Record:
    """What the ledger knows of one message in one subscription."""

    message_id: str
    message: Message
    expires_ns: int
    earliest_ns: int  # not delivered before
    failures: int = 0
    lease_ns: int = 0  # until then it is leased; 0 = it is not
    ack_id: str = ""
    consumer: str = ""
    fate: str = ""  # acknowledged, dead, expired, dropped, purged; "" = still to be delivered
    revived: bool = False


@dataclass(eq=False)
class Ledger:
    """All messages of one subscription."""

    name: str
    topic: str
    settings: SubscriptionSettings
    next_sequence: int  # of its topic's log, that it has not seen yet
    dropped: int = 0
    records: dict[str, Record] = field(default_factory=dict)
    dead: list[Record] = field(default_factory=list)  # every death

    def receive(self, message: Message, message_id: str) -> None:
        extras = message.extras or Extras()
        ttl_ns = self.settings.ttl_ns
        expires_ns = extras.expires_at_ns or (message.publish_time_ns + ttl_ns if ttl_ns else 0)
        self.records[message_id] = Record(message_id, message, expires_ns, extras.available_at_ns)

    def refresh(self, now_ns: int) -> None:
        """What time did. The broker's timers are exact here, so every end of a lease happened on its instant."""
        leased = [record for record in self.records.values() if record.lease_ns and record.lease_ns <= now_ns]
        for record in sorted(leased, key=lambda record: record.lease_ns):
            self.fail(record, record.lease_ns)
        for record in self.records.values():
            if not record.fate and not record.lease_ns and 0 < record.expires_ns <= now_ns:
                self.bury(record, "expired")

    def fail(self, record: Record, now_ns: int) -> None:
        record.lease_ns = 0
        record.failures += 1
        policy, extras = self.settings.dead_letter_policy, record.message.extras or Extras()
        if 0 < record.expires_ns <= now_ns:
            self.bury(record, "expired")
        elif policy is not None and record.failures >= (extras.max_delivery_attempts or policy.max_delivery_attempts):
            self.bury(record, "dead")
        elif self.settings.retry_policy is not None:
            record.earliest_ns = now_ns + self.settings.retry_policy.backoff_ns(record.failures)

    def bury(self, record: Record, why: str) -> None:
        record.lease_ns = 0
        record.fate = why
        if self.settings.dead_letter_policy is not None:
            record.fate = "dead"
            self.dead.append(record)

    def alive(self) -> list[Record]:
        return [record for record in self.records.values() if not record.fate]

    def pulled(self, deliveries: list[Delivery], consumer: str, now_ns: int) -> list[Record]:
        """Everything that must be true of what one pull gave."""
        records = [self._delivered(delivery, consumer, now_ns) for delivery in deliveries]
        leased = [record for record in self.alive() if record.lease_ns]
        own = [record for record in leased if record.consumer == consumer]
        settings = self.settings
        if records:
            assert not settings.outstanding_messages_max or len(leased) <= settings.outstanding_messages_max
            assert not settings.prefetch or not consumer or len(own) <= settings.prefetch
        if records and settings.prioritised:
            left = [r for r in self.alive() if not r.lease_ns and r.earliest_ns <= now_ns and not self.keyed(r)]
            for record in left:
                assert self.rank(record) >= max(map(self.rank, records)), f"{record.message_id} was to come before"
        return records

    def keyed(self, record: Record) -> bool:
        return self.settings.enable_message_ordering and record.message.ordering_key != ""

    def rank(self, record: Record) -> tuple[int, int]:
        extras = record.message.extras
        return (-(self.settings.default_priority if extras is None else extras.priority), record.message.sequence)

    def _delivered(self, delivery: Delivery, consumer: str, now_ns: int) -> Record:
        assert delivery.message_id in self.records, f"{self.name}: {delivery.message_id} was never published to it"
        record = self.records[delivery.message_id]
        where = f"{self.name}: {delivery.message_id} ({record.message.data!r})"
        assert delivery.message.data == record.message.data, f"{where} came as {delivery.message.data!r}"
        assert not record.fate, f"{where} is {record.fate}, and was delivered"
        assert not record.lease_ns, f"{where} was delivered while it was leased"
        assert now_ns >= record.earliest_ns, f"{where} came {record.earliest_ns - now_ns} ns too early"
        assert delivery.attempt == record.failures + 1, f"{where}: attempt {delivery.attempt} after {record.failures}"
        assert delivery.deadline_ns > now_ns
        if self.keyed(record):
            self._check_order(record, where)
        record.lease_ns, record.ack_id, record.consumer = delivery.deadline_ns, delivery.ack_id, consumer
        return record

    def _check_order(self, record: Record, where: str) -> None:
        for other in self.records.values():
            if other is record or other.message.ordering_key != record.message.ordering_key:
                continue
            assert not other.lease_ns, f"{where} came while {other.message_id} of its key was outstanding"
            older = other.message.sequence < record.message.sequence
            assert not older or other.fate or other.revived, f"{where} overtook {other.message_id} of its key"


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
        deliveries = world.broker.pull(self.ledger.name, world.random.randint(1, room), **options).result(10)
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
            ["acknowledge", "nack", "extend", "hold", "forget", "release", "reject", "again"],
            [45, 15, 10, 10, 8, 5, 3, 4],
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
        elif action != "forget":
            self.acknowledge(taken)
            if action == "again":
                ids = [held.ack_id for held in taken]
                assert broker.acknowledge(name, ids).result(10) == ids, "acknowledged twice"

    def acknowledge(self, taken: list[Held]) -> None:
        for record in self._answer(taken, lambda ids: self.world.broker.acknowledge(self.ledger.name, ids)):
            record.lease_ns, record.fate = 0, "acknowledged"

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
        stale = settle([held.ack_id for held in taken]).result(10)
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
        self.payloads: dict[bytes, str] = {}  # to ordering key
        self.direct: Counter[str] = Counter()  # published to each topic by us
        self.trimmed = False
        self._build()

    @property
    def now_ns(self) -> int:
        return self.clock.now_ns()

    # ── building ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _build(self) -> None:
        for topic in TOPICS:
            self.broker.create_topic(topic).result(10)
            for index in range(self.random.randint(1, 2)):
                self._subscribe(f"{topic}-{index}", topic, self._settings())
        settings = self._settings(prioritised=True, retry_dead=True)
        self.broker.create_queue(QUEUE.removeprefix("queues/"), settings).result(10)
        self._adopt(Ledger(QUEUE, QUEUE, settings, 1))

    def _subscribe(self, name: str, topic: str, settings: SubscriptionSettings) -> None:
        self.broker.create_subscription(name, topic, settings).result(10)
        self._adopt(Ledger(name, topic, settings, self.broker.get_topic(topic).next_sequence))

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
            capacity=choice([None, None, Capacity(20, 10_000), Capacity(15, 0, refuse=True)]),
            outstanding_messages_max=choice([0, 0, 5]),
            outstanding_bytes_max=choice([0, 0, 60]),
            ttl_ns=choice([0, 0, 0, 40]) * SECOND_NS,
            prioritised=prioritised or choice([False, False, True]),
            default_priority=5,
            prefetch=choice([0, 0, 2]),
        )

    # ── what happens ────────────────────────────────────────────────────────────────────────────────────────────────

    def step(self) -> None:
        action = self.random.choices(
            [self.publish, self.consume, self.wait, self.restart, self.administer, self.death], [20, 60, 14, 1, 3, 2]
        )[0]
        action()
        self.settle()
        self.check()

    def publish(self) -> None:
        topic = self.random.choice([*TOPICS, QUEUE])
        drafts = [self._draft() for _ in range(self.random.choice([1, 1, 2, 5]))]
        attached = [ledger for ledger in self.ledgers if ledger.topic == topic]
        try:
            ids = self.broker.publish(topic, drafts).result(10)
        except QueueFull as error:
            full = next(ledger for ledger in attached if ledger.name == error.name)
            assert full.settings.capacity is not None
            assert full.settings.capacity.refuse
            return
        self.direct[topic] += len(ids)
        self.payloads.update({draft.data: draft.ordering_key for draft in drafts})
        self.read_logs()
        for ledger in attached:
            assert [ledger.records[one].message.data for one in ids] == [draft.data for draft in drafts]

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
        return Draft(data, ordering_key=choice(["", "", "k1", "k2"]), extras=extras)

    def read_logs(self) -> None:
        """The ledgers learn what is new in the topics: what was published, and the dead letters."""
        for topic in {ledger.topic for ledger in self.ledgers}:
            info = self.broker.get_topic(topic)
            attached = [ledger for ledger in self.ledgers if ledger.topic == topic]
            first = min(ledger.next_sequence for ledger in attached)
            if first >= info.next_sequence:
                continue
            self.store.append([]).wait(10)
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
        """What a full subscription dropped are the latest of its log."""
        dropped = self.broker.statistics(ledger.name).totals.dropped
        for sequence in range(ledger.next_sequence - (dropped - ledger.dropped), ledger.next_sequence):
            capacity = ledger.settings.capacity
            assert capacity is not None
            assert not capacity.refuse
            ledger.records[str(number * SEQUENCES_PER_TOPIC + sequence)].fate = "dropped"
        ledger.dropped = dropped
        capacity = ledger.settings.capacity
        if capacity is not None and not capacity.refuse and not any(record.revived for record in ledger.alive()):
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
        if self.trimmed:  # when a trimmed message was published is not known any more
            changed = [line for line in changed if "/wait_ns" not in line and "/first_deliveries" not in line]
        assert changed == []
        for consumer in self.consumers:
            consumer.attach()

    def administer(self) -> None:
        ledger = self.random.choice(self.ledgers)
        what = self.random.choice(["purge", "retry", "retry", "graveyard", "trim", "ask"])
        self.read_logs()
        if what == "purge" and self.random.random() < 0.3:
            ledger.refresh(self.now_ns)
            waiting = [record for record in ledger.records.values() if not record.fate and not record.lease_ns]
            assert sum(self.broker.purge(ledger.name).result(10)) == len(waiting)
            for record in waiting:
                record.fate = "purged"
        elif what == "retry":
            self.retry(ledger)
        elif what == "graveyard":
            self.open_graveyard()
        elif what == "trim" and isinstance(self.store, MemoryStore):
            self.read_logs()
            self.trimmed = True
            for topic in topics_of(self.broker._engine):
                self.store.trim(topic.number, topic.log.floor())
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
        assert self.broker.retry_dead_letters(ledger.name, chosen).result(10) == len(chosen)
        for one in chosen:
            record = ledger.records[one]
            ledger.dead.remove(record)
            record.fate, record.failures, record.revived = "", 0, True
            record.earliest_ns = (record.message.extras or Extras()).available_at_ns
            sequence = split_message_id(one)[1]
            record.expires_ns = self.broker._engine.subscription(ledger.name).expires_at_ns(sequence)

    def open_graveyard(self) -> None:
        if any(ledger.topic == GRAVEYARD for ledger in self.ledgers):
            return
        # its subscription gets the dead letters that waited for the topic only if both are there at once
        self.broker.create_topic(GRAVEYARD).result(10)
        settings = SubscriptionSettings(enable_message_ordering=self.random.random() < 0.5)
        self._subscribe("graves", GRAVEYARD, settings)

    # ── what must be true ───────────────────────────────────────────────────────────────────────────────────────────

    def settle(self) -> None:
        """Dead letters on their way have arrived: in a file that takes a moment."""
        with self.broker._forwarded:
            assert self.broker._forwarded.wait_for(lambda: not self.broker._forwarding, 10)

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
            for ledger in self.ledgers
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
