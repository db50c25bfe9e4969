"""Who of a subscription's consumers pulls next, and which consumer holds which delivery.

All streams and waiting pulls of one subscription share one `Feed`, and the feed one watch on the broker: however many
streams wait, a message wakes one of them. Turns go round: whoever received messages goes to the end of the row. Nobody
polls; an idle stream costs nothing.

Only the event loop's thread touches a feed: the broker's watch calls a `LoopSignal`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from heliograph.broker.protocol import Broker, SubscriptionInfo
from heliograph.errors import SubscriptionNotFound
from heliograph.server.loop_signal import LoopSignal


class Holder(Protocol):
    """A stream, as far as the feed knows it: told what becomes of the deliveries that it holds."""

    def settled(self, ack_ids: Sequence[str]) -> None:
        """The deliveries were acknowledged."""

    def returned(self, ack_id: str) -> None:
        """The delivery was given back (nacked)."""

    def extended(self, ack_ids: Sequence[str], deadline_ns: int) -> None:
        """The deliveries' leases now end at `deadline_ns`."""


class Feed:
    """The turns of one subscription's consumers.

    Args:
        broker: who has the messages.
        info: the subscription; the feed is lost when another takes its name.
        on_lost: called when the subscription is gone.

    Raises:
        SubscriptionNotFound: it does not exist.
    """

    def __init__(self, broker: Broker, info: SubscriptionInfo, on_lost: Callable[[], None]) -> None:
        self.info = info
        self.members = 0
        self.lost = False
        self.holders: dict[str, Holder] = {}
        """Deliveries on streams that count what they hold, by ack id."""
        self._broker = broker
        self._on_lost = on_lost
        self._may_have = True
        self._signals = 0
        self._waiting: dict[Callable[[], None], None] = {}  # wake-up calls, the next turn first
        self._aside: dict[Callable[[], None], int] = {}
        self._streams: set[Callable[[], None]] = set()
        self._loop = asyncio.get_running_loop()
        self._watch = broker.watch(info.name, LoopSignal(self._arrived))

    # ── from the broker ─────────────────────────────────────────────────────────────────────────────────────────────

    def _arrived(self) -> None:
        """There may be messages, or the subscription is gone or changed."""
        try:
            info = self._broker.get_subscription(self.info.name)
        except SubscriptionNotFound:
            info = None
        if info is None or info.number != self.info.number:
            self._lose()
            return
        changed = _is_changed(self.info, info)
        self.info = info
        self._signals += 1
        self._may_have = True
        if changed:
            for wake in (*self._waiting, *self._streams):
                wake()  # each tells its client, or ends
        else:
            self._wake_next()
        if self._aside:
            now_ns = self._broker.now_ns()
            for wake in [wake for wake, until_ns in self._aside.items() if until_ns <= now_ns]:
                wake()

    def _lose(self) -> None:
        if self.lost:
            return
        self.lost = True
        self._on_lost()
        for wake in (*self._waiting, *self._aside, *self._streams):
            wake()

    # ── turns ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def may_have(self) -> bool:
        """Whether a pull could find messages."""
        return self._may_have

    @property
    def signals(self) -> int:
        """Grows with each event; to be compared with later."""
        return self._signals

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return len(self._streams)

    def attach(self, wake: Callable[[], None]) -> None:
        """A stream opens: `wake` also tells it when the subscription is lost."""
        self._streams.add(wake)

    def detach(self, wake: Callable[[], None]) -> None:
        """A stream or a pull ends, or waits for something else: its turn goes to the next."""
        self._streams.discard(wake)
        self.leave_row(wake)

    def stand_in_row(self, wake: Callable[[], None]) -> None:
        """Wait for a turn. Who stands there already keeps the place; `wake` may come any time, also for nothing."""
        self._waiting.setdefault(wake)

    def stand_aside(self, wake: Callable[[], None], until_ns: int) -> None:
        """Have no room until something is settled, or at the earliest until `until_ns`, when a lease ends. `wake` then
        comes with the event that the end of a lease is."""
        self.leave_row(wake)
        self._aside[wake] = until_ns

    def step_back(self, wake: Callable[[], None]) -> None:
        """No longer stand aside."""
        self._aside.pop(wake, None)

    def leave_row(self, wake: Callable[[], None]) -> None:
        """Do not wait any more; the next turn is another's."""
        if wake in self._waiting:
            del self._waiting[wake]
            self._wake_next()

    def is_turn_of(self, wake: Callable[[], None]) -> bool:
        """Whether nobody stands in the row before the owner of `wake`."""
        return next(iter(self._waiting), wake) is wake

    def to_end_of_row(self, wake: Callable[[], None]) -> None:
        """All others come first: this one has just given messages back."""
        if wake in self._waiting:
            del self._waiting[wake]
            self._waiting[wake] = None

    def found(self, wake: Callable[[], None], *, enough: bool) -> None:
        """The owner of `wake` received messages: to the end of the row, and whoever is first now is next.

        Args:
            wake: whose turn it was.
            enough: as many as asked for, so there are probably more for the others right now.
        """
        self._waiting.pop(wake, None)
        if self._waiting:
            if enough:
                self._wake_next()
            else:
                # the owner pulls again as soon as its messages are sent; this matters when sending them takes long
                self._loop.call_soon(self._wake_next)

    def nothing(self, signals: int) -> None:
        """A pull found nothing; `signals` as it was before the pull."""
        if signals == self._signals:
            self._may_have = False

    def _wake_next(self) -> None:
        if self._may_have:
            wake = next(iter(self._waiting), None)
            if wake is not None:
                wake()

    # ── what becomes of deliveries, whatever call decides it ────────────────────────────────────────────────────────

    def settled(self, ack_ids: Iterable[str]) -> None:
        """These were acknowledged, or are stale: they weigh on no stream any more."""
        if self.holders:
            for holder, own in self._by_holder(ack_ids, self.holders.pop):
                holder.settled(own)

    def returned(self, ack_ids: Iterable[str]) -> None:
        """These were nacked."""
        for ack_id in ack_ids:
            holder = self.holders.pop(ack_id, None)
            if holder is not None:
                holder.returned(ack_id)

    def extended(self, ack_ids: Iterable[str], deadline_ns: int) -> None:
        """The leases of these now end at `deadline_ns`."""
        if self.holders:
            for holder, own in self._by_holder(ack_ids, self.holders.get):
                holder.extended(own, deadline_ns)

    @staticmethod
    def _by_holder(
        ack_ids: Iterable[str], find: Callable[[str, None], Holder | None]
    ) -> Iterable[tuple[Holder, list[str]]]:
        """Those that a stream holds, in batches: a client confirms hundreds at once."""
        groups: dict[Holder, list[str]] = {}
        for ack_id in ack_ids:
            holder = find(ack_id, None)
            if holder is not None:
                if holder in groups:
                    groups[holder].append(ack_id)
                else:
                    groups[holder] = [ack_id]
        return groups.items()

    def close(self) -> None:
        """Nobody is left."""
        self._watch.close()


def _is_changed(old: SubscriptionInfo, new: SubscriptionInfo) -> bool:
    """Whether the subscription was updated or detached. Nearly always the settings are the same object."""
    return old.detached != new.detached or (old.settings is not new.settings and old.settings != new.settings)


class Feeds:
    """The feeds of a broker's subscriptions; one exists as long as somebody waits on it.

    Args:
        broker: whose subscriptions.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._feeds: dict[str, Feed] = {}

    def get(self, subscription: str) -> Feed | None:
        """The feed of a subscription, if somebody uses it."""
        return self._feeds.get(subscription)

    def join(self, subscription: str) -> Feed:
        """The feed of a subscription, for one more member.

        Raises:
            SubscriptionNotFound.
        """
        info = self._broker.get_subscription(subscription)
        feed = self._feeds.get(subscription)
        if feed is None or feed.info.number != info.number:
            feed = Feed(self._broker, info, lambda: self._forget(subscription, info.number))
            self._feeds[subscription] = feed
        feed.members += 1
        return feed

    def leave(self, feed: Feed) -> None:
        """One member less."""
        feed.members -= 1
        if not feed.members:
            feed.close()
            self._forget(feed.info.name, feed.info.number)

    def _forget(self, subscription: str, number: int) -> None:
        feed = self._feeds.get(subscription)
        if feed is not None and feed.info.number == number:
            del self._feeds[subscription]
