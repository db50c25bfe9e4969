"""A received message (spec 002): what it says, and the ways to be done with it."""

from __future__ import annotations

import enum
import time
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING

from heliograph.client.arguments import attributes_of, count_of, data_of, name_of, ordering_key_of, seconds_of
from heliograph.client.internal_message import InternalMessage
from heliograph.engine.limits import ACK_DEADLINE_SECONDS_MAX
from heliograph.engine.settings import MILLISECOND_NS
from heliograph.errors import InvalidArgument

if TYPE_CHECKING:
    from heliograph.client.outstanding import Outstanding
    from heliograph.client.subscription import Subscription


class AckResponse(enum.IntEnum):
    """What became of an acknowledgement (spec 002). The numbers are gRPC's."""

    SUCCESS = 0
    """Done."""
    INVALID = 3
    """The ack id is not the current one of its message: used before, or expired."""
    PERMISSION_DENIED = 7
    """Not allowed."""
    FAILED_PRECONDITION = 9
    """The subscription is not in a state for it: deleted, for example."""
    OTHER = 13
    """It failed for now; the message may be delivered again."""


class Message:
    """One delivery of a message to a subscription (spec 002). Immutable.

    The first of `ack` and `nack` wins, and what follows has no effect. Both may be called from any thread.

    Args:
        id: unique across all topics.
        ack_id: names this delivery.
        data: payload, bytes.
        attributes: string to string.
        publish_time: when it was published.
        subscription: where it was received.
        ordering_key: None = none.
        delivery_attempt: from 1.
    """

    __slots__ = ("_outstanding", "_received_ms", "_settled", "_source")

    def __init__(
        self,
        id: str,
        ack_id: str,
        data: bytes,
        attributes: Mapping[str, str] | None,
        publish_time: datetime,
        subscription: Subscription,
        ordering_key: str | None = None,
        *,
        delivery_attempt: int = 1,
    ) -> None:
        if not isinstance(publish_time, datetime):
            raise InvalidArgument(f"Publish time must be a datetime, not {type(publish_time).__name__}")
        self._source = InternalMessage(
            id=name_of(id, "Message ID"),
            ack_id=name_of(ack_id, "Ack ID"),
            data=data_of(data),
            attributes=attributes_of(attributes),
            publish_time=publish_time,
            ordering_key=ordering_key_of(ordering_key) or None,
            delivery_attempt=count_of(delivery_attempt, "delivery_attempt"),
        )
        self._outstanding = subscription.outstanding
        self._received_ms = time.time_ns() // MILLISECOND_NS
        self._settled = False

    @classmethod
    def _delivered(cls, source: InternalMessage, outstanding: Outstanding, received_ms: int) -> Message:
        """What a queue handed out, as quickly as can be."""
        this = _new(cls)
        this._source = source
        this._outstanding = outstanding
        this._received_ms = received_ms
        this._settled = False
        return this

    # ── what it says ────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def id(self) -> str:
        """Unique across all topics; the same at every delivery."""
        return self._source.id

    @property
    def ack_id(self) -> str:
        """Names this delivery."""
        return self._source.ack_id

    @property
    def data(self) -> bytes:
        """The payload."""
        return self._source.data

    @property
    def attributes(self) -> dict[str, str]:
        """A copy: changing it does not change the message (BR-008)."""
        return self._source.attributes

    @property
    def publish_time(self) -> datetime:
        """When it was published: a `DatetimeWithNanoseconds` in UTC (BR-001)."""
        moment = self._source.publish_time
        assert moment is not None
        return moment

    @property
    def received(self) -> int:
        """When the subscription received it: milliseconds since the epoch."""
        return self._received_ms

    @property
    def ordering_key(self) -> str | None:
        """The ordering key; None if it was published without one (BR-009)."""
        return self._source.ordering_key

    @property
    def delivery_attempt(self) -> int:
        """1 for the first delivery, one more after each nack or expired lease."""
        return self._source.delivery_attempt

    @property
    def length(self) -> int:
        """Bytes of data (BR-006)."""
        return len(self._source.data)

    # ── to be done with it ──────────────────────────────────────────────────────────────────────────────────────────

    def ack(self) -> None:
        """It is done, and will not be delivered again (BR-002). Nothing happens if it was settled before, or its lease
        has ended.

        Raises:
            InvalidAckId: the ack id is of another subscription, or of none.
            Unavailable: the broker is closed.
        """
        if not self._settled:
            self._settled = True
            self._outstanding.acknowledge(self)

    def nack(self) -> None:
        """It is not done: deliver it again, at once or after the subscription's backoff (BR-003). Raises as `ack`."""
        if not self._settled:
            self._settled = True
            self._outstanding.give_back(self)

    def modify_ack_deadline(self, seconds: float) -> None:
        """The lease now ends `seconds` from now, as often as is wanted; 0 = nack (BR-004). Raises as `ack`, and:

        Args:
            seconds: 0 to 600.

        Raises:
            InvalidArgument: `Ack deadline must be between 0 and 600 seconds`.
        """
        seconds_of(seconds, "Ack deadline", 0, ACK_DEADLINE_SECONDS_MAX)
        if seconds == 0:
            self.nack()
        elif not self._settled:
            self._outstanding.extend(self, seconds)

    async def ack_with_response(self) -> AckResponse:
        """As `ack`, and tell what became of it (BR-010). It raises nothing.

        Returns:
            With exactly-once delivery `SUCCESS` when the acknowledgement is durable, `INVALID` when it came too late
            or the message was settled before. Without it always `SUCCESS`.
        """
        first, self._settled = not self._settled, True
        return await self._outstanding.respond(self, first=first, acknowledge=True)

    async def nack_with_response(self) -> AckResponse:
        """As `nack`, with an answer like that of `ack_with_response`."""
        first, self._settled = not self._settled, True
        return await self._outstanding.respond(self, first=first, acknowledge=False)

    def __repr__(self) -> str:
        return (
            f"Message(id={self.id!r}, data={self.data!r:.60}, attributes={self.attributes!r}, "
            f"ordering_key={self.ordering_key!r}, delivery_attempt={self.delivery_attempt})"
        )


_new = object.__new__

__all__ = ["AckResponse", "Message"]
