"""Work queues for event loops: `Queue` with its waiting ones as coroutines."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from heliograph.client.queue import Queue
from heliograph.client.queue_message import Purged, QueueDeadLetter, QueueMessage, WaitingMessage
from heliograph.errors import FlowControlExceeded, HeliographError
from heliograph.wire.queues import Stats

P = ParamSpec("P")
T = TypeVar("T")


class AsyncQueueMessage:
    """A message that was handed out; `async with message:` acknowledges it at the end, and gives it back as failed if
    an exception leaves the block. Its fields are those of `QueueMessage`.

    Args:
        message: the same, for other threads.
    """

    __slots__ = ("message_taken",)

    def __init__(self, message: QueueMessage) -> None:
        self.message_taken = message

    @property
    def id(self) -> str:
        """Its id, for ever."""
        return self.message_taken.id

    @property
    def message(self) -> Any:
        """The value as it was published."""
        return self.message_taken.message

    @property
    def priority(self) -> int:
        """0 to 9."""
        return self.message_taken.priority

    @property
    def retry_count(self) -> int:
        """How often it failed before."""
        return self.message_taken.retry_count

    @property
    def headers(self) -> Mapping[str, str]:
        """As published."""
        return self.message_taken.headers

    async def ack(self) -> None:
        """See `QueueMessage.ack`."""
        await asyncio.to_thread(self.message_taken.ack)

    async def nack(self, *, requeue: bool = True) -> str:
        """See `QueueMessage.nack`."""
        return await asyncio.to_thread(self.message_taken.nack, requeue=requeue)

    async def extend(self, seconds: float) -> None:
        """See `QueueMessage.extend`."""
        await asyncio.to_thread(self.message_taken.extend, seconds)

    async def release(self) -> None:
        """See `QueueMessage.release`."""
        await asyncio.to_thread(self.message_taken.release)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.message_taken.__exit__, kind, error, trace)

    def __repr__(self) -> str:
        return f"Async{self.message_taken!r}"


class AsyncQueue:
    """One work queue, for the event loop that it is used in.

    Args:
        name, options: as `Queue` takes them.

    Raises:
        As `Queue`; so do the methods of the same names.
    """

    def __init__(self, name: str, **options: Any) -> None:
        self.queue = Queue(name, **options)

    async def create(self, **config: Any) -> Self:
        """See `Queue.create`."""
        await _in_thread(self.queue.create, **config)
        return self

    async def delete(self) -> None:
        """See `Queue.delete`."""
        await _in_thread(self.queue.delete)

    async def purge(self) -> Purged:
        """See `Queue.purge`."""
        return await _in_thread(self.queue.purge)

    async def stats(self) -> Stats:
        """See `Queue.stats`."""
        return await _in_thread(self.queue.stats)

    async def peek(self, count: int = 1) -> list[WaitingMessage]:
        """See `Queue.peek`."""
        return await _in_thread(self.queue.peek, count)

    async def publish(self, message: Any, **options: Any) -> str:
        """See `Queue.publish`."""
        return await _in_thread(self.queue.publish, message, **options)

    async def publish_batch(self, messages: Iterable[Any], **options: Any) -> list[str]:
        """See `Queue.publish_batch`."""
        return await _in_thread(self.queue.publish_batch, messages, **options)

    async def ack(self, message_id: str) -> None:
        """See `Queue.ack`."""
        await _in_thread(self.queue.ack, message_id)

    async def nack(self, message_id: str, *, requeue: bool = True) -> str:
        """See `Queue.nack`."""
        return await _in_thread(self.queue.nack, message_id, requeue=requeue)

    async def dead_letters(self, *, limit: int = 100, offset: int = 0) -> list[QueueDeadLetter]:
        """See `Queue.dead_letters`."""
        return await _in_thread(self.queue.dead_letters, limit=limit, offset=offset)

    async def retry_dead_letters(self, ids: Sequence[str] | None = None) -> int:
        """See `Queue.retry_dead_letters`."""
        return await _in_thread(self.queue.retry_dead_letters, ids)

    async def purge_dead_letters(self) -> int:
        """See `Queue.purge_dead_letters`."""
        return await _in_thread(self.queue.purge_dead_letters)

    async def take(self, *, timeout: float | None = 0) -> AsyncQueueMessage | None:
        """See `Queue.take`."""
        return next(iter(await self.take_many(1, timeout=timeout)), None)

    async def take_many(self, count: int, *, timeout: float | None = 0) -> list[AsyncQueueMessage]:
        """See `Queue.take_many`. Nothing is taken once it is cancelled."""
        if timeout == 0:
            return [AsyncQueueMessage(message) for message in await _in_thread(self.queue.take_many, count)]
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def signal() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(woken.set)

        ends_at = None if timeout is None else loop.time() + timeout
        watch = await _in_thread(self.queue.watch, signal)
        try:
            while True:
                woken.clear()
                messages = await self._take_now(count)
                left = None if ends_at is None else ends_at - loop.time()
                if messages or (left is not None and left <= 0):
                    return messages
                try:
                    async with asyncio.timeout(left):
                        await woken.wait()
                except TimeoutError:
                    continue  # one more look
        finally:
            watch.close()

    async def _take_now(self, count: int) -> list[AsyncQueueMessage]:
        taking = asyncio.ensure_future(_in_thread(self.queue.take_now, count))
        try:
            messages = await asyncio.shield(taking)
        except asyncio.CancelledError:
            # the thread cannot be stopped: what it takes goes back
            taking.add_done_callback(_give_back)
            raise
        return [AsyncQueueMessage(message) for message in messages]

    async def consume(self, *, timeout: float | None = None) -> AsyncIterator[AsyncQueueMessage]:
        """See `Queue.consume`."""
        buffered: deque[AsyncQueueMessage] = deque()
        try:
            while True:
                if not buffered:
                    if self.queue.prefetch == 1 and not self.queue.room:
                        raise FlowControlExceeded("Settle the message before, or hold more of them with prefetch=…")
                    buffered.extend(await self.take_many(self.queue.prefetch, timeout=timeout))
                    if not buffered:
                        return
                yield buffered.popleft()
        finally:
            for message in buffered:
                with contextlib.suppress(HeliographError):  # else it comes back with the end of its lease
                    await message.release()

    async def close(self) -> None:
        """See `Queue.close`."""
        await _in_thread(self.queue.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncQueue({self.queue.name!r})"


async def _in_thread(operation: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    return await asyncio.to_thread(operation, *args, **kwargs)


def _give_back(taking: asyncio.Future[list[QueueMessage]]) -> None:
    if not taking.cancelled() and taking.exception() is None:
        for message in taking.result():
            try:
                message.release()
            except HeliographError:
                return  # it comes back with the end of its lease


__all__ = ["AsyncQueue", "AsyncQueueMessage"]
