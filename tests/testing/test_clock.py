"""The clock that goes by itself and can be moved on."""

from __future__ import annotations

import threading

import pytest

from heliograph.testing import SteppingClock

HOUR_NS = 3600 * 10**9


def test_it_stops_at_every_instant_that_a_timer_is_set_to() -> None:
    clock = SteppingClock()
    began_ns = clock.now_ns()
    fired: list[int] = []

    def fire() -> None:
        fired.append((clock.now_ns() - began_ns) // HOUR_NS)
        if len(fired) < 3:
            timer.set(clock.now_ns() + HOUR_NS)

    timer = clock.timer(fire)
    timer.set(began_ns + HOUR_NS)
    clock.advance(1800)
    assert fired == []
    clock.advance(10 * 3600)
    timer.close()
    assert fired == [1, 2, 3]
    assert clock.now_ns() - began_ns >= 10 * HOUR_NS


def test_several_timers_fire_in_the_order_of_their_instants() -> None:
    clock = SteppingClock()
    fired: list[str] = []
    timers = {name: clock.timer(lambda name=name: fired.append(name)) for name in ("late", "early", "closed", "never")}  # type: ignore[misc]
    now_ns = clock.now_ns()
    timers["late"].set(now_ns + 2 * HOUR_NS)
    timers["early"].set(now_ns + 3 * HOUR_NS)
    timers["early"].set(now_ns + HOUR_NS)
    timers["early"].set(now_ns + 5 * HOUR_NS)  # the earlier one stands
    timers["closed"].set(now_ns + HOUR_NS)
    timers["closed"].close()
    clock.advance(4 * 3600)
    for timer in timers.values():
        timer.close()
    assert fired == ["early", "late"]


def test_a_timer_fires_by_itself_also_after_the_clock_was_moved_on() -> None:
    clock = SteppingClock()
    fired = threading.Event()
    timer = clock.timer(fired.set)
    timer.set(clock.now_ns() + HOUR_NS + 20_000_000)
    clock.advance(3600)
    assert fired.wait(30)
    timer.close()


def test_it_does_not_go_back() -> None:
    clock = SteppingClock()
    with pytest.raises(ValueError, match="back"):
        clock.advance(-0.1)
