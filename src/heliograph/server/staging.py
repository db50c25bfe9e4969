"""Publishing in two steps over HTTP, exactly once: what tasks stage, one commit publishes.

::

    POST /api/v1/staging/write?stage=S&topic=T     an Arrow stream with columns of `heliograph.wire.arrow.STAGED_SCHEMA`
        → {"first": 1, "last": 5000}
    POST /api/v1/staging/publish   {"writer": W, "batch": 7, "stage": S, "parts": [[TOPIC, 1, 5000], …],
                                    "max_messages": 100000}
        → {"published": 5000, "left": 0}       to be asked again until nothing is left
    POST /api/v1/staging/drop      {"stage": S}
        → {}

What is staged is durable when it is answered, and seen by nobody; it is held against the schema of its topic. `parts`
are ranges of the stage, in the order in which they are published. A batch of a writer is published once, however often
it is told to: `Broker.publish_staged` says how.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import msgspec
import pyarrow as pa

from heliograph.broker.protocol import Broker
from heliograph.broker.staged_part import StagedPart
from heliograph.engine.message import Draft
from heliograph.errors import InvalidArgument
from heliograph.server.grpc.status import RpcError
from heliograph.server.http import answer_json, read_body, read_json, required
from heliograph.server.routing import Receive, Route, Scope, Send
from heliograph.wire import arrow

PUBLISHED_MAX = 1_000_000
"""Messages of one request."""


Check: TypeAlias = Callable[[str, Sequence[Draft]], Awaitable[Sequence[Draft]]]


class _Publish(msgspec.Struct):
    writer: str
    batch: int
    stage: str
    parts: list[StagedPart]
    max_messages: int = 100_000


class _Drop(msgspec.Struct):
    stage: str


_decode_publish = msgspec.json.Decoder(_Publish).decode
_decode_drop = msgspec.json.Decoder(_Drop).decode


def staging_routes(check: Check) -> list[Route]:
    """The routes of the door.

    Args:
        check: the messages as their topic will have them, held against its schema; or an error.
    """

    async def write(scope: Scope, receive: Receive, send: Send, broker: Broker) -> None:
        """`POST /api/v1/staging/write`, see the module.

        Raises:
            TopicNotFound, MessageTooLarge, BodyTooLarge.
            InvalidArgument: it is no Arrow stream of messages, or some do not match the topic's schema.
        """
        stage, topic, body = required(scope, "stage"), required(scope, "topic"), await read_body(receive)
        drafts: Sequence[Draft] = await asyncio.to_thread(_drafts, body)
        if not drafts:
            raise InvalidArgument("There are no messages to stage")
        try:
            drafts = await check(topic, drafts)
        except RpcError as error:
            raise InvalidArgument(error.message) from None
        first, last = await broker.stage(stage, drafts)
        await answer_json(send, {"first": first, "last": last})

    return [
        Route("POST", "/api/v1/staging/write", write),
        Route("POST", "/api/v1/staging/publish", publish),
        Route("POST", "/api/v1/staging/drop", drop),
    ]


def _drafts(body: bytes) -> list[Draft]:
    try:
        with pa.ipc.open_stream(body) as stream:
            return [draft for batch in stream for draft in arrow.drafts(batch)]
    except pa.ArrowInvalid as error:
        raise InvalidArgument(f"The request is not an Arrow stream: {error}") from None


async def publish(_scope: Scope, receive: Receive, send: Send, broker: Broker) -> None:
    """`POST /api/v1/staging/publish`, see the module. Raises: as `Broker.publish_staged`."""
    request = await read_json(receive, _decode_publish)
    if not request.writer or not 1 <= request.max_messages <= PUBLISHED_MAX:
        raise InvalidArgument(f"writer must be a name, and max_messages from 1 to {PUBLISHED_MAX}")
    published, left = await asyncio.to_thread(
        broker.publish_staged, request.writer, request.batch, request.stage, request.parts, request.max_messages
    )
    await answer_json(send, {"published": published, "left": left})


async def drop(_scope: Scope, receive: Receive, send: Send, broker: Broker) -> None:
    """`POST /api/v1/staging/drop`, see the module. Raises: InvalidArgument."""
    request = await read_json(receive, _decode_drop)
    await broker.drop_stage(request.stage)
    await answer_json(send, {})
