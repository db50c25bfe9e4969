"""What the priority API hands in and out: three levels of priority, any JSON value or bytes, messages, dead letters."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from heliograph.client.priority_routing import Queue
from heliograph.engine.message import Message
from heliograph.errors import InvalidArgument, InvalidPriority

BYTES_TYPE = "application/octet-stream"  # as the work-queue door marks bytes; JSON is not marked


class Priority(enum.IntEnum):
    """How soon a message is handed out (spec 004, §7). The plain numbers are as good."""

    HIGH = 1
    MEDIUM = 2
    LOW = 3


_JSON = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))

_BANDS = {1: 9, 2: 5, 3: 1}  # design §5: the engine knows 0-9, 9 goes first


def band_of(priority: object) -> int:
    """The engine's priority for one of this API.

    Raises:
        InvalidPriority: it is not 1, 2 or 3; nothing is clamped.
    """
    if isinstance(priority, int) and not isinstance(priority, bool) and priority in _BANDS:
        return _BANDS[priority]
    raise InvalidPriority(f"Priority must be 1 (high), 2 (medium) or 3 (low), not {priority!r}")


def level_of(band: int) -> int:
    """The priority of this API for one of the engine's. Other doors know ten levels: the nearest of the three."""
    return 1 if band > 6 else 2 if band > 3 else 3


def encode(value: object) -> tuple[bytes, str]:
    """A value as payload and content type.

    Raises:
        InvalidArgument: it is neither bytes nor a value that JSON gives back as it was; the text says which part.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value), BYTES_TYPE
    try:
        text = _JSON.encode(value)
        data = text.encode()
        same = bool(json.loads(text) == value)
    except RecursionError:
        raise InvalidArgument("The message is nested too deeply, or contains itself") from None
    except (TypeError, ValueError) as error:
        raise InvalidArgument(_fault(value) or f"The message is not JSON: {error}") from None
    if not same:
        raise InvalidArgument(_fault(value) or "The message would not come back from JSON as it was published")
    return data, ""


def decode(message: Message) -> Any:
    """The value as it was published.

    Raises:
        ValueError: another door put something else there.
    """
    if message.extras is not None and message.extras.content_type == BYTES_TYPE:
        return message.data
    return json.loads(message.data)


def _fault(value: object) -> str:
    """What in `value` JSON cannot give back as it was; "" if that cannot be told."""
    try:
        return next(_faults(value, "The message", set()), "")
    except RecursionError:
        return ""


def _faults(value: object, where: str, above: set[int]) -> Iterator[str]:
    if id(value) in above:
        yield f"{where} contains itself"
    elif isinstance(value, dict):
        above = above | {id(value)}
        for key, item in value.items():
            if not isinstance(key, str):
                yield f"{where} has a key that is no string: {key!r} ({type(key).__name__})"
            yield from _faults(item, f"{where}[{key!r}]", above)
    elif isinstance(value, list):
        above = above | {id(value)}
        for index, item in enumerate(value):
            yield from _faults(item, f"{where}[{index}]", above)
    elif isinstance(value, tuple):
        yield f"{where} is a tuple, which would come back as a list: publish a list"
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{where} is {value}, which JSON does not have"
    elif isinstance(value, str) and not value.isascii() and any(0xD800 <= ord(letter) <= 0xDFFF for letter in value):
        yield f"{where} is text with lone surrogates, which UTF-8 does not have: {value!r}"
    elif not (value is None or isinstance(value, bool | int | float | str)):
        yield f"{where} is {type(value).__name__}: only JSON values (dict, list, str, int, float, bool, None) or bytes"


class PriorityMessage:
    """A message in the hands of a subscriber.

    Attributes:
        id: names this message, for `acknowledge(id)`. The copy that a pattern's subscribers get has an id of its own.
        published_id: what `publish` returned.
        message: the value as published.
        priority: 1 = high, 2 = medium, 3 = low.
        retries: how often its processing has failed so far.
        topic: where it was published.
    """

    __slots__ = (
        "_settle",
        "ack_id",
        "id",
        "message",
        "priority",
        "published_id",
        "queue",
        "retries",
        "settled",
        "topic",
    )

    def __init__(
        self,
        *,
        id: str,
        published_id: str,
        message: Any,
        priority: int,
        retries: int,
        topic: str,
        queue: Queue,
        ack_id: str,
        settle: Callable[[PriorityMessage, str], None],
    ) -> None:
        self.id = id
        self.published_id = published_id
        self.message = message
        self.priority = priority
        self.retries = retries
        self.topic = topic
        self.queue = queue  # which holds it
        self.ack_id = ack_id  # names this one hand-out
        self.settled = False  # whether it was said what becomes of it
        self._settle = settle

    def acknowledge(self) -> None:
        """It is processed, and gone. The first of `acknowledge`, `retry` and `dead_letter` counts, others do nothing.

        Raises:
            AckDeadlineExceeded: too late, it has come back to its queue, or was given to somebody else.
            TopicNotFound: its queue is gone (`unsubscribe`).
            FailedPrecondition: its `PriorityPubSub` is closed.
            Unavailable: the broker cannot make it durable now.
        """
        self._settle(self, "acknowledge")

    def retry(self) -> None:
        """Its processing failed: it comes again after its backoff, or is a dead letter after the last retry. Raises as
        `acknowledge`."""
        self._settle(self, "retry")

    def dead_letter(self) -> None:
        """It cannot be processed: a dead letter at once, whatever retries are left. Raises as `acknowledge`."""
        self._settle(self, "dead_letter")

    def __repr__(self) -> str:
        return (
            f"PriorityMessage(id={self.id!r}, topic={self.topic!r}, priority={self.priority}, "
            f"retries={self.retries}, message={self.message!r})"
        )


@dataclass(frozen=True, slots=True)
class PriorityDeadLetter:
    """A message that was given up (spec 004, §8).

    Attributes:
        id: for `retry_dead_letters(topic, [id])`.
        message: the value as published.
        priority: 1 = high, 2 = medium, 3 = low.
        retries: how often it was tried again before it was given up.
        topic: where it was published.
        reason: `MaxRetriesExceeded`, `ExplicitNack` or `TTLExpired`.
        dead_lettered_at: when, in UTC.
    """

    id: str
    message: Any
    priority: int
    retries: int
    topic: str
    reason: str
    dead_lettered_at: datetime
