"""What a run of the demonstration brought to light; the report is made from this and nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from heliograph.demo.balance import Balance
from heliograph.demo.figures import HourOfDay
from heliograph.demo.latency import Percentiles


class Throughput(msgspec.Struct, frozen=True):
    """How quickly one part of the story went.

    Args:
        what: the part.
        count: how many messages.
        seconds: how long it took, from the start of the publishers unless the part says otherwise.
    """

    what: str
    count: int
    seconds: float

    @property
    def per_second(self) -> float:
        """Messages a second."""
        return self.count / self.seconds if self.seconds else 0.0


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """Everything.

    Args:
        balance: see `Balance`.
        throughput: part by part.
        latency: by what was measured.
        hours: the hours of the day that have flights, in order, all airlines together.
        waits: queue wait by priority, until a worker first took the flight.
        handling_seconds: how long a worker was busy with one late flight.
        aircraft: how many ordering keys were checked, per airline.
        legs_checked: how many arrivals were checked for their order.
        repeated: at-least-once at work: how often something came more than once, by what.
        failures_by_error: what the workers failed with, and how often.
        broker_killed: the broker was killed midway and started again.
        seconds: the whole run.
        machine: where it ran.
    """

    balance: Balance
    throughput: Sequence[Throughput]
    latency: Mapping[str, Percentiles]
    hours: Sequence[HourOfDay]
    waits: Mapping[int, Percentiles]
    handling_seconds: float
    aircraft: int
    legs_checked: int
    repeated: Mapping[str, int]
    failures_by_error: Mapping[str, int]
    broker_killed: bool
    seconds: float
    machine: str
