"""A broker that is killed at any moment keeps every promise: a real `heliograph serve`, official clients, and a checker
with a record of its own (`ledger.py`).

`make crash-test` runs fifty rounds, with a new seed each time. `ROUNDS` and `SEED` by environment; a failure tells its
seed.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import random
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import grpc
import pytest

from heliograph.demo.broker_process import BrokerProcess
from tests.crash import small_limits
from tests.crash.ledger import Deliveries, Faults, Jobs, MortalDeliveries, OrderedDeliveries
from tests.crash.load import (
    ATTEMPTS_MAX,
    LEASE_SECONDS,
    RETRIES_MAX,
    Consumer,
    Publisher,
    QueueClient,
    acknowledge,
    acknowledge_exactly_once,
    acknowledge_unless_poison,
    is_poison,
)
from tests.server.clients import Http, Rpc

ROUNDS = int(os.environ.get("ROUNDS", "5"))
SEED = int(os.environ.get("SEED") or 1)
SETTLED_SECONDS_MAX = 120.0

PROJECT = "projects/crash"
EVENTS, ORDERED, GRAVES, HELD = (f"{PROJECT}/topics/{name}" for name in ("events", "ordered", "graves", "held"))


def subscription(name: str) -> str:
    return f"{PROJECT}/subscriptions/{name}"


def create(port: int) -> None:
    """All topics, subscriptions and the queue."""
    with Rpc(port) as rpc:
        for topic in (EVENTS, ORDERED, GRAVES, HELD):
            rpc.create_topic(topic)
        lease: dict[str, Any] = {"ack_deadline_seconds": LEASE_SECONDS}
        rpc.create_subscription(subscription("plain"), EVENTS, **lease)
        rpc.create_subscription(subscription("late"), EVENTS, **lease)
        rpc.create_subscription(subscription("once"), EVENTS, enable_exactly_once_delivery=True, **lease)
        policy = {"dead_letter_topic": GRAVES, "max_delivery_attempts": ATTEMPTS_MAX}
        rpc.create_subscription(subscription("mortal"), EVENTS, dead_letter_policy=policy, **lease)
        rpc.create_subscription(subscription("graves"), GRAVES, **lease)
        rpc.create_subscription(subscription("ordered"), ORDERED, enable_message_ordering=True, **lease)
        for name, once in (("held-once", True), ("held-plain", False)):
            rpc.create_subscription(
                subscription(name), HELD, enable_exactly_once_delivery=once, ack_deadline_seconds=300
            )
    for queue, seconds in (("jobs", LEASE_SECONDS), ("held", 300)):
        Http(port).command(
            "queue.create", name=queue, ack_deadline_secs=seconds, default_max_retries=RETRIES_MAX, prefetch=5
        )


class HeldLeases:
    """Messages that somebody holds while the broker is killed."""

    def __init__(self, port: int, faults: Faults) -> None:
        self._port = port
        self._faults = faults
        self._once: list[Any] = []
        self._plain: list[Any] = []
        self._job: dict[str, Any] = {}

    def take(self) -> None:
        """Publish some, and lease them."""
        with Rpc(self._port) as rpc:
            rpc.publish(HELD, b"1", b"2", b"3", b"4")
            self._once = rpc.pull(subscription("held-once"))
            self._plain = rpc.pull(subscription("held-plain"))
        http = Http(self._port)
        http.command("queue.publish", queue="held", message={"n": 1})
        answer = http.command("queue.consume", queue="held")
        self._job = {"message_id": answer["message_id"], "lease_id": answer["lease_id"]}

    def check(self) -> None:
        """Their ack ids are as good as before, and are told from what is over and from what never was."""
        expect = self._faults.expect
        expect(len(self._once) == len(self._plain) == 4, f"{len(self._once)} and {len(self._plain)} held, not 4")
        once, plain = ([each.ack_id for each in held] for held in (self._once, self._plain))
        with Rpc(self._port) as rpc:
            name = subscription("held-once")
            expect(not rpc.pull(name), "a held message was delivered to somebody else")
            rpc.acknowledge(name, *once[:2])
            self._fails("a second acknowledgement", lambda: rpc.acknowledge(name, once[0]), "have expired")
            rpc.nack(name, *once[2:])
            again = rpc.pull(name)
            expect({each.message.data for each in again} == {b"3", b"4"}, f"given back were 3 and 4, not {again}")
            self._fails("an old ack id", lambda: rpc.acknowledge(name, once[3]), "have expired")
            rpc.acknowledge(name, *[each.ack_id for each in again])
            rpc.acknowledge(subscription("held-plain"), *plain)
            rpc.acknowledge(subscription("held-plain"), *plain)  # stale, and ignored
            for each in ("held-once", "held-plain"):
                nonsense = functools.partial(rpc.acknowledge, subscription(each), "nonsense")
                self._fails("nonsense", nonsense, "invalid ack ID")
                expect(not rpc.pull(subscription(each)), f"{each} has something left")
        self._check_job()

    def _check_job(self) -> None:
        expect, http = self._faults.expect, Http(self._port)
        http.command("queue.ack", queue="held", **self._job)
        failure = http.failure("queue.ack", queue="held", **self._job)
        expect(failure == (409, "AckDeadlineExceeded"), f"a second acknowledgement of a job was answered {failure}")
        failure = http.failure("queue.ack", queue="held", message_id="nonsense")
        expect(failure == (404, "MessageNotFound"), f"an unknown job's acknowledgement was answered {failure}")

    def _fails(self, what: str, call: Callable[[], object], why: str) -> None:
        try:
            call()
        except grpc.RpcError as error:
            told = f"{error.code()}: {error.details()}"  # type: ignore[attr-defined]  # what is raised is a call as well
            self._faults.expect(error.code() is grpc.StatusCode.INVALID_ARGUMENT and why in told, f"{what}: {told}")  # type: ignore[attr-defined]
        else:
            self._faults.expect(False, f"{what} was accepted")


class Load:
    """Everybody at work."""

    def __init__(self, port: int, seed: int, faults: Faults) -> None:
        self.faults = faults
        self.events = Publisher(port, EVENTS, ordering=False)
        self.ordered = Publisher(port, ORDERED, ordering=True)
        self.jobs = Jobs(RETRIES_MAX, faults)
        chance = random.Random(seed)
        events, ordered = self.events.published, self.ordered.published
        self.plain = Deliveries("plain", events, faults)
        self.once = Deliveries("once", events, faults)
        self.mortal = MortalDeliveries("mortal", events, faults, ATTEMPTS_MAX)
        self.graves = Deliveries("graves", events, faults)
        self.in_order = OrderedDeliveries("ordered", ordered, faults)
        self.late = Deliveries("late", events, faults)
        self.consumers = [
            Consumer(port, subscription("plain"), self.plain, functools.partial(acknowledge, chance)),
            Consumer(port, subscription("once"), self.once, acknowledge_exactly_once),
            Consumer(port, subscription("mortal"), self.mortal, functools.partial(acknowledge_unless_poison, chance)),
            Consumer(port, subscription("graves"), self.graves, self._bury),
            Consumer(port, subscription("ordered"), self.in_order, functools.partial(acknowledge, chance)),
        ]
        self.queue = QueueClient(port, self.jobs, "jobs", seed)
        self._port = port

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for client in (self.events, self.ordered, self.queue, *self.consumers):
            client.abandon()

    def _bury(self, message: Any, _deliveries: Deliveries) -> None:
        told = message.attributes.get("CloudPubSubDeadLetterSourceDeliveryCount")
        self.faults.expect(told == str(ATTEMPTS_MAX), f"a dead letter tells of {told} deliveries")
        message.ack()

    def keep_open(self) -> None:
        for consumer in self.consumers:
            consumer.keep_open()

    def finish(self) -> None:
        """Publish no more; consume until everything has come that must."""
        self.events.stop()
        self.ordered.stop()
        self.queue.stop_producing()
        waits: dict[str, Callable[[], bool]] = {
            deliveries.name: deliveries.has_all for deliveries in (self.plain, self.once, self.mortal, self.in_order)
        }
        waits["graves"] = lambda: not self.unburied()
        waits["once, settled"] = self.once.is_settled
        waits["queue"] = lambda: self.queue.depth() == 0
        deadline = time.monotonic() + SETTLED_SECONDS_MAX
        pause = threading.Event()
        while waits and time.monotonic() < deadline:
            waits = {name: is_done for name, is_done in waits.items() if not is_done()}
            self.keep_open()
            pause.wait(0.1)
        self.faults.expect(not waits, f"after {SETTLED_SECONDS_MAX:.0f} s not everything has come: {list(waits)}")
        self.queue.stop()
        self.jobs.check_end(self.queue.dead_letters(), self.queue.must_die)
        for consumer in self.consumers:
            consumer.stop()
        self._read_late()

    def unburied(self) -> list[bytes]:
        buried = set(self.graves.payloads.values())
        return [p for p in self.events.published.answered.values() if is_poison(p) and p not in buried]

    def _read_late(self) -> None:
        """The backlog that nobody has read so far, larger than the memory budget."""
        with Rpc(self._port) as rpc:
            while received := rpc.pull(subscription("late")):
                for each in received:
                    self.late.note(each.message.message_id, each.message.data)
                rpc.acknowledge(subscription("late"), *[each.ack_id for each in received])
        self.faults.expect(self.late.has_all(), f"late: {len(self.late.missing())} are missing")
        self.faults.expect(self.late.count == len(self.late.payloads), "late: a message came twice")


def crash(broker: BrokerProcess, chance: random.Random) -> None:
    """Kill it and start it again; now and then it is killed once more before it serves."""
    broker.kill()
    while chance.random() < 0.3:
        broker.launch()
        threading.Event().wait(chance.uniform(0.0, 1.5))
        broker.kill()
    broker.start()


def checkpoints_and_trims(data_dir: Path) -> tuple[int, int]:
    """How many rows of the journal checkpoints replaced, and how many topics were trimmed."""
    with contextlib.closing(sqlite3.connect(data_dir / "heliograph.db")) as connection:
        (replaced,) = connection.execute("SELECT min(position) - 1 FROM journal").fetchone()
        (trimmed,) = connection.execute("SELECT count(*) FROM trims WHERE up_to > 1").fetchone()
    return replaced, trimmed


@pytest.fixture
def _quiet_clients() -> Iterator[None]:
    """What the official client thinks of every lost connection fills pages."""
    log = logging.getLogger("google")
    level = log.level
    log.setLevel(logging.CRITICAL + 1)
    yield
    log.setLevel(level)


@pytest.mark.slow
@pytest.mark.usefixtures("_quiet_clients")
@pytest.mark.timeout(max(600, 30 * ROUNDS))
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # the official client leaves the channels of a lost broker open
@pytest.mark.parametrize("limits", ["as they are", "small"])
def test_a_killed_broker_keeps_every_promise(tmp_path: Path, limits: str) -> None:
    print(f"SEED={SEED} ROUNDS={ROUNDS}")
    chance, faults = random.Random(SEED), Faults()
    broker = BrokerProcess(tmp_path / "data", tmp_path / "log", options=("--memory-budget", "1MB"))
    if limits == "small":
        broker.program = (sys.executable, small_limits.__file__)
    with broker:
        create(broker.port)
        held = HeldLeases(broker.port, faults)
        with Load(broker.port, SEED, faults) as load:
            for number in range(1, ROUNDS + 1):
                held.take()
                threading.Event().wait(chance.choice([chance.uniform(0.0, 0.3), chance.uniform(0.3, 3.0)]))
                crash(broker, chance)
                held.check()
                load.keep_open()
                assert not faults.found, f"round {number}, SEED={SEED}: {faults.found[:5]}"
            load.finish()
    assert not faults.found, f"SEED={SEED}: {faults.found[:5]}"
    if limits == "small":
        assert min(checkpoints_and_trims(broker.data_dir)) > 0
    counted = {"publishes": len(load.events.published) + len(load.ordered.published), "jobs": len(load.jobs.answered)}
    counted |= {d.name: d.count for d in (load.plain, load.once, load.mortal, load.graves, load.in_order, load.late)}
    print(counted)
    assert min(counted.values()) > ROUNDS, counted
