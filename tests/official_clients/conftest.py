"""The clients' runs: everything is prepared at once, then each client has a broker process of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import pytest

from benchmarks.server import running_server
from tests.official_clients.clients import CLIENTS, Result, Unavailable, prepare, run


def _run(client: str) -> Result:
    with running_server("memory") as endpoint:
        return run(client, endpoint)


def _prepare_and_run(client: str, runs: ThreadPoolExecutor) -> Result:
    prepare(client)
    return runs.submit(_run, client).result()


@pytest.fixture(scope="session")
def result_of() -> Iterator[Callable[[str], Result]]:
    """What became of a client's checks; a client that cannot be had here skips the test, with the reason. Two run at a
    time: they wait more than they work."""
    with ThreadPoolExecutor(2) as runs, ThreadPoolExecutor(len(CLIENTS)) as pool:
        started: dict[str, Future[Result]] = {}

        def result_of(client: str) -> Result:
            if not started:
                started.update({name: pool.submit(partial(_prepare_and_run, name, runs)) for name in CLIENTS})
            try:
                return started[client].result()
            except Unavailable as reason:
                pytest.skip(f"{CLIENTS[client]['title']}: {reason}")

        yield result_of
