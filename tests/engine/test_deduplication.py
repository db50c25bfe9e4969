"""A publish that is repeated under an id of the publisher's own is one message (queue-protocol.md)."""

from __future__ import annotations

import pytest

from heliograph.engine.engine import Engine
from heliograph.engine.facts import DedupIdsNoted
from heliograph.engine.message import Draft
from heliograph.engine.settings import SECOND_NS, Capacity, SubscriptionSettings, TopicSettings
from heliograph.errors import QueueFull
from tests.engine.invariants import check_engine, state

MINUTES_NS = 60 * SECOND_NS


def engine_of(capacity: int = 100) -> Engine:
    engine = Engine()
    engine.create_topic("t", TopicSettings(), 1)
    settings = SubscriptionSettings(capacity=Capacity(capacity, 0, refuse=True))
    engine.create_subscription("s", "t", settings, 1)
    return engine


def publish(engine: Engine, now_ns: int, *dedup_ids: str) -> list[str]:
    drafts = [Draft(dedup_id.encode(), dedup_id=dedup_id) for dedup_id in dedup_ids]
    return engine.publish("t", drafts, now_ns)


def test_the_same_id_within_ten_minutes_answers_the_first_message() -> None:
    engine = engine_of()
    first = publish(engine, 0, "a")
    assert publish(engine, 10 * MINUTES_NS - 1, "a") == first
    assert engine.statistics("s", 0).ready == 1
    assert publish(engine, 10 * MINUTES_NS, "a") != first


def test_the_ten_minutes_count_from_the_first_publish() -> None:
    engine = engine_of()
    first = publish(engine, 0, "a")
    publish(engine, 9 * MINUTES_NS, "a")
    assert publish(engine, 11 * MINUTES_NS, "a") != first


def test_an_id_twice_in_one_batch_is_one_message_and_answers_keep_their_places() -> None:
    engine = engine_of()
    first, none, again, other = publish(engine, 0, "a", "", "a", "b")
    assert first == again
    assert len({first, none, other}) == 3
    assert engine.statistics("s", 0).ready == 3


def test_an_id_belongs_to_its_topic() -> None:
    engine = engine_of()
    engine.create_topic("u", TopicSettings(), 1)
    (first,) = publish(engine, 0, "a")
    (other,) = engine.publish("u", [Draft(b"", dedup_id="a")], 0)
    assert first != other


def test_a_repeated_publish_needs_no_room_and_a_refused_one_is_not_remembered() -> None:
    engine = engine_of(capacity=1)
    first = publish(engine, 0, "a")
    assert publish(engine, 1, "a") == first
    with pytest.raises(QueueFull):
        publish(engine, 1, "b")
    engine.purge("s", 1)
    assert publish(engine, 2, "b") != first


def test_a_repeated_publish_alone_leaves_no_fact() -> None:
    engine = engine_of()
    publish(engine, 0, "a")
    engine.take_facts()
    publish(engine, 1, "a")
    assert engine.take_facts() == []


def test_forgetting_is_of_bounded_memory() -> None:
    engine = engine_of(capacity=10_000)
    for minute in range(60):
        publish(engine, minute * MINUTES_NS, *[f"{minute}-{number}" for number in range(10)])
    known = engine.topic("t").dedup_ids
    assert known is not None
    assert len(known.noted()) == 100


@pytest.mark.parametrize("how", ["facts", "checkpoint"])
def test_ids_survive_a_recovery_also_when_the_message_is_gone(how: str) -> None:
    engine = engine_of()
    first = publish(engine, 0, "a")
    (delivery,) = engine.pull("s", 1, 0)
    engine.acknowledge("s", [delivery.ack_id], 0)
    facts = engine.take_facts()
    if how == "checkpoint":
        facts = engine.checkpoint()
    recovered = Engine()
    for fact in facts:
        recovered.replay(fact)
        recovered.load_replayed()
    recovered.recovered(1)
    assert state(recovered)["dedup ids"] == state(engine)["dedup ids"]
    assert publish(recovered, 1, "a") == first
    check_engine(recovered)


def test_only_publishes_with_an_id_note_one() -> None:
    engine = engine_of()
    publish(engine, 0, "", "")
    assert not [fact for fact in engine.take_facts() if isinstance(fact, DedupIdsNoted)]
