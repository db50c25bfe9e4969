"""What other queues get wrong, and must hold here, through each door (queue-protocol.md). Where the engine alone
decides, its own tests go further: `tests/engine/test_queue_rules*.py`."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.broker.clock import SimulatedClock
from heliograph.store.memory import MemoryStore
from heliograph.testing.faulty_store import FaultyStore
from tests.portions import quick_first
from tests.server.clients import wait_until
from tests.server.queue_doors import DOORS, Door, TimedDoor


@pytest.fixture(params=DOORS)
def timed(request: pytest.FixtureRequest) -> Iterator[TimedDoor]:
    clock = SimulatedClock()
    with DOORS[request.param](LocalBroker(clock=clock)) as opened:
        opened.command("queue.create", name="tasks", default_max_retries=5)
        yield TimedDoor(opened, clock)


@pytest.fixture(params=DOORS)
def crashing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Door]]:
    """Opens the broker, and opens it again as a crash leaves it: on a copy of its files, taken while it runs."""
    lives = 0
    with ExitStack() as opened:

        def begin() -> Door:
            nonlocal lives
            if lives:
                shutil.copytree(tmp_path / str(lives), tmp_path / str(lives + 1))
            lives += 1
            return opened.enter_context(DOORS[request.param](LocalBroker.open(tmp_path / str(lives))))

        yield begin


def publish(door: Door, message: Any, **options: Any) -> Any:
    return door.command("queue.publish", queue="tasks", message=message, **options)["message_id"]


def consume(door: Door, **options: Any) -> Any:
    return door.command("queue.consume", queue="tasks", **options)


def nack(door: Door, consumed: Any, **options: Any) -> Any:
    return door.command("queue.nack", queue="tasks", message_id=consumed["message_id"], **options)["action"]


def depths(door: Door) -> tuple[int, int, int]:
    stats = door.command("queue.stats", queue="tasks")
    return stats["depth"], stats["outstanding"], stats["dead_letters"]


def test_a_nack_without_requeue_never_loses_the_message(timed: TimedDoor) -> None:
    sent = publish(timed.door, {"keep": "me"}, headers={"k": "v"})
    assert nack(timed.door, consume(timed.door), requeue=False) == "dead_lettered"
    (letter,) = timed.door.command("dlq.list", queue="tasks")["messages"]
    assert (letter["message_id"], letter["message"], letter["headers"]) == (sent, {"keep": "me"}, {"k": "v"})
    assert timed.door.command("dlq.retry", queue="tasks") == {"retried": 1}
    assert consume(timed.door)["message"] == {"keep": "me"}


def test_a_requeue_keeps_the_priority_and_the_place(timed: TimedDoor) -> None:
    for message, priority in (("low", 1), ("first", 9), ("second", 9)):
        publish(timed.door, message, priority=priority)
    nack(timed.door, consume(timed.door))
    assert [consume(timed.door)["message"] for _ in range(3)] == ["first", "second", "low"]


def test_ids_survive_a_restart_so_a_late_ack_still_finds_its_message(crashing: Callable[[], Door]) -> None:
    door = crashing()
    door.command("queue.create", name="tasks")
    publish(door, 1)
    held = consume(door, ack_deadline=600)
    door = crashing()
    assert depths(door) == (0, 1, 0)
    settled = {"message_id": held["message_id"], "lease_id": held["lease_id"]}
    assert door.command("queue.ack", queue="tasks", **settled) == {"success": True}
    assert depths(door) == (0, 0, 0)


def test_everything_survives_a_restart(crashing: Callable[[], Door]) -> None:
    door = crashing()
    door.command("queue.create", name="tasks", max_depth=7, prefetch=3, default_max_retries=5)
    publish(door, "waits", priority=2, headers={"k": "v"}, dedup_id="once")
    publish(door, "dies", priority=9)
    nack(door, consume(door), requeue=False)
    publish(door, "failed", priority=9)
    nack(door, consume(door))
    before = door.command("queue.stats", queue="tasks")
    door = crashing()
    after = door.command("queue.stats", queue="tasks")
    moving = {"oldest_message_age_secs", "oldest_unacked_age_secs", "consumers"}
    assert {k: v for k, v in after.items() if k not in moving} == {k: v for k, v in before.items() if k not in moving}
    door.command("queue.create", name="tasks", max_depth=7, prefetch=3, default_max_retries=5)
    publish(door, "again", dedup_id="once")
    failed, waits = consume(door), consume(door)
    assert (failed["message"], failed["retry_count"]) == ("failed", 1)
    assert (waits["message"], waits["headers"], waits["priority"]) == ("waits", {"k": "v"}, 2)
    (letter,) = door.command("dlq.list", queue="tasks")["messages"]
    assert (letter["message"], letter["reason"]) == ("dies", "ExplicitNack")


@pytest.mark.parametrize("in_front", [{}, {"priority": 9}, {"ttl": 1_000}])
def test_a_ttl_that_is_due_takes_effect_wherever_the_message_stands(timed: TimedDoor, in_front: dict[str, Any]) -> None:
    publish(timed.door, "in front", **in_front)
    publish(timed.door, "short-lived", ttl=5)
    publish(timed.door, "delayed", ttl=5, delay=100)
    timed.clock.advance(6)
    assert depths(timed.door) == (1, 0, 2)
    assert consume(timed.door)["message"] == "in front"
    assert consume(timed.door)["message_id"] is None


def test_a_short_delay_is_not_stuck_behind_a_long_one(timed: TimedDoor) -> None:
    publish(timed.door, "long", delay=100, priority=9)
    publish(timed.door, "short", delay=5)
    timed.clock.advance(6)
    assert consume(timed.door)["message"] == "short"
    assert consume(timed.door)["message_id"] is None


def test_a_depth_limit_never_drops_a_message_that_is_leased(timed: TimedDoor) -> None:
    timed.door.command("queue.delete", queue="tasks")
    timed.door.command("queue.create", name="tasks", max_depth=1)
    publish(timed.door, "leased")
    held = consume(timed.door)
    publish(timed.door, "new")
    assert timed.door.failure("queue.publish", queue="tasks", message="too many") == (507, "QueueFull")
    nack(timed.door, held)
    assert depths(timed.door) == (2, 0, 0)
    assert [consume(timed.door)["message"] for _ in range(2)] == ["leased", "new"]


@pytest.mark.parametrize("how", ["nack", "expiry"])
def test_a_nack_waits_its_backoff_as_an_expiry_does(timed: TimedDoor, how: str) -> None:
    timed.door.command("queue.delete", queue="tasks")
    timed.door.command("queue.create", name="tasks", retry_delays=[10])
    publish(timed.door, 1)
    held = consume(timed.door, ack_deadline=5)
    if how == "nack":
        nack(timed.door, held)
    else:
        timed.clock.advance(5.001)
    assert consume(timed.door)["message_id"] is None
    timed.clock.advance(9.9)
    assert consume(timed.door)["message_id"] is None
    timed.clock.advance(0.2)
    assert consume(timed.door)["retry_count"] == 1


def test_delivery_counts_never_fall(timed: TimedDoor) -> None:
    publish(timed.door, 1)
    counts = []
    for how in ("nack", "expiry", "nack", "expiry"):
        held = consume(timed.door, ack_deadline=5)
        counts.append(held["retry_count"])
        if how == "nack":
            nack(timed.door, held)
        else:
            timed.clock.advance(6)
    assert counts == [0, 1, 2, 3]


def test_delivery_counts_survive_a_restart(crashing: Callable[[], Door]) -> None:
    door = crashing()
    door.command("queue.create", name="tasks", default_max_retries=5)
    publish(door, 1)
    counts = []
    for _ in range(3):
        held = consume(door)
        counts.append(held["retry_count"])
        nack(door, held)
        door = crashing()
    assert counts == [0, 1, 2]


def test_an_acknowledged_message_never_times_out(timed: TimedDoor) -> None:
    publish(timed.door, 1)
    held = consume(timed.door, ack_deadline=5)
    timed.door.command("queue.ack", queue="tasks", message_id=held["message_id"])
    timed.clock.advance(10_000)
    assert depths(timed.door) == (0, 0, 0)
    assert timed.door.command("queue.stats", queue="tasks")["expired_total"] == 0


@pytest.mark.parametrize("name", DOORS)
def test_a_publish_is_answered_only_when_it_is_durable(name: str) -> None:
    store = FaultyStore(MemoryStore())
    with DOORS[name](LocalBroker(store)) as door:
        door.command("queue.create", name="tasks")
        store.hold()
        answers: list[Any] = []
        publishing = threading.Thread(target=lambda: answers.append(publish(door, 1)))
        publishing.start()
        wait_until(lambda: len(store._waiting) > 0)
        assert not answers
        store.release()
        publishing.join(30)
        assert len(answers) == 1
        store.fail_next(1_000_000)
        assert door.failure("queue.publish", queue="tasks", message=2) == (503, "Unavailable")
        store.fail_next(0)
        store.retry()


@pytest.mark.parametrize("name", quick_first(list(DOORS), 1))
def test_publishing_costs_the_same_in_a_queue_of_100_000_with_mixed_priorities(name: str) -> None:
    # a queue that looks through what waits would take ten thousand times as long
    def seconds(door: Door) -> float:
        began = time.process_time()  # of server and client: how busy the machine is does not count
        for number in range(40):
            publish(door, number, priority=number % 10)
        return time.process_time() - began

    with DOORS[name](LocalBroker()) as door:
        door.command("queue.create", name="tasks", max_depth=1_000_000)
        shallow = min(seconds(door) for _ in range(3))
        batch = [{"message": number, "priority": number % 10} for number in range(10_000)]
        for _ in range(10):
            door.command("queue.publish_batch", queue="tasks", messages=batch)
        deep = min(seconds(door) for _ in range(3))
    assert deep < 20 * shallow


@pytest.mark.parametrize("timed", ["http", "websocket"], indirect=True)  # a call in process names one
@pytest.mark.parametrize("how", ["queue.ack", "queue.nack"])
def test_a_message_that_is_named_twice_in_one_call_is_settled_once_and_both_are_told_so(
    timed: TimedDoor, how: str
) -> None:
    publish(timed.door, 1)
    taken = consume(timed.door)["message_id"]
    results = timed.door.command(how, queue="tasks", message_ids=[taken, taken])["results"]
    assert [result["success"] for result in results] == [True, True]
