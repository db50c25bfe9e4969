"""Which part of a long test is quick."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest


def quick_first(values: Sequence[Any], quick: int) -> list[Any]:
    """Parameters of which the first `quick` are in the quick suite, the others in the slow one."""
    return [*values[:quick], *(pytest.param(value, marks=pytest.mark.slow) for value in values[quick:])]
