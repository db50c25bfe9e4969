"""What a scenario is, and how it is measured.

A scenario is a function with keyword parameters that prepares something, yields a `Load`, and clears up. Its parameters
are part of its name: `engine_publish[batch=100,payload_bytes=100]`. Each is warmed up, then repeated, in turns with
those that it is compared with; what counts is the median, and the spread says how far to believe it.
"""

from __future__ import annotations

import fnmatch
import gc
import inspect
import itertools
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec


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


class Unavailable(Exception):
    """A scenario cannot run on this machine, for the reason in the text: it is left out, and nothing has failed."""


class Load(msgspec.Struct, frozen=True):
    """What is measured.

    Args:
        run: does the work once; may return figures of its own, such as commits or a latency.
        operations: how many `unit` one run does.
        unit: in the plural.
        prepare: before each run, not measured.
        once: too long to repeat: no warm-up, one run, whatever the scale says.
    """

    run: Callable[[], Figures | None]
    operations: int
    unit: str = "messages"
    prepare: Callable[[], object] | None = None
    once: bool = False


Opener = Callable[..., AbstractContextManager[Load]]


class Scenario(msgspec.Struct, frozen=True):
    """One function with one set of parameters.

    Args:
        group: the module it is from.
        function, parameters: make its name.
        opener: called with the scale and the parameters.
        peer: the function to compare with, at the same parameters (those that it has).
        target: what it is to reach, in words; "" = nothing in particular.
    """

    group: str
    function: str
    parameters: dict[str, Any]
    opener: Opener
    peer: str | None = None
    target: str = ""

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
    """What a scenario came to. `ratio` is its rate over that of `peer`, repetition by repetition."""

    name: str
    group: str
    parameters: dict[str, Any]
    unit: str
    operations: int
    seconds: list[float]
    per_second: Spread
    figures: dict[str, Spread]
    peer: str | None = None
    ratio: Spread | None = None
    target: str = ""


class Suite:
    """The scenarios that exist."""

    def __init__(self) -> None:
        self._scenarios: list[Scenario] = []

    def scenario(
        self, *, peer: str | None = None, target: str | Callable[..., str] = "", **choices: Sequence[Any]
    ) -> Callable[[Any], Opener]:
        """Decorator: a generator function of a scale and keyword parameters, run for every combination of `choices`.

        Args:
            peer: the name of the function to compare with.
            target: what it is to reach, in words; or a function that says so of the parameters.
            choices: for each parameter, its values.
        """

        def register(generator: Callable[..., Iterator[Load]]) -> Opener:
            opener = contextmanager(generator)
            group = generator.__module__.rpartition(".")[2]
            for values in itertools.product(*choices.values()):
                parameters = dict(zip(choices, values, strict=True))
                words = target if isinstance(target, str) else target(**parameters)
                self._scenarios.append(Scenario(group, generator.__name__, parameters, opener, peer, words))
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

    def compared(self, scenarios: Sequence[Scenario]) -> list[list[Scenario]]:
        """The scenarios in groups: each peer with all that are compared with it, directly or through others."""
        groups: dict[str, list[Scenario]] = {}
        for scenario in scenarios:
            group = groups.get(self.peer_of(scenario) or "", [])
            group.append(scenario)
            groups[scenario.name] = group
        return [group for name, group in groups.items() if group[0].name == name]

    def peer_of(self, scenario: Scenario) -> str | None:
        """The name of the scenario to compare with: the peer function at the parameters that both have."""
        for other in self._scenarios:
            if other.function == scenario.peer and other.parameters.items() <= scenario.parameters.items():
                return other.name
        return None


@dataclass
class Runner:
    """A scenario that is open, and what was measured so far."""

    scenario: Scenario
    load: Load
    seconds: list[float] = field(default_factory=list)
    figures: dict[str, list[float]] = field(default_factory=dict)

    def run(self, *, counts: bool) -> None:
        """Do the work once; a warm-up does not count."""
        if self.load.prepare is not None:
            self.load.prepare()
        gc.collect()
        start = time.perf_counter()
        figures = self.load.run()
        took = time.perf_counter() - start
        if counts:
            self.seconds.append(took)
            for name, value in (figures or {}).items():
                self.figures.setdefault(name, []).append(value)

    def result(self, peer: Runner | None) -> Result:
        """Medians and spreads."""
        ratios = [theirs / own for own, theirs in zip(self._costs(), peer._costs(), strict=False)] if peer else []
        return Result(
            name=self.scenario.name,
            group=self.scenario.group,
            parameters=self.scenario.parameters,
            unit=self.load.unit,
            operations=self.load.operations,
            seconds=self.seconds,
            per_second=Spread.of([1 / cost for cost in self._costs()]),
            figures={name: Spread.of(values) for name, values in self.figures.items()},
            peer=peer.scenario.name if peer else None,
            ratio=Spread.of(ratios) if ratios else None,
            target=self.scenario.target,
        )

    def _costs(self) -> list[float]:
        """Seconds for one operation, of each repetition."""
        return [seconds / self.load.operations for seconds in self.seconds]


Attempt = Callable[[Scenario], AbstractContextManager[object]]


def measure(suite: Suite, scenarios: Sequence[Scenario], scale: Scale, attempt: Attempt) -> list[Result]:
    """Measure scenarios that are compared with each other, turn by turn: a disk or a neighbour that is slow for a while
    is so for all of them.

    Args:
        suite: knows who is whose peer.
        scenarios: a peer comes before whatever is compared with it.
        scale: how much to do.
        attempt: surrounds each step of a scenario; one whose step it swallows an exception of is left out from then on.
    """
    runners: dict[str, Runner] = {}
    with ExitStack() as open_scenarios:
        for scenario in scenarios:
            with attempt(scenario):
                load = open_scenarios.enter_context(scenario.opener(scale, **scenario.parameters))
                runners[scenario.name] = Runner(scenario, load)
        for turn in range(-scale.warmups, scale.repetitions):
            for runner in list(runners.values()):
                if runner.load.once and turn != 0:
                    continue
                done = False
                with attempt(runner.scenario):
                    runner.run(counts=turn >= 0)
                    done = True
                if not done:
                    del runners[runner.scenario.name]
    return [runner.result(runners.get(suite.peer_of(runner.scenario) or "")) for runner in runners.values()]


def described(scenario: Scenario) -> str:
    """The first line of a scenario's docstring."""
    return (inspect.getdoc(scenario.opener) or "").partition("\n")[0]
