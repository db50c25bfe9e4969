"""A plugin for pytest that runs somebody else's tests: it skips those that are named, each with its reason, and tells
what became of each test, as a line of JSON in the file that HELIOGRAPH_OUTCOMES names."""

from __future__ import annotations

import fnmatch
import json
import os
from typing import Any

import pytest

_outcomes: dict[str, tuple[str, str]] = {}


def pytest_collection_modifyitems(items: list[Any]) -> None:
    skipped = json.loads(os.environ["HELIOGRAPH_SKIPPED"])
    for item in items:
        name = _name(item.nodeid)
        for pattern, reason in skipped:
            # square brackets are part of a name, never a set of characters
            if fnmatch.fnmatchcase(name.replace("[", "("), pattern.replace("[", "(")):
                item.add_marker(pytest.mark.skip(reason=reason), append=False)
                break


def pytest_runtest_logreport(report: Any) -> None:
    if report.when == "call" or not report.passed:
        reason = report.longrepr[2] if report.skipped else report.longreprtext
        _outcomes[_name(report.nodeid)] = (report.outcome, reason.removeprefix("Skipped: "))


def pytest_sessionfinish(session: Any) -> None:
    if hasattr(session.config, "workerinput"):  # of several processes the first one hears of all
        return
    with open(os.environ["HELIOGRAPH_OUTCOMES"], "w") as file:
        for name, (outcome, reason) in sorted(_outcomes.items()):
            print(json.dumps({"check": name, "outcome": outcome, "reason": reason}), file=file)


def _name(nodeid: str) -> str:
    return nodeid.partition("::")[2]
