"""Which queues a published message goes to: topics and patterns, as in RabbitMQ (docs/adr/0004).

Every name that somebody subscribed to, a topic or a pattern, is a queue of its own. A message goes to each of them that
matches its topic, as a copy of its own; the subscribers of one name share what is in its queue. What matches nobody is
kept in the topic's own queue, for the first that subscribes to the topic or to a pattern that matches it.

The queues are the broker's, under `queues/priority/NAME`, so they outlive this object and other doors see them. That
somebody subscribed to a topic is remembered by a topic `priority/subscribed/NAME`: without it the topic's queue has
only what was kept. To a pattern somebody subscribed whenever it has a queue.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable
from typing import NamedTuple

from heliograph.broker.protocol import Broker
from heliograph.broker.queues import QUEUE_PREFIX
from heliograph.client.topic_pattern import is_pattern, matches
from heliograph.engine.settings import SubscriptionSettings
from heliograph.errors import AlreadyExists, QueueExists, QueueNotFound, TopicNotFound

_QUEUES = "priority/"
_SUBSCRIBED = "priority/subscribed/"
_ROUTES_MAX = 10_000  # topics whose queues are remembered; beyond it they are found again

Leave = Callable[[str], None]
"""Tells a subscriber to take nothing more from a topic's queue. When it returns, no taking is under way."""


class Queue(NamedTuple):
    """A queue of one name.

    Args:
        name: the topic or pattern.
        resource: what the broker calls its topic and its subscription.
        number: what its message ids begin with.
        settings: how it was made.
    """

    name: str
    resource: str
    number: int
    settings: SubscriptionSettings


class Routing:
    """Names and queues of one broker, shared by everyone in this process who uses that broker (`of`).

    `lock` is held while a route is found and used, so that a new subscriber misses nothing and gets nothing twice.
    Under it the broker may be called, and `Leave`; from a watch's callback it must not be taken.
    """

    _all: weakref.WeakValueDictionary[int, Routing] = weakref.WeakValueDictionary()
    _all_lock = threading.Lock()

    def __init__(self, broker: Broker) -> None:
        self.lock = threading.RLock()
        self._broker = broker
        self._queues: dict[str, Queue] = {}
        self._by_number: dict[int, Queue] = {}
        self._topics: set[str] = set()  # that somebody subscribed to
        self._patterns: dict[str, None] = {}
        self._routes: dict[str, tuple[Queue, ...]] = {}
        self._leaving: dict[object, Leave] = {}
        self._number = self._broker.last_number()  # of the last name that this object knows of
        self._recover()

    @classmethod
    def of(cls, broker: Broker) -> Routing:
        """The one for `broker`."""
        with cls._all_lock:
            routing = cls._all.get(id(broker))  # it holds its broker, so that the id stays the broker's
            if routing is None:
                routing = cls._all[id(broker)] = cls(broker)
            return routing

    def look(self) -> None:
        """Under the lock: take in what was made through other brokers of the same server, or other doors. What was
        deleted there is noticed when it is used (`lost`)."""
        number = self._broker.last_number()
        if number != self._number:
            self._number = number
            self._recover()

    def _made_ourselves(self, first: int, last: int) -> None:
        """Nothing was made by others, unless numbers are missing in between: then the next look finds it."""
        if first == self._number + 1:
            self._number = last

    def _recover(self) -> None:
        self._queues.clear()
        self._by_number.clear()
        self._routes.clear()
        prefix = QUEUE_PREFIX + _QUEUES
        numbers = {topic.name: topic.number for topic in self._broker.list_topics()}
        for info in self._broker.list_subscriptions():
            if info.name.startswith(prefix) and not info.detached:
                number = numbers.get(info.topic, 0)
                self._add(Queue(info.name.removeprefix(prefix), info.name, number, info.settings))
        self._patterns = {name: None for name in self._queues if is_pattern(name)}
        topics = {name.removeprefix(_SUBSCRIBED) for name in numbers if name.startswith(_SUBSCRIBED)}
        for name in topics - self._topics:
            for leave in list(self._leaving.values()):
                leave(name)
        self._topics = topics

    def _add(self, queue: Queue) -> Queue:
        self._queues[queue.name] = self._by_number[queue.number] = queue
        self._routes.clear()
        return queue

    # ── queues ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def queue(self, name: str) -> Queue:
        """The queue of a topic or pattern.

        Raises:
            TopicNotFound: there is none.
        """
        queue = self._queues.get(name)
        if queue is None:
            raise TopicNotFound(name)
        return queue

    def by_number(self, number: int) -> Queue | None:
        """The queue whose message ids begin with `number`."""
        return self._by_number.get(number)

    def made(self, name: str, settings: SubscriptionSettings) -> Queue:
        """The queue of that name; made, if there is none yet."""
        with self.lock:
            return self._queues.get(name) or self._make(name, settings)

    def _make(self, name: str, settings: SubscriptionSettings) -> Queue:
        try:
            info = self._broker.create_queue(_QUEUES + name, settings).result()
        except QueueExists:  # somebody made it through another door
            info = self._broker.get_subscription(QUEUE_PREFIX + _QUEUES + name)
        number = self._broker.get_topic(info.topic).number
        self._made_ourselves(number, info.number)
        return self._add(Queue(name, info.name, number, info.settings))

    def lost(self, queue: Queue) -> None:
        """The broker does not know it any more: it was deleted through another door."""
        with self.lock:
            if self._queues.get(queue.name) == queue:
                del self._queues[queue.name], self._by_number[queue.number]
                self._patterns.pop(queue.name, None)
                self._routes.clear()

    # ── who subscribed to what ──────────────────────────────────────────────────────────────────────────────────────

    def route(self, topic: str) -> tuple[Queue, ...]:
        """Under the lock: the queues of those who subscribed to `topic`, its own first, or to a matching pattern."""
        route = self._routes.get(topic)
        if route is None:
            names = [topic] if topic in self._topics else []
            names += [pattern for pattern in self._patterns if matches(pattern, topic)]
            route = tuple(self._queues[name] for name in names if name in self._queues)
            if len(self._routes) >= _ROUTES_MAX:
                self._routes.clear()
            self._routes[topic] = route
        return route

    def subscribe(self, name: str, settings: SubscriptionSettings) -> list[Queue]:
        """From now on the queue of `name` gets what matches. Answers the queues to take from: its own, and for a
        pattern those of matching topics that nobody subscribed to, with what they have kept."""
        with self.lock:
            self.look()
            queue = self.made(name, settings)
            if is_pattern(name):
                self._patterns[name] = None
                self._routes.clear()
                kept = [topic for topic in self._queues if self._is_kept(topic) and matches(name, topic)]
                return [queue, *(self._queues[topic] for topic in kept)]
            if name not in self._topics:
                for leave in list(self._leaving.values()):
                    leave(name)
                with contextlib.suppress(AlreadyExists):
                    number = self._broker.create_topic(_SUBSCRIBED + name).result().number
                    self._made_ourselves(number, number)
                self._topics.add(name)
                self._routes.clear()
            return [queue]

    def _is_kept(self, name: str) -> bool:
        return name not in self._topics and not is_pattern(name)

    def unsubscribe(self, name: str) -> None:
        """Nobody comes back for it: its queue goes, with all that is in it.

        Raises:
            TopicNotFound.
        """
        with self.lock:
            self.look()
            queue = self.queue(name)
            self.lost(queue)
            self._topics.discard(name)
            self._routes.clear()
            with contextlib.suppress(QueueNotFound):
                self._broker.delete_queue(_QUEUES + name).result()
            with contextlib.suppress(TopicNotFound):
                self._broker.delete_topic(_SUBSCRIBED + name, clears_backlog=True).result()

    def attend(self, taker: object, leave: Leave) -> None:
        """Somebody takes from queues of topics that nobody subscribed to: tell him when somebody does."""
        with self.lock:
            self._leaving[taker] = leave

    def absent(self, taker: object) -> None:
        """He takes no more. Idempotent."""
        with self.lock:
            self._leaving.pop(taker, None)
