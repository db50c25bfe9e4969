"""What a subscription object has delivered and what is not settled: the books of flow control, and the way back to the
broker for acknowledgements.

Any thread may settle a message. Nothing here needs an event loop.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from heliograph.broker.reply import Reply
from heliograph.client.arguments import nanoseconds
from heliograph.client.internal_message import InternalMessage
from heliograph.client.message import AckResponse, Message
from heliograph.client.options import FlowControlOptions
from heliograph.engine.limits import ACK_DEADLINE_SECONDS_MAX
from heliograph.engine.settings import MILLISECOND_NS, NEVER_NS, SECOND_NS
from heliograph.errors import HeliographError, InvalidAckId, InvalidArgument, NotFound, SubscriptionNotFound

if TYPE_CHECKING:
    from heliograph.client.message_queue import MessageQueue

_MARGIN_SECONDS = 0.05


class Room(NamedTuple):
    """What flow control leaves for one pull.

    Args:
        messages: at most so many; 0 = none at all.
        bytes: at most so many; None = no bound.
        oversized_first: a message of more bytes may come, if it is the first: nothing is outstanding that it could wait
            for.
    """

    messages: int
    bytes: int | None
    oversized_first: bool


class Outstanding:
    """Deliveries of one `Subscription` object that are neither settled nor expired.

    Args:
        queue: where they come from.
        name: of the subscription.
    """

    __slots__ = (
        "_by_ack_id",
        "_earliest_ns",
        "_lock",
        "_name",
        "_queue",
        "_wakes",
        "bytes",
        "exactly_once",
        "is_pending",
    )

    def __init__(self, queue: MessageQueue, name: str) -> None:
        self._queue = queue
        self._name = name
        self._lock = threading.Lock()
        self._by_ack_id: dict[str, Message] = {}
        self._earliest_ns = NEVER_NS  # no lease ends before
        self._wakes: tuple[Callable[[], None], ...] = ()
        self.bytes = 0
        self.is_pending = False  # something was acknowledged that the broker may not have seen to yet
        self.exactly_once = False  # as far as is known; whoever delivers looks it up

    def __len__(self) -> int:
        return len(self._by_ack_id)

    # ── the books ───────────────────────────────────────────────────────────────────────────────────────────────────

    def watch(self, wake: Callable[[], None]) -> None:
        """Call `wake()`, from any thread, when there may be room again."""
        self._wakes = (*self._wakes, wake)

    def unwatch(self, wake: Callable[[], None]) -> None:
        """Do not call `wake` any more."""
        self._wakes = tuple(other for other in self._wakes if other != wake)

    def add(self, sources: Sequence[InternalMessage], ack_deadline_seconds: float) -> list[Message]:
        """These were delivered now, with a lease of so many seconds."""
        if not sources:
            return []
        earliest_ns = min([source.deadline_ns for source in sources])
        if not earliest_ns:  # somebody put messages of their own in the queue's place
            earliest_ns = self._queue.broker.now_ns() + nanoseconds(ack_deadline_seconds)
            for source in sources:
                source.deadline_ns = source.deadline_ns or earliest_ns
        # when the lease began is when it ends less what it lasts: no other clock could disagree with the publish times
        received_ms = (earliest_ns - nanoseconds(ack_deadline_seconds)) // MILLISECOND_NS
        deliver = Message._delivered
        messages = [deliver(source, self, received_ms) for source in sources]
        with self._lock:
            self._by_ack_id.update((message._source.ack_id, message) for message in messages)
            self._earliest_ns = min(self._earliest_ns, earliest_ns)
            self.bytes += sum([source.size_bytes for source in sources])
        return messages

    def pull(self, room: Room, ack_deadline_seconds: float) -> tuple[Reply[Any], list[Message]]:
        """Pull what there is room for. The messages are outstanding from now on, and may be shown when the reply is
        done. Raises as `MessageQueue.pull`."""
        pulled: Reply[list[InternalMessage]] | list[InternalMessage] = self._queue.pull(
            self._name,
            room.messages,
            max_bytes=room.bytes,
            oversized_first=room.oversized_first,
            ack_deadline=ack_deadline_seconds,
            wait=False,
        )
        self.is_pending = False  # the pull has seen to it
        reply = pulled if isinstance(pulled, Reply) else Reply(pulled)  # a list: somebody stands in for the queue
        return reply, self.add(reply.provisional, ack_deadline_seconds)

    def remove(self, messages: Iterable[Message]) -> None:
        """These are not outstanding any more."""
        with self._lock:
            for message in messages:
                source = message._source
                if self._by_ack_id.pop(source.ack_id, None) is not None:
                    self.bytes -= source.size_bytes

    def clear(self) -> None:
        """None is outstanding any more: the subscription is gone, and their leases with it."""
        with self._lock:
            self._by_ack_id.clear()
            self.bytes = 0

    def holds(self, message: Message) -> bool:
        """Whether it is outstanding."""
        return message.ack_id in self._by_ack_id

    def expire(self) -> bool:
        """Those whose lease has ended are not outstanding any more. True if there were any."""
        if not self._by_ack_id:
            return False
        now_ns = self._queue.broker.now_ns()
        if now_ns < self._earliest_ns:
            return False
        with self._lock:
            messages = list(self._by_ack_id.values())
            left = [message._source.deadline_ns for message in messages if message._source.deadline_ns > now_ns]
            self._earliest_ns = min(left, default=NEVER_NS)
        ended = [message for message in messages if message._source.deadline_ns <= now_ns]
        self.remove(ended)
        return bool(ended)

    def seconds_left(self) -> float:
        """Until the first lease ends, at the earliest; a little longer than that."""
        left_ns = self._earliest_ns - self._queue.broker.now_ns()
        return min(max(left_ns / SECOND_NS, 0) + _MARGIN_SECONDS, ACK_DEADLINE_SECONDS_MAX)

    def room(self, flow_control: FlowControlOptions, wanted: int) -> Room:
        """What a pull of `wanted` messages may take (spec 001, BR-002 to BR-004)."""
        outstanding = len(self._by_ack_id)
        messages, size = flow_control.max_messages - outstanding, flow_control.max_bytes - self.bytes
        if messages <= 0 or size <= 0:
            return Room(0, 0, False)
        if flow_control.allow_excess_messages:
            return Room(wanted, None, True)
        return Room(min(messages, wanted), size, outstanding == 0)

    # ── settling ────────────────────────────────────────────────────────────────────────────────────────────────────

    def acknowledge(self, message: Message) -> None:
        """See `Message.ack`. Those of a running stream go to the broker together; see `Broker.acknowledge_later`."""
        source = message._source
        ack_id = source.ack_id
        wakes = self._wakes
        with self._lock:
            known = self._by_ack_id.pop(ack_id, None) is not None
            if known:
                self.bytes -= source.size_bytes
        if known and wakes:
            self.is_pending = True
            self._queue.broker.acknowledge_later(self._name, ack_id)
            for wake in wakes:
                wake()
            return
        self._check_own(source)
        with contextlib.suppress(SubscriptionNotFound):  # then nothing is left to be acknowledged
            self._queue.broker.acknowledge(self._name, [ack_id])

    def give_back(self, message: Message) -> None:
        """See `Message.nack`."""
        source = message._source
        self._check_own(source)
        self.remove([message])
        with contextlib.suppress(SubscriptionNotFound):  # then nothing is left to be given back
            self._queue.broker.modify_ack_deadline(self._name, [message.ack_id], 0)
        self._wake()

    def extend(self, message: Message, seconds: float) -> None:
        """See `Message.modify_ack_deadline`."""
        source = message._source
        self._check_own(source)
        broker, duration_ns = self._queue.broker, nanoseconds(seconds)
        try:
            stale = broker.modify_ack_deadline(self._name, [message.ack_id], duration_ns).provisional
        except SubscriptionNotFound:
            return
        if stale:
            return
        with self._lock:
            source.deadline_ns = broker.now_ns() + duration_ns
            self._earliest_ns = min(self._earliest_ns, source.deadline_ns)

    async def respond(self, message: Message, *, first: bool, acknowledge: bool) -> AckResponse:
        """See `Message.ack_with_response`. `first`: it was not settled before."""
        broker, name, ack_ids = self._queue.broker, self._name, [message.ack_id]
        try:
            self.exactly_once = broker.get_subscription(name).settings.enable_exactly_once_delivery
            stale = ack_ids
            if first:
                self.remove([message])
                settle = (
                    broker.acknowledge(name, ack_ids) if acknowledge else broker.modify_ack_deadline(name, ack_ids, 0)
                )
                stale = await settle
            response = AckResponse.INVALID if stale else AckResponse.SUCCESS
        except HeliographError as error:
            response = _response_to(error)
        self._wake()
        return response if self.exactly_once else AckResponse.SUCCESS

    def release(self, messages: Sequence[Message]) -> None:
        """They were never shown to anybody: back to their place, as if they had not been delivered."""
        if not messages:
            return
        self.remove(messages)
        with contextlib.suppress(HeliographError):  # then their leases end by themselves
            self._queue.broker.release(self._name, [message.ack_id for message in messages])

    def settle_pending(self) -> None:
        """The broker sees to what was acknowledged so far, if no operation has made it do so."""
        self.is_pending = False
        with contextlib.suppress(HeliographError):  # then their messages are delivered again, or gone
            self._queue.broker.acknowledge(self._name, [])

    def _check_own(self, source: InternalMessage) -> None:
        """A message that somebody made by hand may have any ack id.

        Raises:
            InvalidAckId.
        """
        if source.deadline_ns:
            return
        if self._queue.broker.subscription_of(source.ack_id) != self._name:
            raise InvalidAckId([source.ack_id])

    def _wake(self) -> None:
        for wake in self._wakes:
            wake()


def _response_to(error: HeliographError) -> AckResponse:
    if isinstance(error, InvalidArgument):
        return AckResponse.INVALID
    if error.code == AckResponse.PERMISSION_DENIED:
        return AckResponse.PERMISSION_DENIED
    if isinstance(error, NotFound) or error.code == AckResponse.FAILED_PRECONDITION:
        return AckResponse.FAILED_PRECONDITION
    return AckResponse.OTHER


__all__ = ["Outstanding", "Room"]
