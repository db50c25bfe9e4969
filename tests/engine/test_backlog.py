"""The priority bands alone, against a sorted list; and what a look at the front costs."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from heliograph.engine.backlog import Backlog, _ascending

# (what is done, to which of the messages there, how many are looked at)
STEPS = st.lists(
    st.tuples(st.sampled_from(["new", "new", "take", "take any", "back"]), st.integers(0, 99)), max_size=60
)


def _replayed(steps: list[tuple[str, int]], priorities: int) -> tuple[Backlog, dict[int, int]]:
    """A backlog after `steps`, and what must be in it: priority by sequence."""
    backlog, here, away, sequence = Backlog(), {}, [], 0
    for what, choice in steps:
        order = sorted(here, key=lambda number: (-here[number], number))
        if what == "new":
            sequence += 1
            here[sequence] = choice % priorities
            backlog.add(sequence, here[sequence])
        elif what == "back" and away:
            number, priority = away.pop(choice % len(away))
            here[number] = priority
            backlog.add(number, priority)
        elif what.startswith("take") and order:
            number = order[0] if what == "take" else order[choice % len(order)]
            backlog.take(number, here[number])
            away.append((number, here.pop(number)))
    return backlog, here


@given(STEPS, st.integers(1, 3), st.integers(0, 12))
def test_whatever_happened_the_highest_band_comes_first_and_in_it_the_lowest_sequence(
    steps: list[tuple[str, int]], priorities: int, count: int
) -> None:
    backlog, here = _replayed(steps, priorities)
    expected = sorted(here, key=lambda number: (-here[number], number))
    assert backlog.first(count) == expected[:count]
    assert list(backlog) == expected
    assert backlog.count == len(here)
    assert sorted(backlog.fronts()) == sorted(
        min(number for number in here if here[number] == priority) for priority in set(here.values())
    )


@given(STEPS, st.integers(1, 3), st.integers(1, 12), st.booleans())
def test_those_in_front_are_taken_at_once_or_not_at_all(
    steps: list[tuple[str, int]], priorities: int, count: int, others: bool
) -> None:
    backlog, here = _replayed(steps, priorities)
    order = sorted(here, key=lambda number: (-here[number], number))
    wanted = order[1 : count + 1] if others else order[:count]
    if backlog.take_first(wanted) and wanted:
        assert wanted == order[: len(wanted)]
        order = order[len(wanted) :]
    assert list(backlog) == order
    assert backlog.count == len(order) == sum(backlog.counts().values())


@given(STEPS, st.integers(1, 4), st.integers(1, 9), st.integers(0, 12))
def test_aged_messages_stand_in_the_band_that_their_age_lifts_them_to(
    steps: list[tuple[str, int]], priorities: int, period: int, count: int
) -> None:
    backlog, here = _replayed(steps, priorities)

    def band_of(sequence: int, priority: int) -> int:
        return min(priority + (100 - sequence) // period, 9)

    expected = sorted(here, key=lambda number: (-band_of(number, here[number]), number))
    assert backlog.first_aged(count, band_of) == expected[:count]


def test_ageing_looks_at_the_fronts_only() -> None:
    backlog, looked_at = Backlog(), []
    for sequence in range(1, 10_001):
        backlog.add(sequence, sequence % 10)

    def band_of(sequence: int, priority: int) -> int:
        looked_at.append(sequence)
        return priority

    assert backlog.first_aged(5, band_of) == [9, 19, 29, 39, 49]
    assert len(looked_at) <= 10 + 5


def test_the_first_of_a_heap_are_found_without_sorting_it() -> None:
    class Watched(list[int]):
        seen = 0

        def __getitem__(self, index: int) -> int:  # type: ignore[override]  # no slices here
            Watched.seen += 1
            return super().__getitem__(index)

    ascending = _ascending(Watched(range(100_000)))
    assert [next(ascending) for _ in range(10)] == list(range(10))
    assert Watched.seen < 40


def test_marks_of_discarded_messages_are_swept_before_they_are_the_majority() -> None:
    backlog = Backlog()
    for sequence in range(1, 10_001):
        backlog.add(sequence, 5)
    for sequence in range(2, 10_000):
        backlog.take(sequence, 5)
    (band,) = backlog._bands.values()
    assert len(band.fresh) <= 2 * 66
    assert backlog.first(3) == [1, 10_000]
