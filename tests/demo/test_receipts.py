from __future__ import annotations

from heliograph.demo.receipts import Receipts


def test_a_flight_counts_once_however_often_it_comes() -> None:
    receipts = Receipts()
    first = [receipts.add("UA", row) for row in (1, 2, 1)]
    assert (first, len(receipts), receipts.repeated) == ([True, True, False], 2, 1)


def test_it_is_complete_with_the_last_different_flight() -> None:
    receipts = Receipts(expected=2)
    for row in (1, 1):
        receipts.add("UA", row)
    assert not receipts.complete.is_set()
    receipts.add("DL", 2)
    assert receipts.complete.is_set()


def test_it_is_complete_at_once_when_nothing_more_is_expected() -> None:
    receipts = Receipts()
    receipts.expect(0)
    assert receipts.complete.is_set()


def test_the_flights_are_known_by_airline() -> None:
    receipts = Receipts()
    receipts.add("UA", 1)
    receipts.add("DL", 2)
    assert ({"UA": {1}, "DL": {2}}, {1, 2}) == (receipts.by_airline(), receipts.rows())
