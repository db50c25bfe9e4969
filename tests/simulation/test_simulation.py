"""A whole broker under everything that publishers, consumers, time and restarts do to it (`world.py`).

`HELIOGRAPH_SIMULATION_SEED=17` runs that seed alone, with `HELIOGRAPH_SIMULATION_STEPS` steps;
`HELIOGRAPH_SIMULATION_SEEDS=1000:2000` looks for failures. A seed that failed once belongs into `KEPT_SEEDS`
(what happens under a seed changes with `world.py`: the story itself belongs into `tests/engine/test_found.py`).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from heliograph.store.memory import MemoryStore
from heliograph.store.sqlite import SqliteStore
from tests.portions import quick_first
from tests.simulation.world import World

# seed: why it is kept
KEPT_SEEDS: dict[int, str] = {
    72: "an acknowledgement that a refused publish carried out was forgotten by closing",
    218: "the same, two restarts later",
}

STEPS = int(os.environ.get("HELIOGRAPH_SIMULATION_STEPS", "400"))
FILE_STEPS = 120


def seeds() -> list[int]:
    if "HELIOGRAPH_SIMULATION_SEED" in os.environ:
        return [int(os.environ["HELIOGRAPH_SIMULATION_SEED"])]
    first, last = map(int, os.environ.get("HELIOGRAPH_SIMULATION_SEEDS", "1:20").split(":"))
    return [*KEPT_SEEDS, *range(first, last + 1)]


def run(world: World, seed: int, steps: int) -> None:
    """All steps and the end of a world; a failure tells how to see it again."""
    step = 0
    try:
        while step < steps:
            world.step()
            step += 1
        world.finish()
    except BaseException as error:
        error.add_note(f"in step {step}; again: HELIOGRAPH_SIMULATION_SEED={seed} pytest tests/simulation")
        raise
    finally:
        world.broker.close()


@pytest.mark.parametrize("seed", quick_first(seeds(), 7))
def test_nothing_is_lost_invented_or_out_of_order(seed: int) -> None:
    store = MemoryStore(keep_facts=True)
    run(World(seed, lambda: store), seed, STEPS)


@pytest.mark.parametrize("seed", quick_first(seeds()[:4], 1))
def test_nothing_is_lost_invented_or_out_of_order_on_a_file(seed: int, tmp_path: Path) -> None:
    run(World(seed, lambda: SqliteStore(tmp_path, durability="none")), seed, FILE_STEPS)
