"""What a work queue hands out: messages, dead letters."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Any, NamedTuple, Self

from heliograph.client.priority_message import decode
from heliograph.engine.message import Message
from heliograph.errors import HeliographError

_log = logging.getLogger("heliograph")


class QueueName(NamedTuple):
    """A queue, as users and as the broker call it."""

    name: str
    resource: str


class Lease(NamedTuple):
    """What is extended for as long as a message is held."""

    ack_id: str
    queue: QueueName


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class QueueMessage:
    """A message that was handed out. Its lease goes on until it is settled, or until nobody has it any more.

    Used as ``with message:`` it is acknowledged at the end of the block, and given back as failed if an exception
    leaves the block; the exception goes on its way.

    Args:
        id: the message's, for ever.
        message: the value as it was published, any JSON value or bytes.
        priority: 0 to 9, 9 goes first.
        retry_count: how often it failed before.
        max_retries: how often it may fail and be tried again.
        headers: as published.
        queue: the name of its queue.
        lease_id: names this delivery.
    """

    id: str
    message: Any
    priority: int
    retry_count: int
    max_retries: int
    headers: Mapping[str, str]
    queue: str
    lease_id: str
    _settle: Callable[[QueueMessage, str, float], str] = field(repr=False)
    _settled: list[str] = field(default_factory=list, repr=False)

    @property
    def settled(self) -> bool:
        """Whether it was acknowledged or given back, or that was tried."""
        return bool(self._settled)

    def ack(self) -> None:
        """It is processed, and gone; durable when this returns.

        Raises:
            AckDeadlineExceeded: too late, the lease has ended, and it is another's or waits again.
            QueueNotFound, Unavailable.
        """
        self._settled.append("ack")
        self._settle(self, "ack", 0)

    def nack(self, *, requeue: bool = True) -> str:
        """It failed: to wait again after its backoff, or, after its last retry or without `requeue`, to become a dead
        letter.

        Returns:
            "requeued" or "dead_lettered".

        Raises:
            As `ack`.
        """
        self._settled.append("nack")
        return self._settle(self, "nack" if requeue else "reject", 0)

    def extend(self, seconds: float) -> None:
        """The lease lasts at least so long from now, at most 600 seconds. Seldom needed: it is extended by itself.

        Raises:
            InvalidArgument: no such deadline is possible.
            AckDeadlineExceeded, QueueNotFound, Unavailable: as `ack`.
        """
        self._settle(self, "extend", seconds)

    def release(self) -> None:
        """Give it back unprocessed, at once; no failure is counted."""
        self._settled.append("release")
        self._settle(self, "release", 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._settled:
            return
        if kind is None:
            self.ack()
            return
        try:
            self.nack()
        except HeliographError as failure:  # the exception that leaves the block is what counts
            _log.warning("message %s of %s could not be given back: %s", self.id, self.queue, failure)


@dataclass(frozen=True, slots=True)
class QueueDeadLetter:
    """A message that was given up.

    Args:
        id, message, priority, headers: as `QueueMessage`.
        retry_count: how often it was tried again.
        reason: `MaxRetriesExceeded`, `ExplicitNack` or `TTLExpired`.
        original_queue: where it was published.
        dead_lettered_at: when it was given up, UTC.
    """

    id: str
    message: Any
    priority: int
    headers: Mapping[str, str]
    retry_count: int
    reason: str
    original_queue: str
    dead_lettered_at: datetime


@dataclass(frozen=True, slots=True)
class WaitingMessage:
    """A message that waits, as `peek` shows it; see `QueueMessage`."""

    id: str
    message: Any
    priority: int
    headers: Mapping[str, str]


class Purged(NamedTuple):
    """How many messages were dropped: those that could be delivered, and those that waited for their time."""

    ready: int
    delayed: int


def value_of(message: Message) -> Any:
    """As published. Another door may have put no JSON there: then its bytes."""
    try:
        return decode(message)
    except ValueError:
        return message.data


class Outgoing:
    """A message of a batch that has options of its own.

    Args:
        message: any JSON value, or bytes.
        options: as `Queue.publish` takes them.
    """

    __slots__ = ("message", "options")

    def __init__(self, message: Any, **options: Any) -> None:
        self.message = message
        self.options = options
