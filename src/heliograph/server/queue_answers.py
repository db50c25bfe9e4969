"""What the commands of the work-queue door answer, as types: the source of its OpenAPI description, and what the tests
hold the answers against."""

from __future__ import annotations

from typing import Any

import msgspec


class Created(msgspec.Struct):
    """`queue.create`."""

    name: str
    success: bool


class Done(msgspec.Struct):
    """`queue.delete`, and `queue.ack` and `queue.extend` of one message."""

    success: bool


class Listed(msgspec.Struct):
    """`queue.list`."""

    queues: list[str]


class Purged(msgspec.Struct):
    """`queue.purge`."""

    purged: int
    ready: int
    delayed: int


class Published(msgspec.Struct):
    """`queue.publish`: `position` counts the ready messages of equal or higher priority."""

    message_id: str
    position: int


class Batch(msgspec.Struct):
    """`queue.publish_batch`."""

    message_ids: list[str]


class Message(msgspec.Struct):
    """A message as it came: any JSON; or, of one that was published as bytes, an object with them under `payload`."""

    message_id: str
    message: Any
    priority: int
    headers: dict[str, str]


class Peeked(msgspec.Struct):
    """`queue.peek`."""

    messages: list[Message]


class Delivered(Message):
    """A message, and the lease on it."""

    retry_count: int
    lease_id: str


class Consumed(msgspec.Struct):
    """`queue.consume` of one message; both are null where none is ready."""

    message_id: str | None
    message: Any
    at_prefetch_limit: bool
    priority: int = 0
    retry_count: int = 0
    headers: dict[str, str] = {}
    lease_id: str = ""


class Several(msgspec.Struct):
    """`queue.consume` with `max_messages` over 1."""

    messages: list[Delivered]
    at_prefetch_limit: bool


class Nacked(msgspec.Struct):
    """`queue.nack` of one message."""

    success: bool
    action: str


class Result(msgspec.Struct):
    """What became of one of several messages."""

    message_id: str
    success: bool
    action: str = ""
    error: str = ""
    code: str = ""


class Results(msgspec.Struct):
    """`queue.ack`, `queue.nack` and `queue.extend` of several messages."""

    results: list[Result]


class DeadLetter(Message):
    """A message that was given up."""

    retry_count: int
    reason: str
    original_queue: str
    dead_lettered_at: float


class DeadLetters(msgspec.Struct):
    """`dlq.list`."""

    messages: list[DeadLetter]
    total: int


class Retried(msgspec.Struct):
    """`dlq.retry`."""

    retried: int


class DeadLettersPurged(msgspec.Struct):
    """`dlq.purge`."""

    purged: int


class Request(msgspec.Struct):
    """What `POST /api/v1/command` takes; `request_id` is echoed."""

    command: str
    payload: dict[str, Any] = {}
    request_id: Any = None


class Failure(msgspec.Struct):
    """Every failure; `code` is for programs."""

    success: bool
    request_id: Any
    payload: None
    error: str
    code: str


class Answer(msgspec.Struct):
    """What `POST /api/v1/command` answers: the command's own answer is `payload`."""

    success: bool
    request_id: Any
    payload: Any
    error: str | None
    code: str = ""
