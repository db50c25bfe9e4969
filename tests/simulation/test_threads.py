"""One broker, many threads: whatever their order, each message is acknowledged once, in its key's order, and nobody
waits for ever."""

from __future__ import annotations

import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.engine.dead_letter import DeadLetterPolicy
from heliograph.engine.message import Delivery, Draft
from heliograph.engine.settings import SECOND_NS, SubscriptionSettings
from heliograph.store.memory import MemoryStore
from heliograph.store.protocol import Store
from heliograph.store.sqlite import SqliteStore
from tests.engine.invariants import check_engine

PUBLISHERS, CONSUMERS, MESSAGES = 3, 4, 200  # of each publisher
POISON = 10  # every so many-th message is never acknowledged
PATIENCE_SECONDS = 30.0


class Crowd:
    """The threads, and what they saw."""

    def __init__(self, broker: LocalBroker) -> None:
        self.broker = broker
        self.seen: defaultdict[str, list[int]] = defaultdict(list)  # by publisher, in the order of acknowledgements
        self.graves: Counter[bytes] = Counter()
        self.errors: list[BaseException] = []
        self.lock = threading.Lock()
        self.done = threading.Event()
        self.bells: list[threading.Event] = []

    def finished(self) -> bool:
        poison = PUBLISHERS * MESSAGES // POISON
        healthy = PUBLISHERS * MESSAGES - poison
        return sum(map(len, self.seen.values())) >= healthy and self.graves.total() >= poison

    def publish(self, name: str) -> None:
        for number in range(MESSAGES):
            self.broker.publish("t", [Draft(b"%s %d" % (name.encode(), number), ordering_key=name)]).result(30)

    def consume(self, subscription: str, handle: Callable[[list[Delivery]], None]) -> None:
        """Pull when woken, and only then."""
        bell = threading.Event()
        self.bells.append(bell)
        watch = self.broker.watch(subscription, bell.set)
        while not self.done.is_set():
            assert bell.wait(PATIENCE_SECONDS), f"nobody was woken for {subscription}"
            bell.clear()
            while deliveries := self.broker.pull(subscription, 5).result(30):
                handle(deliveries)
        watch.close()

    def work(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            number = int(delivery.message.data.split()[1])
            if number % POISON == 0 or (number % 3 == 0 and delivery.attempt == 1):
                self.broker.modify_ack_deadline("s", [delivery.ack_id], 0).result(30)
                continue
            with self.lock:  # before it is acknowledged: afterwards somebody else may have the next of its key
                self.seen[delivery.message.ordering_key].append(number)
            assert self.broker.acknowledge("s", [delivery.ack_id]).result(30) == []
        self.look()

    def bury(self, deliveries: list[Delivery]) -> None:
        with self.lock:
            self.graves.update(delivery.message.data for delivery in deliveries)
        assert self.broker.acknowledge("graves", [delivery.ack_id for delivery in deliveries]).result(30) == []
        self.look()

    def look(self) -> None:
        with self.lock:
            if self.finished():
                self.done.set()
                for bell in self.bells:
                    bell.set()

    def disturb(self) -> None:
        """Others ask, watch and leave meanwhile."""
        while not self.done.is_set():
            watch = self.broker.watch("s", lambda: None)
            self.broker.statistics("s")
            self.broker.peek("s", 3)
            watch.close()

    def run(self) -> None:
        jobs: list[Callable[[], None]] = [lambda name=f"p{one}": self.publish(name) for one in range(PUBLISHERS)]  # type: ignore[misc]  # bound now
        jobs += [lambda: self.consume("s", self.work)] * CONSUMERS
        jobs += [lambda: self.consume("graves", self.bury), self.disturb]
        threads = [threading.Thread(target=self._guarded, args=(job,), daemon=True) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * PATIENCE_SECONDS)
            assert not thread.is_alive(), "a thread waits for ever"

    def _guarded(self, job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            self.errors.append(error)
            self.done.set()
            for bell in self.bells:
                bell.set()


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_many_threads_lose_nothing_double_nothing_and_wait_for_nothing(kind: str, tmp_path: Path) -> None:
    store: Store = MemoryStore() if kind == "memory" else SqliteStore(tmp_path, durability="none")
    broker = LocalBroker(store)
    for topic in ("t", "graveyard"):
        broker.create_topic(topic).result(30)
    settings = SubscriptionSettings(
        ack_deadline_ns=600 * SECOND_NS,  # no lease ends meanwhile, however slow the machine
        enable_message_ordering=True,
        dead_letter_policy=DeadLetterPolicy("graveyard", 2),
    )
    broker.create_subscription("s", "t", settings).result(30)
    broker.create_subscription("graves", "graveyard").result(30)
    crowd = Crowd(broker)
    switch_seconds = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # threads interrupt each other often
    try:
        crowd.run()
    finally:
        sys.setswitchinterval(switch_seconds)
    assert crowd.errors == []
    healthy = [number for number in range(MESSAGES) if number % POISON]
    assert crowd.seen == {f"p{one}": healthy for one in range(PUBLISHERS)}
    poison = [b"p%d %d" % (one, number) for one in range(PUBLISHERS) for number in range(0, MESSAGES, POISON)]
    assert crowd.graves == Counter(poison)
    with broker._lock:
        check_engine(broker._engine)
        assert broker._engine.subscription("s").unacknowledged() == []
    broker.close()
