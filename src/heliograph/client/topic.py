"""A topic as an application sees it: create it, publish to it, subscribe to it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from heliograph.client.arguments import name_of, named
from heliograph.client.internal_message import checked_draft
from heliograph.client.options import PublishOptions, SubscriptionOptions
from heliograph.engine.message import Draft
from heliograph.errors import InvalidArgument, NotFound, TopicNotFound

if TYPE_CHECKING:
    from heliograph.client.pubsub import PubSub
    from heliograph.client.subscription import Subscription

_FIELDS = frozenset({"data", "attributes", "ordering_key"})


class Topic:
    """A topic of a `PubSub`; made by `PubSub.topic`, by name, whether it exists or not.

    All objects of one name share one publisher, with its options, its batch and its paused keys.

    Args:
        pubsub: whose it is.
        name: its name.
    """

    __slots__ = ("_pubsub", "name")

    def __init__(self, pubsub: PubSub, name: str) -> None:
        self._pubsub = pubsub
        self.name = name_of(name, "Topic name")

    # ── the topic itself ────────────────────────────────────────────────────────────────────────────────────────────

    async def create(self) -> Topic:
        """Create it.

        Returns:
            This object.

        Raises:
            AlreadyExists.
            FailedPrecondition: the PubSub is closed.
        """
        self._pubsub.check_open()
        await self._pubsub.queue.broker.create_topic(self.name)
        return self

    async def delete(self) -> None:
        """Delete it. What waits to be published goes first; its subscriptions stay, detached and empty (spec 000,
        BR-012).

        Raises:
            TopicNotFound.
            FailedPrecondition: the PubSub is closed.
        """
        self._pubsub.check_open()
        await self.flush()
        await self._pubsub.queue.broker.delete_topic(self.name, clears_backlog=True)

    async def exists(self) -> bool:
        """Whether there is a topic of this name."""
        self._pubsub.check_open()
        try:
            self._pubsub.queue.broker.get_topic(self.name)
        except NotFound:
            return False
        return True

    async def get(self) -> Topic:
        """This object, if there is a topic of its name.

        Raises:
            TopicNotFound.
        """
        if not await self.exists():
            raise TopicNotFound(self.name)
        return self

    # ── subscriptions ───────────────────────────────────────────────────────────────────────────────────────────────

    def subscription(
        self, name: str, options: SubscriptionOptions | Mapping[str, Any] | None = None, **more: Any
    ) -> Subscription:
        """A subscription of this topic, by name; see `PubSub.subscription`."""
        return self._pubsub.subscription(name, options, topic=self, **more)

    async def create_subscription(
        self, name: str, options: SubscriptionOptions | Mapping[str, Any] | None = None, **more: Any
    ) -> Subscription:
        """As `subscription`, and create it; see `Subscription.create`."""
        return await self.subscription(name, options, **more).create()

    async def get_subscriptions(self) -> list[Subscription]:
        """Its subscriptions, by name.

        Raises:
            TopicNotFound.
        """
        self._pubsub.check_open()
        found = self._pubsub.queue.broker.list_subscriptions(self.name)
        return [self.subscription(info.name) for info in found]

    # ── publishing ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def publish_message(
        self,
        message: Mapping[str, Any] | bytes | None = None,
        *,
        data: bytes | None = None,
        attributes: Mapping[str, str] | None = None,
        ordering_key: str | None = None,
        **more: Any,
    ) -> str:
        """Publish a message, and return when it is durable.

        Args:
            message: a mapping with `data`, `attributes` and `ordering_key` (or `orderingKey`), or the data alone.
            data: payload, bytes, may be empty; at most 10 MB with attributes and ordering key.
            attributes: string to string.
            ordering_key: messages of one key are delivered in the order of these calls, to subscriptions with ordering.
            more: the same in the other spelling.

        Returns:
            Its id.

        Raises:
            InvalidArgument, MessageTooLarge: it breaks a limit (spec 000, BR-017; spec 002, BR-011).
            TopicNotFound.
            FailedPrecondition: its ordering key is paused after a failure, or the PubSub is closed.
            Unavailable: the store cannot commit.
        """
        draft = _draft(message, data, attributes, ordering_key, more)
        return await self._pubsub.publisher_of(self.name).publish(draft)

    def publish_nowait(
        self,
        message: Mapping[str, Any] | bytes | None = None,
        *,
        data: bytes | None = None,
        attributes: Mapping[str, str] | None = None,
        ordering_key: str | None = None,
        **more: Any,
    ) -> asyncio.Future[str]:
        """As `publish_message`, without waiting: the message is in the current batch when this returns.

        Returns:
            A future of its id. It fails with what `publish_message` raises once the message was sent.

        Raises:
            As `publish_message`, for what is wrong before that.
        """
        draft = _draft(message, data, attributes, ordering_key, more)
        return self._pubsub.publisher_of(self.name).publish(draft)

    async def publish_json(
        self, value: Any, attributes: Mapping[str, str] | None = None, *, ordering_key: str | None = None, **more: Any
    ) -> str:
        """Publish a value as JSON in UTF-8; see `publish_message`.

        Raises:
            InvalidArgument: JSON has no form for the value.
        """
        try:
            data = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidArgument(f"The message is no JSON value: {error}") from None
        draft = _draft(None, data, attributes, ordering_key, more)
        return await self._pubsub.publisher_of(self.name).publish(draft)

    async def flush(self) -> None:
        """Send what waits in a batch, and return when everything that was published is durable or has failed."""
        publisher = self._pubsub.publisher_of(self.name, make=False)
        if publisher is not None:
            await publisher.flush()

    def set_options(self, options: PublishOptions | Mapping[str, Any] | None = None, **more: Any) -> None:
        """Change how messages are gathered into batches, from the next message on.

        Args:
            options: `PublishOptions`, or a mapping in either spelling, also nested as `{"batching": {…}}`.
            more: the same, as keyword arguments.

        Raises:
            InvalidArgument: an option is not possible.
        """
        publisher = self._pubsub.publisher_of(self.name)
        publisher.options = PublishOptions.build(options, more, over=publisher.options)

    def resume_publishing(self, ordering_key: str) -> None:
        """Messages of this key may be published again, after one of them failed.

        Raises:
            InvalidArgument: it is no ordering key.
        """
        name_of(ordering_key, "Ordering key")
        publisher = self._pubsub.publisher_of(self.name, make=False)
        if publisher is not None:
            publisher.resume(ordering_key)

    def __repr__(self) -> str:
        return f"Topic({self.name!r})"


def _draft(
    message: object,
    data: object,
    attributes: object,
    ordering_key: object,
    more: Mapping[str, Any],
) -> Draft:
    """What to publish, from whichever way the caller chose."""
    if message is not None and data is not None:
        raise InvalidArgument("The data of a message are given twice")
    if more or isinstance(message, Mapping):
        fields = named(message, _FIELDS, "A message's fields", {}) if isinstance(message, Mapping) else {}
        fields |= named(more, _FIELDS, "A message's fields", {})
        data = fields.get("data") if data is None else data
        attributes = fields.get("attributes") if attributes is None else attributes
        ordering_key = fields.get("ordering_key") if ordering_key is None else ordering_key
    elif message is not None:
        data = message
    if data is None and attributes:
        data = b""  # attributes alone are a message too
    return checked_draft(data, attributes, ordering_key)


__all__ = ["Topic"]
