"""What a push request carries (1.13.1, 1.13.4): a message in a JSON envelope, or as it is; and that it was refused."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from heliograph.engine.message import Delivery

USER_AGENT = "APIs-Google; Heliograph"
"""Begins as the real service's does: there are endpoints that look for it."""

_encode = msgspec.json.Encoder().encode
_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_VALUE = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]*")
_OWN_HEADERS = frozenset(
    (
        "authorization",
        "connection",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)
"""What an attribute may not set, since it would change the request itself."""


class NotAcknowledged(Exception):
    """The endpoint does not take the message; the text says what happened."""


class PushRequest(NamedTuple):
    """Body and headers."""

    body: bytes
    headers: dict[str, str]


def push_request(config: Any, subscription: str, delivery: Delivery, *, tell_attempt: bool) -> PushRequest:
    """The request for one delivery.

    Args:
        config: the `PushConfig`.
        subscription: full name.
        delivery: the message.
        tell_attempt: how often it was delivered is told; only with a dead letter policy (1.6.6).
    """
    attempt = delivery.attempt if tell_attempt else 0
    if config.HasField("no_wrapper"):
        metadata = _metadata(subscription, delivery, attempt) if config.no_wrapper.write_metadata else {}
        content_type = {"content-type": "application/octet-stream", "user-agent": USER_AGENT}
        return PushRequest(delivery.message.data, content_type | metadata)
    headers = {"content-type": "application/json", "user-agent": USER_AGENT}
    return PushRequest(_encode(_envelope(subscription, delivery, attempt)), headers)


def _envelope(subscription: str, delivery: Delivery, attempt: int) -> dict[str, Any]:
    message = delivery.message
    published = rfc3339(message.publish_time_ns)
    wrapped: dict[str, Any] = {
        "attributes": dict(message.attributes),
        "data": b64encode(message.data).decode(),
        "messageId": delivery.message_id,
        "message_id": delivery.message_id,
        "publishTime": published,
        "publish_time": published,
    }
    if message.ordering_key:
        wrapped["orderingKey"] = message.ordering_key
    envelope: dict[str, Any] = {"message": wrapped, "subscription": subscription}
    if attempt:
        envelope["deliveryAttempt"] = attempt
    return envelope


def _metadata(subscription: str, delivery: Delivery, attempt: int) -> dict[str, str]:
    message = delivery.message
    own = {
        "x-goog-pubsub-subscription-name": subscription,
        "x-goog-pubsub-message-id": delivery.message_id,
        "x-goog-pubsub-publish-time": rfc3339(message.publish_time_ns),
    }
    if message.ordering_key:
        own["x-goog-pubsub-ordering-key"] = message.ordering_key
    if attempt:
        own["x-goog-pubsub-delivery-attempt"] = str(attempt)
    return _headers(message.attributes) | {name: value for name, value in own.items() if _VALUE.fullmatch(value)}


def _headers(attributes: Mapping[str, str]) -> dict[str, str]:
    """Attributes as headers. One that cannot be a header, or would change the request, is left out."""
    return {
        name.lower(): value
        for name, value in attributes.items()
        if _TOKEN.fullmatch(name) and _VALUE.fullmatch(value) and name.lower() not in _OWN_HEADERS
    }


def rfc3339(instant_ns: int) -> str:
    """An instant, in milliseconds, as the real service writes it."""
    instant = datetime.fromtimestamp(instant_ns // 1_000_000 / 1_000, UTC)
    return f"{instant:%Y-%m-%dT%H:%M:%S}.{instant.microsecond // 1_000:03}Z"
