"""A topic: a log, and the subscriptions that stand somewhere in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heliograph.engine.deduplication import DedupIds
from heliograph.engine.log import TopicLog
from heliograph.engine.settings import TopicSettings

if TYPE_CHECKING:
    from heliograph.engine.subscription import Subscription

STAGING_PREFIX = "_staging/"
"""Before the names of topics that hold what is not published yet; nobody subscribes to them, and no door lists them."""


class Topic:
    """State of one topic.

    Args:
        name: opaque to the engine.
        number: never reused; message ids begin with it.
        settings: see `TopicSettings`.
        created_ns: nanoseconds since the epoch.
        log: its messages in memory.
    """

    __slots__ = (
        "created_ns",
        "dedup_ids",
        "deleted",
        "filtered",
        "in_time_order",
        "log",
        "name",
        "newest_ns",
        "number",
        "plain",
        "settings",
        "subscriptions",
    )

    def __init__(self, name: str, number: int, settings: TopicSettings, created_ns: int, log: TopicLog) -> None:
        self.name = name
        self.number = number
        self.settings = settings
        self.created_ns = created_ns
        self.log = log
        self.subscriptions: dict[str, Subscription] = {}
        self.filtered: tuple[Subscription, ...] = ()  # those of them that have a filter; few topics have any
        self.in_time_order = True  # publish times grew with the sequences, up to `newest_ns`
        self.newest_ns = 0
        self.plain = True  # no message ever carried extras, so they need no look when they are loaded
        self.deleted = False
        self.dedup_ids: DedupIds | None = None  # made when it is needed: few topics ever do

    def attach(self, subscription: Subscription) -> None:
        """What is published comes to the subscription, too."""
        self.subscriptions[subscription.name] = subscription
        if subscription.filter is not None:
            self.filtered = (*self.filtered, subscription)

    def detach(self, subscription: Subscription) -> None:
        """It does not any more. One that never did is no error."""
        self.subscriptions.pop(subscription.name, None)
        if subscription in self.filtered:
            self.filtered = tuple(one for one in self.filtered if one is not subscription)

    def stand_in(self) -> Topic:
        """What a detached subscription has for a topic: its name, and nothing that could come from it."""
        topic = Topic(self.name, self.number, self.settings, self.created_ns, TopicLog())
        topic.log.skip(self.log.next_sequence - 1)
        topic.plain, topic.deleted = self.plain, self.deleted
        return topic
