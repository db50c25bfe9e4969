"""Growing sequences alone, against a list."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from heliograph.engine import fifo
from heliograph.engine.fifo import CHUNK, Fifo, pack, unpack

STEPS = st.lists(st.tuples(st.sampled_from(["append", "extend", "drop", "look"]), st.integers(1, 30)), max_size=60)


@pytest.fixture(autouse=True, params=[4, CHUNK])
def _small_chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fifo, "CHUNK", request.param)
    monkeypatch.setattr(fifo, "PACKED_AT_ONCE", request.param)


@given(STEPS)
def test_whatever_was_added_and_taken_the_lowest_stand_in_front(steps: list[tuple[str, int]]) -> None:
    there: list[int] = []
    sequences, highest = Fifo(), 0
    for what, number in steps:
        if what == "append":
            highest += number
            sequences.append(highest)
            there.append(highest)
        elif what == "extend":
            sequences.extend(range(highest + 1, highest + 1 + number))
            there += range(highest + 1, highest + 1 + number)
            highest += number
        elif what == "drop":
            count = min(number, len(there))
            sequences.drop(count)
            del there[:count]
        assert sequences.first(number) == there[:number]
        assert (len(sequences), bool(sequences), sequences.peek()) == (len(there), bool(there), (there or [0])[0])
    assert list(sequences) == there
    assert sequences.last == highest


@given(st.lists(st.integers(1, 2**62), unique=True).map(sorted))
def test_what_is_packed_comes_out_as_it_was(sequences: list[int]) -> None:
    assert list(unpack(pack(sequences))) == sequences


def test_neighbours_take_next_to_nothing() -> None:
    assert len(pack(range(1, 100_001))) < 5_000
