"""Every rule of queue-protocol.md, through each door: HTTP, WebSocket, and in process."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.broker.clock import SimulatedClock
from tests.server.queue_doors import DOORS, Door, TimedDoor

_numbers = itertools.count(1)


@pytest.fixture(scope="module", params=DOORS)
def door(request: pytest.FixtureRequest) -> Iterator[Door]:
    with DOORS[request.param](LocalBroker()) as opened:
        yield opened


@pytest.fixture(params=DOORS)
def timed(request: pytest.FixtureRequest) -> Iterator[TimedDoor]:
    clock = SimulatedClock()
    with DOORS[request.param](LocalBroker(clock=clock)) as opened:
        yield TimedDoor(opened, clock)


@pytest.fixture
def queue(door: Door) -> str:
    name = f"tasks-{next(_numbers)}"
    door.command("queue.create", name=name)
    return name


# ── queues ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_creating_again_with_equal_settings_changes_nothing_and_with_others_fails(door: Door) -> None:
    door.command("queue.create", name="twice", max_depth=5)
    door.command("queue.publish", queue="twice", message=1)
    door.command("queue.create", name="twice", max_depth=5)
    assert door.command("queue.stats", queue="twice")["depth"] == 1
    assert door.failure("queue.create", name="twice", max_depth=6) == (409, "QueueExists")


def test_the_configuration_may_be_flat_or_under_config(door: Door) -> None:
    door.command("queue.create", name="forms", max_depth=5, prefetch=3, retry_delays=[1, 2])
    door.command("queue.create", name="forms", config={"max_depth": 5, "prefetch": 3, "retry_delays": [1, 2]})


@pytest.mark.parametrize(
    "config",
    [
        {"max_depth": 0},
        {"ack_deadline_secs": 0},
        {"ack_deadline_secs": 601},
        {"default_max_retries": -1},
        {"prefetch": 1001},
        {"prefetch": 0},
        {"ttl": 0},
        {"retry_policy": {"minimum_backoff": 5, "maximum_backoff": 1}},
        {"retry_policy": {"minimum_backoff": 5}, "retry_delays": [1]},
        {"retry_delays": [-1]},
        {"max_depth": "many"},
    ],
)
def test_a_configuration_out_of_bounds_is_invalid(door: Door, config: dict[str, Any]) -> None:
    assert door.failure("queue.create", name="never", **config) == (400, "InvalidArgument")


@pytest.mark.parametrize("name", ["", " a", "a/b", "a\nb", "x" * 256])
def test_a_queues_name_has_no_slash_and_at_most_255_characters(door: Door, name: str) -> None:
    assert door.failure("queue.create", name=name) == (400, "InvalidArgument")


def test_a_deleted_queue_is_gone(door: Door, queue: str) -> None:
    door.command("queue.delete", queue=queue)
    for command in ("queue.delete", "queue.stats", "queue.consume", "queue.purge", "queue.peek", "dlq.list"):
        assert door.failure(command, queue=queue) == (404, "QueueNotFound")
    assert door.failure("queue.publish", queue=queue, message=1) == (404, "QueueNotFound")
    assert door.failure("queue.ack", queue=queue, message_id="1") == (404, "QueueNotFound")


# ── publishing ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("message", [{"a": [1, 2.5, None]}, "text", 7, None, [], "ä", 12345678901234567890, True])
def test_any_json_comes_back_as_it_was_published(door: Door, queue: str, message: Any) -> None:
    door.command("queue.publish", queue=queue, message=message)
    consumed = door.command("queue.consume", queue=queue)
    assert consumed["message"] == message
    assert consumed["message_id"] is not None


@pytest.mark.parametrize("priority", [-1, 10, 100])
def test_a_priority_outside_0_to_9_is_refused_and_never_clamped(door: Door, queue: str, priority: int) -> None:
    assert door.failure("queue.publish", queue=queue, message=1, priority=priority) == (400, "InvalidPriority")


@pytest.mark.parametrize("priority", [-1, 10])
def test_a_default_priority_outside_0_to_9_is_refused_and_leaves_no_trace(door: Door, priority: int) -> None:
    refused = door.failure("queue.create", name="never-made", default_priority=priority)
    assert refused == (400, "InvalidPriority")
    door.command("queue.create", name="never-made", default_priority=9)
    door.command("queue.delete", queue="never-made")


def test_higher_priorities_come_first_and_equal_ones_in_order(door: Door, queue: str) -> None:
    for number, priority in enumerate([5, 1, 9, 5, 9]):
        door.command("queue.publish", queue=queue, message=number, priority=priority)
    consumed = [door.command("queue.consume", queue=queue)["message"] for _ in range(5)]
    assert consumed == [2, 4, 0, 3, 1]


def test_the_priority_is_5_unless_the_queue_says_otherwise(door: Door, queue: str) -> None:
    door.command("queue.create", name="urgent", default_priority=8)
    for name, priority in ((queue, 5), ("urgent", 8)):
        door.command("queue.publish", queue=name, message=1)
        door.command("queue.publish", queue=name, payload=[1])
        assert [door.command("queue.consume", queue=name)["priority"] for _ in range(2)] == [priority] * 2


def test_position_counts_ready_messages_of_equal_or_higher_priority(door: Door, queue: str) -> None:
    positions = [
        door.command("queue.publish", queue=queue, message=1, priority=priority)["position"]
        for priority in (5, 5, 9, 1)
    ]
    assert positions == [1, 2, 1, 4]


def test_a_batch_is_published_whole_or_not_at_all(door: Door, queue: str) -> None:
    ids = door.command("queue.publish_batch", queue=queue, messages=[{"message": 1}, {"payload": [2], "priority": 9}])
    assert len(ids["message_ids"]) == 2
    bad = [{"message": 1}, {"message": 1, "priority": 10}]
    assert door.failure("queue.publish_batch", queue=queue, messages=bad) == (400, "InvalidPriority")
    assert door.command("queue.stats", queue=queue)["depth"] == 2


def test_a_full_queue_refuses_with_507(door: Door) -> None:
    door.command("queue.create", name="small", max_depth=2)
    for _ in range(2):
        door.command("queue.publish", queue="small", message=1)
    answer = door.try_command("queue.publish", queue="small", message=1)
    assert (answer.status, answer.body["code"]) == (507, "QueueFull")
    assert answer.body["error"] == "Queue full: small holds its 2 messages"


def test_a_dedup_id_is_one_message_for_ten_minutes_and_answers_the_first_id(timed: TimedDoor) -> None:
    door = timed.door
    door.command("queue.create", name="once")
    first = door.command("queue.publish", queue="once", message=1, dedup_id="order-1")["message_id"]
    consumed = door.command("queue.consume", queue="once")
    door.command("queue.ack", queue="once", message_id=consumed["message_id"])
    timed.clock.advance(599)
    batch = [{"message": 2, "dedup_id": "order-1"}, {"message": 3, "dedup_id": "b"}, {"message": 4, "dedup_id": "b"}]
    again, new, twice = door.command("queue.publish_batch", queue="once", messages=batch)["message_ids"]
    assert (again, new) == (first, twice)
    assert door.command("queue.stats", queue="once")["depth"] == 1
    timed.clock.advance(2)
    later = door.command("queue.publish", queue="once", message=5, dedup_id="order-1")["message_id"]
    assert later not in (first, new)


@pytest.mark.parametrize("dedup_id", ["", "x" * 1025, 7])
def test_a_dedup_id_has_1_to_1024_bytes(door: Door, queue: str, dedup_id: Any) -> None:
    assert door.failure("queue.publish", queue=queue, message=1, dedup_id=dedup_id) == (400, "InvalidArgument")


# ── consuming ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_ready_is_null_and_no_limit(door: Door, queue: str) -> None:
    answer = door.command("queue.consume", queue=queue)
    assert answer == {"message_id": None, "message": None, "at_prefetch_limit": False}


def test_a_delivery_has_every_field(door: Door, queue: str) -> None:
    sent = door.command("queue.publish", queue=queue, message={"n": 1}, priority=8, headers={"source": "web"})
    consumed = door.command("queue.consume", queue=queue)
    assert consumed.pop("lease_id")
    assert consumed == {
        "message_id": sent["message_id"],
        "message": {"n": 1},
        "priority": 8,
        "retry_count": 0,
        "headers": {"source": "web"},
        "at_prefetch_limit": False,
    }


def test_several_at_once_come_as_a_list(door: Door, queue: str) -> None:
    for number in range(3):
        door.command("queue.publish", queue=queue, message=number)
    answer = door.command("queue.consume", queue=queue, max_messages=5)
    assert [one["message"] for one in answer["messages"]] == [0, 1, 2]
    assert door.command("queue.consume", queue=queue, max_messages=5)["messages"] == []


def test_a_waiting_consume_gets_the_message_when_it_comes(door: Door, queue: str) -> None:
    answers: list[Any] = []
    waiting = threading.Thread(
        target=lambda: answers.append(door.command("queue.consume", queue=queue, timeout=60, consumer_id="c"))
    )
    waiting.start()
    door.command("queue.publish", queue=queue, message="here")
    waiting.join(30)
    assert answers[0]["message"] == "here"


def test_a_consume_waits_no_longer_than_its_timeout(door: Door, queue: str) -> None:
    assert door.command("queue.consume", queue=queue, timeout=0.05)["message_id"] is None


def test_prefetch_bounds_what_a_consumer_holds_and_says_so(door: Door, queue: str) -> None:
    for number in range(3):
        door.command("queue.publish", queue=queue, message=number)
    first = door.command("queue.consume", queue=queue, consumer_id="c", prefetch=2)
    door.command("queue.consume", queue=queue, consumer_id="c", prefetch=2)
    answer = door.command("queue.consume", queue=queue, consumer_id="c", prefetch=2)
    assert answer == {"message_id": None, "message": None, "at_prefetch_limit": True}
    assert door.command("queue.consume", queue=queue, consumer_id="d")["message"] == 2
    door.command("queue.ack", queue=queue, message_id=first["message_id"])
    answer = door.command("queue.consume", queue=queue, consumer_id="c", prefetch=2)
    assert answer["at_prefetch_limit"] is False


def test_prefetch_is_10_unless_the_queue_or_the_call_says_otherwise(door: Door, queue: str) -> None:
    door.command("queue.create", name="narrow", prefetch=4)
    for name, prefetch in ((queue, 10), ("narrow", 4)):
        door.command("queue.publish_batch", queue=name, messages=[{"message": 1}] * 20)
        held = door.command("queue.consume", queue=name, consumer_id="c", max_messages=20)["messages"]
        assert len(held) == prefetch
        more = door.command("queue.consume", queue=name, consumer_id="c", max_messages=20, prefetch=15)["messages"]
        assert len(held) + len(more) == 15


@pytest.mark.parametrize(
    "fields", [{"prefetch": 1001}, {"ack_deadline": 0}, {"ack_deadline": 601}, {"timeout": -1}, {"max_messages": 0}]
)
def test_a_consume_out_of_bounds_is_invalid(door: Door, queue: str, fields: dict[str, Any]) -> None:
    assert door.failure("queue.consume", queue=queue, **fields) == (400, "InvalidArgument")


# ── settling ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_acknowledged_message_is_done(timed: TimedDoor) -> None:
    timed.door.command("queue.create", name="tasks")
    timed.door.command("queue.publish", queue="tasks", message=1)
    consumed = timed.door.command("queue.consume", queue="tasks")
    assert timed.door.command("queue.ack", queue="tasks", message_id=consumed["message_id"]) == {"success": True}
    timed.clock.advance(1000)
    assert timed.door.command("queue.consume", queue="tasks")["message_id"] is None


def test_an_expired_lease_brings_the_message_back_and_counts_a_retry(timed: TimedDoor) -> None:
    timed.door.command("queue.create", name="tasks")
    timed.door.command("queue.publish", queue="tasks", message=1, priority=3)
    timed.door.command("queue.consume", queue="tasks", ack_deadline=5)
    timed.clock.advance(4.9)
    assert timed.door.command("queue.consume", queue="tasks")["message_id"] is None
    timed.clock.advance(0.2)
    again = timed.door.command("queue.consume", queue="tasks")
    assert (again["message"], again["retry_count"], again["priority"]) == (1, 1, 3)


def test_a_lease_is_30_seconds_unless_said_otherwise(timed: TimedDoor) -> None:
    timed.door.command("queue.create", name="tasks")
    timed.door.command("queue.publish", queue="tasks", message=1)
    timed.door.command("queue.consume", queue="tasks")
    timed.clock.advance(29.9)
    assert timed.door.command("queue.consume", queue="tasks")["message_id"] is None
    timed.clock.advance(0.2)
    assert timed.door.command("queue.consume", queue="tasks")["message"] == 1


def test_settling_with_a_lease_that_is_not_current_leaves_the_present_holder_alone(timed: TimedDoor) -> None:
    timed.door.command("queue.create", name="tasks")
    timed.door.command("queue.publish", queue="tasks", message=1)
    late = timed.door.command("queue.consume", queue="tasks", ack_deadline=5)
    timed.clock.advance(6)
    present = timed.door.command("queue.consume", queue="tasks")
    fields = {"queue": "tasks", "message_id": late["message_id"], "lease_id": late["lease_id"]}
    for command in ("queue.ack", "queue.nack", "queue.extend"):
        assert timed.door.failure(command, **fields) == (409, "AckDeadlineExceeded")
    fields["lease_id"] = present["lease_id"]
    assert timed.door.command("queue.ack", **fields) == {"success": True}


@pytest.mark.parametrize("command", ["queue.ack", "queue.nack", "queue.extend"])
def test_settling_what_nobody_holds_is_message_not_found(door: Door, queue: str, command: str) -> None:
    sent = door.command("queue.publish", queue=queue, message=1)
    for message_id in (sent["message_id"], "7", "garbage"):
        assert door.failure(command, queue=queue, message_id=message_id) == (404, "MessageNotFound")


def test_several_are_settled_item_by_item(door: Door, queue: str) -> None:
    door.command("queue.publish_batch", queue=queue, messages=[{"message": 1}, {"message": 2}])
    consumed = door.command("queue.consume", queue=queue, max_messages=2)["messages"]
    ids = [consumed[0]["message_id"], "7", consumed[1]["message_id"]]
    results = door.command("queue.ack", queue=queue, message_ids=ids)["results"]
    assert [(one["message_id"], one["success"]) for one in results] == list(zip(ids, [True, False, True], strict=True))
    assert results[1]["code"] == "MessageNotFound"
    assert door.command("queue.stats", queue=queue)["acked_total"] == 2


def test_a_nack_requeues_until_the_retries_are_spent(door: Door) -> None:
    door.command("queue.create", name="retried", default_max_retries=3)
    door.command("queue.publish", queue="retried", message="poison", headers={"a": "b"}, priority=2)
    seen = []
    for _ in range(4):
        consumed = door.command("queue.consume", queue="retried")
        answer = door.command("queue.nack", queue="retried", message_id=consumed["message_id"])
        seen.append((consumed["retry_count"], answer["action"]))
    assert seen == [(0, "requeued"), (1, "requeued"), (2, "requeued"), (3, "dead_lettered")]
    letters = door.command("dlq.list", queue="retried")
    (letter,) = letters["messages"]
    assert letters["total"] == 1
    assert letter.pop("dead_lettered_at") > 1_700_000_000
    assert letter == {
        "message_id": consumed["message_id"],
        "message": "poison",
        "headers": {"a": "b"},
        "priority": 2,
        "retry_count": 3,
        "reason": "MaxRetriesExceeded",
        "original_queue": "retried",
    }


def test_a_message_may_have_its_own_retries(door: Door, queue: str) -> None:
    door.command("queue.publish", queue=queue, message=1, max_retries=0)
    consumed = door.command("queue.consume", queue=queue)
    assert door.command("queue.nack", queue=queue, message_id=consumed["message_id"])["action"] == "dead_lettered"


def test_a_nack_without_requeue_is_a_dead_letter_at_once(door: Door, queue: str) -> None:
    door.command("queue.publish", queue=queue, message=1)
    consumed = door.command("queue.consume", queue=queue)
    answer = door.command("queue.nack", queue=queue, message_id=consumed["message_id"], requeue=False)
    assert answer == {"success": True, "action": "dead_lettered"}
    assert door.command("dlq.list", queue=queue)["messages"][0]["reason"] == "ExplicitNack"
    stats = door.command("queue.stats", queue=queue)
    assert (stats["nacked_total"], stats["dead_lettered_total"]) == (1, 1)


def test_a_nack_waits_its_backoff(timed: TimedDoor) -> None:
    timed.door.command("queue.create", name="tasks", retry_delays=[10, 60])
    timed.door.command("queue.publish", queue="tasks", message=1)
    for delay in (10, 60, 60):
        consumed = timed.door.command("queue.consume", queue="tasks")
        timed.door.command("queue.nack", queue="tasks", message_id=consumed["message_id"])
        timed.clock.advance(delay - 1)
        assert timed.door.command("queue.consume", queue="tasks")["message_id"] is None
        timed.clock.advance(2)
    assert timed.door.command("queue.consume", queue="tasks")["retry_count"] == 3


def test_a_retry_policy_doubles(timed: TimedDoor) -> None:
    timed.door.command("queue.create", name="tasks", retry_policy={"minimum_backoff": 2, "maximum_backoff": 5})
    timed.door.command("queue.publish", queue="tasks", message=1)
    for delay in (2, 4, 5):
        consumed = timed.door.command("queue.consume", queue="tasks")
        timed.door.command("queue.nack", queue="tasks", message_id=consumed["message_id"])
        timed.clock.advance(delay - 0.1)
        assert timed.door.command("queue.consume", queue="tasks")["message_id"] is None
        timed.clock.advance(0.2)


def test_extending_counts_from_now(timed: TimedDoor) -> None:
    timed.door.command("queue.create", name="tasks")
    timed.door.command("queue.publish", queue="tasks", message=1)
    consumed = timed.door.command("queue.consume", queue="tasks", ack_deadline=5)
    timed.clock.advance(4)
    fields = {"message_id": consumed["message_id"], "lease_id": consumed["lease_id"]}
    assert timed.door.command("queue.extend", queue="tasks", ack_deadline=10, **fields) == {"success": True}
    timed.clock.advance(9)
    assert timed.door.command("queue.consume", queue="tasks")["message_id"] is None


def test_extending_by_next_to_nothing_is_no_nack(timed: TimedDoor) -> None:
    timed.door.command("queue.create", name="tasks")
    timed.door.command("queue.publish", queue="tasks", message=1)
    consumed = timed.door.command("queue.consume", queue="tasks")
    timed.door.command("queue.extend", queue="tasks", ack_deadline=1e-12, message_id=consumed["message_id"])
    timed.clock.advance(1)
    stats = timed.door.command("queue.stats", queue="tasks")
    assert (stats["nacked_total"], stats["expired_total"]) == (0, 1)


def test_a_delayed_message_waits_and_an_expired_one_is_a_dead_letter(timed: TimedDoor) -> None:
    timed.door.command("queue.create", name="tasks")
    timed.door.command("queue.publish", queue="tasks", message="later", delay=10)
    timed.door.command("queue.publish", queue="tasks", message="soon gone", ttl=5)
    assert timed.door.command("queue.stats", queue="tasks")["delayed"] == 1
    timed.clock.advance(6)
    assert timed.door.command("queue.consume", queue="tasks")["message_id"] is None
    assert timed.door.command("dlq.list", queue="tasks")["messages"][0]["reason"] == "TTLExpired"
    timed.clock.advance(5)
    assert timed.door.command("queue.consume", queue="tasks")["message"] == "later"


# ── looking, purging, dead letters ──────────────────────────────────────────────────────────────────────────────────


def test_stats_count_everything(timed: TimedDoor) -> None:
    door = timed.door
    door.command("queue.create", name="tasks")
    for priority in (9, 9, 1):
        door.command("queue.publish", queue="tasks", message=1, priority=priority)
    timed.clock.advance(2)
    consumed = door.command("queue.consume", queue="tasks", consumer_id="c")
    stats = door.command("queue.stats", queue="tasks")
    assert stats["avg_wait_time_ms"] == 2000
    assert stats["oldest_message_age_secs"] == pytest.approx(2, abs=0.1)
    expected = {"depth": 2, "consumers": 1, "published_total": 3, "consumed_total": 1, "outstanding": 1}
    assert {name: stats[name] for name in expected} == expected
    assert stats["depth_by_priority"] == {"9": 1, "1": 1}
    door.command("queue.nack", queue="tasks", message_id=consumed["message_id"])
    door.command("queue.consume", queue="tasks")
    stats = door.command("queue.stats", queue="tasks")
    expected = {"consumed_total": 2, "nacked_total": 1, "redelivered_total": 1, "expired_total": 0, "consumers": 0}
    assert {name: stats[name] for name in expected} == expected


def test_peek_shows_what_is_next_and_takes_nothing(door: Door, queue: str) -> None:
    door.command("queue.publish", queue=queue, message="low", priority=1)
    door.command("queue.publish", queue=queue, message="high", priority=9)
    for _ in range(2):
        messages = door.command("queue.peek", queue=queue, count=5)["messages"]
        assert [one["message"] for one in messages] == ["high", "low"]


def test_purge_takes_ready_and_delayed_messages_and_no_leased_ones(door: Door, queue: str) -> None:
    for fields in ({}, {}, {"delay": 100}):
        door.command("queue.publish", queue=queue, message=1, **fields)
    leased = door.command("queue.consume", queue=queue)
    assert door.command("queue.purge", queue=queue) == {"purged": 2, "ready": 1, "delayed": 1}
    assert door.command("queue.ack", queue=queue, message_id=leased["message_id"]) == {"success": True}


def test_dead_letters_are_listed_in_parts_retried_and_purged(door: Door, queue: str) -> None:
    ids = []
    for number in range(3):
        door.command("queue.publish", queue=queue, message=number)
        ids.append(door.command("queue.consume", queue=queue)["message_id"])
        door.command("queue.nack", queue=queue, message_id=ids[-1], requeue=False)
    part = door.command("dlq.list", queue=queue, offset=1, limit=1)
    assert ([one["message"] for one in part["messages"]], part["total"]) == ([1], 3)
    assert door.command("dlq.retry", queue=queue, message_id=ids[1]) == {"retried": 1}
    again = door.command("queue.consume", queue=queue)
    assert (again["message"], again["retry_count"]) == (1, 0)
    assert door.failure("dlq.retry", queue=queue, message_id="7") == (404, "MessageNotFound")
    assert door.command("dlq.purge", queue=queue) == {"purged": 2}
    assert door.command("dlq.list", queue=queue) == {"messages": [], "total": 0}
