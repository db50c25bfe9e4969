"""docs/compatibility.md, from what became of the clients' checks.

`make compatibility` runs the clients and writes the page; a test in CI runs them too, and holds the page against it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from tests.official_clients.clients import CLIENTS, ROOT, Outcome, Result

PAGE = ROOT / "docs" / "compatibility.md"
RESULTS = ROOT / "build" / "official-clients" / "results.json"
SHARED = ("node", "go", "java")
"""Clients that go through the same checks."""

MARKS = {"passed": "✓", "failed": "**failed**", "skipped": "not run"}

INTRODUCTION = """\
# Compatibility

<!-- Made by `make compatibility` from what the clients' checks gave; a test holds it against each run. -->

The official clients of Google Cloud Pub/Sub work with Heliograph unmodified: set `PUBSUB_EMULATOR_HOST`. This page is
what became of them when they ran against `heliograph serve`; CI runs them again each time, in these versions. They are
fetched by their own package managers; nothing of them is in this repository.

Over REST the generated Python client and `gcloud-aio-pubsub` are run by
[tests/server/rest/test_clients.py](../tests/server/rest/test_clients.py).
"""


def render(results: Sequence[Result]) -> str:
    """The page."""
    by_client = {result.client: result for result in results}
    parts = [INTRODUCTION, *_summary(results)]
    parts += ["", "## Node, Go and Java: the same checks", "", *_matrix([by_client[client] for client in SHARED])]
    parts += ["", "## Python: its own system tests", "", *_list(by_client["python"])]
    parts += ["", "## Celery over `gcpubsub://`", "", *_list(by_client["celery"])]
    parts += ["", "## What is not run", "", *_not_run()]
    return "\n".join(parts) + "\n"


def _summary(results: Sequence[Result]) -> Iterator[str]:
    yield "| client | version | what is run | passed | failed | not run |"
    yield "|---|---|---|---|---|---|"
    for result in results:
        told = CLIENTS[result.client]
        counts = [sum(one.outcome == outcome for one in result.outcomes) for outcome in MARKS]
        yield f"| {told['title']}: `{told['package']}` | {result.version} | {told['runs']} | " + " | ".join(
            [f"{count} |" if index == 2 else str(count) for index, count in enumerate(counts)]
        )


def _matrix(results: Sequence[Result]) -> Iterator[str]:
    yield "| check | " + " | ".join(CLIENTS[result.client]["title"] for result in results) + " |"
    yield "|---|" + "---|" * len(results)
    outcomes = [{one.check: one for one in result.outcomes} for result in results]
    for check in sorted({check for one in outcomes for check in one}):
        yield f"| {check} | " + " | ".join(_mark(one.get(check)) for one in outcomes) + " |"


def _list(result: Result) -> Iterator[str]:
    yield "| test | outcome |"
    yield "|---|---|"
    for one in result.outcomes:
        if one.outcome != "skipped":
            yield f"| {one.check if ' ' in one.check else f'`{one.check}`'} | {_mark(one)} |"


def _mark(outcome: Outcome | None) -> str:
    return MARKS["skipped" if outcome is None else outcome.outcome]


def _not_run() -> Iterator[str]:
    yield "| client | tests | reason |"
    yield "|---|---|---|"
    for told in CLIENTS.values():
        for entry in told.get("skipped", []):
            yield f"| {told['title']} | `{entry['tests']}` | {entry['reason']} |"


def save(results: Sequence[Result], path: Path = RESULTS) -> None:
    """Keep them, for `main`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(results))


def main() -> None:
    """Write the page from the last complete run."""
    PAGE.write_text(render(msgspec.json.decode(RESULTS.read_bytes(), type=list[Result])))
    print(f"Written: {os.path.relpath(PAGE)}")


if __name__ == "__main__":
    main()
