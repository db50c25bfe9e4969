"""What a scenario is, and how it is measured.

A scenario is a function with keyword parameters that prepares something, yields a `Load`, and clears up. Its parameters
are part of its name: `engine_publish[batch=100,payload_bytes=100]`. Each is warmed up, then repeated; what counts is
the median, and the spread says how far to believe it.
"""

from __future__ import annotations

import fnmatch
import gc
import inspect
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import msgspec

RATIO_DIGITS = 3


class Scale(msgspec.Struct, frozen=True):
    """How much to do.

    Args:
        warmups, repetitions: runs before, and runs that count.
        divisor: every count of operations is divided by it.
    """

    warmups: int = 1
    repetitions: int = 5
    divisor: int = 1

    def count(self, operations: int, *, multiple_of: int = 1) -> int:
        """`operations` at this scale: a multiple of `multiple_of`, at least one."""
        return max(operations // self.divisor // multiple_of, 1) * multiple_of


FULL = Scale()
QUICK = Scale(warmups=1, repetitions=3, divisor=10)

Figures = Mapping[str, float]


class Load(msgspec.Struct, frozen=True):
    """What is measured.

    Args:
        run: does the work once; may return figures of its own, such as commits or a latency.
        operations: how many `unit` one run does.
        unit: in the plural.
        prepare: before each run, not measured.
    """

    run: Callable[[], Figures | None]
    operations: int
    unit: str = "messages"
    prepare: Callable[[], object] | None = None


Opener = Callable[..., AbstractContextManager[Load]]


class Scenario(msgspec.Struct, frozen=True):
    """One function with one set of parameters.

    Args:
        group: the module it is from.
        function, parameters: make its name.
        opener: called with the scale and the parameters.
        peer: the function to compare with, at the same parameters (those that it has).
    """

    group: str
    function: str
    parameters: dict[str, Any]
    opener: Opener
    peer: str | None = None

    @property
    def name(self) -> str:
        """`function[parameter=value,…]`."""
        return name_of(self.function, self.parameters)


def name_of(function: str, parameters: Mapping[str, Any]) -> str:
    """The name of a scenario."""
    return f"{function}[{','.join(f'{key}={value}' for key, value in parameters.items())}]"


class Spread(msgspec.Struct, frozen=True):
    """A figure over all repetitions."""

    median: float
    minimum: float
    maximum: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return cls(statistics.median(values), min(values), max(values))


class Result(msgspec.Struct):
    """What a scenario came to. `ratio` is its median rate over that of `peer`, measured in the same run."""

    name: str
    group: str
    parameters: dict[str, Any]
    unit: str
    operations: int
    seconds: list[float]
    per_second: Spread
    figures: dict[str, Spread]
    peer: str | None = None
    ratio: float | None = None


class Suite:
    """The scenarios that exist."""

    def __init__(self) -> None:
        self._scenarios: list[Scenario] = []

    def scenario(self, *, peer: str | None = None, **choices: Sequence[Any]) -> Callable[[Any], Opener]:
        """Decorator: a generator function of a scale and keyword parameters, run for every combination of `choices`.

        Args:
            peer: the name of the function to compare with.
            choices: for each parameter, its values.
        """

        def register(generator: Callable[..., Iterator[Load]]) -> Opener:
            opener = contextmanager(generator)
            group = generator.__module__.rpartition(".")[2]
            for values in itertools.product(*choices.values()):
                parameters = dict(zip(choices, values, strict=True))
                self._scenarios.append(Scenario(group, generator.__name__, parameters, opener, peer))
            return opener

        return register

    def matching(self, pattern: str) -> list[Scenario]:
        """Those whose group or name has `pattern` in it (`*` stands for anything), and the peers that they need."""
        glob = f"*{pattern}*"
        chosen = {
            scenario.name
            for scenario in self._scenarios
            if fnmatch.fnmatchcase(f"{scenario.group}.{scenario.name}".replace("[", "("), glob.replace("[", "("))
        }
        needed = {peer for scenario in self._scenarios if scenario.name in chosen and (peer := self.peer_of(scenario))}
        return [scenario for scenario in self._scenarios if scenario.name in chosen | needed]

    def peer_of(self, scenario: Scenario) -> str | None:
        """The name of the scenario to compare with: the peer function at the parameters that both have."""
        for other in self._scenarios:
            if other.function == scenario.peer and other.parameters.items() <= scenario.parameters.items():
                return other.name
        return None


def measure(scenario: Scenario, scale: Scale) -> Result:
    """Warm up, repeat, and take the medians."""
    seconds: list[float] = []
    figures: dict[str, list[float]] = {}
    with scenario.opener(scale, **scenario.parameters) as load:
        for repetition in range(-scale.warmups, scale.repetitions):
            if load.prepare is not None:
                load.prepare()
            gc.collect()
            start = time.perf_counter()
            own = load.run()
            took = time.perf_counter() - start
            if repetition < 0:
                continue
            seconds.append(took)
            for name, value in (own or {}).items():
                figures.setdefault(name, []).append(value)
    return Result(
        name=scenario.name,
        group=scenario.group,
        parameters=scenario.parameters,
        unit=load.unit,
        operations=load.operations,
        seconds=seconds,
        per_second=Spread.of([load.operations / took for took in seconds]),
        figures={name: Spread.of(values) for name, values in figures.items()},
    )


def compare(suite: Suite, scenarios: Sequence[Scenario], results: Sequence[Result]) -> None:
    """Fill in the ratios against peers."""
    medians = {result.name: result.per_second.median for result in results}
    peers = {scenario.name: suite.peer_of(scenario) for scenario in scenarios}
    for result in results:
        peer = peers[result.name]
        if peer is not None and peer in medians:
            result.peer = peer
            result.ratio = round(result.per_second.median / medians[peer], RATIO_DIGITS)


def described(scenario: Scenario) -> str:
    """The first line of a scenario's docstring."""
    return (inspect.getdoc(scenario.opener) or "").partition("\n")[0]
