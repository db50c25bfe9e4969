"""The work queue `delays`: its settings, what it carries, which flight is how urgent, and what a worker finds out.

Nothing here talks to a broker by itself; the forwarder and the workers do.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator

import msgspec

from heliograph.demo.commands import Commands
from heliograph.demo.flights import LATE_MINUTES, Flight

QUEUE = "delays"
PRIORITY_CANCELLED = 9
PRIORITY_LATE_MAX = 8
MINUTES_PER_PRIORITY = 30
SETTINGS = {
    "name": QUEUE,
    "ack_deadline_secs": 10,
    "default_max_retries": 3,
    # short, so that a flight that fails four times is a dead letter within two seconds
    "retry_policy": {"minimum_backoff": 0.2, "maximum_backoff": 1.0},
}
DAY_MINUTES = 24 * 60


class Job(msgspec.Struct, frozen=True):
    """What the queue carries: the flight, and when the forwarder handed it in."""

    flight: Flight
    queued_ns: int


# Job and Flight are met here, while there is one thread: msgspec may crash where two meet a type first at once.
msgspec.json.Decoder(Job)


class Delay(msgspec.Struct, frozen=True):
    """What a worker finds out about a flight that left late.

    Args:
        departure: when it really left, local time.
        minutes: how late that was.
    """

    departure: datetime.datetime
    minutes: int


def priority(flight: Flight) -> int:
    """0-9: a cancelled flight is the worst (9), of the others each half hour beyond the first counts one, up to 8."""
    if flight.dep_delay is None:
        return PRIORITY_CANCELLED
    return min((flight.dep_delay - LATE_MINUTES - 1) // MINUTES_PER_PRIORITY, PRIORITY_LATE_MAX)


def work_off(flight: Flight) -> Delay:
    """The worker's work: when the flight left, from the clock times.

    Nothing is wrong with it, and it fails on a cancelled flight: there is no time to take apart.

    Raises:
        TypeError: the flight has no departure time.
    """
    left = _minutes(flight.dep_time)  # type: ignore[arg-type]  # the defect that this demonstration needs
    due = _minutes(flight.sched_dep_time)
    minutes = (left - due) % DAY_MINUTES
    if flight.dep_delay is not None:
        minutes += (flight.dep_delay - minutes) // DAY_MINUTES * DAY_MINUTES  # more than a day late, or early
    midnight = datetime.datetime(flight.year, flight.month, flight.day)
    return Delay(midnight + datetime.timedelta(minutes=due + minutes), minutes)


def _minutes(clock_time: int) -> int:
    """Minutes since midnight of a clock time like 517 or 2359."""
    hours, minutes = divmod(clock_time, 100)
    return hours * 60 + minutes


def dead_letters(commands: Commands, page: int = 1_000) -> Iterator[Flight]:
    """The flights in the queue's dead letters, as the broker lists them."""
    offset = 0
    while True:
        answer = commands.call("dlq.list", {"queue": QUEUE, "limit": page, "offset": offset})
        for entry in answer["messages"]:
            yield msgspec.convert(entry["message"], Job).flight
        offset += len(answer["messages"])
        if not answer["messages"] or offset >= answer["total"]:
            return


def left_in_queue(commands: Commands) -> int:
    """How many messages the queue still holds, waiting, delayed (they are part of its depth) or leased."""
    statistics = commands.call("queue.stats", {"queue": QUEUE})
    return int(statistics["depth"]) + int(statistics["outstanding"])
