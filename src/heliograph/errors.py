"""The errors that Heliograph raises, each with a stable code.

::

    HeliographError                 code (gRPC number)   reason
    ├── InvalidArgument              3                    InvalidArgument
    │   ├── InvalidAckId             3                    InvalidAckId
    │   ├── InvalidPriority          3                    InvalidPriority
    │   ├── InvalidSchema            3                    InvalidSchema
    │   ├── MessageTooLarge          3                    MessageTooLarge
    │   └── SchemaViolation          3                    SchemaViolation
    ├── NotFound                     5                    NotFound
    │   ├── TopicNotFound            5                    TopicNotFound
    │   ├── SubscriptionNotFound     5                    SubscriptionNotFound
    │   ├── SnapshotNotFound         5                    SnapshotNotFound
    │   ├── QueueNotFound            5                    QueueNotFound
    │   ├── MessageNotFound          5                    MessageNotFound
    │   ├── SchemaNotFound           5                    SchemaNotFound
    │   ├── ConsumerNotFound         5                    ConsumerNotFound
    │   └── ClaimNotFound            5                    ClaimNotFound
    ├── AlreadyExists                6                    AlreadyExists
    │   └── QueueExists              6                    QueueExists
    ├── ResourceExhausted            8                    ResourceExhausted
    │   ├── FlowControlExceeded      8                    FlowControlExceeded
    │   └── QueueFull                8                    QueueFull
    ├── FailedPrecondition           9                    FailedPrecondition
    │   ├── SubscriptionDetached     9                    SubscriptionDetached
    │   ├── AckDeadlineExceeded      9                    AckDeadlineExceeded
    │   └── StoreRefused             9                    StoreRefused
    ├── Unimplemented               12                    Unimplemented
    ├── Internal                    13                    Internal
    └── Unavailable                 14                    Unavailable

``code`` is the number that gRPC gives the error and that the specifications quote; ``reason`` is the name that
queue clients and scripts match on. Codes and reasons never change once released. ``HTTP_STATUS`` is the one table
from code to HTTP status; ``AckDeadlineExceeded`` and ``QueueFull`` have their own (409 and 507, queue-protocol.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

HTTP_STATUS: dict[int, int] = {
    0: 200,
    1: 499,
    2: 500,
    3: 400,
    4: 504,
    5: 404,
    6: 409,
    7: 403,
    8: 429,
    9: 400,
    10: 409,
    11: 400,
    12: 501,
    13: 500,
    14: 503,
    15: 500,
    16: 401,
}


class HeliographError(Exception):
    """Any failure that the broker reports to its caller.

    Args:
        message: what was wrong, in the words of the person who caused it.
    """

    code: ClassVar[int] = 13
    http_status_own: ClassVar[int | None] = None

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    @property
    def reason(self) -> str:
        """The stable name of the error, for programs to match on."""
        return type(self).__name__

    @property
    def http_status(self) -> int:
        """The HTTP status that this error answers with."""
        return self.http_status_own or HTTP_STATUS[self.code]

    def __str__(self) -> str:
        return self.message


class InvalidArgument(HeliographError):
    """The caller's argument is wrong and will stay wrong."""

    code = 3


class InvalidAckId(InvalidArgument):
    """An ack id that is malformed, or no longer the current one of its message.

    Args:
        ack_ids: the ids at fault.
    """

    def __init__(self, ack_ids: Sequence[str]) -> None:
        super().__init__(f"Invalid ack ID: {', '.join(ack_ids)}")
        self.ack_ids = list(ack_ids)


class InvalidPriority(InvalidArgument):
    """A priority outside the range of the door it came through; never clamped."""


class InvalidSchema(InvalidArgument):
    """A schema's definition that means nothing, or is not allowed."""


class MessageTooLarge(InvalidArgument):
    """A message above the size limit."""


class SchemaViolation(InvalidArgument):
    """A message that does not follow its schema."""


class NotFound(HeliographError):
    """Something that the caller names does not exist."""

    code = 5


class TopicNotFound(NotFound):
    """No topic of that name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Topic not found: {name}")
        self.name = name


class SubscriptionNotFound(NotFound):
    """No subscription of that name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Subscription not found: {name}")
        self.name = name


class SnapshotNotFound(NotFound):
    """No snapshot of that name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Snapshot not found: {name}")
        self.name = name


class QueueNotFound(NotFound):
    """No work queue of that name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Queue not found: {name}")
        self.name = name


class MessageNotFound(NotFound):
    """No such message in the queue, or nobody holds it."""

    def __init__(self, message_id: str) -> None:
        super().__init__(f"Message not found: {message_id}")
        self.message_id = message_id


class SchemaNotFound(NotFound):
    """No schema, or no revision of it, of that name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Schema not found: {name}")
        self.name = name


class ConsumerNotFound(NotFound):
    """No such consumer."""


class ClaimNotFound(NotFound):
    """No such claim: it was acknowledged, or has ended.

    Args:
        number: of the claim.
        consumer: who asked for it.
    """

    def __init__(self, number: int, consumer: str) -> None:
        super().__init__(f"{consumer} has no claim {number} (any more): it was acknowledged, or has ended")
        self.number = number


class AlreadyExists(HeliographError):
    """The name is taken."""

    code = 6


class QueueExists(AlreadyExists):
    """The queue exists with other settings."""


class ResourceExhausted(HeliographError):
    """A limit is reached; try again when there is room."""

    code = 8


class FlowControlExceeded(ResourceExhausted):
    """The caller already holds as many messages or bytes as flow control allows."""


class QueueFull(ResourceExhausted):
    """The queue has reached its depth limit; nothing was stored."""

    http_status_own = 507

    def __init__(self, name: str, depth_max: int) -> None:
        super().__init__(f"Queue full: {name} holds its {depth_max} messages")
        self.name = name
        self.depth_max = depth_max


class FailedPrecondition(HeliographError):
    """The system is not in the state that the call needs."""

    code = 9


class SubscriptionDetached(FailedPrecondition):
    """The subscription's topic is gone, or it was detached from it."""

    def __init__(self, name: str) -> None:
        super().__init__(f"Subscription is detached: {name}")
        self.name = name


class AckDeadlineExceeded(FailedPrecondition):
    """The lease that the caller names is no longer the current one."""

    http_status_own = 409

    def __init__(self, message_id: str) -> None:
        super().__init__(f"The lease on message {message_id} is no longer current")
        self.message_id = message_id


class StoreRefused(FailedPrecondition):
    """A data directory that this broker will not open: damaged, newer, not ours, or in use. It is left untouched."""


class Unimplemented(HeliographError):
    """This server does not have the method."""

    code = 12


class Internal(HeliographError):
    """A defect of the broker."""

    code = 13


class Unavailable(HeliographError):
    """The broker cannot answer with success now; the call may be repeated."""

    code = 14


def error_named(reason: str, message: str, otherwise: type[HeliographError]) -> HeliographError:
    """The error that another process told of, with its words.

    Args:
        reason: its stable name.
        message: its text as it is, whatever its class would make of its own arguments.
        otherwise: the class where there is none of that name here.
    """
    kind = globals().get(reason)
    if not (isinstance(kind, type) and issubclass(kind, HeliographError)):
        kind = otherwise
    error = kind.__new__(kind)
    HeliographError.__init__(error, message)
    return error
