"""The engine does what the naive model does, whatever Hypothesis tries on both (`machine.py`).

A failure here is the whole story that led to it. With `HELIOGRAPH_MODEL_SHRINK=1` and `--timeout 0` pytest makes it
shorter, which may take minutes; `HELIOGRAPH_MODEL_EXAMPLES=5000 … --hypothesis-profile=search` looks for others.
"""

from __future__ import annotations

import os

from hypothesis import Phase, settings

from tests.engine.machine import EngineMachine

TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(
    max_examples=int(os.environ.get("HELIOGRAPH_MODEL_EXAMPLES", "150")),
    stateful_step_count=50,
    deadline=None,
    report_multiple_bugs=False,
    phases=list(Phase) if "HELIOGRAPH_MODEL_SHRINK" in os.environ else [Phase.explicit, Phase.reuse, Phase.generate],
)
