"""What filters leave to be read is never too little: the same rows as Spark would find without them."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    CaseInsensitiveDict,
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)
from pyspark.sql.types import StructType

from heliograph.broker.protocol import TopicInfo
from heliograph.engine.message import Message
from heliograph.spark.log_reader import LogRange, LogReader
from heliograph.spark.pushdown import RUNS_MAX, Narrowed
from heliograph.spark.source import HeliographDataSource
from tests.spark.fakes import NOON_NS, SECOND_NS, LogBroker, ServerThread

TOPICS = ("projects/p/topics/a", "projects/p/topics/ab", "projects/p/topics/b")
NOON = datetime(2013, 7, 1, 12, tzinfo=UTC)
MESSAGES = 60


def log(seed: int, *, ordered: bool) -> list[Message]:
    chance = random.Random(seed)
    instants = [NOON_NS + chance.randrange(40) * SECOND_NS + chance.choice([0, 1, 999, 1000]) for _ in range(MESSAGES)]
    instants = sorted(instants) if ordered else instants
    return [Message(sequence, instant, b"x", {}, "") for sequence, instant in enumerate(instants, 1)]


class Broker(LogBroker):
    """It knows whether its logs are in order."""

    def get_topic(self, name: str) -> TopicInfo:
        instants = [message.publish_time_ns for message in self.logs[name]]
        return msgspec.structs.replace(super().get_topic(name), in_time_order=instants == sorted(instants))


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    logs = {topic: log(number, ordered=number != 1) for number, topic in enumerate(TOPICS)}
    with ServerThread(Broker(logs)) as server:
        yield server.endpoint


def reader(endpoint: str) -> LogReader:
    options = CaseInsensitiveDict({"endpoint": endpoint, "topicPattern": ".*", "minPartitions": "1"})
    made = HeliographDataSource(options).reader(StructType())
    assert isinstance(made, LogReader)
    return made


# ── how Spark applies a filter ──────────────────────────────────────────────────────────────────────────────────────

Row = dict[str, Any]

_OPERATORS: dict[type, Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    StringStartsWith: str.startswith,
    StringEndsWith: str.endswith,
    StringContains: operator.contains,
}


def truth(each: Any, row: Row) -> bool | None:
    """None = not known, as in SQL."""
    if isinstance(each, Not):
        inner = truth(each.child, row)
        return None if inner is None else not inner
    value = row[each.attribute[0]]
    match each:
        case IsNull():
            return value is None
        case IsNotNull():
            return value is not None
        case EqualNullSafe():
            return bool(value == each.value)
        case In():
            return True if value in each.value else None if None in each.value else False
    return None if each.value is None else _OPERATORS[type(each)](value, each.value)


def spark_keeps(filters: list[Any], row: Row) -> bool:
    return all(truth(each, row) is True for each in filters)


# ── any filters ─────────────────────────────────────────────────────────────────────────────────────────────────────

instants = st.builds(
    lambda seconds, us, hours: (NOON + timedelta(seconds=seconds, microseconds=us)).astimezone(
        timezone(timedelta(hours=hours))
    ),
    st.integers(-2, 42),
    st.sampled_from([0, 1, 2]),
    st.integers(-3, 3),
)
values: dict[str, st.SearchStrategy[Any]] = {
    "sequence": st.integers(-3, MESSAGES + 3),
    "publish_time_ns": st.integers(-1, 42).map(lambda n: NOON_NS + n * SECOND_NS + n % 3),
    "publish_time": instants,
    "topic": st.sampled_from([*TOPICS, "projects/p/topics/none", "projects/p", "/a", ""]),
}
COMPARED = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)


@st.composite
def any_filter(draw: st.DrawFn) -> Any:
    column = draw(st.sampled_from(sorted(values)))
    attribute = (column,)
    value = values[column]
    kind = draw(st.integers(0, 9))
    made: Any
    if kind == 0:
        made = draw(st.sampled_from([IsNull, IsNotNull]))(attribute)
    elif kind <= 3:
        wide = st.lists(value | st.none() if draw(st.booleans()) else value, min_size=1, max_size=30)
        made = In(attribute, tuple(draw(wide)))
    elif column == "topic" and kind <= 6:
        made = draw(st.sampled_from([StringStartsWith, StringEndsWith, StringContains]))(attribute, draw(value))
    else:
        made = draw(st.sampled_from(COMPARED))(attribute, draw(value))
    return Not(made) if draw(st.integers(0, 5)) == 0 else made


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(filters=st.lists(any_filter(), min_size=1, max_size=3))
def test_whatever_is_filtered_the_rows_are_those_of_spark(endpoint: str, filters: list[Any]) -> None:
    every = [
        {
            "topic": topic,
            "sequence": message.sequence,
            "publish_time_ns": message.publish_time_ns,
            "publish_time": NOON + timedelta(microseconds=(message.publish_time_ns - NOON_NS) // 1000),
        }
        for number, topic in enumerate(TOPICS)
        for message in log(number, ordered=number != 1)
    ]
    planned = reader(endpoint)
    left = list(planned.pushFilters(filters))
    assert all(any(each is known for known in filters) for each in left)
    read = [row for part in planned.partitions() for row in every if is_in(part, row)]
    assert [row for row in read if spark_keeps(left, row)] == [row for row in every if spark_keeps(filters, row)]


def is_in(part: LogRange, row: Row) -> bool:
    return part.topic == row["topic"] and part.first <= row["sequence"] <= part.last


# ── what is read, and what is left to Spark ─────────────────────────────────────────────────────────────────────────


def read_and_left(endpoint: str, *filters: Filter) -> tuple[list[tuple[str, int, int]], list[Filter]]:
    planned = reader(endpoint)
    left = list(planned.pushFilters(list(filters)))
    parts = [(part.topic[-2:], part.first, part.last) for part in planned.partitions()]
    return [part for part in parts if part[2] >= part[1]], left


def test_ranges_of_sequences_and_topics_are_dealt_with_wholly(endpoint: str) -> None:
    filters: list[Any] = [
        IsNotNull(("sequence",)),
        GreaterThan(("sequence",), 10),
        LessThanOrEqual(("sequence",), 20),
        In(("topic",), ("projects/p/topics/b", "projects/p/topics/none")),
    ]
    assert read_and_left(endpoint, *filters) == ([("/b", 11, 20)], [])


def test_single_sequences_are_read_apart(endpoint: str) -> None:
    topic, some = EqualTo(("topic",), TOPICS[0]), In(("sequence",), (3, 50, 4, 999, None))
    assert read_and_left(endpoint, topic, some) == ([("/a", 3, 4), ("/a", 50, 50)], [])


def test_many_single_sequences_are_read_with_what_is_between_the_nearest(endpoint: str) -> None:
    topic, some = EqualTo(("topic",), TOPICS[0]), In(("sequence",), tuple(range(1, 60, 2)))
    parts, left = read_and_left(endpoint, topic, some)
    assert (len(parts), left) == (RUNS_MAX, [some])


def test_publish_times_narrow_what_is_read_and_are_looked_at_by_spark_as_well(endpoint: str) -> None:
    since, until = GreaterThanOrEqual(("publish_time",), NOON), LessThan(("publish_time",), NOON)
    assert read_and_left(endpoint, since, until) == ([("ab", 1, 60)], [since, until])


def test_what_is_no_filter_of_a_position_is_left_to_spark() -> None:
    naive = GreaterThan(("publish_time",), NOON.replace(tzinfo=None))
    others: list[Any] = [
        naive,
        EqualTo(("ordering_key",), "a"),
        EqualTo(("attributes", "a"), "b"),
        Not(EqualTo(("sequence",), 1)),
        EqualTo(("sequence",), None),
        EqualTo(("sequence",), True),
        GreaterThan(("topic",), "a"),
        IsNull(("sequence",)),
    ]
    narrowed = Narrowed("sequence")
    assert [narrowed.take(each) for each in others] == [False] * len(others)
    assert (list(narrowed.within(1, 100)), narrowed.since_ns, narrowed.wants_topic("t")) == ([(1, 100)], 0, True)


def test_events_are_found_by_position() -> None:
    narrowed = Narrowed("position")
    assert narrowed.take(GreaterThanOrEqual(("position",), 5))
    assert not narrowed.take(EqualTo(("topic",), "t"))
    assert list(narrowed.within(1, 8)) == [(5, 8)]


def test_a_spark_that_does_not_push_filters_does_not_notice(endpoint: str) -> None:
    """As `plan_data_source_read.py` asks."""
    assert getattr(reader(endpoint).pushFilters, "__func__", None) is DataSourceReader.pushFilters


def test_no_filter_is_taken_where_that_is_turned_off(endpoint: str) -> None:
    options = CaseInsensitiveDict({"endpoint": endpoint, "topicPattern": ".*", "pushdown": "false"})
    wanted = [EqualTo(("sequence",), 5)]
    assert list(HeliographDataSource(options).reader(StructType()).pushFilters(wanted)) == wanted
