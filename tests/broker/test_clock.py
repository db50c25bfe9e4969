"""The machine's clock as the broker sees it, where the machine sleeps or its clock is set."""

from __future__ import annotations

import pytest

from heliograph.broker import clock
from heliograph.broker.clock import SystemClock

SECOND_NS = 1_000_000_000


class Machine:
    """What the module `time` tells."""

    def __init__(self) -> None:
        self.wall_ns = 1_700_000_000 * SECOND_NS
        self.awake_ns = 5 * SECOND_NS

    def time_ns(self) -> int:
        return self.wall_ns

    def monotonic_ns(self) -> int:
        return self.awake_ns

    def works(self, seconds: int) -> None:
        self.wall_ns += seconds * SECOND_NS
        self.awake_ns += seconds * SECOND_NS


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(clock, "time", made)
    return made


def test_after_the_machine_slept_it_is_as_late_as_everywhere_else(machine: Machine) -> None:
    system = SystemClock()
    machine.wall_ns += 3600 * SECOND_NS  # asleep: the monotonic clock stands still
    assert system.now_ns() == machine.wall_ns
    machine.works(10)
    assert system.now_ns() == machine.wall_ns


def test_a_clock_that_is_set_back_does_not_move_time_back(machine: Machine) -> None:
    system = SystemClock()
    before_ns = system.now_ns()
    machine.wall_ns -= 3600 * SECOND_NS
    assert system.now_ns() == before_ns
    machine.works(10)
    assert system.now_ns() == before_ns + 10 * SECOND_NS
    machine.wall_ns += 3600 * SECOND_NS  # and set right again
    assert system.now_ns() == before_ns + 10 * SECOND_NS
