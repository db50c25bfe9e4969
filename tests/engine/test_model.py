"""The engine does what the naive model does, whatever Hypothesis tries on both (`machine.py`).

A failure here is the whole story that led to it. With `HELIOGRAPH_MODEL_SHRINK=1` and `--timeout 0` pytest makes it
shorter, which may take minutes; `HELIOGRAPH_MODEL_EXAMPLES=5000 … --hypothesis-profile=search` looks for others.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.engine.machine import EngineMachine, OrderedMachine, QueueMachine
from tests.engine.seeking_machine import SeekingMachine
from tests.portions import quick_first

EXAMPLES = int(os.environ.get("HELIOGRAPH_MODEL_EXAMPLES", "20"))
PHASES = list(Phase) if "HELIOGRAPH_MODEL_SHRINK" in os.environ else [Phase.explicit, Phase.reuse, Phase.generate]


@pytest.mark.parametrize("examples", quick_first([EXAMPLES, 4 * EXAMPLES], 1))
@pytest.mark.parametrize("machine", [EngineMachine, OrderedMachine, QueueMachine, SeekingMachine])
def test_the_engine_does_what_the_model_does(machine: type[EngineMachine], examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(max_examples=examples, stateful_step_count=50, report_multiple_bugs=False, phases=PHASES),
    )
