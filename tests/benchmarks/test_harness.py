from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from benchmarks.harness import Load, Result, Scale, Suite, measure
from benchmarks.report import short
from benchmarks.scenarios import load_generator

ROOT = Path(__file__).parents[2]


def suite_of_two() -> Suite:
    suite = Suite()

    @suite.scenario(batch=(1, 10))
    def slow(scale: Scale, *, batch: int) -> Iterator[Load]:
        yield Load(lambda: {"calls": 3.0}, operations=scale.count(100, multiple_of=batch))

    @suite.scenario(peer="slow", batch=(1, 10), extra=("a",))
    def quick(scale: Scale, *, batch: int, extra: str) -> Iterator[Load]:
        yield Load(lambda: None, operations=100)

    return suite


def names(suite: Suite, pattern: str) -> list[str]:
    return [scenario.name for scenario in suite.matching(pattern)]


def test_parameters_are_in_the_names() -> None:
    assert names(suite_of_two(), "slow") == ["slow[batch=1]", "slow[batch=10]"]


def test_a_chosen_scenario_brings_its_peer() -> None:
    assert names(suite_of_two(), "quick[batch=10,") == ["slow[batch=10]", "quick[batch=10,extra=a]"]


def measured(suite: Suite, pattern: str, scale: Scale) -> list[Result]:
    return measure(suite, suite.matching(pattern), scale, lambda _: nullcontext())


def test_warm_ups_do_not_count() -> None:
    (result,) = measured(suite_of_two(), "slow[batch=1]", Scale(warmups=1, repetitions=2))
    assert (len(result.seconds), result.operations, result.figures["calls"].median) == (2, 100, 3.0)


def test_what_is_too_long_to_repeat_runs_once() -> None:
    suite, runs = Suite(), []

    @suite.scenario()
    def long(scale: Scale) -> Iterator[Load]:
        yield Load(lambda: runs.append("run"), operations=1, once=True)

    measured(suite, "long", Scale(warmups=2, repetitions=5))
    assert runs == ["run"]


def test_a_target_may_depend_on_the_parameters() -> None:
    suite = Suite()

    @suite.scenario(target=lambda batch: f"{batch}k a second", batch=(1, 10))
    def sized(scale: Scale, *, batch: int) -> Iterator[Load]:
        yield Load(lambda: None, operations=1)

    assert [scenario.target for scenario in suite.matching("")] == ["1k a second", "10k a second"]


def test_a_ratio_is_to_the_peer_of_the_same_run() -> None:
    slow, quick = measured(suite_of_two(), "batch=10", Scale(warmups=0, repetitions=1))
    assert (slow.peer, quick.peer) == (None, "slow[batch=10]")
    assert quick.ratio is not None
    assert quick.ratio.median == pytest.approx(quick.per_second.median / slow.per_second.median)


def test_what_is_compared_takes_turns() -> None:
    suite = Suite()
    turns: list[str] = []

    @suite.scenario()
    def first(scale: Scale) -> Iterator[Load]:
        yield Load(lambda: turns.append("first"), operations=1)

    @suite.scenario(peer="first")
    def second(scale: Scale) -> Iterator[Load]:
        yield Load(lambda: turns.append("second"), operations=1)

    (group,) = suite.compared(suite.matching(""))
    measure(suite, group, Scale(warmups=0, repetitions=2), lambda _: nullcontext())
    assert turns == ["first", "second", "first", "second"]


def test_a_scenario_that_fails_leaves_the_others() -> None:
    suite = suite_of_two()

    @suite.scenario()
    def broken(scale: Scale) -> Iterator[Load]:
        yield Load(lambda: {"never": 1 / 0}, operations=1)

    results = measure(suite, suite.matching(""), Scale(0, 1), lambda _: suppress(ZeroDivisionError))
    assert [result.name for result in results] == [
        "slow[batch=1]",
        "slow[batch=10]",
        "quick[batch=1,extra=a]",
        "quick[batch=10,extra=a]",
    ]


def test_counts_stay_multiples_at_every_scale() -> None:
    assert [Scale(divisor=divisor).count(1_000, multiple_of=100) for divisor in (1, 3, 100)] == [1000, 300, 100]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.2384, "0.238"), (25, "25"), (26.34, "26.3"), (4210, "4,210"), (252_756, "253k"), (3_212_833, "3.21M")],
)
def test_figures_have_three_digits(value: float, text: str) -> None:
    assert short(value) == text


@pytest.mark.slow
def test_a_run_writes_results_with_the_machine_they_are_from(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    subprocess.run(
        [sys.executable, "-m", "benchmarks", "--quick", "--repetitions", "1", "--only", "engine_", "--json", path],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        check=True,
        capture_output=True,
        timeout=60,
    )
    report = json.loads(path.read_text())
    assert report["machine"]["cores"] >= 1
    assert {result["group"] for result in report["results"]} == {"in_process"}
    assert report["failed"] == {}


@pytest.mark.slow
def test_a_scenario_that_cannot_run_here_is_left_out_with_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    subprocess.run(
        [sys.executable, "-m", "benchmarks", "--only", "h2load_publish_latency", "--json", path],
        cwd=ROOT,
        env={"PATH": str(tmp_path), "PYTHONPATH": str(ROOT / "src")},
        check=True,
        capture_output=True,
        timeout=60,
    )
    report = json.loads(path.read_text())
    assert "h2load is not installed" in report["skipped"]["h2load_publish_latency[]"]
    assert (report["results"], report["failed"]) == ([], {})


def test_h2load_counts_what_arrived() -> None:
    if shutil.which("h2load") is None:
        pytest.skip("h2load is not installed (Debian: nghttp2-client)")
    with load_generator.h2load_publish(Scale(divisor=100), batch=1, in_flight=64, store="memory") as load:
        figures = load.run()
    assert figures is not None
    assert 0 < figures["p50 ms"] <= figures["p99 ms"]
