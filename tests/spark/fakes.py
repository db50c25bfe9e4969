"""A broker that has nothing but topics' logs, and a server in front of it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from typing import Any, cast

from heliograph.broker.protocol import Broker, SubscriptionInfo, TopicInfo
from heliograph.engine.message import Message
from heliograph.engine.settings import TopicSettings
from heliograph.errors import TopicNotFound
from heliograph.server import log
from heliograph.server.app import ServeOptions, Serving, serve

TOPIC = "projects/p/topics/flights"
SECOND_NS = 1_000_000_000
NOON_NS = 1_372_680_000 * SECOND_NS  # 2013-07-01T12:00:00Z


class LogBroker:
    """What the log door needs of a broker.

    Args:
        logs: messages by topic, in order of sequence; topics are numbered from 1 in this order.
        batch: how many messages `read_log` gives at a time.
    """

    def __init__(self, logs: dict[str, Sequence[Message]], batch: int = 1000) -> None:
        self.logs = logs
        self.batch = batch
        self.numbers = {name: number for number, name in enumerate(logs, 1)}
        self.reads: list[tuple[int, int]] = []

    def get_topic(self, name: str) -> TopicInfo:
        first, last = self.log_bounds(name)
        return TopicInfo(name, self.numbers[name], TopicSettings(), 0, max(first, last) + 1)

    def list_topics(self) -> list[TopicInfo]:
        return [self.get_topic(name) for name in self.logs]

    def log_bounds(self, topic: str) -> tuple[int, int]:
        if topic not in self.logs:
            raise TopicNotFound(topic)
        messages = self.logs[topic]
        return (messages[0].sequence, messages[-1].sequence) if messages else (1, 0)

    def read_log(self, topic: str, first: int, last: int) -> Iterator[list[Message]]:
        self.reads.append((first, last))
        wanted = [message for message in self.logs[topic] if first <= message.sequence <= last]
        for start in range(0, len(wanted), self.batch):
            yield wanted[start : start + self.batch]

    def log_offset(self, topic: str, published_ns: int) -> int:
        later = [message.sequence for message in self.logs[topic] if message.publish_time_ns >= published_ns]
        return later[0] if later else self.log_bounds(topic)[1] + 1

    def log_extent(self, topic: str, first: int, bytes_max: int) -> int:
        reached, size_bytes = first, 0
        for message in self.logs[topic]:
            if message.sequence >= first:
                size_bytes += len(message.data)
                if size_bytes > bytes_max:
                    break
                reached = message.sequence
        return reached

    def list_subscriptions(self, topic: str | None = None) -> list[SubscriptionInfo]:
        return []

    def close(self) -> None:
        pass


def as_broker(broker: LogBroker) -> Broker:
    return cast(Broker, broker)


def messages(count: int, first: int = 1, data: bytes = b"x" * 100) -> list[Message]:
    return [
        Message(
            sequence,
            NOON_NS + sequence * SECOND_NS + 123_456_789,
            data,
            {"carrier": "UA", "n": str(sequence)} if sequence % 3 else {},
            f"N{sequence % 7}",
        )
        for sequence in range(first, first + count)
    ]


class Answer:
    """What an ASGI handler sent."""

    def __init__(self, events: list[dict[str, Any]]) -> None:
        self.events = events
        self.headers = dict(events[0]["headers"])
        self.status: int = events[0]["status"]
        self.parts: list[bytes] = [event["body"] for event in events[1:]]
        self.body = b"".join(self.parts)


async def ask(broker: LogBroker, path: str, query: str) -> Answer:
    """One GET request to the log door, without a network. Errors are raised, as the application would see them."""
    events: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(event: Any) -> None:
        events.append(dict(event))

    handler = {route.path: route.handler for route in log.ROUTES}[path]
    scope = {"type": "http", "method": "GET", "path": path, "query_string": query.encode()}
    await handler(scope, receive, send, as_broker(broker))
    return Answer(events)


class ServerThread:
    """A server on a free port of this machine, in a thread of this process; a context manager."""

    def __init__(self, broker: Any) -> None:
        self._broker = broker
        self._started = threading.Event()
        self._serving: Serving | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        def started(serving: Serving) -> None:
            self._serving = serving
            self._started.set()

        options = ServeOptions(port=0, announce=False, handle_signals=False, grace_seconds=0.2)
        asyncio.run(serve(self._broker, options, on_started=started))

    def __enter__(self) -> ServerThread:
        self._thread.start()
        assert self._started.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._serving is not None
        self._serving.stop()
        self._thread.join(30)

    @property
    def endpoint(self) -> str:
        assert self._serving is not None
        return f"http://127.0.0.1:{self._serving.port}"
