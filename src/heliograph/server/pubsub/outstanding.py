"""What one stream has sent and the client has not done with: for its flow control, and for the connection's good."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from heliograph.engine.message import Delivery
from heliograph.engine.settings import NEVER_NS
from heliograph.server.grpc.connection import Connection

UNREAD_BYTES_MAX = 1024 * 1024
"""Of all streams of a connection together: half of what h2corn holds for it (`server/grpc/connection.py`)."""


class Held:
    """The deliveries that a stream has sent and that are neither settled nor ended.

    `drop_ended` looks at all of them, and only when one may have ended; it is called where the stream has no room left,
    and when there are twice as many (`look_at`) as the last time, so that a client that never acknowledges fills no
    memory.
    """

    __slots__ = ("_given_back", "bytes", "deliveries", "earliest_ns", "handed_back", "look_at")

    GIVEN_BACK_MAX = 1_000
    LOOK_AT_MIN = 10_000

    def __init__(self) -> None:
        self.deliveries: dict[str, tuple[int, int, str]] = {}  # by ack id: size, deadline, message id
        self.bytes = 0
        self.earliest_ns = NEVER_NS  # no lease ends before
        self.handed_back: dict[str, None] = {}  # ack ids of messages that the stream gave back and was handed again
        self.look_at = self.LOOK_AT_MIN
        self._given_back: dict[str, None] = {}  # message ids

    def add(self, deliveries: Sequence[Delivery], sizes: Sequence[int]) -> None:
        """They are about to be sent."""
        held, given_back, earliest_ns = self.deliveries, self._given_back, self.earliest_ns
        for delivery, size in zip(deliveries, sizes, strict=True):
            deadline_ns = delivery.deadline_ns
            held[delivery.ack_id] = (size, deadline_ns, delivery.message_id)
            if deadline_ns < earliest_ns:
                earliest_ns = deadline_ns
            if given_back and delivery.message_id in given_back:
                del given_back[delivery.message_id]
                self.handed_back[delivery.ack_id] = None
        self.earliest_ns = earliest_ns
        self.bytes += sum(sizes)

    def drop(self, ack_ids: Iterable[str]) -> None:
        """They are settled, or ended."""
        held, handed_back, freed = self.deliveries, self.handed_back, 0
        for ack_id in ack_ids:
            freed += held.pop(ack_id)[0]
            if handed_back:
                handed_back.pop(ack_id, None)
        self.bytes -= freed

    def give_back(self, ack_id: str) -> None:
        """It was nacked."""
        self._given_back[self.deliveries[ack_id][2]] = None
        self.drop([ack_id])
        if len(self._given_back) > self.GIVEN_BACK_MAX:
            del self._given_back[next(iter(self._given_back))]

    def extend(self, ack_ids: Iterable[str], deadline_ns: int) -> None:
        """Their leases now end at `deadline_ns`."""
        held, handed_back = self.deliveries, self.handed_back
        for ack_id in ack_ids:
            size, _, message_id = held[ack_id]
            held[ack_id] = (size, deadline_ns, message_id)
            if handed_back:
                handed_back.pop(ack_id, None)
        self.earliest_ns = min(self.earliest_ns, deadline_ns)

    def drop_ended(self, now_ns: int) -> list[str]:
        """Those whose lease has ended are not held any more. Returns their ack ids."""
        self.look_at = max(self.look_at, 2 * len(self.deliveries))
        if now_ns < self.earliest_ns:
            return []
        ended = [ack_id for ack_id, (_, deadline_ns, _) in self.deliveries.items() if deadline_ns <= now_ns]
        self.drop(ended)
        self.earliest_ns = min((deadline_ns for _, deadline_ns, _ in self.deliveries.values()), default=NEVER_NS)
        self.look_at = max(self.LOOK_AT_MIN, 2 * len(self.deliveries))
        return ended


class Unread:
    """How much a stream may send before its client has shown that it reads.

    Whatever a client says about a delivery shows that it has read it; official clients move the deadline of each as
    they receive it. Some clients say nothing for long, and must get their messages too: after `patience_seconds`
    without a word, what was sent counts as read, and a client that never says anything is soon taken to be of that
    kind.

    Args:
        connection: shared with the other streams of the client.
        wake: to be called when there may be room again.
        is_steady: the client is known to confirm whatever it receives, and to read on only afterwards.
    """

    __slots__ = ("_bytes", "_connection", "_is_steady", "_sizes", "_strikes", "_wake", "patience_seconds")

    PATIENCE_SECONDS = 0.1
    PATIENCE_SECONDS_STEADY = 2.0
    STRIKES_MAX = 5

    def __init__(self, connection: Connection, wake: Callable[[], None], *, is_steady: bool) -> None:
        self._connection = connection
        self._wake = wake
        self._is_steady = is_steady
        self._sizes: dict[str, int] = {}
        self._bytes = 0
        self._strikes = 0
        self.patience_seconds = self.PATIENCE_SECONDS_STEADY if is_steady else self.PATIENCE_SECONDS

    def has_room(self, size: int) -> bool:
        """Whether a response of `size` bytes may be sent now. A large one goes alone."""
        if self._strikes >= self.STRIKES_MAX:
            return True
        unread = self._connection.unread
        return not unread or (unread < UNREAD_BYTES_MAX and size <= UNREAD_BYTES_MAX // 2)

    def add(self, ack_ids: Sequence[str], sizes: Sequence[int]) -> None:
        """Deliveries are being sent."""
        if self._strikes < self.STRIKES_MAX:
            self._sizes.update(zip(ack_ids, sizes, strict=True))
            size = sum(sizes)
            self._bytes += size
            self._connection.unread += size

    def confirm(self, ack_ids: Iterable[str]) -> None:
        """The client has said something about deliveries."""
        sizes = self._sizes
        if not sizes:
            return
        size = 0
        for ack_id in ack_ids:
            size += sizes.pop(ack_id, 0)
        if size:
            self._bytes -= size
            self._strikes = 0
            self._shrink(size)

    def forgive(self) -> None:
        """The client has said nothing for its time of patience: everything counts as read."""
        if not self._is_steady:
            self._strikes += 1
        forgiven, self._bytes = self._bytes, 0
        self._sizes.clear()
        self._shrink(forgiven)

    def wait(self, waits: bool) -> None:
        """Whether to be woken when there may be room."""
        if waits:
            self._connection.waiting[self._wake] = None
        else:
            self._connection.waiting.pop(self._wake, None)

    def _shrink(self, size: int) -> None:
        connection = self._connection
        connection.unread -= size
        if connection.waiting and connection.unread < UNREAD_BYTES_MAX:
            for wake in tuple(connection.waiting):
                wake()
