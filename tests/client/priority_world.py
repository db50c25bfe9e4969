"""What the tests of the priority API share: a broker on a simulated clock, and callbacks that keep what they get."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

from heliograph.broker.broker import LocalBroker
from heliograph.broker.clock import SimulatedClock
from heliograph.broker.protocol import Broker
from heliograph.client.priority import PriorityMessage, PriorityPubSub
from heliograph.store.memory import MemoryStore

BACKOFF = {"minimum_backoff": 10, "maximum_backoff": 40}
AT_ONCE = {"minimum_backoff": 0, "maximum_backoff": 0}
SECONDS = 30.0  # how long a test waits at most for what must happen


class World:
    """A broker on a simulated clock, and priority pub-subs on it."""

    def __init__(self) -> None:
        self.clock = SimulatedClock()
        self.store = MemoryStore(keep_facts=True)
        self.broker = LocalBroker(self.store, self.clock)
        self.opened: list[PriorityPubSub] = []

    def open(self, max_retries: int = 3, retry_policy: object = None, **more: Any) -> PriorityPubSub:
        pubsub = PriorityPubSub(max_retries, retry_policy or BACKOFF, broker=self.backing(), **more)
        self.opened.append(pubsub)
        return pubsub

    def backing(self) -> Broker:
        """What the pub-subs work on."""
        return self.broker

    def restart(self) -> None:
        """The process ends without a word, and another one opens the same store."""
        self.broker.close()
        self.broker = LocalBroker(self.store, self.clock)

    def close(self) -> None:
        for pubsub in self.opened:
            pubsub.close()
        self.broker.close()


class Inbox:
    """A callback that keeps what it gets. `wait(n)` waits for n messages."""

    def __init__(self, failures: int | None = 0, then: Callable[[PriorityMessage], object] | None = None) -> None:
        self.messages: list[PriorityMessage] = []
        self.failures = failures  # None = always
        self._then = then
        self._changed = threading.Condition()

    def __call__(self, message: PriorityMessage) -> None:
        with self._changed:
            self.messages.append(message)
            fails = self.failures is None or len(self.messages) <= self.failures
            self._changed.notify_all()
        if self._then is not None:
            self._then(message)
        if fails:
            raise RuntimeError("the callback fails")

    @property
    def values(self) -> list[Any]:
        return [message.message for message in self.messages]

    def wait(self, count: int) -> list[Any]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.messages) >= count, SECONDS), self.values
        return self.values


def opened() -> Iterator[World]:
    """For a fixture: a world that is closed in the end."""
    world = World()
    yield world
    world.close()


def drained(pubsub: PriorityPubSub, topic: str) -> list[Any]:
    """Everything that is ready in a queue, in order, acknowledged."""
    values = []
    while message := pubsub.broker.dequeue(topic):
        values.append(message.message)
        message.acknowledge()
    return values


def settled(pubsub: PriorityPubSub, topic: str) -> None:
    """Wait until no message of the topic is in anybody's hands."""
    backing = pubsub.broker.backing
    resource = pubsub.broker.routing.queue(topic).resource
    changed = threading.Event()
    watch = backing.watch(resource, changed.set)
    while backing.statistics(resource).outstanding:
        assert changed.wait(SECONDS)
        changed.clear()
    watch.close()
