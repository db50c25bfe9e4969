"""Claims over HTTP: a named consumer takes messages of a subscription, reads them as Arrow as often as it likes, and
acknowledges them when what it made of them is durable.

::

    POST /api/v1/claims/claim    {"subscription": S, "consumer": C, "max_messages": 100000, "messages_per_claim": 10000,
                                  "ttl_seconds": 3600}       → {"claims": [{"number": 17, "messages": 10000, …}, …]}
    POST /api/v1/claims/acknowledge  {"subscription": S, "consumer": C, "up_to": 17}            → {"messages": 10000}
    POST /api/v1/claims/extend       {"subscription": S, "consumer": C, "ttl_seconds": 3600}    → {"messages": 10000}
    POST /api/v1/claims/release      {"subscription": S, "consumer": C}                         → {"messages": 10000}
    GET  /api/v1/claims?subscription=S&consumer=C            → {"claims": […], "ready": 5, "topic": …}
    GET  /api/v1/claims/fetch?subscription=S&consumer=C&claim=17&columns=message_id,data
                                                             → application/vnd.apache.arrow.stream

`max_messages`, with `max_bytes` of up to so many, are taken as claims of `messages_per_claim` each, in the order of
delivery; there may be fewer, or none. A claim is a lease: without an extension it ends `ttl_seconds` after it was
taken or extended, its messages are delivered again, and that counts as an attempt. The consumer's name is what finds
claims again, so each job needs one of its own. Answers are durable. `columns` are names of
`heliograph.wire.arrow.CLAIM_SCHEMA`, by default all; `ready` is how many messages could be claimed now. A stream is
whole only if it ends with `arrow.END_OF_STREAM`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import msgspec

from heliograph.broker.protocol import Broker
from heliograph.engine.limits import CLAIM_SECONDS_MAX
from heliograph.engine.settings import SECOND_NS
from heliograph.errors import InvalidArgument
from heliograph.server.arrow_stream import columns_of, number_of, send_stream
from heliograph.server.http import answer_json, query, read_json, required
from heliograph.server.routing import Receive, Route, Scope, Send
from heliograph.wire import arrow

CLAIMED_MAX = 5_000_000
"""Messages of one request."""

MESSAGES_PER_CLAIM_MAX = 100_000
"""A claim is read as a whole by one task."""


class _Whose(msgspec.Struct):
    subscription: str
    consumer: str


class _Claim(_Whose):
    max_messages: int
    max_bytes: int = 0
    messages_per_claim: int = 10_000
    ttl_seconds: float = 600


class _Acknowledge(_Whose):
    up_to: int


class _Extend(_Whose):
    ttl_seconds: float = 600


_decode_whose = msgspec.json.Decoder(_Whose).decode
_decode_claim = msgspec.json.Decoder(_Claim).decode
_decode_acknowledge = msgspec.json.Decoder(_Acknowledge).decode
_decode_extend = msgspec.json.Decoder(_Extend).decode


async def claim(_scope: Scope, receive: Receive, send: Send, broker: Broker) -> None:
    """`POST /api/v1/claims/claim`, see the module. Raises: SubscriptionNotFound, InvalidArgument."""
    request = await read_json(receive, _decode_claim)
    for name, largest in (("max_messages", CLAIMED_MAX), ("messages_per_claim", MESSAGES_PER_CLAIM_MAX)):
        if not 1 <= getattr(request, name) <= largest:
            raise InvalidArgument(f"{name} must be from 1 to {largest}")
    claims = await broker.claim(
        request.subscription,
        request.consumer,
        request.max_messages,
        messages_per_claim=request.messages_per_claim,
        max_bytes=max(request.max_bytes, 0),
        ttl_ns=_ttl_ns(request.ttl_seconds),
    )
    await answer_json(send, {"claims": claims})


async def acknowledge(_scope: Scope, receive: Receive, send: Send, broker: Broker) -> None:
    """`POST /api/v1/claims/acknowledge`, see the module. Raises: SubscriptionNotFound, InvalidArgument."""
    request = await read_json(receive, _decode_acknowledge)
    messages = await broker.acknowledge_claims(request.subscription, request.consumer, request.up_to)
    await answer_json(send, {"messages": messages})


async def extend(_scope: Scope, receive: Receive, send: Send, broker: Broker) -> None:
    """`POST /api/v1/claims/extend`, see the module. Raises: SubscriptionNotFound, InvalidArgument."""
    request = await read_json(receive, _decode_extend)
    messages = await broker.extend_claims(request.subscription, request.consumer, _ttl_ns(request.ttl_seconds))
    await answer_json(send, {"messages": messages})


async def release(_scope: Scope, receive: Receive, send: Send, broker: Broker) -> None:
    """`POST /api/v1/claims/release`, see the module. Raises: SubscriptionNotFound, InvalidArgument."""
    request = await read_json(receive, _decode_whose)
    await answer_json(send, {"messages": await broker.release_claims(request.subscription, request.consumer)})


async def list_claims(scope: Scope, _receive: Receive, send: Send, broker: Broker) -> None:
    """`GET /api/v1/claims`, see the module. Raises: SubscriptionNotFound, InvalidArgument."""
    subscription, consumer = required(scope, "subscription"), required(scope, "consumer")
    info, claims = broker.get_subscription(subscription), broker.claims(subscription, consumer)
    ready = broker.statistics(subscription).ready
    await answer_json(send, {"subscription": subscription, "topic": info.topic, "ready": ready, "claims": claims})


async def fetch(scope: Scope, receive: Receive, send: Send, broker: Broker) -> None:
    """`GET /api/v1/claims/fetch`, see the module.

    Raises:
        SubscriptionNotFound.
        ClaimNotFound: it is acknowledged, or has ended.
        InvalidArgument: a parameter is missing, or a column does not exist.
    """
    parameters = query(scope)
    subscription, consumer = required(scope, "subscription"), required(scope, "consumer")
    columns = columns_of(parameters, arrow.CLAIM_SCHEMA.names)
    required(scope, "claim")
    number = number_of(parameters, "claim", 0)
    info = broker.get_subscription(subscription)
    deliveries = await asyncio.to_thread(broker.read_claim, subscription, consumer, number)

    def stream() -> Generator[bytes | memoryview]:
        schema = arrow.chosen(arrow.CLAIM_SCHEMA, columns)
        yield arrow.stream_start(schema)
        for batch in deliveries:
            yield arrow.stream_part(arrow.claim_record_batch(info.topic, info.topic_number, number, batch, schema))
        yield arrow.END_OF_STREAM

    await send_stream(receive, send, stream())


ROUTES = (
    Route("POST", "/api/v1/claims/claim", claim),
    Route("POST", "/api/v1/claims/acknowledge", acknowledge),
    Route("POST", "/api/v1/claims/extend", extend),
    Route("POST", "/api/v1/claims/release", release),
    Route("GET", "/api/v1/claims", list_claims),
    Route("GET", "/api/v1/claims/fetch", fetch),
)


def _ttl_ns(ttl_seconds: float) -> int:
    if not 0 < ttl_seconds <= CLAIM_SECONDS_MAX:
        raise InvalidArgument(f"ttl_seconds must be above 0 and at most {CLAIM_SECONDS_MAX}")
    return int(ttl_seconds * SECOND_NS)
