"""The streaming readers against a real broker, with Spark's order of calls and without Spark."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from heliograph.broker.broker import LocalBroker
from heliograph.broker.clock import SimulatedClock
from heliograph.engine.message import Draft
from heliograph.engine.settings import DAY_NS, TopicSettings
from heliograph.errors import ClaimNotFound, FailedPrecondition, InvalidArgument, SubscriptionNotFound, TopicNotFound
from heliograph.spark.claim_client import ClaimClient
from heliograph.spark.door import Address, Door
from heliograph.spark.log_client import LogClient
from tests.spark.fakes import ServerThread
from tests.spark.micro_batches import Killed, Query

TOPIC, OTHER = "projects/p/topics/flights", "projects/p/topics/weather"
SUBSCRIPTION = "projects/p/subscriptions/flights"


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[LocalBroker, SimulatedClock, str]]:
    clock = SimulatedClock()
    broker = LocalBroker(clock=clock, event_retention_ns=DAY_NS)
    with ServerThread(broker) as server:
        yield broker, clock, server.endpoint


@pytest.fixture
def broker(served: tuple[LocalBroker, SimulatedClock, str]) -> Iterator[LocalBroker]:
    broker, _, _ = served
    for topic in (TOPIC, OTHER):
        broker.create_topic(topic, TopicSettings(message_retention_ns=DAY_NS)).result(30)
    broker.create_subscription(SUBSCRIPTION, TOPIC).result(30)
    yield broker
    broker.delete_subscription(SUBSCRIPTION).result(30)
    for info in broker.list_topics():
        broker.delete_topic(info.name).result(30)


@pytest.fixture
def clock(served: tuple[LocalBroker, SimulatedClock, str]) -> SimulatedClock:
    return served[1]


@pytest.fixture
def endpoint(served: tuple[LocalBroker, SimulatedClock, str]) -> str:
    return served[2]


def publish(broker: LocalBroker, count: int, topic: str = TOPIC, size: int = 10) -> list[str]:
    return broker.publish(topic, [Draft(b"x" * size)] * count).result(30)


def logs(endpoint: str, **options: str) -> Query:
    return Query(endpoint=endpoint, **({"topic": TOPIC, "startingOffsets": "earliest"} | options))


def queue(endpoint: str, **options: str) -> Query:
    return Query(endpoint=endpoint, **({"subscription": SUBSCRIPTION, "claimSize": "100"} | options))


def sizes(query: Query) -> list[int]:
    return [len(rows) for rows in query.output.values()]


# ── logs ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_stream_reads_every_message_once_and_goes_on_where_it_was(broker: LocalBroker, endpoint: str) -> None:
    query = logs(endpoint)
    ids = publish(broker, 500)
    query.run()
    ids += publish(broker, 100)
    query.run()
    query.run()
    assert (query.rows, sizes(query)) == (ids, [500, 100])


def test_a_stream_begins_with_what_comes_unless_it_is_told_otherwise(broker: LocalBroker, endpoint: str) -> None:
    query = Query(endpoint=endpoint, topic=TOPIC)
    publish(broker, 10)
    query.run()
    ids = publish(broker, 5)
    query.run()
    assert query.rows == ids


@pytest.mark.parametrize("step", ["claimed", "planned", "read", "written", "done"])
def test_a_log_query_that_is_killed_anywhere_goes_on_without_loss_or_double(
    broker: LocalBroker, endpoint: str, step: str
) -> None:
    query = logs(endpoint, maxMessagesPerTrigger="200")
    ids = publish(broker, 500)
    with pytest.raises(Killed):
        query.run(dies=step, at_batch=1)
    query.run()
    assert sorted(query.rows) == sorted(ids)


def plain_pull(endpoint: str, **options: str) -> Query:
    return queue(endpoint, protocol="pubsub", **options)


def event_log(broker: LocalBroker, endpoint: str, **options: str) -> Query:
    """From now on."""
    start = str(broker.event_bounds()[1] + 1)
    return Query("event", endpoint=endpoint, mode="events", **({"startingOffsets": start} | options))


def test_a_micro_batch_takes_no_more_than_the_limits_of_messages_and_bytes(broker: LocalBroker, endpoint: str) -> None:
    publish(broker, 100, size=1_000)
    limits = {"by messages": {"maxMessagesPerTrigger": "40"}, "by bytes": {"maxBytesPerTrigger": "30000"}}
    limits["by both"] = {"maxMessagesPerTrigger": "20", "maxBytesPerTrigger": "1m"}
    expected = {"by messages": [40, 40, 20], "by bytes": [30, 30, 30, 10], "by both": [20] * 5}
    for make in (logs, queue, plain_pull):
        found = {}
        for name, options in limits.items():
            query = make(endpoint, **options)
            query.run()
            found[name] = sizes(query)
            if make is not logs:
                broker.seek_to_time(SUBSCRIPTION, 0).result(30)
        assert (make.__name__, found) == (make.__name__, expected)


def test_a_micro_batch_of_events_takes_no_more_than_the_limits_but_divides_no_commit(
    broker: LocalBroker, endpoint: str
) -> None:
    by_rows = event_log(broker, endpoint, maxMessagesPerTrigger="40")
    by_bytes = event_log(broker, endpoint, maxBytesPerTrigger="3000")
    for count in (30, 10, 25, 100, 5):
        publish(broker, count)
    for query in (by_rows, by_bytes):
        query.run()
    assert (sizes(by_rows), sizes(by_bytes)) == ([40, 25, 100, 5], [30, 10, 25, 100, 5])


def test_a_trigger_that_wants_everything_gets_it(broker: LocalBroker, endpoint: str) -> None:
    publish(broker, 100)
    reader: Any = logs(endpoint, maxMessagesPerTrigger="40").new_reader()
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert end[TOPIC]["next"] == 101


@pytest.mark.parametrize("mode", ["log", "queue", "pubsub", "events"])
def test_a_micro_batch_waits_for_enough_messages_but_not_for_ever(
    broker: LocalBroker, endpoint: str, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    now = 0.0
    monkeypatch.setattr("heliograph.spark.log_stream.time.monotonic", lambda: now)
    wait = {"minMessagesPerTrigger": "50", "maxTriggerDelay": "60s"}
    query = {
        "log": lambda: logs(endpoint, **wait),
        "queue": lambda: queue(endpoint, **wait),
        "pubsub": lambda: plain_pull(endpoint, **wait),
        "events": lambda: event_log(broker, endpoint, **wait),
    }[mode]()
    reader: Any = query.new_reader()
    start = reader.initialOffset()
    publish(broker, 20)
    assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start
    now += 59
    assert reader.latestOffset(start, reader.getDefaultReadLimit()) == start
    now += 2
    end = reader.latestOffset(start, reader.getDefaultReadLimit())
    assert end != start
    publish(broker, 50)
    assert reader.latestOffset(end, reader.getDefaultReadLimit()) != end
    broker.purge(SUBSCRIPTION).result(30)


def test_a_stream_over_topics_of_a_pattern_takes_up_new_ones_from_their_beginning(
    broker: LocalBroker, endpoint: str
) -> None:
    query = Query(endpoint=endpoint, topicPattern="projects/p/topics/.*", startingOffsets="latest")
    publish(broker, 5)
    query.run()
    ids = publish(broker, 3, OTHER)
    broker.create_topic("projects/p/topics/new", TopicSettings(message_retention_ns=DAY_NS)).result(30)
    query.run()
    ids += publish(broker, 4, "projects/p/topics/new")
    query.run()
    assert query.rows == ids


def test_limits_are_shared_among_topics_by_what_they_have(broker: LocalBroker, endpoint: str) -> None:
    query = Query("topic", endpoint=endpoint, topics=f"{TOPIC},{OTHER}", startingOffsets="earliest")
    query.options["maxMessagesPerTrigger"] = "100"
    publish(broker, 300)
    publish(broker, 100, OTHER)
    query.run()
    assert [(rows.count(TOPIC), rows.count(OTHER)) for rows in query.output.values()] == [(75, 25)] * 4


def test_a_limit_holds_for_more_topics_than_messages(broker: LocalBroker, endpoint: str) -> None:
    names = [f"projects/p/topics/n{number}" for number in range(5)]
    for name in names:
        broker.create_topic(name, TopicSettings(message_retention_ns=DAY_NS)).result(30)
        publish(broker, 2, name)
    query = Query("topic", endpoint=endpoint, topicPattern=".*/n.", startingOffsets="earliest")
    query.options["maxMessagesPerTrigger"] = "3"
    query.run()
    assert (sizes(query), sorted(query.rows)) == ([3, 3, 3, 1], sorted(names * 2))


def test_starts_by_offset_time_and_snapshot(broker: LocalBroker, endpoint: str, clock: SimulatedClock) -> None:
    ids = publish(broker, 10)
    broker.acknowledge(SUBSCRIPTION, [d.ack_id for d in broker.pull(SUBSCRIPTION, 4).result(30)]).result(30)
    broker.create_snapshot("projects/p/snapshots/n", SUBSCRIPTION).result(30)
    clock.advance(10)
    instant_ms = clock.now_ns() // 10**6
    ids += publish(broker, 5)
    starts = {
        "startingOffsets": (json.dumps({TOPIC: 13}), ids[12:]),
        "startingTimestamp": (str(instant_ms), ids[10:]),
        "startingSnapshot": ("projects/p/snapshots/n", ids[4:]),
    }
    for option, (value, expected) in starts.items():
        query = Query(endpoint=endpoint, topic=TOPIC, **{option: value})
        query.run()
        assert (option, query.rows) == (option, expected)
    broker.delete_snapshot("projects/p/snapshots/n").result(30)


def test_the_broker_tells_whether_publish_times_grow_with_the_sequences(broker: LocalBroker, endpoint: str) -> None:
    client = LogClient(endpoint)
    publish(broker, 2)
    assert client.bounds(TOPIC).in_time_order
    broker.publish(TOPIC, [Draft(b"a dead letter", publish_time_ns=1)]).result(30)
    assert not client.topics()[TOPIC].in_time_order


def test_retention_that_has_passed_the_reader_is_an_error_or_skipped(broker: LocalBroker, endpoint: str) -> None:
    strict, lenient = logs(endpoint), logs(endpoint, failOnDataLoss="false")
    publish(broker, 10)
    for query in (strict, lenient):
        query.run()
    ids = publish(broker, 10)
    number = broker.get_topic(TOPIC).number
    broker._store.trim(number, 16)
    with pytest.raises(FailedPrecondition, match="before sequence 16 are gone"):
        strict.run()
    lenient.run()
    assert lenient.rows[10:] == ids[5:]


def test_a_topic_that_is_deleted_and_created_again_is_an_error_or_read_anew(broker: LocalBroker, endpoint: str) -> None:
    strict, lenient = logs(endpoint), logs(endpoint, failOnDataLoss="false")
    publish(broker, 10)
    for query in (strict, lenient):
        query.run()
    broker.delete_topic(TOPIC).result(30)
    with pytest.raises(TopicNotFound):
        strict.run()
    broker.create_topic(TOPIC, TopicSettings(message_retention_ns=DAY_NS)).result(30)
    ids = publish(broker, 3)
    with pytest.raises(FailedPrecondition, match="deleted and created again"):
        strict.run()
    lenient.run()
    assert lenient.rows[10:] == ids


def test_an_empty_topic_gives_no_micro_batch(broker: LocalBroker, endpoint: str) -> None:
    query = logs(endpoint)
    query.run()
    assert query.output == {}


def test_the_broker_knows_how_far_a_log_query_has_come(broker: LocalBroker, endpoint: str) -> None:
    query = logs(endpoint, consumer="nightly")
    publish(broker, 10)
    query.run()
    publish(broker, 4)
    (cursor,) = Door(Address(endpoint)).get("/api/v1/log/cursors", {})["cursors"]
    assert (cursor["consumer"], cursor["topic"], cursor["next"], cursor["lag"]) == ("nightly", TOPIC, 11, 4)
    assert query.reader is not None
    assert query.reader.reportLatestOffset() == {TOPIC: {"number": broker.get_topic(TOPIC).number, "next": 15}}


# ── queues ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def outstanding(broker: LocalBroker) -> tuple[int, int]:
    found = broker.statistics(SUBSCRIPTION)
    return found.ready, found.outstanding


def test_a_queue_query_takes_every_message_once_and_acknowledges_all_also_the_last(
    broker: LocalBroker, endpoint: str
) -> None:
    query = queue(endpoint, maxMessagesPerTrigger="250")
    ids = publish(broker, 600)
    query.run()
    assert (query.rows, sizes(query), outstanding(broker)) == (ids, [250, 250, 100], (0, 0))


@pytest.mark.parametrize("step", ["claimed", "planned", "read", "written", "done"])
def test_a_queue_query_that_is_killed_anywhere_goes_on_without_loss_or_double(
    broker: LocalBroker, endpoint: str, step: str
) -> None:
    query = queue(endpoint, maxMessagesPerTrigger="200")
    ids = publish(broker, 500)
    with pytest.raises(Killed):
        query.run(dies=step, at_batch=1)
    query.run()
    assert (sorted(query.rows), outstanding(broker)) == (sorted(ids), (0, 0))


def test_messages_are_acknowledged_while_nothing_new_comes(broker: LocalBroker, endpoint: str) -> None:
    query = queue(endpoint)
    publish(broker, 10)
    query.run(available_now=False)
    assert outstanding(broker) == (0, 0)


def test_nothing_is_acknowledged_before_the_output_is_durable(broker: LocalBroker, endpoint: str) -> None:
    query = queue(endpoint)
    publish(broker, 10)
    with pytest.raises(Killed):
        query.run(dies="written")
    assert outstanding(broker) == (0, 10)


def test_a_query_that_ends_by_itself_leaves_what_comes_later(broker: LocalBroker, endpoint: str) -> None:
    query = queue(endpoint, maxMessagesPerTrigger="10")
    ids = publish(broker, 30)
    reader: Any = query.new_reader()
    reader.prepareForTriggerAvailableNow()
    start = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    publish(broker, 100)
    counts = [start["messages"]]
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        counts.append(end["messages"])
        start = end
    assert (counts, outstanding(broker)) == ([10, 20, len(ids)], (100, 0))


def test_the_progress_of_a_queue_query_tells_what_waits(broker: LocalBroker, endpoint: str) -> None:
    publish(broker, 30)
    reader: Any = queue(endpoint, maxMessagesPerTrigger="10").new_reader()
    end = reader.latestOffset(reader.initialOffset(), reader.getDefaultReadLimit())
    assert reader.reportLatestOffset()["messages"] - end["messages"] == 20


def test_two_consumers_share_a_subscription(broker: LocalBroker, endpoint: str) -> None:
    ids = publish(broker, 400)
    queries = [queue(endpoint, consumer=name, maxMessagesPerTrigger="200") for name in ("a", "b")]
    with pytest.raises(Killed):
        queries[0].run(dies="written")
    queries[1].run()
    queries[0].run()
    assert sorted(queries[0].rows + queries[1].rows) == sorted(ids)
    assert (queries[0].rows, outstanding(broker)) == (ids[:200], (0, 0))


def test_a_claim_that_ended_is_an_error_or_comes_again_later(
    broker: LocalBroker, endpoint: str, clock: SimulatedClock
) -> None:
    query = queue(endpoint, claimTtl="60s", failOnDataLoss="true")
    ids = publish(broker, 150)
    with pytest.raises(Killed):
        query.run(dies="planned")
    clock.advance(61)
    with pytest.raises(FailedPrecondition, match="150 messages that spark had claimed"):
        query.run()
    query.options["failOnDataLoss"] = "false"
    query.run()
    assert (sizes(query), sorted(query.rows), outstanding(broker)) == ([0, 150], sorted(ids), (0, 0))


def test_a_task_whose_claim_ended_meanwhile_fails(broker: LocalBroker, endpoint: str, clock: SimulatedClock) -> None:
    query = queue(endpoint, claimTtl="60s")
    publish(broker, 10)
    reader: Any = query.new_reader()
    start = reader.initialOffset()
    parts = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    clock.advance(61)
    with pytest.raises(ClaimNotFound):
        list(reader.read(parts[0]))


def test_a_living_query_keeps_its_claims(broker: LocalBroker, endpoint: str, clock: SimulatedClock) -> None:
    publish(broker, 10)
    client = ClaimClient(Address(endpoint), SUBSCRIPTION, "spark")
    client.claim(10, 0, 10, 60)
    for _ in range(3):
        clock.advance(50)
        assert client.extend(60) == 10
    assert client.claimed().claims[0].messages == 10


def test_delivery_attempts_and_claims_are_columns(broker: LocalBroker, endpoint: str) -> None:
    publish(broker, 2)
    broker.nack(SUBSCRIPTION, [d.ack_id for d in broker.pull(SUBSCRIPTION, 1).result(30)]).result(30)
    query = queue(endpoint)
    query.column = "delivery_attempt"
    query.run()
    assert sorted(query.rows) == [1, 2]


def test_claims_are_as_large_as_asked_for_so_that_tasks_share_the_work(broker: LocalBroker, endpoint: str) -> None:
    publish(broker, 100)
    reader: Any = queue(endpoint, minPartitions="4", maxMessagesPerTrigger="100").new_reader()
    start = reader.initialOffset()
    parts = reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))
    assert [part.claim.messages for part in parts] == [25] * 4


def test_a_queue_is_not_read_in_a_batch_query(endpoint: str) -> None:
    from pyspark.sql.datasource import CaseInsensitiveDict
    from pyspark.sql.types import StructType

    from heliograph.spark.source import HeliographDataSource

    source = HeliographDataSource(CaseInsensitiveDict({"endpoint": endpoint, "subscription": SUBSCRIPTION}))
    with pytest.raises(InvalidArgument, match="readStream"):
        source.reader(StructType())


STEPS = ("claimed", "planned", "read", "written", "done")


@pytest.mark.parametrize("mode", ["log", "queue"])
@pytest.mark.parametrize("seed", range(6))
def test_whatever_is_killed_and_whenever_every_message_is_there_once(
    broker: LocalBroker, endpoint: str, mode: str, seed: int
) -> None:
    chance = random.Random(seed)
    limits = {"maxMessagesPerTrigger": str(chance.choice([20, 50, 1_000])), "minPartitions": str(chance.randint(1, 3))}
    if mode == "queue":
        limits["claimSize"] = str(chance.choice([7, 30, 1_000]))
    query = logs(endpoint, **limits) if mode == "log" else queue(endpoint, **limits)
    ids: list[str] = []
    for _ in range(6):
        ids += publish(broker, chance.randint(1, 120))
        ended_before = len(query.offsets) - 1 if query.offsets else 0
        with contextlib.suppress(Killed):
            at_batch = max(ended_before + chance.randint(-1, 2), 0)
            query.run(dies=chance.choice(STEPS), at_batch=at_batch, available_now=chance.random() < 0.7)
    query.run()
    assert (sorted(query.rows), outstanding(broker) if mode == "queue" else (0, 0)) == (sorted(ids), (0, 0))


# ── any server that speaks Pub/Sub ──────────────────────────────────────────────────────────────────────────────────


def test_plain_pull_loses_nothing_and_acknowledges_all(broker: LocalBroker, endpoint: str) -> None:
    query = queue(endpoint, protocol="pubsub", maxMessagesPerTrigger="100")
    ids = publish(broker, 250)
    query.run()
    assert (sorted(query.rows), outstanding(broker)) == (sorted(ids), (0, 0))


def test_plain_pull_delivers_again_what_a_killed_driver_held(
    broker: LocalBroker, endpoint: str, clock: SimulatedClock
) -> None:
    query = queue(endpoint, protocol="pubsub")
    ids = publish(broker, 50)
    with pytest.raises(Killed):
        query.run(dies="planned")
    clock.advance(601)
    query.run()
    assert (sorted(query.rows), outstanding(broker)) == (sorted(ids), (0, 0))


# ── events ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_event_log_is_a_stream_too(broker: LocalBroker, endpoint: str) -> None:
    query = Query("event", endpoint=endpoint, mode="events", maxMessagesPerTrigger="3")
    query.run()
    publish(broker, 3)
    broker.acknowledge(SUBSCRIPTION, [d.ack_id for d in broker.pull(SUBSCRIPTION, 2).result(30)]).result(30)
    with pytest.raises(Killed):
        query.run(dies="read", at_batch=1)
    query.run()
    assert query.rows == ["published"] * 3 + ["delivered"] * 2 + ["acknowledged"] * 2


# ── what the pipeline holds the event log against ───────────────────────────────────────────────────────────────────


def test_the_broker_tells_what_a_subscription_has_not_acknowledged(
    broker: LocalBroker, endpoint: str, clock: SimulatedClock
) -> None:
    publish(broker, 5)
    taken = [each.ack_id for each in broker.pull(SUBSCRIPTION, 3).result(30)]
    broker.acknowledge(SUBSCRIPTION, taken[1:2]).result(30)
    door = Door(Address(endpoint))
    found = door.get("/api/v1/unacknowledged", {"subscription": SUBSCRIPTION})
    info = broker.get_subscription(SUBSCRIPTION)
    assert found == {
        "subscription": SUBSCRIPTION,
        "topic": TOPIC,
        "topic_number": info.topic_number,
        "at_ns": clock.now_ns(),
        "created_ns": info.created_ns,
        "is_filtered": False,
        "is_detached": False,
        "runs": [[1, 2], [3, 6]],
    }
    with pytest.raises(SubscriptionNotFound):
        door.get("/api/v1/unacknowledged", {"subscription": "projects/p/subscriptions/none"})
