"""Publish and subscribe with priorities, in five lines and without asyncio (spec 004)::

    from heliograph import PriorityPubSub

    pubsub = PriorityPubSub()
    pubsub.subscribe("orders", lambda order: print(order.message))
    pubsub.publish("orders", {"id": 1}, priority=1)
    pubsub.join()

A message has a priority: 1 (high), 2 (medium) or 3 (low); of those that wait, the higher goes first, then the older. A
callback that returns has processed its message; one that raises gets it again, later and later, and after the last
retry the message is a dead letter, to be looked at and put back. Subscribers of one topic share its messages. A pattern
(`orders.*`, `orders.#`) gets a copy of what is published to each topic that it matches (docs/adr/0004).
"""

from __future__ import annotations

import atexit
import inspect
import itertools
import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, overload

from heliograph.broker.protocol import Broker
from heliograph.client.arguments import count_of, seconds_of
from heliograph.client.backing import backing
from heliograph.client.options import RetryPolicy, retry_settings
from heliograph.client.priority_broker import PriorityBroker
from heliograph.client.priority_message import Priority, PriorityDeadLetter, PriorityMessage
from heliograph.client.priority_subscription import Callback, PrioritySubscription
from heliograph.client.topic_pattern import check_pattern
from heliograph.engine.limits import ACK_DEADLINE_SECONDS_MAX
from heliograph.errors import FailedPrecondition, InvalidArgument, SubscriptionNotFound

C = TypeVar("C", bound=Callback)

MAX_RETRIES = 3
MAX_RETRIES_MAX = 1_000_000
ACK_DEADLINE_SECONDS = 30.0  # as work queues
WORKERS_MAX = 256  # threads of one subscriber
RETRY_POLICY = RetryPolicy(minimum_backoff=1, maximum_backoff=60)


class PriorityPubSub:
    """Topics with priorities, retries and dead letters. Thread-safe; callbacks run in threads of its own.

    Args:
        max_retries: a message whose callback raises is tried again so many times, then it is a dead letter (spec 004,
            §8).
        retry_policy: the waits before the retries: a `RetryPolicy`, or a mapping with `minimum_backoff` and
            `maximum_backoff` in seconds, 0 to 600; the wait doubles from one to the other. None = 1 and 60. A topic
            keeps the policy that it was first used with.
        broker: another broker than its own, to share topics with others; it is not closed with this.
        data_dir: a directory that keeps everything: then an answered `publish` survives a crash. Without it, and
            without a `broker`, messages live in memory, as long as this object.
        url: a server, `http://HOST:PORT`, whose topics are shared with all that use it; needs the extra `client`.
        workers: how many callbacks of one subscriber may run at the same time.
        ack_deadline_seconds: with `auto_acknowledge=False`, a message that is not acknowledged so long after its
            callback has returned comes again. While a callback runs there is no limit.

    Raises:
        InvalidArgument: an argument is none of these.
        StoreRefused: `data_dir` cannot be used; it is left untouched.
    """

    def __init__(
        self,
        max_retries: int = MAX_RETRIES,
        retry_policy: RetryPolicy | Mapping[str, float] | None = None,
        *,
        broker: Broker | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        url: str | None = None,
        workers: int = 1,
        ack_deadline_seconds: float = ACK_DEADLINE_SECONDS,
    ) -> None:
        retries = count_of(max_retries, "max_retries", 0, MAX_RETRIES_MAX)
        policy = retry_settings(RETRY_POLICY if retry_policy is None else RetryPolicy.build(retry_policy))
        deadline = seconds_of(ack_deadline_seconds, "Ack deadline", 0, ACK_DEADLINE_SECONDS_MAX)
        if not deadline:
            raise InvalidArgument("Ack deadline must be more than 0 seconds")
        self._workers = count_of(workers, "workers", 1, WORKERS_MAX)
        self._backing, self._owned = backing(broker, data_dir, url)
        self.broker = PriorityBroker(
            self._backing, max_retries=retries, retry_policy=policy, ack_deadline_seconds=deadline
        )
        self._lock = threading.Lock()
        self._subscriptions: list[PrioritySubscription] = []
        self._closing = False
        self._name = secrets.token_hex(4)  # leases outlive a crash: consumers of different lives must not be mixed up
        self._count = itertools.count(1)
        atexit.register(self.close)

    # ── publishing ──────────────────────────────────────────────────────────────────────────────────────────────────

    def publish(self, topic: str, message: Any, priority: int = 3) -> str:
        """Publish a message (spec 004, §9.1).

        Args:
            topic: any name of words between dots, at most 255 bytes; it need not exist.
            message: any JSON value (dict, list, str, int, float, bool, None) or bytes; 10 MB at most. Subscribers get
                it as it was published.
            priority: 1 = high, 2 = medium, 3 = low.

        Returns:
            The message's id.

        Raises:
            InvalidArgument, InvalidPriority, MessageTooLarge: code 3; nothing was published.
            FailedPrecondition: code 9, this object is closed.
            Unavailable: code 14, the broker cannot make it durable now; it may be published again.
        """
        return self.broker.enqueue(topic, message, priority)

    def publish_many(self, topic: str, messages: Sequence[Any], priority: int = 3) -> list[str]:
        """Publish several messages of one topic at once: quicker than one by one, above all with a `data_dir`.

        Returns:
            Their ids, in order.

        Raises:
            As `publish`; then none of them was published.
        """
        return self.broker.enqueue_many(topic, messages, priority)

    # ── subscribing ─────────────────────────────────────────────────────────────────────────────────────────────────

    @overload
    def subscribe(
        self, topic: str, callback: Callback, auto_acknowledge: bool = True, *, workers: int | None = None
    ) -> PrioritySubscription: ...

    @overload
    def subscribe(
        self, topic: str, callback: None = None, auto_acknowledge: bool = True, *, workers: int | None = None
    ) -> Callable[[C], C]: ...

    def subscribe(
        self,
        topic: str,
        callback: Callback | None = None,
        auto_acknowledge: bool = True,
        *,
        workers: int | None = None,
    ) -> PrioritySubscription | Callable[[C], C]:
        """Have `callback(message)` called with each message of a topic (spec 004, §9.2).

        Args:
            topic: a topic, or a pattern: the word `*` stands for one word, `#` for any number of words.
            callback: a plain function of one argument, a `PriorityMessage`. Without it `subscribe` is a decorator.
            auto_acknowledge: the message is processed when the callback returns. Otherwise only when somebody says so:
                `message.acknowledge()`, or `acknowledge(message.id)`. In both cases an exception means that it failed.
            workers: how many callbacks may run at the same time; None = as this object.

        Returns:
            The subscriber, to be closed when it shall get no more; used as decorator, the callback itself.

        Raises:
            InvalidArgument: code 3.
            FailedPrecondition: code 9, this object is closed.
        """
        if callback is None:
            check_pattern(topic)

            def decorate(function: C) -> C:
                self.subscribe(topic, function, auto_acknowledge, workers=workers)
                return function

            return decorate
        name = check_pattern(topic)
        _check_callback(callback)
        if not isinstance(auto_acknowledge, bool):
            raise InvalidArgument(f"auto_acknowledge is True or False, not {auto_acknowledge!r}")
        count = self._workers if workers is None else count_of(workers, "workers", 1, WORKERS_MAX)
        with self._lock:
            if self._closing:
                raise FailedPrecondition("This PriorityPubSub is closed")
            subscription = PrioritySubscription(
                self.broker,
                name,
                callback,
                auto_acknowledge=auto_acknowledge,
                workers=count,
                consumer=f"{self._name}-{next(self._count)}",
            )
            self._subscriptions = [other for other in self._subscriptions if not other.closed]
            self._subscriptions.append(subscription)
        return subscription

    def unsubscribe(self, topic: str) -> None:
        """Nobody will come back for a topic or pattern: end its subscribers here, and drop its messages and dead
        letters. To pause only, `close()` the subscriber: then its messages are kept.

        Raises:
            TopicNotFound: code 5, there is none of that name.
            InvalidArgument, FailedPrecondition.
        """
        self.broker.check_open()
        name = check_pattern(topic)
        with self._lock:
            mine = [subscription for subscription in self._subscriptions if subscription.topic == name]
        for subscription in mine:
            subscription.close()
        self.broker.routing.unsubscribe(name)

    def acknowledge(self, message_id: str) -> None:
        """The message is processed, and gone (spec 004, §9.3).

        Raises:
            MessageNotFound: code 5, nobody holds it: it was acknowledged before, or its ack deadline has passed.
            InvalidArgument, FailedPrecondition, Unavailable.
        """
        self.broker.acknowledge(message_id)

    # ── dead letters ────────────────────────────────────────────────────────────────────────────────────────────────

    def dead_letters(self, topic: str) -> list[PriorityDeadLetter]:
        """The messages of a topic that were given up, the oldest first. A pattern's are those of its own copies.

        Raises:
            TopicNotFound: code 5, nothing was published to it, and nobody subscribed.
            InvalidArgument, FailedPrecondition.
        """
        return self.broker.dead_letters(topic)

    def retry_dead_letters(self, topic: str, ids: Sequence[str] | None = None) -> int:
        """Put dead letters back into their topic, all or those named; their retries are counted afresh.

        Returns:
            How many.

        Raises:
            MessageNotFound: code 5, an id is none of this topic's dead letters; none is put back then.
            TopicNotFound, InvalidArgument, FailedPrecondition, Unavailable.
        """
        return self.broker.retry_dead_letters(topic, ids)

    def purge_dead_letters(self, topic: str) -> int:
        """Forget the dead letters of a topic. Returns how many. Raises as `dead_letters`, and Unavailable."""
        return self.broker.purge_dead_letters(topic)

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def join(self, timeout_seconds: float | None = None) -> bool:
        """Wait until every message for the subscribers of this object is acknowledged or given up; also those that
        wait for their retry.

        Returns:
            False if the time ran out first.

        Raises:
            FailedPrecondition: closed, or called from a callback, whose own message could never be done.
            InvalidArgument.
        """
        self.broker.check_open()
        if timeout_seconds is not None:
            seconds_of(timeout_seconds, "timeout_seconds", 0, threading.TIMEOUT_MAX)
        with self._lock:
            subscriptions = [subscription for subscription in self._subscriptions if not subscription.closed]
        if any(subscription.is_mine for subscription in subscriptions):
            raise FailedPrecondition("join() waits for the callbacks, so none of them can call it")
        end = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        resources = {queue.resource for subscription in subscriptions for queue in subscription.sources.queues}
        return all(self._wait_until_done(resource, end) for resource in resources)

    def _wait_until_done(self, resource: str, end: float | None) -> bool:
        changed = threading.Event()
        try:
            watch = self._backing.watch(resource, changed.set)
            try:
                while not self._is_done(resource):
                    if not changed.wait(None if end is None else max(end - time.monotonic(), 0)):
                        return False
                    changed.clear()
            finally:
                watch.close()
        except SubscriptionNotFound:
            pass  # it was deleted
        return True

    def _is_done(self, resource: str) -> bool:
        statistics = self._backing.statistics(resource)
        return not (statistics.ready or statistics.delayed or statistics.outstanding)

    def close(self) -> None:
        """Hand out no more, wait for the callbacks that run, and let go of the rest: what was handed out and not
        acknowledged is free again at once. With a `data_dir` nothing is lost; in memory, what was not processed is
        gone (`join()` before waits for it). Called from a callback it returns at once, and the rest is done when the
        callback has returned. Idempotent; at the end of the program it is done for you.
        """
        with self._lock:
            self._closing = True
            subscriptions = list(self._subscriptions)
        for subscription in subscriptions:
            subscription.sources.close()
        if any(subscription.is_mine for subscription in subscriptions):
            threading.Thread(target=self.close, name="heliograph-close").start()
            return
        for subscription in subscriptions:
            subscription.close()
        self.broker.close()
        if self._owned is not None:
            self._owned.close()
        atexit.unregister(self.close)

    def __enter__(self) -> PriorityPubSub:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def connect(url: str, **options: Any) -> PriorityPubSub:
    """Topics with priorities, retries and dead letters on a server: `heliograph.connect("http://localhost:8085")`.

    Args:
        url: where `heliograph serve` listens.
        options: as `PriorityPubSub` takes them.

    Raises:
        InvalidArgument: code 3.
        FailedPrecondition: code 9, the extra `client` is not installed.
        Unavailable: code 14, nobody answers there.
    """
    return PriorityPubSub(url=url, **options)


def _check_callback(callback: object) -> None:
    if not callable(callback):
        raise InvalidArgument(f"A callback is a function, not {type(callback).__name__}")
    if inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(type(callback).__call__):
        raise InvalidArgument("A callback is called in a thread: pass a plain function, or use PubSub for async ones")


__all__ = ["Priority", "PriorityDeadLetter", "PriorityMessage", "PriorityPubSub", "PrioritySubscription", "connect"]
