"""The gRPC door under h2load (Debian: nghttp2-client), a load generator in C that costs the machine little: what the
server can do with most of two cores. The peer is grpcio's own server, which answers without doing anything."""

from __future__ import annotations

import re
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
from google.pubsub_v1 import types

from benchmarks.bare_grpcio import PUBLISH
from benchmarks.harness import Figures, Load, Scale, Unavailable
from benchmarks.scenarios import suite
from benchmarks.server import bare_grpcio, running_server

TOPIC = "projects/bench/topics/orders"
SECONDS_MAX = 120.0
CALLS = {1: 30_000, 100: 3_000}  # by messages per call
CALLS_ONE_BY_ONE = 5_000
PAYLOAD_BYTES = 100
TARGETS = {1: "12k calls a second", 100: "120k messages a second"}


class _Server:
    """A server that takes Publish calls, and how to send it many."""

    def __init__(self, endpoint: str, directory: Path) -> None:
        self._url = f"http://{endpoint}{PUBLISH}"
        self._directory = directory
        channel = grpc.insecure_channel(endpoint)
        self._publish = channel.unary_unary(PUBLISH, types.PublishRequest.serialize, types.PublishResponse.deserialize)
        self._create_topic = channel.unary_unary(
            "/google.pubsub.v1.Publisher/CreateTopic", types.Topic.serialize, types.Topic.deserialize
        )

    def create_topic(self) -> None:
        """Without which Heliograph takes no message."""
        self._create_topic(types.Topic(name=TOPIC), timeout=SECONDS_MAX)

    def last_id(self) -> int:
        """The id of one more message: ids are consecutive, so two tell how many came between."""
        request = types.PublishRequest(topic=TOPIC, messages=[{"data": b"x"}])
        return int(self._publish(request, timeout=SECONDS_MAX).message_ids[0])

    def send(self, calls: int, batch: int, in_flight: int) -> list[float]:
        """Send so many calls on one connection; how long each took, in milliseconds.

        Raises:
            RuntimeError: h2load failed, or some calls did.
        """
        message = types.PubsubMessage(data=b"x" * PAYLOAD_BYTES)
        body = types.PublishRequest.serialize(types.PublishRequest(topic=TOPIC, messages=[message] * batch))
        framed, log = self._directory / "request", self._directory / "log"
        framed.write_bytes(b"\0" + len(body).to_bytes(4, "big") + body)
        log.unlink(missing_ok=True)
        options = ["-n", str(calls), "-c", "1", "-m", str(in_flight), "-d", str(framed), f"--log-file={log}"]
        headers = ["-H", "content-type: application/grpc", "-H", "te: trailers"]
        done = subprocess.run(
            ["h2load", *options, *headers, self._url], capture_output=True, text=True, timeout=SECONDS_MAX
        )
        if done.returncode != 0 or not re.search(rf"\b{calls} succeeded", done.stdout):
            raise RuntimeError(f"h2load: {done.stdout[-500:]}{done.stderr[-500:]}")
        return [int(line.split("\t")[2]) / 1000 for line in log.read_text().splitlines()]


@contextmanager
def _server(kind: str) -> Iterator[_Server]:
    if shutil.which("h2load") is None:
        raise Unavailable("h2load is not installed (Debian, Ubuntu: apt-get install nghttp2-client)")
    starting = bare_grpcio() if kind == "grpcio" else running_server(kind)
    with starting as endpoint, tempfile.TemporaryDirectory(prefix="heliograph-bench-") as directory:
        server = _Server(endpoint, Path(directory))
        if kind != "grpcio":
            server.create_topic()
        yield server


def _publishing(server: _Server, calls: int, batch: int, in_flight: int, *, counts: bool) -> Figures:
    """Publish, and see that every message arrived: h2load knows of gRPC's status nothing."""
    before = server.last_id() if counts else 0
    took_ms = server.send(calls, batch, in_flight)
    if counts and server.last_id() - before - 1 != calls * batch:
        raise RuntimeError("not every message was published")
    return {"p50 ms": statistics.median(took_ms), "p99 ms": statistics.quantiles(took_ms, n=100)[98]}


@suite.scenario(batch=(1, 100), in_flight=(64,))
def h2load_grpcio(scale: Scale, *, batch: int, in_flight: int) -> Iterator[Load]:
    """grpcio's own server, which answers without doing anything."""
    calls = scale.count(CALLS[batch] // 10)
    with _server("grpcio") as server:
        yield Load(lambda: _publishing(server, calls, batch, in_flight, counts=False), calls * batch)


@suite.scenario(
    peer="h2load_grpcio",
    target=lambda batch, in_flight, store: TARGETS[batch] if store == "memory" else "",
    batch=(1, 100),
    in_flight=(64,),
    store=("memory", "sqlite"),
)
def h2load_publish(scale: Scale, *, batch: int, in_flight: int, store: str) -> Iterator[Load]:
    """Unary Publish calls on one connection, many at a time."""
    calls = scale.count(CALLS[batch])
    with _server(store) as server:
        yield Load(lambda: _publishing(server, calls, batch, in_flight, counts=True), calls * batch)


@suite.scenario(target="a median of 0.35 ms")
def h2load_publish_latency(scale: Scale) -> Iterator[Load]:
    """Unary Publish calls of one message, one after the other, memory store: how long does an answer take?"""
    calls = scale.count(CALLS_ONE_BY_ONE)
    with _server("memory") as server:
        yield Load(lambda: _publishing(server, calls, 1, 1, counts=True), calls)
