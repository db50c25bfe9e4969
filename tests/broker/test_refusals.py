"""What is refused leaves nothing behind, and what has failed does not stick."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.broker.clock import SimulatedClock
from heliograph.engine.dead_letter import DeadLetterPolicy
from heliograph.engine.message import Draft
from heliograph.engine.settings import SECOND_NS, SubscriptionSettings
from heliograph.errors import InvalidArgument, Unavailable
from heliograph.store.memory import MemoryStore
from heliograph.store.sqlite import SqliteStore
from heliograph.testing.faulty_store import FaultyStore

QUEUE = SubscriptionSettings(prioritised=True, message_retention_ns=0)


def test_a_queue_that_is_refused_leaves_its_name_free() -> None:
    broker = LocalBroker(clock=SimulatedClock())
    with pytest.raises(InvalidArgument):
        broker.create_queue("w", SubscriptionSettings(prioritised=True, ack_deadline_ns=700 * SECOND_NS))
    assert broker.list_topics() == []
    broker.create_queue("w", QUEUE).result(30)


def test_after_a_commit_failed_and_the_store_is_well_again_an_idle_broker_answers_with_success() -> None:
    store = FaultyStore(MemoryStore())
    broker = LocalBroker(store, SimulatedClock())
    broker.create_queue("w", QUEUE).result(30)
    store.fail_next()
    with pytest.raises(Unavailable):
        broker.publish("queues/w", [Draft(b"x")]).result(30)
    store.retry()
    broker.create_queue("w", QUEUE).result(30)
    assert broker.publish("queues/w", []).result(30) == []


def test_a_directory_is_free_again_when_the_broker_that_opened_it_could_not_recover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("heliograph.engine.engine.Engine.recovered", lambda self, now_ns: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            LocalBroker(SqliteStore(tmp_path), SimulatedClock())
    LocalBroker(SqliteStore(tmp_path), SimulatedClock()).close()


def test_dead_letters_wait_for_a_topic_that_does_not_exist_and_the_log_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broker = LocalBroker(clock=SimulatedClock())
    broker.create_topic("t")
    broker.create_subscription("s", "t", SubscriptionSettings(dead_letter_policy=DeadLetterPolicy("typo", 1)))
    broker.publish("t", [Draft(b"a"), Draft(b"b")]).result(30)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            (delivery,) = broker.pull("s", 1).result(30)
            broker.modify_ack_deadline("s", [delivery.ack_id], 0).result(30)
    assert [record.message for record in caplog.records] == ["dead letters of s are kept until their topic typo exists"]
    broker.create_topic("typo")
    assert sum(len(batch) for batch in broker.read_log("typo", 1, 9)) == 2
