"""Claims: messages that a named consumer takes, reads as often as it likes, and acknowledges in the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.broker.clock import SimulatedClock
from heliograph.engine.message import Draft, Extras
from heliograph.engine.settings import SECOND_NS, SubscriptionSettings
from heliograph.errors import ClaimNotFound, InvalidArgument, SubscriptionDetached
from heliograph.store.memory import MemoryStore
from heliograph.store.sqlite import SqliteStore

HOUR_NS = 3600 * SECOND_NS


class Bench:
    """A broker with a topic and a subscription, on a simulated clock."""

    def __init__(self, **settings: Any) -> None:
        self.clock = SimulatedClock()
        self.store = MemoryStore(keep_facts=True)
        self.broker = LocalBroker(self.store, self.clock)
        self.broker.create_topic("t").result(30)
        self.broker.create_subscription("s", "t", SubscriptionSettings(**settings)).result(30)

    def publish(self, count: int, **draft: Any) -> None:
        self.broker.publish("t", [Draft(b"%d" % number, **draft) for number in range(count)]).result(30)

    def claim(self, count: int = 100, size: int = 100, consumer: str = "job", ttl_ns: int = HOUR_NS) -> list[int]:
        reply = self.broker.claim("s", consumer, count, messages_per_claim=size, ttl_ns=ttl_ns)
        return [claim.number for claim in reply.result(30)]

    def read(self, number: int, consumer: str = "job") -> list[tuple[int, int]]:
        batches = self.broker.read_claim("s", consumer, number)
        return [(message.sequence, attempt) for batch in batches for message, attempt in batch]

    def claims(self, consumer: str = "job") -> list[tuple[int, int]]:
        return [(claim.number, claim.messages) for claim in self.broker.claims("s", consumer)]

    def restart(self, *, checkpoint: bool = False) -> None:
        if checkpoint:
            self.store.checkpoint(self.broker._engine.checkpoint())
        self.broker.close()
        self.broker = LocalBroker(self.store, self.clock)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.broker.close()


def test_ready_messages_are_claimed_in_claims_of_the_size_asked_for(bench: Bench) -> None:
    bench.publish(25)
    assert bench.claim(22, 10) == [1, 2, 3]
    assert bench.claims() == [(1, 10), (2, 10), (3, 2)]
    assert bench.broker.statistics("s").ready == 3


def test_claims_end_where_their_bytes_do_but_the_first_message_may_be_larger(bench: Bench) -> None:
    for size in (400, 10, 10, 10, 10):
        bench.broker.publish("t", [Draft(b"x" * size)]).result(30)
    taken = [
        [
            (claim.messages, claim.bytes)
            for claim in bench.broker.claim(
                "s", "job", 10, messages_per_claim=2, ttl_ns=HOUR_NS, max_bytes=most
            ).result(30)
        ]
        for most in (100, 35)
    ]
    assert taken == [[(1, 400)], [(2, 20), (1, 10)]]


def test_nothing_ready_is_no_claim(bench: Bench) -> None:
    assert bench.claim() == []


def test_a_claim_is_read_as_often_as_it_is_asked_for(bench: Bench) -> None:
    bench.publish(2_500)
    (number,) = bench.claim(2_500, 2_500)
    assert bench.read(number) == bench.read(number) == [(sequence, 1) for sequence in range(1, 2_501)]


def test_claims_are_acknowledged_up_to_a_number_and_that_is_idempotent(bench: Bench) -> None:
    bench.publish(30)
    bench.claim(30, 10)
    assert [bench.broker.acknowledge_claims("s", "job", up_to).result(30) for up_to in (2, 2, 1)] == [20, 0, 0]
    assert bench.claims() == [(3, 10)]
    assert bench.broker.statistics("s").totals.acknowledged == 20
    with pytest.raises(ClaimNotFound):
        bench.read(2)


def test_consumers_do_not_see_each_others_claims_nor_do_pulls(bench: Bench) -> None:
    bench.publish(30)
    bench.claim(10)
    bench.claim(10, consumer="other")
    bench.broker.pull("s", 10, consumer="job").result(30)
    assert (bench.claims(), bench.claims("other")) == ([(1, 10)], [(2, 10)])
    assert bench.broker.acknowledge_claims("s", "job", 99).result(30) == 10
    assert bench.claims("other") == [(2, 10)]
    with pytest.raises(ClaimNotFound):
        bench.read(2)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_claims_survive_a_restart(bench: Bench, checkpoint: bool) -> None:
    bench.publish(20)
    bench.claim(20, 10)
    bench.broker.acknowledge_claims("s", "job", 1).result(30)
    bench.restart(checkpoint=checkpoint)
    assert bench.claims() == [(2, 10)]
    assert bench.read(2) == [(sequence, 1) for sequence in range(11, 21)]
    assert bench.claim() == []


def test_a_claim_that_nobody_extends_ends_and_its_messages_are_delivered_again(bench: Bench) -> None:
    bench.publish(10)
    bench.claim(ttl_ns=60 * SECOND_NS)
    batches = bench.broker.read_claim("s", "job", 1)
    bench.clock.advance(61)
    assert bench.claims() == []
    with pytest.raises(ClaimNotFound):
        list(batches)
    assert bench.claim() == [2]
    assert bench.read(2) == [(sequence, 2) for sequence in range(1, 11)]


def test_an_extension_holds_all_claims_of_the_consumer(bench: Bench) -> None:
    bench.publish(20)
    bench.claim(20, 10, ttl_ns=60 * SECOND_NS)
    for _ in range(3):
        bench.clock.advance(50)
        assert bench.broker.extend_claims("s", "job", 60 * SECOND_NS).result(30) == 20
    assert bench.claims() == [(1, 10), (2, 10)]
    assert bench.read(1)[0] == (1, 1)


def test_released_claims_go_back_to_their_places_without_a_failure(bench: Bench) -> None:
    bench.publish(20)
    bench.claim(20, 10)
    assert bench.broker.release_claims("s", "job").result(30) == 20
    assert (bench.claims(), bench.claim(20, 20)) == ([], [3])
    assert bench.read(3) == [(sequence, 1) for sequence in range(1, 21)]


def test_a_claim_takes_the_highest_priority_first_and_is_not_bound_by_a_prefetch() -> None:
    bench = Bench(prioritised=True, prefetch=2)
    for priority in (1, 9, 5):
        bench.publish(3, extras=Extras(priority=priority))
    (number,) = bench.claim(7)
    assert [sequence for sequence, _ in bench.read(number)] == [4, 5, 6, 7, 8, 9, 1]


def test_a_claim_holds_the_order_of_keys() -> None:
    bench = Bench(enable_message_ordering=True)
    bench.publish(3, ordering_key="a")
    assert (bench.claim(), bench.claim()) == ([1], [])
    bench.broker.acknowledge_claims("s", "job", 1).result(30)
    (number,) = bench.claim()
    assert bench.read(number) == [(2, 1)]


@pytest.mark.parametrize(("consumer", "ttl_ns"), [("", HOUR_NS), ("job", 0), ("job", 8 * 24 * HOUR_NS), ("\ud800", 1)])
def test_a_claim_that_cannot_be_kept_is_refused(bench: Bench, consumer: str, ttl_ns: int) -> None:
    bench.publish(1)
    with pytest.raises(InvalidArgument):
        bench.claim(consumer=consumer, ttl_ns=ttl_ns)


def test_a_detached_subscription_gives_no_claims(bench: Bench) -> None:
    bench.broker.detach_subscription("s").result(30)
    with pytest.raises(SubscriptionDetached):
        bench.claim()


def test_a_claim_is_read_whole_when_its_messages_have_left_memory(tmp_path: Path) -> None:
    broker = LocalBroker(SqliteStore(tmp_path, durability="none"), memory_budget_bytes=0)
    broker.create_topic("t")
    broker.create_subscription("s", "t").result(30)
    for _ in range(4):
        broker.publish("t", [Draft(b"x")] * 1_000).result(30)
    broker.claim("s", "job", 3_000, messages_per_claim=3_000, ttl_ns=HOUR_NS).result(30)
    found = [message.sequence for batch in broker.read_claim("s", "job", 1) for message, _ in batch]
    assert found == list(range(1, 3_001))
    broker.close()
