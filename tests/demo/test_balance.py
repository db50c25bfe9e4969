from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest

from heliograph.demo.balance import Balance, Evidence, draw_up
from tests.demo.samples import CANCELLED, FLIGHT, LATE, flight

CANCELLED_TOO = msgspec.structs.replace(CANCELLED, row=4)


def evidence(**changes: Any) -> Evidence:
    """Of four UA flights (one on time, two cancelled, one late) and one of DL, everything as it must be."""
    whole: dict[str, Any] = {
        "flights": {"UA": [FLIGHT, CANCELLED, LATE, CANCELLED_TOO], "DL": [flight(5, carrier="DL")]},
        "published": {"UA": {1: "a", 2: "b", 3: "c", 4: "d"}, "DL": {5: "e"}},
        "archived": {"UA": 4, "DL": 1},
        "acknowledged": {"UA": {1, 2, 3, 4}, "DL": {5}},
        "queued": {"UA": {2, 3, 4}},
        "worked": {"UA": {3}},
        "dead": {"UA": {2, 4}},
    }
    return Evidence(**copy.deepcopy(whole) | changes)


def only_difference(balance: Balance) -> str:
    assert not balance.adds_up
    assert len(balance.differences) == 1, balance.differences
    return balance.differences[0]


def test_what_is_as_it_must_be_adds_up() -> None:
    balance = draw_up(evidence())
    assert (balance.differences, balance.adds_up) == ([], True)


def test_each_airline_has_its_line() -> None:
    dl, ua = draw_up(evidence()).airlines
    assert msgspec.structs.astuple(dl) == ("DL", 1, 1, 1, 1, 0, 0, 0, 0, True)
    assert msgspec.structs.astuple(ua) == ("UA", 4, 4, 4, 4, 3, 1, 2, 2, True)


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({"archived": {"UA": 3, "DL": 1}}, "UA: 4 flights were published, 3 are archived"),
        ({"archived": {"UA": 5, "DL": 1}}, "UA: 4 flights were published, 5 are archived"),
        ({"archived": {"UA": 4}}, "DL: 1 flights were published, 0 are archived"),
        (
            {"acknowledged": {"UA": {1, 2, 4}, "DL": {5}}},
            "UA: 1 of 4 flights published are not acknowledged by the ordered subscriber (row 3 of the file)",
        ),
        (
            {"acknowledged": {"UA": {1, 2, 3, 4, 9}, "DL": {5}}},
            "UA: 1 flights are acknowledged by the ordered subscriber that are not published (row 9 of the file)",
        ),
        ({"queued": {"UA": {2, 3, 4}, "DL": {5}}, "worked": {"UA": {3}, "DL": {5}}},
         "DL: 1 flights are queued that are not late or cancelled (row 5 of the file)"),
        ({"worked": {}}, "UA: 1 of 3 flights queued are not worked off or dead-lettered (row 3 of the file)"),
        ({"worked": {"UA": {3, 1}}},
         "UA: 1 flights are worked off or dead-lettered that are not queued (row 1 of the file)"),
        ({"worked": {"UA": {2, 3}}}, "UA: 1 flights are both worked off and dead-lettered (row 2 of the file)"),
        ({"order_violations": ["UA N1: leg 3 arrived when leg 2 was due"]},
         "Order: UA N1: leg 3 arrived when leg 2 was due"),
        ({"left_unacknowledged": 2}, "The subscriptions still delivered 2 messages at the end"),
        ({"left_in_queue": 1}, "The queue still held 1 messages at the end"),
    ],
)  # fmt: skip
def test_a_difference_is_seen_and_named(changes: dict[str, Any], difference: str) -> None:
    assert difference == only_difference(draw_up(evidence(**changes)))


def test_a_flight_that_was_not_published_is_seen() -> None:
    published = {"UA": {1: "a", 2: "b", 4: "d"}, "DL": {5: "e"}}
    differences = draw_up(evidence(published=published)).differences
    assert "UA: 1 of 4 flights in the input are not published (row 3 of the file)" in differences


def test_a_late_flight_that_was_not_queued_is_seen() -> None:
    differences = draw_up(evidence(queued={"UA": {2, 4}}, worked={})).differences
    assert differences == ["UA: 1 of 3 flights late or cancelled are not queued (row 3 of the file)"]


def test_a_dead_letter_instead_of_another_is_seen_though_the_numbers_are_equal() -> None:
    differences = draw_up(evidence(dead={"UA": {2, 3}}, worked={"UA": {4}})).differences
    assert differences == [
        "UA: 1 of 2 flights cancelled are not dead-lettered (row 4 of the file)",
        "UA: 1 flights are dead-lettered that are not cancelled (row 3 of the file)",
    ]


def test_one_missing_and_one_too_many_do_not_cancel_out() -> None:
    differences = draw_up(evidence(acknowledged={"UA": {1, 2, 3, 9}, "DL": {5}})).differences
    assert len(differences) == 2


def test_the_same_flight_under_another_airline_is_seen() -> None:
    assert not draw_up(evidence(acknowledged={"UA": {1, 2, 3, 4, 5}})).adds_up


def test_an_airline_that_nobody_published_is_seen() -> None:
    balance = draw_up(evidence(archived={"UA": 4, "DL": 1, "ZZ": 1}))
    assert only_difference(balance) == "ZZ: 0 flights were published, 1 are archived"


def test_only_the_airline_that_differs_is_marked() -> None:
    balance = draw_up(evidence(archived={"UA": 3, "DL": 1}))
    assert {each.carrier: each.adds_up for each in balance.airlines} == {"DL": True, "UA": False}


def test_many_rows_are_cut_to_the_first_three() -> None:
    published = {"UA": {}, "DL": {5: "e"}}
    differences = draw_up(evidence(published=published)).differences
    assert "UA: 4 of 4 flights in the input are not published (rows 1, 2, 3, … of the file)" in differences
