"""A server in this process, on a free port, with the real gRPC and HTTP clients in front of it."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.broker.clock import SimulatedClock
from heliograph.broker.protocol import Broker
from heliograph.server.app import ServeOptions, Serving, serve
from tests.server.clients import Http, Rpc

_numbers = itertools.count(1)


@contextmanager
def serving(broker: Broker, **more: Any) -> Iterator[Serving]:
    """Serve `broker` in a thread of its own; stopped, and the broker closed, at the end. `more` are ServeOptions."""
    started = threading.Event()
    up: list[Serving] = []
    failures: list[BaseException] = []

    def on_started(server: Serving) -> None:
        up.append(server)
        started.set()

    def run() -> None:
        try:
            options = ServeOptions(**{"port": 0, "announce": False, "handle_signals": False} | more)
            asyncio.run(serve(broker, options, on_started=on_started))
        except BaseException as failure:
            failures.append(failure)
        finally:
            started.set()

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(30)
    try:
        if up:
            yield up[0]
    finally:
        for server in up:
            server.stop()
        thread.join(30)
    assert not failures, failures
    assert not thread.is_alive()


@pytest.fixture(scope="module")
def broker() -> LocalBroker:
    return LocalBroker()


@pytest.fixture(scope="module")
def server(broker: LocalBroker) -> Iterator[Serving]:
    with serving(broker) as up:
        yield up


@pytest.fixture(scope="module")
def rpc(server: Serving) -> Iterator[Rpc]:
    with Rpc(server.port) as client:
        yield client


@pytest.fixture
def http(server: Serving) -> Http:
    return Http(server.port)


@pytest.fixture
def project() -> str:
    """A project of the test's own, so that tests can share a server."""
    return f"projects/p{next(_numbers)}"


@pytest.fixture
def topic(rpc: Rpc, project: str) -> str:
    name = f"{project}/topics/topic-1"
    rpc.create_topic(name)
    return name


@pytest.fixture
def subscription(rpc: Rpc, project: str, topic: str) -> str:
    name = f"{project}/subscriptions/sub-1"
    rpc.create_subscription(name, topic)
    return name


class Timed:
    """A server whose broker's time stands still until it is told to go on."""

    def __init__(self, rpc: Rpc, http: Http, clock: SimulatedClock) -> None:
        self.rpc = rpc
        self.http = http
        self.clock = clock


@pytest.fixture
def timed() -> Iterator[Timed]:
    clock = SimulatedClock()
    with serving(LocalBroker(clock=clock)) as up, Rpc(up.port) as rpc:
        yield Timed(rpc, Http(up.port), clock)
