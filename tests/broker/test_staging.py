"""Publishing in two steps, exactly once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.broker.clock import SimulatedClock
from heliograph.broker.staged_part import StagedPart
from heliograph.broker.staging import PUBLISHED_AT_ONCE
from heliograph.engine.message import Draft, Extras
from heliograph.engine.settings import DAY_NS, TopicSettings
from heliograph.errors import FailedPrecondition, MessageTooLarge, TopicNotFound, Unavailable
from heliograph.store.memory import MemoryStore
from heliograph.testing.faulty_store import FaultyStore


class Bench:
    """A broker with two topics, on a simulated clock."""

    def __init__(self) -> None:
        self.clock = SimulatedClock()
        self.store = FaultyStore(MemoryStore(keep_facts=True, events_max=10**6))
        self.broker = LocalBroker(self.store, self.clock, event_retention_ns=DAY_NS)
        for name in ("t", "u"):
            self.broker.create_topic(name, TopicSettings(message_retention_ns=DAY_NS)).result(30)

    def stage(self, *payloads: str, stage: str = "q/0", topic: str = "t") -> StagedPart:
        first, last = self.broker.stage(stage, [Draft(payload.encode()) for payload in payloads]).result(30)
        return StagedPart(topic, first, last)

    def publish(self, *parts: StagedPart, batch: int = 0, at_once: int = 10**6, writer: str = "q") -> tuple[int, int]:
        return self.broker.publish_staged(writer, batch, f"q/{batch}", parts, at_once)

    def log(self, topic: str = "t") -> list[str]:
        first, last = self.broker.log_bounds(topic)
        return [message.data.decode() for batch in self.broker.read_log(topic, first, last) for message in batch]

    def topics(self) -> list[str]:
        return [info.name for info in self.broker.list_topics()]

    def restart(self, *, checkpoint: bool = False) -> None:
        if checkpoint:
            self.store.checkpoint(self.broker._engine.checkpoint())
        self.broker.close()
        self.broker = LocalBroker(self.store, self.clock, event_retention_ns=DAY_NS)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.broker.close()


def test_what_is_staged_is_seen_by_nobody_until_it_is_published_in_the_order_of_the_parts(bench: Bench) -> None:
    later, other = bench.stage("c", "d"), bench.stage("x", topic="u")
    sooner = bench.stage("a", "b")
    assert (bench.log(), bench.log("u")) == ([], [])
    assert bench.publish(sooner, later, other) == (5, 0)
    assert (bench.log(), bench.log("u")) == (["a", "b", "c", "d"], ["x"])
    assert bench.topics() == ["t", "u"]


def test_a_batch_is_published_once_however_often_it_is_told_to(bench: Bench) -> None:
    part = bench.stage("a")
    assert [bench.publish(part) for _ in range(3)] == [(1, 0), (0, 0), (0, 0)]
    again = bench.stage("a")  # the tasks ran anew
    assert bench.publish(again) == (0, 0)
    assert (bench.log(), bench.topics()) == (["a"], ["t", "u"])


def test_a_batch_before_the_last_is_not_published_again(bench: Bench) -> None:
    bench.publish(bench.stage("a"))
    bench.publish(bench.stage("b", stage="q/1"), batch=1)
    assert bench.publish(bench.stage("a")) == (0, 0)
    assert bench.log() == ["a", "b"]


def test_writers_do_not_disturb_each_other(bench: Bench) -> None:
    bench.publish(bench.stage("a"), writer="one")
    bench.publish(bench.stage("b"), writer="two")
    assert bench.log() == ["a", "b"]


def test_only_what_is_named_is_published(bench: Bench) -> None:
    bench.stage("of a task that failed")
    part = bench.stage("of its next attempt")
    bench.publish(part)
    assert bench.log() == ["of its next attempt"]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_commit_that_broke_off_goes_on_where_it_was_with_the_parts_it_began_with(
    bench: Bench, checkpoint: bool
) -> None:
    parts = [bench.stage("a", "b", "c"), bench.stage("d", "e")]
    assert bench.publish(*parts, at_once=2) == (2, 3)
    bench.restart(checkpoint=checkpoint)
    others = [bench.stage("d", "e"), bench.stage("a", "b", "c")]
    assert bench.publish(*others, at_once=2) == (2, 1)
    assert bench.publish(*others, at_once=2) == (1, 0)
    assert bench.log() == ["a", "b", "c", "d", "e"]


def test_a_commit_that_the_store_refuses_publishes_once_in_the_end(bench: Bench) -> None:
    part = bench.stage("a", "b")
    bench.store.fail_next(1)
    with pytest.raises(Unavailable):
        bench.publish(part)
    bench.store.retry()
    bench.publish(part)
    assert bench.log() == ["a", "b"]


def test_many_messages_are_published_in_several_commits(bench: Bench) -> None:
    payloads = [str(number) for number in range(2 * PUBLISHED_AT_ONCE + 10)]
    assert bench.publish(bench.stage(*payloads)) == (len(payloads), 0)
    assert bench.log() == payloads


def test_a_message_keeps_what_it_was_staged_with(bench: Bench) -> None:
    draft = Draft(b"x", {"k": "v"}, "key", Extras(priority=9))
    bench.broker.stage("q/0", [draft]).result(30)
    bench.clock.advance(5)
    bench.publish(StagedPart("t", 1, 1))
    ((message,),) = bench.broker.read_log("t", 1, 1)
    assert (message.data, message.attributes, message.ordering_key, message.extras) == (
        b"x",
        {"k": "v"},
        "key",
        Extras(priority=9),
    )
    assert message.publish_time_ns == bench.clock.now_ns()


def test_a_batch_for_a_topic_that_does_not_exist_publishes_nothing(bench: Bench) -> None:
    parts = [bench.stage("a"), bench.stage("b", topic="nowhere")]
    with pytest.raises(TopicNotFound):
        bench.publish(*parts)
    assert bench.log() == []


def test_a_message_that_no_topic_may_have_is_refused_when_it_is_staged(bench: Bench) -> None:
    with pytest.raises(MessageTooLarge):
        bench.broker.stage("q/0", [Draft(b"x" * (11 * 1024 * 1024))])


def test_a_stage_that_is_gone_is_an_error(bench: Bench) -> None:
    part = bench.stage("a")
    bench.broker.drop_stage("q/0").result(30)
    bench.broker.drop_stage("q/0").result(30)
    with pytest.raises(FailedPrecondition):
        bench.publish(part)


def test_stages_whose_writers_never_came_back_are_dropped(bench: Bench) -> None:
    bench.stage("a")
    bench.clock.advance(8 * 86_400)
    bench.stage("b", stage="q/1")
    assert bench.topics() == ["_staging/q/1", "t", "u"]


def test_writers_that_published_nothing_for_long_are_forgotten(bench: Bench) -> None:
    bench.publish(bench.stage("a"), writer="old")
    bench.clock.advance(20 * 86_400)
    bench.publish(bench.stage("b"), writer="young")
    bench.clock.advance(20 * 86_400)
    bench.stage("c")
    assert [name for name, _ in bench.broker.list_documents("staging")] == ["young"]


def test_the_event_log_tells_of_publishing_and_not_of_staging(bench: Bench) -> None:
    from heliograph.wire.arrow_events import SCHEMA, EventRows

    bench.publish(bench.stage("a"))
    rows = EventRows({})
    for position, facts in bench.broker.read_events(*bench.broker.event_bounds()):
        rows.add(position, facts)
    found: list[dict[str, Any]] = rows.record_batch(SCHEMA).to_pylist()
    assert [(row["event"], row["topic"]) for row in found] == [("published", "t")]
