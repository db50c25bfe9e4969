from __future__ import annotations

from heliograph.demo.latency import Durations, percentiles


def test_percentiles_are_durations_that_occurred() -> None:
    found = percentiles(number * 1_000_000 for number in range(100, 0, -1))
    assert (found.count, found.p5_ms, found.p50_ms, found.p95_ms, found.p99_ms) == (100, 5.0, 50.0, 95.0, 99.0)


def test_of_one_duration_every_percentile_is_it() -> None:
    found = percentiles([3_000_000])
    assert (found.p5_ms, found.p50_ms, found.p99_ms) == (3.0, 3.0, 3.0)


def test_of_none_every_percentile_is_zero() -> None:
    assert percentiles([]).p99_ms == 0.0


def test_a_clock_set_back_makes_no_negative_duration() -> None:
    durations = Durations()
    durations.add(-5)
    assert durations.percentiles().p50_ms == 0.0
