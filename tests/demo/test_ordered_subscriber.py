from __future__ import annotations

from heliograph.demo.ordered_subscriber import LegOrder
from tests.demo.samples import flight


def order_of(*legs: int, tailnum: str | None = "N1") -> LegOrder:
    order = LegOrder()
    for row, leg in enumerate(legs, 1):
        order.arrived(flight(row, leg=leg, tailnum=tailnum))
    return order


def test_legs_one_after_the_other_are_in_order() -> None:
    order = order_of(1, 2, 3)
    assert (order.violations, order.checked, order.aircraft) == ([], 3, 1)


def test_a_redelivery_is_no_violation() -> None:
    order = order_of(1, 2, 3, 2, 3, 4)
    assert (order.violations, order.checked) == ([], 4)


def test_a_leg_left_out_is_a_violation() -> None:
    assert order_of(1, 3).violations == ["UA N1: leg 3 arrived when leg 2 was due"]


def test_legs_that_swap_are_one_violation() -> None:
    assert order_of(2, 1, 3).violations_count == 1


def test_violations_beyond_the_kept_ones_are_counted() -> None:
    order = order_of(*range(2, 200, 2))
    assert (order.violations_count, len(order.violations)) == (99, 20)


def test_each_airline_of_a_shared_aircraft_has_its_own_order() -> None:
    order = LegOrder()
    for carrier, leg in (("UA", 1), ("DL", 1), ("DL", 2), ("UA", 2)):
        order.arrived(flight(1, carrier=carrier, leg=leg))
    assert order.violations == []


def test_flights_of_unknown_aircraft_have_no_order() -> None:
    assert order_of(0, 0, tailnum=None).checked == 0
