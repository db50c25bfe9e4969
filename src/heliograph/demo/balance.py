"""The balance: whatever went in must have come out, airline by airline and flight by flight.

Everything is compared by identity (`Flight.row`), so that a flight that is missing and another that came twice do not
cancel each other out. Only the archive is counted, by Spark, as different flights per airline.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set

import msgspec

from heliograph.demo.flights import Flight


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What each part of the story says it has seen; flights by `Flight.row`, per airline.

    Args:
        flights: what was to be published.
        published: what the broker answered to the publishers.
        archived: how many different flights Spark's archive holds.
        acknowledged: by the ordered subscriber.
        queued: what the queue answered to the forwarder.
        worked: worked off by the workers.
        dead: in the queue's dead letters.
        order_violations: where an aircraft's flights came out of order.
        left_unacknowledged: messages that the subscriptions still delivered at the end.
        left_in_queue: messages that the queue still held at the end.
    """

    flights: Mapping[str, Sequence[Flight]]
    published: Mapping[str, Collection[int]]
    archived: Mapping[str, int]
    acknowledged: Mapping[str, Collection[int]]
    queued: Mapping[str, Collection[int]]
    worked: Mapping[str, Collection[int]]
    dead: Mapping[str, Collection[int]]
    order_violations: Sequence[str] = ()
    left_unacknowledged: int = 0
    left_in_queue: int = 0


class AirlineBalance(msgspec.Struct, frozen=True, kw_only=True):
    """One airline's line of the balance: numbers of different flights."""

    carrier: str
    flights: int
    published: int
    archived: int
    acknowledged: int
    queued: int
    worked: int
    dead: int
    cancelled: int
    adds_up: bool


class Balance(msgspec.Struct, frozen=True):
    """The whole balance.

    Args:
        airlines: one line each.
        differences: what does not add up, one sentence each; empty = everything does.
        order_violations: how many arrivals were out of order.
    """

    airlines: list[AirlineBalance]
    differences: list[str]
    order_violations: int = 0

    @property
    def adds_up(self) -> bool:
        """Nothing differs."""
        return not self.differences


def draw_up(evidence: Evidence) -> Balance:
    """Compare everything with everything that it must equal."""
    differences: list[str] = []
    airlines = []
    carriers = sorted(
        {
            *(evidence.flights.keys() | evidence.published.keys() | evidence.archived.keys()),
            *(evidence.acknowledged.keys() | evidence.queued.keys() | evidence.worked.keys() | evidence.dead.keys()),
        }
    )
    for carrier in carriers:
        found = list(_differences(carrier, evidence))
        airlines.append(_line(carrier, evidence, not found))
        differences += found
    differences += [f"Order: {violation}" for violation in evidence.order_violations]
    if evidence.left_unacknowledged:
        differences.append(f"The subscriptions still delivered {evidence.left_unacknowledged:,} messages at the end")
    if evidence.left_in_queue:
        differences.append(f"The queue still held {evidence.left_in_queue:,} messages at the end")
    return Balance(airlines, differences, len(evidence.order_violations))


def _line(carrier: str, evidence: Evidence, adds_up: bool) -> AirlineBalance:
    flights = evidence.flights.get(carrier, ())
    return AirlineBalance(
        carrier=carrier,
        flights=len(flights),
        published=len(_rows(evidence.published, carrier)),
        archived=evidence.archived.get(carrier, 0),
        acknowledged=len(_rows(evidence.acknowledged, carrier)),
        queued=len(_rows(evidence.queued, carrier)),
        worked=len(_rows(evidence.worked, carrier)),
        dead=len(_rows(evidence.dead, carrier)),
        cancelled=sum(flight.cancelled for flight in flights),
        adds_up=adds_up,
    )


def _differences(carrier: str, evidence: Evidence) -> list[str]:
    flights = evidence.flights.get(carrier, ())
    published, acknowledged = _rows(evidence.published, carrier), _rows(evidence.acknowledged, carrier)
    queued, worked = _rows(evidence.queued, carrier), _rows(evidence.worked, carrier)
    dead = _rows(evidence.dead, carrier)
    cancelled = {flight.row for flight in flights if flight.cancelled}
    late_or_cancelled = cancelled | {flight.row for flight in flights if flight.late}
    found = [
        *_compare(published, "published", {flight.row for flight in flights}, "in the input"),
        *_compare(acknowledged, "acknowledged by the ordered subscriber", published, "published"),
        *_compare(queued, "queued", late_or_cancelled, "late or cancelled"),
        *_compare(worked | dead, "worked off or dead-lettered", queued, "queued"),
        *_compare(dead, "dead-lettered", cancelled, "cancelled"),
    ]
    if both := worked & dead:
        found.append(f"{len(both):,} flights are both worked off and dead-lettered ({_some(both)})")
    if evidence.archived.get(carrier, 0) != len(published):
        found.append(f"{len(published):,} flights were published, {evidence.archived.get(carrier, 0):,} are archived")
    return [f"{carrier}: {each}" for each in found]


def _compare(got: Set[int], what: str, wanted: Set[int], of_what: str) -> list[str]:
    found = []
    if missing := wanted - got:
        found.append(f"{len(missing):,} of {len(wanted):,} flights {of_what} are not {what} ({_some(missing)})")
    if surplus := got - wanted:
        found.append(f"{len(surplus):,} flights are {what} that are not {of_what} ({_some(surplus)})")
    return found


def _some(rows: Set[int]) -> str:
    first = ", ".join(map(str, sorted(rows)[:3]))
    return f"row{'s' if len(rows) > 1 else ''} {first}{', …' if len(rows) > 3 else ''} of the file"


def _rows(rows_by_airline: Mapping[str, Collection[int]], carrier: str) -> set[int]:
    return set(rows_by_airline.get(carrier, ()))
