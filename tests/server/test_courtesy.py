"""Readers of whole logs step back while others have work for the broker."""

from __future__ import annotations

import pytest

from heliograph.server.courtesy import RESTS_MAX, Courtesy, Demand


class Clock:
    """The time, and how much of it the event loop was busy."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.loop = 0.0
        monkeypatch.setattr("heliograph.server.courtesy.time.monotonic", lambda: self.now)
        monkeypatch.setattr("heliograph.server.courtesy.time.thread_time", lambda: self.loop)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def rests(clock: Clock, *, requests: int = 0, loop_share: float = 0.0, streams: int = 1) -> float:
    """How long a stream rests that worked a tenth of the last second, as a multiple of its work."""
    demand = Demand()
    demand.streams = streams
    courtesy = Courtesy(demand)
    demand.requests += requests
    clock.now += 1.0
    clock.loop += loop_share
    return courtesy.rest_seconds(0.1) / 0.1


def test_a_stream_does_not_rest_while_nobody_else_wants_anything(clock: Clock) -> None:
    assert rests(clock, loop_share=0.1) == 0


def test_a_stream_rests_the_longer_the_more_requests_come(clock: Clock) -> None:
    assert [rests(clock, requests=count) for count in (5, 50, 200)] == pytest.approx([0.1, 1, 4])


def test_a_stream_rests_when_the_event_loop_is_busy_with_streams_of_deliveries(clock: Clock) -> None:
    assert rests(clock, loop_share=0.4) == pytest.approx(5)


def test_a_stream_never_stands_still(clock: Clock) -> None:
    assert rests(clock, requests=10**6, loop_share=1.0) == pytest.approx(RESTS_MAX)


def test_several_streams_rest_longer_so_that_all_together_take_as_little(clock: Clock) -> None:
    assert rests(clock, requests=50, streams=3) == pytest.approx(3)


def test_only_what_came_since_the_last_rest_counts(clock: Clock) -> None:
    demand = Demand()
    demand.requests = 10**6
    courtesy = Courtesy(demand)
    clock.now += 1
    assert courtesy.rest_seconds(0.1) == 0
