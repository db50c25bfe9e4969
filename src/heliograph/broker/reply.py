"""An answer that is given only when the facts behind it are durable."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Generator
from typing import Generic, TypeVar

from heliograph.errors import Unavailable
from heliograph.store.protocol import COMMITTED, Commit

T = TypeVar("T")
U = TypeVar("U")


class Reply(Generic[T]):
    """The result of an operation, to be had once its commit is durable: `reply.result()` blocks, `await reply` waits.

    Raises (from both):
        Unavailable: the commit failed; the operation may or may not happen later, as after any lost answer.
    """

    __slots__ = ("_commit", "_value")

    def __init__(self, value: T, commit: Commit = COMMITTED) -> None:
        self._value = value
        self._commit = commit

    @property
    def done(self) -> bool:
        """Whether `result()` would not block."""
        return self._commit.done

    @property
    def provisional(self) -> T:
        """What the answer will be if the commit succeeds; for the caller's own books, never to be passed on."""
        return self._value

    def with_value(self, value: U) -> Reply[U]:
        """A reply that comes true at the same moment, with another value."""
        return Reply(value, self._commit)

    def result(self, timeout_seconds: float | None = None) -> T:
        """Block until durable. Never call it from an event loop's thread.

        Raises:
            TimeoutError: not durable within `timeout_seconds`.
        """
        if not self._commit.done and not self._commit.wait(timeout_seconds):
            raise TimeoutError("the commit took longer than the caller wanted to wait")
        return self._settled()

    def __await__(self) -> Generator[object, None, T]:
        if not self._commit.done:
            yield from _committed(self._commit).__await__()
        return self._settled()

    def _settled(self) -> T:
        if self._commit.error is not None:
            raise Unavailable(f"The store cannot commit: {self._commit.error}")
        return self._value


async def _committed(commit: Commit) -> None:
    """Wait for `commit` on the running loop. Many waiters cost the loop one wake-up from the writer thread."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    waiting = commit.waiting_on(loop)
    if waiting is None:
        return
    first = not waiting
    waiting.append(future)
    if first:
        commit.add_done_callback(functools.partial(_wake_from_writer, loop, waiting))
    await future


def _wake_from_writer(loop: asyncio.AbstractEventLoop, futures: list[asyncio.Future[None]]) -> None:
    # a loop that closed meanwhile has nobody left to answer
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(_wake, futures)


def _wake(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
