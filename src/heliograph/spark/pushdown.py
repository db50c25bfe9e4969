"""What a query's filters leave to be read: of logs by sequence, topic and publish time, of the event log by position.

A filter is either dealt with here wholly, or Spark applies it again to what is read; in both cases only what it rules
out for certain is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

NUMBER_END = 2**62
"""Beyond every sequence and position."""

TIME_END_NS = 2**63 - 1

RUNS_MAX = 16
"""Runs of numbers that are read apart; where a filter leaves more, what is between the nearest is read too."""

Run = tuple[int, int]
"""Numbers from the first up to but not including the second."""

_EPOCH = datetime.fromtimestamp(0, UTC)
_MICROSECOND = timedelta(microseconds=1)
_MICROSECOND_NS = 1_000


class Narrowed:
    """What the filters leave.

    Args:
        number: the column that rows are found by, `sequence` or `position`.

    Attributes:
        runs: of numbers, in order, apart from each other.
        since_ns, until_ns: only what was published from the first instant on and before the second is wanted.
    """

    def __init__(self, number: str) -> None:
        self._number = number
        self._of_log = number == "sequence"
        self._topic_is: list[Callable[[str], bool]] = []
        self.runs: list[Run] = [(0, NUMBER_END)]
        self.since_ns, self.until_ns = 0, TIME_END_NS

    def wants_topic(self, topic: str) -> bool:
        """Whether messages of this topic may be left."""
        return all(wanted(topic) for wanted in self._topic_is)

    def within(self, first: int, end: int) -> Iterator[Run]:
        """The runs, cut to the numbers from `first` up to but not including `end`."""
        for low, high in self.runs:
            if max(low, first) < min(high, end):
                yield max(low, first), min(high, end)

    def take(self, each: Filter) -> bool:
        """Take a filter into account. Returns whether it is dealt with, so that Spark need not apply it again."""
        attribute: Any = getattr(each, "attribute", None)
        if not isinstance(attribute, tuple) or len(attribute) != 1:
            return False
        (column,) = attribute
        if column == self._number:
            return self._take_number(each)
        if not self._of_log:
            return False
        match column:
            case "topic":
                return self._take_topic(each)
            case "publish_time":
                self._take_time(each, _instant_us, _MICROSECOND_NS)
            case "publish_time_ns":
                self._take_time(each, _whole_number, 1)
        return False  # times grow with the sequences mostly, not always

    def _take_number(self, each: Filter) -> bool:
        if isinstance(each, IsNotNull):
            return True
        if isinstance(each, In):
            values = [value for value in each.value if value is not None]  # equal to nothing
            if not all(_whole_number(value) is not None for value in values):
                return False
            wanted = _runs(values)
            self.runs = _intersection(self.runs, _joined(wanted))
            return len(wanted) <= RUNS_MAX
        span = _span(each, _whole_number)
        if span is None:
            return False
        self.runs = _intersection(self.runs, [span])
        return True

    def _take_topic(self, each: Filter) -> bool:
        if isinstance(each, IsNotNull):
            return True
        if isinstance(each, In):
            names = frozenset(each.value)
            self._topic_is.append(lambda topic: topic in names)
            return True
        value: Any = getattr(each, "value", None)
        if not isinstance(value, str):
            return False
        match each:
            case EqualTo() | EqualNullSafe():
                self._topic_is.append(lambda topic: topic == value)
            case StringStartsWith():
                self._topic_is.append(lambda topic: topic.startswith(value))
            case StringEndsWith():
                self._topic_is.append(lambda topic: topic.endswith(value))
            case StringContains():
                self._topic_is.append(lambda topic: value in topic)
            case _:
                return False
        return True

    def _take_time(self, each: Filter, read: Callable[[Any], int | None], unit_ns: int) -> None:
        if isinstance(each, In):
            values = [read(value) for value in each.value if value is not None]
            if not values or None in values:
                return
            known = [value for value in values if value is not None]
            span: Run | None = (min(known), max(known) + 1)
        else:
            span = _span(each, read)
        if span is not None:
            self.since_ns = min(max(self.since_ns, span[0] * unit_ns), TIME_END_NS)
            self.until_ns = min(self.until_ns, span[1] * unit_ns)


class PushFilters:
    """`pushFilters` of a reader that is happy without it.

    Spark refuses every reader whose `pushFilters` is not that of its base class, unless
    `spark.sql.python.filterPushdown.enabled` is true; and a reader is not told whether it is. This one passes for the
    base class's where nobody calls it.

    Args:
        narrowed: learns the filters.
    """

    __func__ = staticmethod(DataSourceReader.pushFilters)

    def __init__(self, narrowed: Narrowed) -> None:
        self._narrowed = narrowed

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what can be taken; what is returned is left to Spark."""
        return [each for each in filters if not self._narrowed.take(each)]


def _span(each: Filter, read: Callable[[Any], int | None]) -> Run | None:
    """The values that a comparison leaves; None where it is none, or with what is no such value."""
    value = read(getattr(each, "value", None))
    if value is None:
        return None
    match each:
        case EqualTo() | EqualNullSafe():
            return value, value + 1
        case GreaterThan():
            return value + 1, TIME_END_NS
        case GreaterThanOrEqual():
            return value, TIME_END_NS
        case LessThan():
            return 0, value
        case LessThanOrEqual():
            return 0, value + 1
    return None


def _whole_number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _instant_us(value: Any) -> int | None:
    """Microseconds since the epoch of an instant; of a time without a zone None, since Spark's session has it."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return (value - _EPOCH) // _MICROSECOND


def _runs(values: Iterable[int]) -> list[Run]:
    found: list[Run] = []
    for value in sorted(set(values)):
        if found and found[-1][1] == value:
            found[-1] = (found[-1][0], value + 1)
        else:
            found.append((value, value + 1))
    return found


def _joined(runs: list[Run]) -> list[Run]:
    """At most `RUNS_MAX` runs with all that these have: those that are nearest to each other become one."""
    if len(runs) <= RUNS_MAX:
        return runs
    gaps = sorted(range(1, len(runs)), key=lambda place: runs[place][0] - runs[place - 1][1], reverse=True)
    edges = [0, *sorted(gaps[: RUNS_MAX - 1]), len(runs)]
    return [(runs[low][0], runs[high - 1][1]) for low, high in pairwise(edges)]


def _intersection(some: Sequence[Run], others: Sequence[Run]) -> list[Run]:
    found = [(max(a, c), min(b, d)) for a, b in some for c, d in others]
    return sorted((low, high) for low, high in found if low < high)
