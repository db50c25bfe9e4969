from __future__ import annotations

import datetime
from collections.abc import Mapping
from typing import Any, cast

import pytest

from heliograph.demo.commands import Commands
from heliograph.demo.delays import left_in_queue, priority, work_off
from tests.demo.samples import CANCELLED, LATE, flight


@pytest.mark.parametrize(
    ("minutes", "expected"),
    [(61, 0), (90, 0), (91, 1), (120, 1), (121, 2), (299, 7), (300, 7), (301, 8), (330, 8), (331, 8), (1301, 8)],
)
def test_each_half_hour_beyond_the_first_hour_is_one_priority_up(minutes: int, expected: int) -> None:
    assert expected == priority(flight(1, dep_delay=minutes))


def test_a_cancelled_flight_has_the_highest_priority_for_itself() -> None:
    assert priority(CANCELLED) == 9


def test_the_work_finds_departure_and_delay_past_midnight() -> None:
    found = work_off(LATE)
    assert (datetime.datetime(2013, 1, 2, 0, 30), 75) == (found.departure, found.minutes)


def test_the_work_finds_an_early_departure() -> None:
    found = work_off(flight(1, dep_time=2355, sched_dep_time=5, dep_delay=-10))
    assert (datetime.datetime(2012, 12, 31, 23, 55), -10) == (found.departure, found.minutes)


def test_the_work_finds_a_delay_of_more_than_a_day() -> None:
    found = work_off(flight(1, dep_time=1000, sched_dep_time=900, dep_delay=1500))
    assert (datetime.datetime(2013, 1, 2, 10, 0), 1500) == (found.departure, found.minutes)


def test_the_work_fails_on_a_cancelled_flight() -> None:
    with pytest.raises(TypeError):
        work_off(CANCELLED)


def test_what_is_left_in_the_queue_counts_each_message_once() -> None:
    class Broker:
        def call(self, command: str, payload: Mapping[str, object]) -> dict[str, Any]:
            assert command == "queue.stats"
            return {"depth": 7, "delayed": 2, "outstanding": 3}  # the delayed are part of the depth

    assert left_in_queue(cast(Commands, Broker())) == 10
