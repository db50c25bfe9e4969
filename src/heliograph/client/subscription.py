"""A subscription as an application sees it: create it, listen to it, pull from it (spec 001)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from heliograph.client.arguments import count_of, name_of
from heliograph.client.events import Emitter
from heliograph.client.message import Message
from heliograph.client.message_stream import MessageStream
from heliograph.client.options import SubscriptionOptions, settings_of
from heliograph.client.outstanding import Outstanding
from heliograph.engine.settings import SECOND_NS
from heliograph.errors import (
    FlowControlExceeded,
    HeliographError,
    InvalidArgument,
    NotFound,
    SubscriptionNotFound,
)

if TYPE_CHECKING:
    from heliograph.client.message_queue import MessageQueue
    from heliograph.client.pubsub import PubSub


class Subscription(Emitter):
    """A subscription of a `PubSub`; made by `Topic.subscription` and `PubSub.subscription`, by name, whether it exists
    or not.

    Its events, for `on` and `once`:

    - `message`, with a `Message`, between `open` and `close`. The callback may be plain or async. One that raises has
      not processed its message: that is a nack, and an `error` event.
    - `error`, with the exception. Where nobody listens, it is logged.
    - `close`, when the stream has ended.

    Args:
        pubsub: whose it is.
        name: its name.
        topic: the name of its topic, for `create`; None = not known here.
        options: `SubscriptionOptions`.
    """

    __slots__ = ("_options", "_outstanding", "_pubsub", "_stream", "_topic_name", "name")
    EVENTS: ClassVar[tuple[str, ...]] = ("message", "error", "close")

    def __init__(self, pubsub: PubSub, name: str, topic: str | None, options: SubscriptionOptions) -> None:
        super().__init__()
        self._pubsub = pubsub
        self.name = name_of(name, "Subscription name")
        self._topic_name = topic
        self._options = options
        self._stream: MessageStream | None = None
        self._outstanding: Outstanding | None = None

    @property
    def queue(self) -> MessageQueue:
        """The queue that it receives from."""
        return self._pubsub.queue

    @property
    def options(self) -> SubscriptionOptions:
        """How it is created, and how it delivers."""
        return self._options

    @property
    def outstanding(self) -> Outstanding:
        """What this object has delivered and what is not settled."""
        if self._outstanding is None:
            self._outstanding = Outstanding(self.queue, self.name)
        return self._outstanding

    @property
    def is_open(self) -> bool:
        """Whether messages are being streamed."""
        return self._stream is not None and self._stream.is_open

    # ── the subscription itself ─────────────────────────────────────────────────────────────────────────────────────

    async def create(self, options: SubscriptionOptions | Mapping[str, Any] | None = None, **more: Any) -> Subscription:
        """Create it; it receives what is published from now on.

        Args:
            options: on top of those that the object was made with: `SubscriptionOptions`, or a mapping in either
                spelling.
            more: the same, as keyword arguments.

        Returns:
            This object.

        Raises:
            InvalidArgument: an option is not possible, or no topic is known: take `topic.subscription(name)`, or give
                `topic=` to `pubsub.subscription`.
            AlreadyExists, TopicNotFound.
            FailedPrecondition: the PubSub is closed.
        """
        self._pubsub.check_open()
        if options is not None or more:
            self._options = SubscriptionOptions.build(options, more, over=self._options)
        topic = self._topic_name or self._pubsub.topic_of(self.name)
        if topic is None:
            raise InvalidArgument(f"Subscription {self.name} needs a topic: topic.subscription(name), or topic=")
        # flow control is this object's: what bounds it is what it has delivered itself
        settings = settings_of(self._options, with_flow_control=False)
        await self.queue.broker.create_subscription(self.name, topic, settings)
        return self

    async def delete(self) -> None:
        """Delete it, its messages and its leases. An open stream tells its end by `error` and `close` events.

        Raises:
            SubscriptionNotFound.
            FailedPrecondition: the PubSub is closed.
        """
        self._pubsub.check_open()
        await self.queue.broker.delete_subscription(self.name)
        self._pubsub.forget_topic_of(self.name)

    async def exists(self) -> bool:
        """Whether there is a subscription of this name."""
        self._pubsub.check_open()
        try:
            self.queue.broker.get_subscription(self.name)
        except NotFound:
            return False
        return True

    async def get(self) -> Subscription:
        """This object, if there is a subscription of its name.

        Raises:
            SubscriptionNotFound.
        """
        if not await self.exists():
            raise SubscriptionNotFound(self.name)
        return self

    def set_options(self, options: SubscriptionOptions | Mapping[str, Any] | None = None, **more: Any) -> None:
        """Change how it delivers, from the next pull on; what the subscription was created with stays as it is.

        Raises:
            InvalidArgument: an option is not possible.
        """
        self._options = SubscriptionOptions.build(options, more, over=self._options)
        if self._stream is not None:
            self._stream.set_options(self._options.for_stream())

    # ── streaming ───────────────────────────────────────────────────────────────────────────────────────────────────

    def open(self) -> None:
        """Begin to deliver messages to the `message` listeners. Nothing happens if it has begun.

        Raises:
            SubscriptionNotFound, SubscriptionDetached: there is nothing to receive from.
            FailedPrecondition: no event loop is running here, the PubSub is closed, or the subscription was created
                without the ordering that is wanted.
        """
        self._pubsub.check_open()
        if self._stream is None:
            self._stream = MessageStream(self, self._options.for_stream())
        self._stream.start()
        self._pubsub.opened(self)

    async def close(self) -> None:
        """Deliver nothing more, and return when everything delivered is settled or its lease has ended (BR-008)."""
        if self._stream is not None:
            await self._stream.stop()
        self._pubsub.closed(self)

    def pause(self) -> None:
        """Deliver nothing more for now (BR-007). What is delivered goes on, and so do its leases."""
        if self._stream is None:
            self._stream = MessageStream(self, self._options.for_stream())
        self._stream.pause()

    def resume(self) -> None:
        """Deliver again (BR-007)."""
        if self._stream is not None:
            self._stream.resume()

    def _listening(self, event: str) -> None:
        if self._stream is not None:
            self._stream.wake()

    # ── pulling ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def pull(self, max_messages: int = 100) -> list[Message]:
        """Messages that are ready, at once; none where there is none. Each must be settled as a streamed one.

        Args:
            max_messages: at most so many, from 1; flow control may leave fewer.

        Returns:
            The messages, oldest first. They are leased for the `ack_deadline` among the options, else for the
            subscription's own.

        Raises:
            InvalidArgument: `max_messages` is out of its bounds.
            FlowControlExceeded: as much is outstanding as flow control allows (code 8).
            SubscriptionNotFound.
            FailedPrecondition: the PubSub is closed.
        """
        self._pubsub.check_open()
        count_of(max_messages, "max_messages")
        outstanding, flow_control = self.outstanding, self._options.for_stream().flow_control
        outstanding.expire()
        room = outstanding.room(flow_control, max_messages)
        if not room.messages:
            what = "messages" if len(outstanding) >= flow_control.max_messages else "bytes"
            raise FlowControlExceeded(f"Flow control: max {what} exceeded")
        settings = self.queue.broker.get_subscription(self.name).settings
        outstanding.exactly_once = settings.enable_exactly_once_delivery
        lease_seconds = self._options.ack_deadline or settings.ack_deadline_ns / SECOND_NS
        reply, messages = outstanding.pull(room, lease_seconds)
        try:
            await reply
        except asyncio.CancelledError:
            outstanding.release(messages)
            raise
        except HeliographError:
            outstanding.remove(messages)
            raise
        return messages

    def __repr__(self) -> str:
        return f"Subscription({self.name!r})"


__all__ = ["Subscription"]
