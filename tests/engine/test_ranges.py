"""Runs against sets of numbers."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from heliograph.engine.ranges import (
    Runs,
    between,
    count_of,
    difference,
    from_runs,
    intersection,
    joined,
    pack_runs,
    to_runs,
    union,
    unpack_runs,
)

numbers = st.frozensets(st.integers(1, 40), max_size=25)


def runs_of(some: frozenset[int] | set[int]) -> list[tuple[int, int]]:
    return to_runs(sorted(some))


@given(numbers, numbers, numbers)
def test_runs_are_joined_cut_and_taken_from_each_other_as_sets_are(
    a: frozenset[int], b: frozenset[int], c: frozenset[int]
) -> None:
    assert union(runs_of(a), runs_of(b), runs_of(c)) == runs_of(a | b | c)
    assert difference(runs_of(a), runs_of(b)) == runs_of(a - b)
    assert intersection(runs_of(a), runs_of(b)) == runs_of(a & b)
    assert unpack_runs(pack_runs(runs_of(a))) == runs_of(a)
    assert count_of(runs_of(a)) == len(a)


@given(numbers, st.integers(0, 42), st.integers(0, 42))
def test_what_lies_between_two_numbers(a: frozenset[int], first: int, stop: int) -> None:
    assert list(from_runs(between(runs_of(a), first, stop))) == sorted(n for n in a if first <= n < stop)


@given(numbers, st.integers(0, 5))
def test_near_runs_are_joined_and_no_others(a: frozenset[int], gap_max: int) -> None:
    spans = joined(runs_of(a), gap_max)
    assert set(a) <= set(from_runs(spans))
    assert all(later[0] - earlier[1] > gap_max for earlier, later in pairwise(spans))
    assert {first for first, _ in spans} <= a


@given(numbers, st.lists(st.integers(0, 42), max_size=4), numbers)
def test_runs_are_taken_from_the_front(a: frozenset[int], lasts: list[int], more: frozenset[int]) -> None:
    left, here = set(a), Runs(runs_of(a))
    for last in lasts:
        taken = {n for n in left if n <= last}
        left -= taken
        assert list(from_runs(here.take(last))) == sorted(taken)
        assert here.count == len(left)
        if left:
            (first, stop) = here.first_run(3)
            assert set(range(first, stop)) <= left
            assert first == min(left)
    here.add(runs_of({n + 100 for n in more}))
    assert list(from_runs(here)) == sorted(left | {n + 100 for n in more})


def test_no_bytes_are_no_runs() -> None:
    assert unpack_runs(b"") == []
