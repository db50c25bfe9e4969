"""Answers that are Arrow streams: what the doors of logs, claims and events share. No rule of any of them.

Reading goes batch by batch in worker threads, the next one while the last is being sent; a client that does not read
stops it there, so that a slow reader costs the broker a few megabytes and no work.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Generator, Iterable, Iterator

from heliograph.engine.message import Message
from heliograph.errors import InvalidArgument
from heliograph.server.courtesy import DEMAND, Courtesy
from heliograph.server.routing import Receive, Send
from heliograph.server.waiting import until_gone
from heliograph.wire import arrow

ROWS_MAX = 5_000
"""Rows of one record batch. Fewer cost more calls, more no longer fit the processor's caches; both only a little."""

PAYLOAD_BYTES_MAX = 4 * 1024 * 1024
"""Payload of one record batch, about; a batch with one larger message is larger."""

NUMBER_DIGITS_MAX = 19
"""Of a number in a request."""

SEND_BYTES = 128 * 1024
"""Bytes given to the HTTP server at a time. It counts pieces, not bytes, and holds some fifty of them for a client that
does not read, so their size decides what such a client costs: 8 MB, where whole record batches would be 100 MB."""


def columns_of(parameters: dict[str, str], known: list[str]) -> list[str]:
    """The parameter `columns`; all that are known when it is missing. Raises: InvalidArgument."""
    columns = [name for name in parameters.get("columns", "").split(",") if name] or known
    if any(name not in known for name in columns) or len(set(columns)) < len(columns):
        raise InvalidArgument(f"columns must be different ones of {', '.join(known)}")
    return columns


def number_of(parameters: dict[str, str], name: str, default: int) -> int:
    """A parameter that is a whole number, not negative. Raises: InvalidArgument."""
    text = parameters.get(name, "")
    if not text:
        return default
    if not is_number(text):
        raise InvalidArgument(f"{name} must be a whole number, not {text[:40]!r}")
    return int(text)


def is_number(text: str) -> bool:
    """Whether it is a whole number, not negative, of a size that is of use."""
    return text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS_MAX


REST_SECONDS_MIN = 0.0002
"""A shorter rest is none: the event loop's timers are no finer."""


class _Parts:
    """The bytes of a stream, piece by piece, for worker threads: one call at a time, from whatever thread."""

    def __init__(self, parts: Generator[bytes | memoryview]) -> None:
        self._lock = threading.Lock()
        self._parts = parts
        self.worked_seconds = 0.0  # on the latest part

    def next(self) -> memoryview:
        """The next piece; an empty one after the last."""
        with self._lock:
            began = time.perf_counter()
            part = memoryview(next(self._parts, b""))
            self.worked_seconds = time.perf_counter() - began
            return part

    async def next_after(self, rest_seconds: float) -> memoryview:
        """`next`, in a thread, after a rest."""
        if rest_seconds > REST_SECONDS_MIN:
            await asyncio.sleep(rest_seconds)
        return await asyncio.to_thread(self.next)

    def close(self) -> None:
        """Let go of what is read; waits for a call of `next` that is under way."""
        with self._lock:
            self._parts.close()


def resized(batches: Iterable[list[Message]], rows_max: int, bytes_max: int) -> Iterator[list[Message]]:
    """The same messages in the same order, in pieces that suit a stream.

    Small batches are joined up to `rows_max` messages, large ones are cut. A piece carries at most about `bytes_max` of
    payload, unless a single message is larger.
    """
    held: list[Message] = []
    held_bytes = 0
    for batch in batches:
        held.extend(batch)
        held_bytes += _payload_bytes(batch)
        if len(held) < rows_max and held_bytes < bytes_max:
            continue
        if held_bytes < bytes_max:
            whole = len(held) - len(held) % rows_max
            yield from (held[start : start + rows_max] for start in range(0, whole, rows_max))
        else:
            whole = len(held)
            for start in range(0, whole, rows_max):
                yield from _halved(held[start : start + rows_max], bytes_max)
        held = held[whole:]
        held_bytes = _payload_bytes(held)
    if held:
        yield held


def _payload_bytes(messages: list[Message]) -> int:
    return sum([len(message.data) for message in messages])


def _halved(messages: list[Message], bytes_max: int) -> Iterator[list[Message]]:
    if len(messages) == 1 or _payload_bytes(messages) <= bytes_max:
        yield messages
        return
    middle = len(messages) // 2
    yield from _halved(messages[:middle], bytes_max)
    yield from _halved(messages[middle:], bytes_max)


async def send_stream(receive: Receive, send: Send, stream: Generator[bytes | memoryview]) -> None:
    """Answer with an Arrow stream, making its next part in a thread while the last is sent, after a rest if others have
    work for the broker (`courtesy.py`). Ends quietly when the client goes away.

    Args:
        receive, send: the request's.
        stream: its bytes, part by part; closed in the end.
    """
    headers = [(b"content-type", arrow.MEDIA_TYPE.encode()), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    parts = _Parts(stream)
    gone = asyncio.ensure_future(until_gone(receive))
    ahead = asyncio.ensure_future(asyncio.to_thread(parts.next))
    courtesy = Courtesy()
    DEMAND.streams += 1
    try:
        while part := await ahead:
            ahead = asyncio.ensure_future(parts.next_after(courtesy.rest_seconds(parts.worked_seconds)))
            for start in range(0, len(part), SEND_BYTES):
                body = bytes(part[start : start + SEND_BYTES])
                await send({"type": "http.response.body", "body": body, "more_body": True})
                if gone.done():
                    return
        await send({"type": "http.response.body", "body": b""})
    finally:
        DEMAND.streams -= 1
        gone.cancel()
        ahead.cancel()
        await asyncio.to_thread(parts.close)
