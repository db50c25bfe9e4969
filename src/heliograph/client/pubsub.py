"""Where an application begins: topics and subscriptions of one broker, for asyncio."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Literal, Self, overload

from heliograph.broker.broker import LocalBroker
from heliograph.broker.clock import Clock
from heliograph.broker.protocol import Broker
from heliograph.client.arguments import broker_of, name_of, named
from heliograph.client.backing import remote
from heliograph.client.message_queue import MessageQueue
from heliograph.client.options import SubscriptionOptions
from heliograph.client.publisher import Publisher
from heliograph.client.subscription import Subscription
from heliograph.client.topic import Topic
from heliograph.errors import FailedPrecondition, InvalidArgument

DEFAULT_PROJECT_ID = "heliograph"

_OPTIONS = frozenset({"project_id", "data_dir", "broker", "endpoint", "clock"})


class PubSub:
    """Topics and subscriptions (specs 000 to 002).

    Every plain `PubSub()` of a process works on the one `MessageQueue` of that process. With a `data_dir`, a `broker`
    or a `clock` it has a broker of its own. It can be made anywhere; what is awaited needs the event loop, and belongs
    to it. `async with PubSub() as pubsub:` closes it at the end.

    Args:
        project_id: what the project is called; names are used as they are given, whatever it is.
        data_dir: a directory: the broker keeps everything there, and it survives the process.
        broker: the broker to work on. It is not closed with the PubSub.
        endpoint: the address of a server, `http://HOST:PORT`; needs the extra `client`. What official clients call
            `projects/p/topics/t` has that whole name here. What is not awaited here waits for a round trip.
        clock: what time it is, for the broker of its own; tests give a `SimulatedClock`.
        options: the same as a mapping, in either spelling, as the first argument.

    Raises:
        InvalidArgument: an argument is not possible.
        StoreRefused: the data directory cannot be used; it is left untouched.
    """

    def __init__(
        self,
        project_id: str | Mapping[str, Any] | None = None,
        *,
        data_dir: str | os.PathLike[str] | None = None,
        broker: Broker | None = None,
        endpoint: str | None = None,
        clock: Clock | None = None,
        **more: Any,
    ) -> None:
        given: dict[str, Any] = {"data_dir": data_dir, "broker": broker, "endpoint": endpoint, "clock": clock}
        if isinstance(project_id, Mapping):
            given |= named(project_id, _OPTIONS, "PubSub's options", {})
        elif project_id is not None:
            given["project_id"] = project_id
        given |= named(more, _OPTIONS, "PubSub's options", {})
        self.project_id = name_of(given.get("project_id") or DEFAULT_PROJECT_ID, "Project ID")
        self._closed = False
        self._queue, self._own_broker = _queue(given)
        self._topics: dict[str, str] = {}  # by subscription: of those that `Topic.subscription` made and nobody created
        self._publishers: dict[str, Publisher] = {}
        self._busy: set[Publisher] = set()  # have something to send, or sent something that is not durable
        self._open: set[Subscription] = set()

    @property
    def queue(self) -> MessageQueue:
        """The queue that it works on."""
        return self._queue

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    # ── topics ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def topic(self, name: str) -> Topic:
        """The topic of that name, whether it exists or not.

        Raises:
            InvalidArgument: no such name is possible.
        """
        return Topic(self, name)

    async def create_topic(self, name: str) -> Topic:
        """Create a topic; see `Topic.create`."""
        return await self.topic(name).create()

    async def get_topics(self) -> list[Topic]:
        """All topics, by name."""
        self.check_open()
        return [self.topic(info.name) for info in self._queue.broker.list_topics()]

    # ── subscriptions ───────────────────────────────────────────────────────────────────────────────────────────────

    def subscription(
        self,
        name: str,
        options: SubscriptionOptions | Mapping[str, Any] | None = None,
        *,
        topic: Topic | str | None = None,
        **more: Any,
    ) -> Subscription:
        """The subscription of that name, whether it exists or not.

        Args:
            name: its name.
            options: `SubscriptionOptions`, or a mapping in either spelling.
            topic: what it subscribes to; needed for `create`, unless `topic.subscription(name)` was called before.
            more: options as keyword arguments.

        Raises:
            InvalidArgument: no such name or option is possible.
        """
        if topic is not None and not isinstance(topic, Topic):
            topic = Topic(self, topic)
        subscription = Subscription(
            self, name, None if topic is None else topic.name, SubscriptionOptions.build(options, more)
        )
        if topic is not None:
            self._topics[name] = topic.name
        return subscription

    async def create_subscription(
        self,
        topic: Topic | str,
        name: str,
        options: SubscriptionOptions | Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Subscription:
        """Create a subscription; see `Subscription.create`."""
        if topic is None:
            raise InvalidArgument("A topic is wanted, or its name")
        return await self.subscription(name, options, topic=topic, **more).create()

    async def get_subscriptions(self) -> list[Subscription]:
        """All subscriptions, by name."""
        self.check_open()
        return [self.subscription(info.name) for info in self._queue.broker.list_subscriptions()]

    def topic_of(self, subscription: str) -> str | None:
        """The topic that `Topic.subscription` was called on for a subscription of that name."""
        return self._topics.get(subscription)

    def forget_topic_of(self, subscription: str) -> None:
        """The subscription is gone, and may be created again for another topic."""
        self._topics.pop(subscription, None)

    # ── closing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def close(self) -> None:
        """Lose nothing and end: what is published is durable or has failed, and what streams have delivered is settled
        or its lease has ended. A broker of its own is closed too. Nothing happens if it is closed."""
        if self._closed:
            return
        try:
            await self._flush()
            await asyncio.gather(*[subscription.close() for subscription in list(self._open)])
            await self._flush()  # callbacks may have published
        finally:
            self._closed = True
            if self._own_broker is not None:
                await asyncio.to_thread(self._own_broker.close)

    async def _flush(self) -> None:
        while self._busy:
            await asyncio.gather(*[publisher.flush() for publisher in list(self._busy)])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # ── for its topics and subscriptions ────────────────────────────────────────────────────────────────────────────

    def check_open(self) -> None:
        """Raises: FailedPrecondition: it is closed."""
        if self._closed:
            raise FailedPrecondition("The PubSub is closed")

    @overload
    def publisher_of(self, topic: str) -> Publisher: ...

    @overload
    def publisher_of(self, topic: str, *, make: Literal[False]) -> Publisher | None: ...

    def publisher_of(self, topic: str, *, make: bool = True) -> Publisher | None:
        """The one publisher of a topic; with `make=False` None if nothing was published yet.

        Raises:
            FailedPrecondition: it is closed.
        """
        self.check_open()
        publisher = self._publishers.get(topic)
        if publisher is None and make:
            publisher = self._publishers[topic] = Publisher(self._queue, topic, self._publisher_is_busy)
        return publisher

    def _publisher_is_busy(self, publisher: Publisher, busy: bool) -> None:
        if busy:
            self._busy.add(publisher)
        else:
            self._busy.discard(publisher)

    def opened(self, subscription: Subscription) -> None:
        """A subscription streams: it is closed with the rest."""
        self._open.add(subscription)

    def closed(self, subscription: Subscription) -> None:
        """A subscription does not stream any more."""
        self._open.discard(subscription)

    def __repr__(self) -> str:
        return f"PubSub({self.project_id!r})"


def _queue(given: Mapping[str, Any]) -> tuple[MessageQueue, Broker | None]:
    """The queue to work on, and the broker behind it if the PubSub has it for its own."""
    data_dir, broker, clock = given["data_dir"], given["broker"], given["clock"]
    if given["endpoint"] is not None:
        if broker is not None or data_dir is not None or clock is not None:
            raise InvalidArgument("PubSub takes an endpoint, or a broker, or what to make one of, not several")
        served = remote(given["endpoint"])
        return MessageQueue(served), served
    if broker is not None and (data_dir is not None or clock is not None):
        raise InvalidArgument("PubSub takes a broker, or what to make one of (data_dir, clock), not both")
    if broker is not None:
        return MessageQueue(broker_of(broker)), None
    if data_dir is None and clock is None:
        return MessageQueue.get_instance(), None
    own = LocalBroker(clock=clock) if data_dir is None else LocalBroker.open(data_dir, clock=clock)
    return MessageQueue(own), own


__all__ = ["DEFAULT_PROJECT_ID", "PubSub"]
