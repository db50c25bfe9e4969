"""The publisher of one topic: what is published at the same time goes to the broker together.

It belongs to the event loop that it is used from; nothing here needs a loop before the first message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from heliograph.broker.reply import Reply
from heliograph.client.options import PublishOptions
from heliograph.engine.message import Draft, size_bytes
from heliograph.errors import FailedPrecondition

if TYPE_CHECKING:
    from heliograph.client.message_queue import MessageQueue


class _Batch:
    """Messages that go together, and who waits for their ids."""

    __slots__ = ("bytes", "drafts", "futures", "handle", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.drafts: list[Draft] = []
        self.futures: list[asyncio.Future[str]] = []
        self.bytes = 0
        self.handle: asyncio.Handle | None = None  # of the sending to come


class Publisher:
    """Batches for one topic.

    Args:
        queue: where they are published.
        topic: the name of the topic.
        busy: called with this object when it has something to send, and when it has nothing any more.
    """

    __slots__ = ("_batch", "_busy", "_paused", "_queue", "_sending", "_topic", "options")

    def __init__(self, queue: MessageQueue, topic: str, busy: Callable[[Publisher, bool], None]) -> None:
        self._queue = queue
        self._topic = topic
        self._busy = busy
        self._batch: _Batch | None = None
        self._sending: set[asyncio.Task[None]] = set()  # batches that are not durable yet
        self._paused: set[str] = set()  # ordering keys of which a message was not published
        self.options = PublishOptions()

    def publish(self, draft: Draft) -> asyncio.Future[str]:
        """Take a message into the current batch. The future gives its id when it is durable.

        Raises:
            FailedPrecondition: its ordering key is paused, or no event loop is running here.
        """
        if draft.ordering_key in self._paused:
            raise FailedPrecondition(
                f"Publishing is paused for ordering key {draft.ordering_key!r} after a failure; "
                "go on with topic.resume_publishing(key)"
            )
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise FailedPrecondition("Messages are published where an event loop runs: in an async function") from None
        options, batch, size = self.options, self._batch, size_bytes(draft)
        if batch is not None and (batch.loop is not loop or batch.bytes + size > options.max_bytes):
            self._send(batch)
            batch = None
        if batch is None:
            batch = self._begin(loop)
        future: asyncio.Future[str] = loop.create_future()
        drafts = batch.drafts
        drafts.append(draft)
        batch.futures.append(future)
        batch.bytes += size
        if len(drafts) >= options.max_messages or batch.bytes >= options.max_bytes:
            self._send(batch)
        return future

    def _begin(self, loop: asyncio.AbstractEventLoop) -> _Batch:
        batch = self._batch = _Batch(loop)
        if self.options.max_milliseconds:
            batch.handle = loop.call_later(self.options.max_milliseconds / 1_000, self._send, batch)
        else:
            batch.handle = loop.call_soon(self._send, batch)
        self._busy(self, True)
        return batch

    async def flush(self) -> None:
        """Send what waits, and return when everything sent is durable or has failed. What failed is told to those who
        published it."""
        if self._batch is not None:
            self._send(self._batch)
        if self._sending:
            await asyncio.wait(self._sending)

    def resume(self, ordering_key: str) -> None:
        """Messages of this key may be published again."""
        self._paused.discard(ordering_key)

    # ── sending ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _send(self, batch: _Batch) -> None:
        if batch is self._batch:
            self._batch = None
        if batch.handle is not None:
            batch.handle.cancel()
            batch.handle = None
        self._withdraw_paused(batch)
        if batch.loop.is_closed():
            batch.futures.clear()  # nobody waits any more; the messages were promised all the same
        try:
            reply = self._queue.broker.publish(self._topic, batch.drafts)
        except Exception as error:
            self._failed(batch, error)
        else:
            if reply.done:
                self._settle(batch, reply)
            else:
                task = asyncio.get_running_loop().create_task(self._settle_later(batch, reply))
                self._sending.add(task)
                task.add_done_callback(self._sent)
        self._tell_if_idle()

    def _withdraw_paused(self, batch: _Batch) -> None:
        """A key may have been paused since its message came: then the message must not overtake the one that failed."""
        if self._paused and any(draft.ordering_key in self._paused for draft in batch.drafts):
            kept = []
            for draft, future in zip(batch.drafts, batch.futures, strict=True):
                if draft.ordering_key not in self._paused:
                    kept.append((draft, future))
                elif not future.done():
                    future.set_exception(
                        FailedPrecondition(f"An earlier message of ordering key {draft.ordering_key!r} failed")
                    )
            batch.drafts, batch.futures = [draft for draft, _ in kept], [future for _, future in kept]

    async def _settle_later(self, batch: _Batch, reply: Reply[list[str]]) -> None:
        try:
            await reply
        except Exception as error:
            self._failed(batch, error)
        else:
            self._settle(batch, reply)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        self._tell_if_idle()

    def _tell_if_idle(self) -> None:
        if self._batch is None and not self._sending:
            self._busy(self, False)

    def _settle(self, batch: _Batch, reply: Reply[list[str]]) -> None:
        for future, message_id in zip(batch.futures, reply.result(), strict=False):
            if not future.done():
                future.set_result(message_id)

    def _failed(self, batch: _Batch, error: Exception) -> None:
        for draft in batch.drafts:
            if draft.ordering_key:
                self._paused.add(draft.ordering_key)
        for future in batch.futures:
            if not future.done():
                future.set_exception(error)


__all__ = ["Publisher"]
