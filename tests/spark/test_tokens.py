"""A broker behind a gateway that asks for a bearer token: whoever has the right works as without it, whoever has not is
told so in one line, at once, and nothing is changed or lost."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StringType, StructField, StructType

from heliograph.broker.broker import LocalBroker
from heliograph.engine.message import Draft
from heliograph.engine.settings import DAY_NS, TopicSettings
from heliograph.errors import FailedPrecondition, InvalidArgument, Unavailable
from heliograph.spark.door import ATTEMPTS_MAX, Address, Door
from heliograph.spark.log_client import LogClient
from heliograph.spark.options import ReadOptions
from heliograph.spark.pipeline.job import Place
from heliograph.spark.sink import WriteOptions
from heliograph.spark.source import HeliographDataSource
from tests.spark.fakes import ServerThread
from tests.spark.gateway import GOOD, READER, RIGHTS, Gateway
from tests.spark.micro_batches import Query
from tests.spark.test_sink import Job, data

TOPIC, SUBSCRIPTION = "projects/p/topics/t", "projects/p/subscriptions/flights"
DATA = StructType([StructField("data", StringType())])
WRONG = "secret-that-nobody-knows"

SOURCES = {
    "log": {"topic": TOPIC, "startingOffsets": "earliest"},
    "queue": {"subscription": SUBSCRIPTION},
    "pubsub": {"subscription": SUBSCRIPTION, "protocol": "pubsub"},
    "events": {"mode": "events"},
}


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    broker = LocalBroker(event_retention_ns=DAY_NS)
    yield broker
    broker.close()


@pytest.fixture(scope="module")
def gateway(broker: LocalBroker) -> Iterator[Gateway]:
    with ServerThread(broker) as server, Gateway(server.endpoint, rights=RIGHTS) as gateway:
        yield gateway


@pytest.fixture
def ids(broker: LocalBroker, gateway: Gateway) -> Iterator[list[str]]:
    """Of ten messages that are there."""
    broker.create_topic(TOPIC, TopicSettings(message_retention_ns=DAY_NS)).result(30)
    broker.create_subscription(SUBSCRIPTION, TOPIC).result(30)
    gateway.passed.clear()
    yield broker.publish(TOPIC, [Draft(b"x")] * 10).result(30)
    broker.delete_subscription(SUBSCRIPTION).result(30)
    broker.delete_topic(TOPIC).result(30)


def query(gateway: Gateway, source: str, token: str) -> Query:
    return Query(endpoint=gateway.endpoint, token=token, **SOURCES[source])


def untouched(broker: LocalBroker) -> bool:
    found = broker.statistics(SUBSCRIPTION)
    return (broker.log_bounds(TOPIC), found.ready, found.outstanding) == ((1, 10), 10, 0)


def refused_with(status: int) -> Any:
    return pytest.raises(FailedPrecondition, match=rf"answered {status} .*option token.*--token, or HELIOGRAPH_TOKEN")


@pytest.mark.parametrize("source", ["log", "queue", "pubsub"])
def test_a_stream_with_the_right_token_is_as_without_a_gateway(
    broker: LocalBroker, gateway: Gateway, ids: list[str], source: str
) -> None:
    asked = query(gateway, source, GOOD)
    asked.run()
    assert sorted(asked.rows) == sorted(ids)
    assert source == "log" or broker.statistics(SUBSCRIPTION).outstanding == 0
    assert {passed.status for passed in gateway.passed} == {200}


def read(gateway: Gateway, **options: str) -> list[str]:
    """Message ids, as a batch query has them."""
    given = CaseInsensitiveDict({"endpoint": gateway.endpoint, **SOURCES["log"], **options})
    reader: Any = HeliographDataSource(given).reader(StructType())
    parts = reader.partitions()
    task = pickle.loads(pickle.dumps(reader))
    return [each for part in parts for batch in task.read(part) for each in batch.column("message_id").to_pylist()]


def test_a_token_that_may_only_read_reads_in_batches_and_in_streams(gateway: Gateway, ids: list[str]) -> None:
    assert read(gateway, token=READER) == ids
    asked = query(gateway, "log", READER)
    asked.run()
    asked.run()
    assert asked.rows == ids


def test_a_broker_that_may_not_be_told_how_far_a_query_has_come_is_asked_once(gateway: Gateway, ids: list[str]) -> None:
    reader: Any = query(gateway, "log", READER).new_reader()
    start = reader.initialOffset()
    for _ in range(3):
        reader.latestOffset(start, reader.getDefaultReadLimit())
    assert [passed.status for passed in gateway.passed if passed.method == "POST"] == [403]


@pytest.mark.parametrize(("token", "says"), [("", "is missing"), (WRONG, "is not valid there")])
@pytest.mark.parametrize("source", list(SOURCES))
def test_without_a_valid_token_a_query_ends_at_once_and_says_so(
    broker: LocalBroker, gateway: Gateway, ids: list[str], source: str, token: str, says: str
) -> None:
    with refused_with(401) as caught:
        query(gateway, source, token).run()
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not token or token not in str(caught.value)
    assert [passed.status for passed in gateway.passed] == [401]
    assert untouched(broker)


def test_without_a_valid_token_no_batch_query_is_planned(gateway: Gateway, ids: list[str]) -> None:
    for token in ("", WRONG):
        with refused_with(401):
            read(gateway, token=token)


@pytest.mark.parametrize("source", ["queue", "pubsub"])
def test_a_token_that_may_only_read_takes_nothing_of_a_queue(
    broker: LocalBroker, gateway: Gateway, ids: list[str], source: str
) -> None:
    with refused_with(403) as caught:
        query(gateway, source, READER).run()
    assert READER not in str(caught.value)
    assert f"to POST {gateway.passed[-1].path}: " in str(caught.value)
    assert [passed.status for passed in gateway.passed if passed.method == "POST"] == [403]
    assert untouched(broker)


def test_a_token_that_may_only_read_publishes_nothing(
    broker: LocalBroker, gateway: Gateway, ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reads_only = Job(monkeypatch, gateway.endpoint, token=READER)
    with refused_with(403):
        reads_only.run_batch(data("a"))
    with refused_with(403):
        reads_only.run_micro_batch(0, data("a"))
    assert [passed.status for passed in gateway.passed if passed.method == "POST"] == [403, 403]
    assert untouched(broker)
    may_write = Job(monkeypatch, gateway.endpoint, token=GOOD)
    may_write.run_batch(data("a"))
    assert broker.log_bounds(TOPIC) == (1, 11)


@pytest.mark.parametrize("source", ["log", "queue"])
def test_a_query_goes_on_with_a_new_token_where_the_old_one_was_withdrawn(
    broker: LocalBroker, gateway: Gateway, ids: list[str], source: str
) -> None:
    asked = query(gateway, source, GOOD)
    asked.options["maxMessagesPerTrigger"] = "10"
    asked.run()
    ids += broker.publish(TOPIC, [Draft(b"y")] * 10).result(30)
    gateway.rights = {"new": RIGHTS[GOOD]}
    try:
        with refused_with(401):
            asked.run()
        asked.options["token"] = "new"
        asked.run()
    finally:
        gateway.rights = RIGHTS
    assert sorted(asked.rows) == sorted(ids)
    assert not any(GOOD in offset for offset in asked.offsets)


def test_every_door_of_the_pipeline_brings_the_token(gateway: Gateway, ids: list[str], tmp_path: Path) -> None:
    place = Place(Address(gateway.endpoint, token=GOOD), tmp_path)
    assert place.logs.bounds(TOPIC).last == 10
    assert place.events.bounds()[1] >= 1
    assert place.door.get("/api/v1/statistics", {})["subscriptions"]
    assert place.options(topic=TOPIC)["token"] == GOOD
    assert {passed.status for passed in gateway.passed} == {200}


def test_no_text_that_is_made_of_options_shows_the_token() -> None:
    options = {"token": GOOD, "topic": TOPIC}
    made = (
        Address("localhost:1", token=GOOD),
        ReadOptions.parse(options),
        WriteOptions.parse(options, DATA),
        Place(Address("localhost:1", token=GOOD), Path()),
    )
    assert not any(GOOD in f"{each} {each!r}" for each in made)


def test_a_token_of_a_file_may_end_with_a_line_and_one_that_is_none_is_not_shown(
    gateway: Gateway, ids: list[str]
) -> None:
    assert read(gateway, token=f"{READER}\n") == ids
    for token in ("secret\r\nX-Other: 1", "sécret", "secret\u2028"):
        with pytest.raises(InvalidArgument, match="The option token has a character") as caught:
            Door(Address("localhost:1", token=token))
        assert "cret" not in str(caught.value)


def test_a_proxy_whose_broker_is_away_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heliograph.spark.door.FIRST_PAUSE_SECONDS", 0.0)
    with Gateway("http://127.0.0.1:1") as gateway:
        with pytest.raises(Unavailable, match="502"):
            LogClient(gateway.endpoint).bounds(TOPIC)
        assert len(gateway.passed) == ATTEMPTS_MAX
