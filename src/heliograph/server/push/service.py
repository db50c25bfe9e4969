"""All push subscriptions of a server: which there are, and the alarm clock that they share."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from typing import TYPE_CHECKING

from heliograph.broker.clock import Timer
from heliograph.broker.protocol import Broker
from heliograph.errors import SubscriptionNotFound
from heliograph.server.pubsub.names import is_of_pubsub
from heliograph.server.push.pusher import Pusher, PushState, Shared, push_config

if TYPE_CHECKING:
    from heliograph.server.push.endpoint import Client
    from heliograph.server.push.tokens import Tokens


class Pushing:
    """Serves push subscriptions from `start` to `close`. Event loop thread only, save `_ring`.

    Args:
        broker: who has them.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._shared = Shared(broker, self.client, self.tokens, self._alarm, self._forget)
        self._client: Client | None = None
        self._tokens: Tokens | None = None
        self._pushers: dict[str, Pusher] = {}
        self._loop: asyncio.AbstractEventLoop | None = None  # None = not serving
        self._timer: Timer | None = None
        self._alarms: list[tuple[int, int, Pusher]] = []
        self._numbers = itertools.count()

    def start(self) -> None:
        """Push what there is."""
        self._loop = asyncio.get_running_loop()
        for info in self._broker.list_subscriptions():
            if is_of_pubsub(info.name):
                self.look(info.name)

    def look(self, name: str) -> None:
        """A subscription was created or changed: it may be pushed from now on, or no more."""
        if self._loop is None:
            return
        pusher = self._pushers.get(name)
        if pusher is not None:
            pusher.go_on()
        if name in self._pushers:
            return
        try:
            info = self._broker.get_subscription(name)
            config = push_config(info)
            if config is not None:
                self._pushers[name] = Pusher(self._shared, info, config)
        except SubscriptionNotFound:  # deleted meanwhile
            return

    def state(self, name: str) -> PushState | None:
        """How a push subscription is doing; None = it is none."""
        pusher = self._pushers.get(name)
        return None if pusher is None else pusher.state

    async def close(self) -> None:
        """Stop pushing, and give back what is under way. Idempotent."""
        self._loop = None
        if self._timer is not None:
            self._timer.close()
        await asyncio.gather(*(pusher.close() for pusher in list(self._pushers.values())))
        if self._client is not None:
            await self._client.close()

    async def client(self) -> Client:
        """Who sends; made, and its library loaded, with the first message."""
        if self._client is None:
            made = await asyncio.to_thread(_new_client)
            if self._client is None:  # no other request has made one meanwhile
                self._client = made
        return self._client

    async def tokens(self) -> Tokens:
        """Who signs; made, and its library loaded, when the first token or the keys are asked for."""
        if self._tokens is None:
            made = await asyncio.to_thread(_new_tokens, self._broker)
            if self._tokens is None:  # as above
                self._tokens = made
        return self._tokens

    def _forget(self, pusher: Pusher) -> None:
        if self._pushers.get(pusher.name) is pusher:
            del self._pushers[pusher.name]

    # ── the alarm clock ─────────────────────────────────────────────────────────────────────────────────────────────

    def _alarm(self, instant_ns: int, pusher: Pusher) -> None:
        """Call `pusher.due` at `instant_ns`. A pusher has one alarm at a time, the earliest."""
        if self._loop is None or 0 < pusher.alarm_ns <= instant_ns:
            return
        pusher.alarm_ns = instant_ns
        heapq.heappush(self._alarms, (instant_ns, next(self._numbers), pusher))
        if self._timer is None:
            self._timer = self._broker.timer(self._ring)
        self._timer.set(instant_ns)

    def _ring(self) -> None:
        """The timer's call, from a thread of its own."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake_due)

    def _wake_due(self) -> None:
        if self._loop is None:
            return
        now_ns = self._broker.now_ns()
        while self._alarms and self._alarms[0][0] <= now_ns:
            instant_ns, _, pusher = heapq.heappop(self._alarms)
            if pusher.alarm_ns == instant_ns:  # else an earlier one took its place
                pusher.alarm_ns = 0
                pusher.due()
        if self._alarms and self._timer is not None:
            self._timer.set(self._alarms[0][0])


def _new_client() -> Client:
    from heliograph.server.push.endpoint import Client

    return Client()


def _new_tokens(broker: Broker) -> Tokens:
    from heliograph.server.push.tokens import Tokens

    return Tokens(broker)
