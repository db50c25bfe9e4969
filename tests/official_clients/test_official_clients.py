"""Official clients, unmodified, against a broker process (docs/compatibility.md)."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.official_clients import clients
from tests.official_clients.clients import CLIENTS, HERE, Result, Unavailable, failure_of, prepare, version_of
from tests.official_clients.page import PAGE, SHARED, render, save

ResultOf = Callable[[str], Result]

SOURCES = {"node": "node/checks.js", "go": "go/checks.go", "java": "java/Checks.java"}
NAMES = {  # how each language names its checks
    "node": r"^  async '(.+)'\(\)",
    "go": r'^\t"(.+)": +(?:func|check)',
    "java": r'checks\.put\("(.+)",',
}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("client", CLIENTS)
def test_every_check_of_a_client_passes(result_of: ResultOf, client: str) -> None:
    result = result_of(client)
    failed = [f"{one.check}: {one.reason}" for one in result.outcomes if one.outcome == "failed"]
    assert not failed, "\n\n".join(failed)
    passed = [one.check for one in result.outcomes if one.outcome == "passed"]
    assert passed == names_of(client) if client in SHARED else passed


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_page_tells_what_became_of_this_run(result_of: ResultOf) -> None:
    results = [result_of(client) for client in CLIENTS]
    save(results)
    assert PAGE.read_text() == render(results), "run: make compatibility"


def names_of(client: str) -> list[str]:
    text = (HERE / SOURCES[client]).read_text()
    return sorted(re.findall(NAMES[client], text, re.MULTILINE))


@pytest.mark.parametrize("client", SHARED)
def test_node_go_and_java_go_through_the_same_checks(client: str) -> None:
    assert names_of(client) == names_of(SHARED[0])
    assert len(names_of(client)) >= 20


def test_the_page_names_each_check_each_version_and_each_reason() -> None:
    page = PAGE.read_text()
    for client, told in CLIENTS.items():
        assert f"| {told['title']}: `{told['package']}` | {version_of(client)} |" in page
        for entry in told.get("skipped", []):
            assert entry["reason"] in page
    for check in names_of(SHARED[0]):
        assert f"| {check} | ✓ | ✓ | ✓ |" in page
    assert "**failed**" not in page


def test_the_page_leads_to_files_that_exist() -> None:
    for link in re.findall(r"\]\((\.\./[^)]+)\)", PAGE.read_text()):
        assert (Path(PAGE).parent / link).resolve().exists(), link


@pytest.mark.parametrize(
    "output",
    [
        "npm error code ENOTFOUND\nnpm error network request to https://registry.example/x failed, reason: getaddrinfo",
        "npm error code E404\nnpm error 404 Not Found - GET https://registry.example/x - not_found",
        "WARNING: connection broken by 'NewConnectionError'\nERROR: No matching distribution found for x",
        'go: example.com/x@v1.0.0: Get "https://proxy.example/": dial tcp: lookup proxy.example: no such host',
        "[ERROR] Could not transfer artifact a:b:pom:1 from/to central: Unknown host repo.example",
    ],
)
def test_a_registry_that_does_not_answer_is_no_failure_of_a_client(output: str) -> None:
    assert isinstance(failure_of("a package manager", output), Unavailable)


@pytest.mark.parametrize(
    "output", ["Checks.java:404: error: cannot find symbol", "./checks.go:502:2: undefined: pubsub", ""]
)
def test_what_cannot_be_built_is_a_failure(output: str) -> None:
    assert isinstance(failure_of("a compiler", output), AssertionError)


def test_what_was_fetched_in_part_is_fetched_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(directory: Path) -> None:
        (directory / "half").touch()
        raise Unavailable("the connection broke off")

    monkeypatch.setattr(clients, "BUILD", tmp_path)
    monkeypatch.setitem(clients._PREPARE, "node", fails)
    with pytest.raises(Unavailable):
        prepare("node")
    seen: list[bool] = []
    monkeypatch.setitem(clients._PREPARE, "node", lambda directory: seen.append((directory / "half").exists()))
    prepare("node")
    prepare("node")
    assert seen == [False]
