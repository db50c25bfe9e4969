"""The stream of spec 001: messages to a subscription's listeners as they come, within the bounds of flow control.

It is driven by events and never polls: the broker tells when there may be messages, an acknowledgement when there may
be room, and either schedules one turn (`_turn`) on the event loop. Everything but `wake` runs in the loop's thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import enum
import inspect
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any

from heliograph.broker.protocol import Watch
from heliograph.broker.reply import Reply
from heliograph.client.message import Message
from heliograph.client.options import SubscriberOptions
from heliograph.engine.limits import MESSAGE_BYTES_MAX
from heliograph.engine.retry import RetryPolicy
from heliograph.engine.settings import SECOND_NS
from heliograph.errors import (
    FailedPrecondition,
    HeliographError,
    Internal,
    NotFound,
    ResourceExhausted,
    SubscriptionDetached,
    Unavailable,
)

if TYPE_CHECKING:
    from heliograph.client.subscription import Subscription

_log = logging.getLogger("heliograph")

RECOVERY = RetryPolicy(minimum_backoff_ns=SECOND_NS // 10, maximum_backoff_ns=30 * SECOND_NS)  # BR-009
BATCH_MESSAGES_MAX = 256  # per pull: more gain nothing
_FIRST_BATCH_MESSAGES = 32
_TURN_SECONDS = 0.01  # after so long other tasks get their turn; a callback under way is not interrupted


class _State(enum.Enum):
    IDLE = "idle"
    RUNNING = "running"
    STOPPING = "stopping"


class MessageStream:
    """Streaming pull for one subscription (spec 001).

    Args:
        subscription: whose messages; its listeners to `message`, `error` and `close` are called.
        options: `SubscriberOptions`, or a mapping in either spelling.
        more: the same, as keyword arguments.

    Raises:
        InvalidArgument: an option is not possible.
    """

    def __init__(
        self, subscription: Subscription, options: SubscriberOptions | Mapping[str, Any] | None = None, **more: Any
    ) -> None:
        self._subscription = subscription
        self._options = SubscriberOptions.build(options, more)
        self._outstanding = subscription.outstanding
        self._state = _State.IDLE
        self._paused = False
        self._scheduled = False  # a turn is to come
        self._buffer: deque[Message] = deque()  # delivered, and no listener has seen them
        self._batch = _FIRST_BATCH_MESSAGES  # how many messages a pull asks for
        self._pulls: set[asyncio.Task[None]] = set()  # pulls whose lease is not durable yet: one per stream (BR-010)
        self._callbacks: set[asyncio.Task[None]] = set()
        self._failures = 0  # pulls in a row that failed
        self._retry: asyncio.TimerHandle | None = None
        self._watch: Watch | None = None
        self._stopped: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0  # where the loop runs
        self._context = contextvars.Context()
        self._in_turn = False
        self._is_asking = False  # the broker, in this thread: what that stirs up is seen to here
        self._empties = False  # the last pull took everything there was
        self._acks_free = False  # messages that wait, beyond this stream's own room: ordering, limits of the queue
        self._look = False  # the broker told of something: if nothing comes of it, the subscription may be gone

    @property
    def options(self) -> SubscriberOptions:
        """How it delivers."""
        return self._options

    @property
    def is_open(self) -> bool:
        """Whether it was started and not stopped."""
        return self._state is _State.RUNNING

    # ── start and stop ──────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Begin to deliver (BR-001). Nothing happens if it has begun.

        Raises:
            SubscriptionNotFound, SubscriptionDetached: there is nothing to receive from.
            FailedPrecondition: no event loop is running here, the stream is just stopping, or ordering is wanted of a
                subscription that was created without.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise FailedPrecondition(
                "A subscription is opened where an event loop runs: in an async function"
            ) from None
        if self._state is not _State.IDLE and self._loop is not None and self._loop.is_closed():
            self._abandon()
        if self._state is _State.STOPPING:
            raise FailedPrecondition(f"The stream of {self._subscription.name} is being closed")
        if self._state is _State.RUNNING:
            if self._loop is not loop:
                raise FailedPrecondition(f"The stream of {self._subscription.name} is open in another event loop")
            return
        self._check_subscription()
        self._loop, self._thread = loop, threading.get_ident()
        self._context = contextvars.copy_context()
        self._stopped = loop.create_future()
        self._scheduled, self._failures = False, 0
        self._state = _State.RUNNING
        self._watch = self._subscription.queue.broker.watch(self._subscription.name, self._told)
        self._outstanding.watch(self._settled)
        self.wake()

    def _check_subscription(self) -> None:
        info = self._subscription.queue.broker.get_subscription(self._subscription.name)
        if info.detached:
            raise SubscriptionDetached(self._subscription.name)
        if self._options.message_ordering and not info.settings.enable_message_ordering:
            raise FailedPrecondition(f"Subscription was created without message ordering: {info.name}")
        settings = info.settings
        self._outstanding.exactly_once = settings.enable_exactly_once_delivery
        self._acks_free = bool(
            settings.enable_message_ordering or settings.outstanding_messages_max or settings.outstanding_bytes_max
        )

    async def stop(self) -> None:
        """Deliver nothing more, and return when everything delivered is settled or its lease has ended (BR-008). Then
        the subscription's `close` event happens. Nothing happens if it is not open."""
        if self._state is _State.IDLE or self._stopped is None:
            return
        if self._state is _State.RUNNING:
            self._begin_stop()
        if self._state is _State.STOPPING:
            await asyncio.shield(self._stopped)

    def _begin_stop(self) -> None:
        self._state = _State.STOPPING
        self._release_buffer()
        self._cancel_retry()
        self.wake()

    def _end(self) -> None:
        """The stop is complete."""
        self._state = _State.IDLE
        self._cancel_retry()
        self._outstanding.unwatch(self._settled)
        if self._watch is not None:
            self._watch.close()
        assert self._stopped is not None
        if not self._stopped.done():
            self._stopped.set_result(None)
        self._subscription.emit("close")

    def pause(self) -> None:
        """Deliver nothing more for now; what is delivered goes on, and so do its leases (BR-007)."""
        self._paused = True
        self._release_buffer()

    def resume(self) -> None:
        """Deliver again (BR-007)."""
        self._paused = False
        self.wake()

    def set_options(self, options: SubscriberOptions | Mapping[str, Any] | None = None, **more: Any) -> None:
        """Change how it delivers, from the next pull on. A mapping and keyword arguments change what they name.

        Raises:
            InvalidArgument: an option is not possible.
        """
        self._options = SubscriberOptions.build(options, more, over=self._options)
        self.wake()

    # ── turns ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def wake(self) -> None:
        """There may be something to do. From any thread, often, and in the middle of anything: so it only schedules."""
        if self._scheduled or self._state is _State.IDLE:
            return
        at_home = threading.get_ident() == self._thread
        self._scheduled = True
        assert self._loop is not None
        try:
            # callbacks run in the context of whoever opened the stream, not of whoever published
            if at_home:
                self._loop.call_soon(self._turn, context=self._context)
            else:
                self._loop.call_soon_threadsafe(self._turn, context=self._context)
        except RuntimeError:
            self._abandon()

    def _told(self) -> None:
        """The broker's call: there may be messages, or no subscription any more."""
        self._look = True
        if not self._is_asking or threading.get_ident() != self._thread:
            self.wake()

    def _settled(self) -> None:
        """A message was settled: there may be room, and the broker is to be told."""
        if not self._in_turn or threading.get_ident() != self._thread:  # a turn sees to it at its end
            self.wake()

    def _abandon(self) -> None:
        """The loop was closed with the stream open: nobody is left to deliver to. Leases end by themselves."""
        self._state = _State.IDLE
        self._scheduled = False
        self._outstanding.unwatch(self._settled)
        if self._watch is not None:
            self._watch.close()

    def _turn(self) -> None:
        """What can be done now, for a few milliseconds at most."""
        self._scheduled = False  # first, so that whatever happens from here on schedules another turn
        self._thread = threading.get_ident()
        if self._outstanding.expire() and self._buffer:
            self._buffer = deque(message for message in self._buffer if self._outstanding.holds(message))
        self._in_turn = True
        try:
            pulled = self._pull()
            if self._buffer:
                self._dispatch()
                if not pulled:
                    self.wake()  # there may be room to pull now
        finally:
            self._in_turn = False
            if self._buffer:
                self.wake()
        if self._look and not pulled and self._state is _State.RUNNING:
            self._look_for_the_end()
        if self._outstanding.is_pending and not self._scheduled:
            self._settle_pending()
        if self._state is _State.STOPPING:
            self._try_to_end()

    def _settle_pending(self) -> None:
        """No pull follows that would do it. Where nothing was left to pull, nothing is now."""
        self._is_asking = self._empties and not self._acks_free
        try:
            self._outstanding.settle_pending()
        finally:
            self._is_asking = False

    def _try_to_end(self) -> None:
        try:
            if self._subscription.queue.broker.get_subscription(self._subscription.name).detached:
                self._outstanding.clear()
        except HeliographError:
            self._outstanding.clear()  # there are no leases any more
        if not self._outstanding and not self._pulls:
            self._end()
        elif self._retry is None:
            # the broker tells when leases end, but one that was closed meanwhile does not
            assert self._loop is not None
            self._retry = self._loop.call_later(self._outstanding.seconds_left(), self._try_again)

    # ── pulling ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _may_pull(self) -> bool:
        streaming = self._options.streaming_options
        return (
            self._state is _State.RUNNING
            and not self._paused
            and self._retry is None
            and len(self._buffer) <= streaming.high_water_mark
            and len(self._pulls) < streaming.max_streams
            and bool(self._subscription.listeners("message"))  # what nobody listens to stays in the subscription
        )

    def _pull(self) -> bool:
        """Ask the queue for messages, if there is room for them. True if it was asked."""
        if not self._may_pull():
            return False
        options = self._options
        room = self._outstanding.room(options.flow_control, self._batch)
        if not room.messages:
            return False
        self._is_asking = True
        try:
            reply, messages = self._outstanding.pull(room, options.ack_deadline)
        except Exception as error:
            self._failed(error)
            return True
        finally:
            self._is_asking = False
        self._empties = len(messages) < room.messages and self._outstanding.bytes + MESSAGE_BYTES_MAX < (
            options.flow_control.max_bytes
        )
        if len(messages) == room.messages:
            self.wake()  # there may be more
        if reply.done and not self._pulls:
            self._receive(reply, messages)
        else:
            assert self._loop is not None
            task = self._loop.create_task(self._receive_later(reply, messages))
            self._pulls.add(task)
            task.add_done_callback(self._pulled)
        return True

    def _pulled(self, task: asyncio.Task[None]) -> None:
        self._pulls.discard(task)
        self.wake()

    async def _receive_later(self, reply: Reply[Any], messages: list[Message]) -> None:
        """Nobody sees a message before its lease is durable: its id could name another one after a crash."""
        with contextlib.suppress(HeliographError):
            await reply
        self._receive(reply, messages)

    def _receive(self, reply: Reply[Any], messages: list[Message]) -> None:
        try:
            reply.result()
        except HeliographError as error:
            self._outstanding.remove(messages)
            self._failed(error)
            return
        self._failures = 0
        if not messages:
            if self._look:
                self._look_for_the_end()
            return
        self._buffer.extend(messages)
        if self._state is not _State.RUNNING or self._paused:
            self._release_buffer()

    def _look_for_the_end(self) -> None:
        """Nothing came: perhaps because nothing can come any more."""
        self._look = False
        try:
            detached = self._subscription.queue.broker.get_subscription(self._subscription.name).detached
        except HeliographError as error:
            self._failed(error)
            return
        if detached:
            self._failed(SubscriptionDetached(self._subscription.name))

    def _failed(self, error: Exception) -> None:
        """A pull failed: again after a while, or never (BR-009)."""
        self._tell(error)
        if self._state is not _State.RUNNING:
            return
        if _is_fatal(error):
            self._begin_stop()
            return
        assert self._loop is not None
        self._cancel_retry()
        self._failures += 1
        self._retry = self._loop.call_later(RECOVERY.backoff_ns(self._failures) / SECOND_NS, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self.wake()

    def _cancel_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _tell(self, error: BaseException) -> None:
        if not self._subscription.emit("error", error):
            _log.error("subscription %s: %s", self._subscription.name, error, exc_info=error)

    # ── delivering ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _dispatch(self) -> None:
        """Hand messages to the listeners until the turn is over."""
        buffer, subscription = self._buffer, self._subscription
        begun = time.monotonic()
        done = 0
        while buffer:
            if done and time.monotonic() - begun > _TURN_SECONDS:
                break
            listeners = subscription.listeners("message")
            if not listeners:
                self._release_buffer()
                break
            done += 1
            message = buffer.popleft()
            for listener in listeners:
                try:
                    result = listener(message)
                except Exception as error:
                    self._callback_failed(message, error)
                else:
                    if result is not None and inspect.isawaitable(result):
                        self._follow(message, result)
        if buffer:
            self._batch = max(done, 1)  # the callbacks are slow: lease no more than can be shown
        elif done == self._batch:
            self._batch = min(2 * self._batch, BATCH_MESSAGES_MAX)

    def _callback_failed(self, message: Message, error: BaseException) -> None:
        """A callback that raises has not processed its message; the stream goes on."""
        self._give_back(message)
        self._tell(error)

    def _give_back(self, message: Message) -> None:
        try:
            message.nack()
        except HeliographError as error:  # then its lease ends by itself
            self._tell(error)

    def _follow(self, message: Message, result: Awaitable[Any]) -> None:
        assert self._loop is not None
        task = self._loop.create_task(self._await(message, result))
        self._callbacks.add(task)
        task.add_done_callback(self._callbacks.discard)

    async def _await(self, message: Message, result: Awaitable[Any]) -> None:
        try:
            await result
        except asyncio.CancelledError:
            self._give_back(message)
            raise
        except Exception as error:
            self._callback_failed(message, error)

    def _release_buffer(self) -> None:
        messages = list(self._buffer)
        self._buffer.clear()
        self._outstanding.release(messages)


def _is_fatal(error: Exception) -> bool:
    """Whether trying again is of no use: the subscription is gone, or the call itself is wrong."""
    if isinstance(error, NotFound | FailedPrecondition):
        return True
    return isinstance(error, HeliographError) and not isinstance(error, Unavailable | ResourceExhausted | Internal)


__all__ = ["MessageStream"]
