"""Work queues (spec 003), on a broker of this process or of a server, with the same words::

    from heliograph import Queue

    tasks = Queue("tasks", url="http://localhost:8085").create(retry_delays=[10, 60, 300])
    tasks.publish({"video": 7}, priority=9)
    for message in tasks.consume(timeout=30):
        with message:                       # acknowledged at the end, given back as failed on an exception
            process(message.message)

While a message is held its lease is extended by itself. `AsyncQueue` is the same for event loops.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Self, TypeVar

from heliograph.broker.protocol import Broker, Watch
from heliograph.broker.queues import QUEUE_PREFIX, in_words_of_queues
from heliograph.broker.reply import Reply
from heliograph.client.arguments import count_of, name_of, nanoseconds, seconds_of, struct_of
from heliograph.client.backing import backing
from heliograph.client.lease_keeper import LeaseKeeper
from heliograph.client.message_queue import MessageQueue
from heliograph.client.priority_message import encode
from heliograph.client.queue_message import (
    Lease,
    Outgoing,
    Purged,
    QueueDeadLetter,
    QueueMessage,
    QueueName,
    WaitingMessage,
    value_of,
)
from heliograph.engine.limits import ACK_DEADLINE_SECONDS_MAX, check_priority
from heliograph.engine.message import Delivery, Draft, message_id
from heliograph.engine.settings import SECOND_NS, SubscriptionSettings
from heliograph.errors import (
    AckDeadlineExceeded,
    FailedPrecondition,
    FlowControlExceeded,
    HeliographError,
    InvalidArgument,
    MessageNotFound,
    Unavailable,
)
from heliograph.wire.queues import (
    PREFETCH_MAX,
    MessageOptions,
    QueueConfig,
    Stats,
    check_name,
    max_retries_of,
    priority_in,
    stats_of,
)

T = TypeVar("T")


_NO_OPTIONS = MessageOptions()
_UNKNOWN = SubscriptionSettings(default_priority=-1)  # no message has this priority


class Queue:
    """One work queue. Thread-safe.

    Args:
        name: of the queue, as all doors know it; it exists once somebody has called `create`.
        url: of the server that has it, `http://HOST:PORT`; needs the extra `client`.
        broker: the broker of this process that has it. Not closed with the queue.
        data_dir: a directory: a broker of its own keeps everything there. With none of the three it is the one broker
            of this process, in memory.
        prefetch: how many messages may be held here at a time; more than 1 is quicker, and takes them from others.
        ack_deadline: seconds of a lease, more than 0 to 600; None = the queue's own. It only decides how soon others
            get the messages of a process that is gone.
        consumer_id: what others see of who holds messages; None = a name of its own.

    Raises:
        InvalidArgument: code 3, an argument is not possible.
        StoreRefused: `data_dir` cannot be used; it is left untouched.
    """

    def __init__(
        self,
        name: str,
        *,
        url: str | None = None,
        broker: Broker | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        prefetch: int = 1,
        ack_deadline: float | None = None,
        consumer_id: str | None = None,
    ) -> None:
        self.name = name_of(name, "Queue name")
        self.prefetch = count_of(prefetch, "prefetch", 1, PREFETCH_MAX)
        if ack_deadline is not None and not seconds_of(ack_deadline, "Ack deadline", 0, ACK_DEADLINE_SECONDS_MAX):
            raise InvalidArgument("Ack deadline must be more than 0 seconds")
        self.ack_deadline = ack_deadline
        self.consumer_id = name_of(consumer_id or f"queue-{secrets.token_hex(4)}", "Consumer")
        self._owned: Broker | None = None
        if url is None and broker is None and data_dir is None:
            self.broker: Broker = MessageQueue.get_instance().broker
        else:
            self.broker, self._owned = backing(broker, data_dir, url)
        self._queue = QueueName(name, QUEUE_PREFIX + name)
        self._told = threading.Condition()
        self._signals = 0
        self._known: SubscriptionSettings | None = None
        self._watching = False
        self._watch: Watch | None = None
        self._keeper: LeaseKeeper[Lease] | None = None
        self._closed = False

    # ── the queue ───────────────────────────────────────────────────────────────────────────────────────────────────

    def create(self, **config: Any) -> Self:
        """Make the queue; if it is there with equal settings, nothing changes.

        Args:
            config: max_depth (100,000), ack_deadline_secs (30), default_max_retries (3), default_priority (5),
                prefetch (10), ttl, retry_policy ({"minimum_backoff": …, "maximum_backoff": …}) or retry_delays
                ([10, 60, 300]), dead_letter_max_size (10,000), priority_aging_seconds. Times in seconds.

        Returns:
            This object.

        Raises:
            QueueExists: code 6, it is there with other settings.
            InvalidArgument, InvalidPriority: code 3.
        """
        check_name(self.name)
        settings = struct_of(config, QueueConfig).settings()
        self._do(lambda: self.broker.create_queue(self.name, settings))
        return self

    def delete(self) -> None:
        """The queue and its messages go. Raises: QueueNotFound."""
        self._do(lambda: self.broker.delete_queue(self.name))

    def purge(self) -> Purged:
        """Drop what waits, never what somebody holds. Returns how many messages. Raises: QueueNotFound."""
        return Purged(*self._do(lambda: self.broker.purge(self._queue.resource)))

    def stats(self) -> Stats:
        """Gauges and counters (spec 003, Monitoring Metrics). Raises: QueueNotFound."""
        statistics = self._ask(lambda: self.broker.statistics(self._queue.resource))
        return stats_of(self.name, statistics, self.broker.now_ns())

    def peek(self, count: int = 1) -> list[WaitingMessage]:
        """What would be handed out next, without taking it. Raises: QueueNotFound, InvalidArgument."""
        count_of(count, "count", 1, 1_000)
        settings, number = self._settings(), self._number()
        messages = self._ask(lambda: self.broker.peek(self._queue.resource, count))
        return [
            WaitingMessage(
                message_id(number, message.sequence),
                value_of(message),
                priority_in(message, settings),
                dict(message.attributes),
            )
            for message in messages
        ]

    def position(self, priority: int) -> int:
        """How many messages wait that have that priority or a higher one. Raises: QueueNotFound."""
        return self._ask(lambda: self.broker.position(self._queue.resource, priority))

    # ── messages in ─────────────────────────────────────────────────────────────────────────────────────────────────

    def publish(self, message: Any, **options: Any) -> str:
        """Put a message into the queue; durable when this returns.

        Args:
            message: any JSON value, or bytes; 10 MB at most.
            options: priority (0 to 9, 9 goes first), ttl and delay (seconds), headers (string to string), max_retries,
                dedup_id (published again within ten minutes, it is the same message).

        Returns:
            The message's id.

        Raises:
            QueueNotFound: code 5. QueueFull: code 8.
            InvalidArgument, InvalidPriority, MessageTooLarge: code 3; nothing was published.
            Unavailable: code 14, it cannot be made durable now.
        """
        return self.publish_batch([Outgoing(message, **options)])[0]

    def publish_batch(self, messages: Iterable[Any], **options: Any) -> list[str]:
        """Put several messages into the queue, all or none; quicker than one by one.

        Args:
            messages: values, or `Outgoing` ones that have options of their own.
            options: as `publish`, for those that have none.

        Returns:
            Their ids, in order.

        Raises:
            As `publish`.
        """
        if isinstance(messages, str | bytes | bytearray | dict) or not isinstance(messages, Iterable):
            raise InvalidArgument(f"Several messages are a list, not {type(messages).__name__}")
        common = struct_of(options, MessageOptions)
        drafts: list[Draft] = []
        for message in messages:
            own = struct_of(message.options, MessageOptions) if isinstance(message, Outgoing) else common
            value = message.message if isinstance(message, Outgoing) else message
            data, content_type = encode(value)
            if own.priority is not None:
                check_priority(own.priority)
            # with a priority, or with nothing at all, the queue's own priority need not be known
            knows = own.priority is not None or (own == _NO_OPTIONS and not content_type)
            now_ns = self.broker.now_ns() if own.ttl or own.delay else 0
            drafts.append(own.draft_of(data, content_type, _UNKNOWN if knows else self._settings(), now_ns))
        return self._do(lambda: self.broker.publish(self._queue.resource, drafts))

    # ── messages out ────────────────────────────────────────────────────────────────────────────────────────────────

    def consume(self, *, timeout: float | None = None) -> Iterator[QueueMessage]:
        """Messages, the highest priority first, then the oldest, as they come.

        Args:
            timeout: end when nothing has come for so many seconds; None = never.

        Raises (while iterating):
            QueueNotFound: the queue is not there, or not any more.
            FlowControlExceeded: code 8, the message before is not settled, and no more than one may be held.
            FailedPrecondition: code 9, the queue was closed meanwhile.
            Unavailable: code 14, the broker cannot answer.
        """
        buffered: deque[QueueMessage] = deque()
        try:
            while True:
                if not buffered:
                    if self.prefetch == 1 and not self.room:
                        raise FlowControlExceeded("Settle the message before, or hold more of them with prefetch=…")
                    buffered.extend(self.take_many(self.prefetch, timeout=timeout))
                    if not buffered:
                        return
                yield buffered.popleft()
        finally:
            for message in buffered:
                with contextlib.suppress(HeliographError):  # else it comes back with the end of its lease
                    message.release()

    def take(self, *, timeout: float | None = 0) -> QueueMessage | None:
        """Take the next message, if there is one or one comes within `timeout` seconds; None = wait without end.

        Raises:
            FlowControlExceeded: code 8, as many as `prefetch` are held, and nothing is waited for.
            QueueNotFound, FailedPrecondition, Unavailable.
        """
        return next(iter(self.take_many(1, timeout=timeout)), None)

    def take_many(self, count: int, *, timeout: float | None = 0) -> list[QueueMessage]:
        """As `take`, up to `count` at once; it waits for the first only."""
        count_of(count, "count", 1, PREFETCH_MAX)
        if timeout is not None:
            seconds_of(timeout, "timeout", 0, threading.TIMEOUT_MAX)
        if timeout == 0 and not self.room:
            raise FlowControlExceeded(f"This consumer holds {self.prefetch} messages, and may hold no more")
        ends_at = None if timeout is None else time.monotonic() + timeout
        if timeout != 0:
            self._watch_here()
        while True:
            signals = self._signals
            messages = self.take_now(count)
            left = None if ends_at is None else ends_at - time.monotonic()
            if messages or (left is not None and left <= 0):
                return messages
            with self._told:
                self._told.wait_for(lambda signals=signals: self._closed or self._signals != signals, left)  # type: ignore[misc]  # mypy takes the default for a missing argument

    def take_now(self, count: int) -> list[QueueMessage]:
        """Up to `count`, and up to `prefetch` with those that are held; none where none is ready. Raises as `take`."""
        if self._closed:
            raise FailedPrecondition("The queue is closed")
        wanted = min(count, self.room)
        if not wanted:
            return []
        deliveries = self._do(
            lambda: self.broker.pull(
                self._queue.resource,
                wanted,
                ack_deadline_ns=nanoseconds(self.ack_deadline or 0),
                consumer=self.consumer_id,
            )
        )
        if not deliveries:
            return []
        settings = self._known or self._settings()
        return [self._handed_out(delivery, settings) for delivery in deliveries]

    def _handed_out(self, delivery: Delivery, settings: SubscriptionSettings) -> QueueMessage:
        message = delivery.message
        handed_out = QueueMessage(
            id=delivery.message_id,
            message=value_of(message),
            priority=priority_in(message, settings),
            retry_count=delivery.attempt - 1,
            max_retries=max_retries_of(message, settings),
            headers=dict(message.attributes),
            queue=self.name,
            lease_id=delivery.ack_id,
            _settle=self._settle_own,
        )
        keeper, lease = self._keeper_of(settings), Lease(delivery.ack_id, self._queue)
        keeper.hold(lease, extend=True)
        weakref.finalize(handed_out, keeper.let_go, lease).atexit = False  # nobody can settle it any more
        return handed_out

    def _keeper_of(self, settings: SubscriptionSettings) -> LeaseKeeper[Lease]:
        with self._told:
            if self._keeper is None:
                self._keeper = LeaseKeeper(self.broker, self.ack_deadline or settings.ack_deadline_ns / SECOND_NS)
            return self._keeper

    @property
    def room(self) -> int:
        """How many messages more may be held here."""
        room = self.prefetch - (self._keeper.count if self._keeper is not None else 0)
        if room <= 0:  # some may have been settled by their ids, elsewhere
            held = self._ask(lambda: self.broker.outstanding(self._queue.resource, self.consumer_id))
            room = max(self.prefetch - held, 0)
        return room

    def watch(self, callback: Callable[[], None]) -> Watch:
        """Have `callback` called when there may be messages, from any thread; it must not block. Raises:
        QueueNotFound."""
        return self._ask(lambda: self.broker.watch(self._queue.resource, callback))

    def _watch_here(self) -> None:
        with self._told:
            if self._watching:
                return
            self._watching = True
        try:
            self._watch = self.watch(self._signal)
        except BaseException:
            self._watching = False
            raise

    def _signal(self) -> None:
        with self._told:
            self._signals += 1
            self._told.notify_all()

    # ── what becomes of them ────────────────────────────────────────────────────────────────────────────────────────

    def ack(self, message: str, *, lease_id: str | None = None) -> None:
        """A message is processed: by its id, also one that was taken elsewhere, or before a restart.

        Args:
            message: its id.
            lease_id: of the delivery that is meant; None = whoever holds the message.

        Raises:
            MessageNotFound: code 5, nobody holds it.
            AckDeadlineExceeded: code 9, the lease that is meant is not the current one.
            QueueNotFound, Unavailable.
        """
        self._settle(message, self._current(message, lease_id), "ack", 0)

    def nack(self, message: str, *, lease_id: str | None = None, requeue: bool = True) -> str:
        """A message failed; as `QueueMessage.nack`, and raises as `ack`."""
        return self._settle(message, self._current(message, lease_id), "nack" if requeue else "reject", 0)

    def extend(self, message: str, seconds: float, *, lease_id: str | None = None) -> None:
        """The lease on a message lasts so long from now. Raises as `ack`, and InvalidArgument."""
        self._settle(message, self._current(message, lease_id), "extend", seconds)

    def _current(self, own_id: str, lease_id: str | None) -> str:
        try:
            current = self._ask(lambda: self.broker.current_ack_id(self._queue.resource, own_id))
        except MessageNotFound:
            if lease_id is None:
                raise
            raise AckDeadlineExceeded(own_id) from None
        if lease_id not in (None, current):
            raise AckDeadlineExceeded(own_id)
        return current

    def _settle_own(self, message: QueueMessage, how: str, seconds: float) -> str:
        return self._settle(message.id, message.lease_id, how, seconds)

    def _settle(self, own_id: str, ack_id: str, how: str, seconds: float) -> str:
        """Returns what became of it, in the words of a nack."""
        resource, action = self._queue.resource, ""
        if how == "extend":
            if not seconds_of(seconds, "Ack deadline", 0, ACK_DEADLINE_SECONDS_MAX):
                raise InvalidArgument("Ack deadline must be more than 0 seconds")
            stale = self._do(lambda: self.broker.modify_ack_deadline(resource, [ack_id], nanoseconds(seconds)))
        elif self._keeper is not None:
            self._keeper.let_go(Lease(ack_id, self._queue))
        if how == "ack":
            stale = self._do(lambda: self.broker.acknowledge(resource, [ack_id]))
        elif how == "nack":
            stale, dead = self._do(lambda: self.broker.nack(resource, [ack_id]))
            action = "dead_lettered" if dead else "requeued"
        elif how == "reject":
            stale = self._do(lambda: self.broker.reject(resource, [ack_id]))
            action = "dead_lettered"
        elif how == "release":
            self._do(lambda: self.broker.release(resource, [ack_id]))
            stale = []
        self._signal()  # there may be room for another
        if stale:
            raise AckDeadlineExceeded(own_id)
        return action

    # ── dead letters ────────────────────────────────────────────────────────────────────────────────────────────────

    def dead_letters(self, *, limit: int = 100, offset: int = 0) -> list[QueueDeadLetter]:
        """Messages that were given up, the oldest first. Raises: QueueNotFound, InvalidArgument."""
        count_of(limit, "limit", 0)
        count_of(offset, "offset", 0)
        settings, number = self._settings(), self._number()
        letters = self._ask(lambda: self.broker.dead_letters(self._queue.resource, offset=offset, limit=limit))
        return [
            QueueDeadLetter(
                id=message_id(number, message.sequence),
                message=value_of(message),
                priority=priority_in(message, settings),
                headers=dict(message.attributes),
                retry_count=max(letter.failures - 1, 0),
                reason=letter.reason.value,
                original_queue=self.name,
                dead_lettered_at=datetime.fromtimestamp(letter.dead_lettered_ns / 1e9, UTC),
            )
            for letter, message in letters
        ]

    def retry_dead_letters(self, ids: Sequence[str] | None = None) -> int:
        """Put dead letters back, all or those named, with their retries counted afresh. Returns how many.

        Raises:
            MessageNotFound: an id is none of them; none is put back then.
            QueueNotFound, Unavailable.
        """
        if isinstance(ids, str):
            raise InvalidArgument("Several ids are a list, not a str")
        return self._do(lambda: self.broker.retry_dead_letters(self._queue.resource, ids))

    def purge_dead_letters(self) -> int:
        """Forget the dead letters. Returns how many. Raises: QueueNotFound, Unavailable."""
        return self._do(lambda: self.broker.purge_dead_letters(self._queue.resource))

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def close(self) -> None:
        """Give back what is held, as no failure, and end a broker or connection of its own. Idempotent."""
        with self._told:
            if self._closed:
                return
            self._closed = True
            self._told.notify_all()
        if self._watch is not None:
            self._watch.close()
        if self._keeper is not None:
            self._keeper.close()
        if self._owned is not None:
            self._owned.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def _settings(self) -> SubscriptionSettings:
        self._known = self._ask(lambda: self.broker.get_subscription(self._queue.resource).settings)
        return self._known

    def _number(self) -> int:
        return self._ask(lambda: self.broker.get_topic(self._queue.resource).number)

    def _do(self, operation: Callable[[], Reply[T]]) -> T:
        return self._ask(lambda: operation().result())

    def _ask(self, operation: Callable[[], T]) -> T:
        try:
            return operation()
        except HeliographError as error:
            if self._closed and isinstance(error, Unavailable):
                raise FailedPrecondition("The queue is closed") from None
            raise in_words_of_queues(error) from None


__all__ = ["Outgoing", "Queue", "QueueDeadLetter", "QueueMessage", "WaitingMessage"]
