"""One connection of the work-queue door that outlives its commands: what it holds, and the queues that it subscribed to
(queue-protocol.md).

Each subscription is a task that pulls as soon as there is credit and it is its turn (`feed.py`), and pushes. A
connection that closes gives back at once whatever it holds, and no failure is counted.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from heliograph.broker.protocol import Broker
from heliograph.engine.message import Delivery
from heliograph.engine.settings import NEVER_NS
from heliograph.errors import AlreadyExists, ConsumerNotFound, HeliographError, Internal, SubscriptionNotFound
from heliograph.server.feed import Feed, Feeds
from heliograph.server.held import Connection, Holders
from heliograph.server.taking import give_back, leased

log = logging.getLogger(__name__)

BATCH_MESSAGES = 100
"""Of one pull, at least, where many subscribe; then it is another's turn."""

BATCH_MESSAGES_ALONE = 1_000
"""Of one pull, where nobody else subscribes: each waits for a commit."""

BATCH_BYTES = 1024 * 1024
"""Of one pull; a larger message goes alone."""

PUSHED_BYTES_MAX = 16 * 1024 * 1024
"""Pushed to a connection for one queue, and not settled: no more is pushed beyond it, whatever the prefetch. Until they
are settled nobody can know that they were read, and what was not read is in this process's memory."""

_PROCESS = secrets.token_hex(4)  # leases outlive a crash: consumers of different lives must not be mixed up
_numbers = itertools.count(1)

Push = Callable[[str, Sequence[Delivery], int], Awaitable[None]]
"""Sends deliveries of the subscription of that name, at most so many in one message of the socket."""

Fail = Callable[[str, HeliographError], Awaitable[None]]
"""Tells that the subscription of that name has ended, and why."""


class Session(Connection):
    """See the module.

    Args:
        broker: who has the messages.
        feeds: whose turn it is.
        holders: shared by all connections.
        push, fail: send to the client.
    """

    def __init__(self, broker: Broker, feeds: Feeds, holders: Holders, push: Push, fail: Fail) -> None:
        super().__init__(broker, holders)
        self._feeds = feeds
        self._push = push
        self._fail = fail
        self._name = f"connection-{_PROCESS}-{next(_numbers)}"
        self._subscriptions: dict[str, Subscription] = {}

    # ── subscriptions ───────────────────────────────────────────────────────────────────────────────────────────────

    def subscribe(self, name: str, *, consumer: str, prefetch: int, ack_deadline_ns: int, together: int) -> str:
        """Push messages of `name` from now on, as long as the consumer holds less than `prefetch`.

        Args:
            name: the subscription.
            consumer: "" = the connection itself.
            prefetch: how many the consumer may hold.
            ack_deadline_ns: of each lease; 0 = the subscription's own.
            together: at most so many messages in one message of the socket.

        Returns:
            The consumer's name.

        Raises:
            AlreadyExists: it is subscribed.
            SubscriptionNotFound.
        """
        if name in self._subscriptions:
            raise AlreadyExists("This connection is subscribed to the queue already")
        consumer = consumer or self._name
        feed = self._feeds.join(name)
        subscription = Subscription(self, feed, consumer, prefetch, ack_deadline_ns, together)
        self._subscriptions[name] = subscription
        self._holders.join(name, consumer)
        subscription.task = asyncio.ensure_future(self._run(name, subscription))
        return consumer

    def unsubscribe(self, name: str, queue: str) -> None:
        """Push nothing more; what was pushed is still the consumer's to settle.

        Raises:
            ConsumerNotFound: it is not subscribed.
        """
        subscription = self._subscriptions.get(name)
        if subscription is None:
            raise ConsumerNotFound(f"This connection is not subscribed to the queue: {queue}")
        self._end(name, subscription)
        subscription.stop()  # what is being sent is sent

    async def _run(self, name: str, subscription: Subscription) -> None:
        try:
            error: HeliographError | None = await subscription.run(self._broker, self._push)
        except HeliographError as failure:
            error = failure
        except Exception:
            log.exception("a subscription of a WebSocket failed")
            error = Internal("The broker failed on this subscription; its log tells more")
        finally:
            self._end(name, subscription)
        if error is not None and not self._closed:
            await self._fail(name, error)

    def _end(self, name: str, subscription: Subscription) -> None:
        if self._subscriptions.get(name) is subscription:
            del self._subscriptions[name]
            self._holders.leave(name, subscription.consumer)
            subscription.leave(self._feeds)

    def close(self) -> None:
        """See `Connection`; nothing is pushed any more."""
        for name, subscription in list(self._subscriptions.items()):
            self._end(name, subscription)
            subscription.stop(at_once=True)
        super().close()

    def _freed(self, name: str) -> None:
        subscription = self._subscriptions.get(name)
        if subscription is not None:
            subscription.has_credit()


class Subscription:
    """One queue pushed to one connection."""

    def __init__(
        self, session: Session, feed: Feed, consumer: str, prefetch: int, ack_deadline_ns: int, together: int
    ) -> None:
        self.consumer = consumer
        self.task: asyncio.Future[Any] | None = None
        self.earliest_ns = NEVER_NS
        """No lease on what it pushed ends before."""
        self._pushed = 0
        self._pushed_bytes = 0
        self._session = session
        self._feed = feed
        self._prefetch = prefetch
        self._ack_deadline_ns = ack_deadline_ns
        self._together = together
        self._woken = asyncio.Event()
        self._wake = self._woken.set  # the same object every time
        self._stopped = False
        self._aside = False
        feed.attach(self._wake)

    def add(self, size: int, deadline_ns: int) -> None:
        """A message of `size` bytes is about to be pushed."""
        self._pushed += 1
        self._pushed_bytes += size
        self.earliest_ns = min(self.earliest_ns, deadline_ns)

    def remove(self, size: int) -> None:
        """One is settled, or its lease has ended."""
        self._pushed -= 1
        self._pushed_bytes -= size

    def leave(self, feeds: Feeds) -> None:
        """It takes no more turns."""
        self._feed.detach(self._wake)
        feeds.leave(self._feed)

    def has_credit(self) -> None:
        """Something that its connection held is settled."""
        if self._aside:
            self._wake()

    def stop(self, *, at_once: bool = False) -> None:
        """Pull nothing more; `at_once`: nor send what was pulled."""
        self._stopped = True
        self._wake()
        if at_once and self.task is not None:
            self.task.cancel()

    async def run(self, broker: Broker, push: Push) -> HeliographError | None:
        """Until it is stopped, or the queue is gone, which is answered."""
        feed, name = self._feed, self._feed.info.name
        while not self._stopped:
            self._woken.clear()
            if feed.lost:
                return SubscriptionNotFound(name)
            room = self._prefetch - broker.outstanding(name, self.consumer)
            if room <= 0 or self._pushed_bytes >= PUSHED_BYTES_MAX:
                await self._wait_for_credit(broker, name)
            elif feed.may_have and feed.is_turn_of(self._wake):
                share = max(BATCH_MESSAGES_ALONE // max(feed.streams, 1), BATCH_MESSAGES)
                await self._deliver(broker, name, min(room, share), push)
            else:
                feed.stand_in_row(self._wake)
                await self._woken.wait()
        return None

    async def _deliver(self, broker: Broker, name: str, wanted: int, push: Push) -> None:
        feed, signals = self._feed, self._feed.signals
        reply = broker.pull(
            name, wanted, max_bytes=BATCH_BYTES, ack_deadline_ns=self._ack_deadline_ns, consumer=self.consumer
        )
        if not reply.provisional:
            feed.nothing(signals)
            return
        feed.found(self._wake, enough=len(reply.provisional) == wanted)  # others need not wait for our commit
        deliveries = await leased(broker, name, reply)
        if self._stopped:
            give_back(broker, name, [delivery.ack_id for delivery in deliveries])
            return
        self._session.hold(name, deliveries, self)
        await push(name, deliveries, self._together)
        await asyncio.sleep(0)  # others get their turn

    async def _wait_for_credit(self, broker: Broker, name: str) -> None:
        """Until something is settled, or the earliest lease ends. A consumer that holds nothing here has its messages
        on another connection, and looks again with each event of the queue."""
        feed, session = self._feed, self._session
        now_ns = broker.now_ns()
        if self.earliest_ns <= now_ns:
            session.drop_ended()
            self.earliest_ns = session.earliest_ns(self)
            if self._pushed_bytes < PUSHED_BYTES_MAX and broker.outstanding(name, self.consumer) < self._prefetch:
                return
        feed.stand_aside(self._wake, self.earliest_ns if self._pushed else 0)
        self._aside = True
        timer = None
        if self._pushed:
            # with a retry policy the end of a lease is no event for the feed; then the timer wakes
            seconds = max(self.earliest_ns - now_ns, 0) / 1e9
            timer = asyncio.get_running_loop().call_later(seconds + 0.001, self._wake)
        try:
            await self._woken.wait()
        finally:
            if timer is not None:
                timer.cancel()
            self._aside = False
            feed.step_back(self._wake)
