"""The broker of spec 004 (§4.2): enqueue, dequeue, retry, dead letters; on any of Heliograph's brokers.

It translates: topics become queues of the broker (`priority_routing`), values become bytes, three levels of priority
three of its ten. Priorities, retries, backoff and dead letters are the engine's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from heliograph.broker.protocol import Broker
from heliograph.broker.reply import Reply
from heliograph.client.lease_keeper import LeaseKeeper
from heliograph.client.priority_message import (
    Priority,
    PriorityDeadLetter,
    PriorityMessage,
    band_of,
    decode,
    encode,
    level_of,
)
from heliograph.client.priority_routing import Queue, Routing
from heliograph.client.topic_pattern import check_pattern, check_topic, is_pattern
from heliograph.engine.dead_letter import DeadLetterPolicy
from heliograph.engine.message import Delivery, Draft, Extras, Message, message_id, priority_of, split_message_id
from heliograph.engine.retry import RetryPolicy
from heliograph.engine.settings import SECOND_NS, SubscriptionSettings
from heliograph.errors import (
    AckDeadlineExceeded,
    FailedPrecondition,
    InvalidArgument,
    MessageNotFound,
    SubscriptionNotFound,
    TopicNotFound,
)

_log = logging.getLogger("heliograph")

T = TypeVar("T")

# Attributes of a copy in a pattern's queue: its topic, and the id that `publish` returned.
_TOPIC = "topic"
_PUBLISHED_ID = "published_id"

# How many messages a subscriber that acknowledges later by itself may hold; a bound so that one cannot take everything.
_HELD_MAX = 1_000


class PriorityBroker:
    """Queues by topic, in each the highest priority first, then the oldest. Thread-safe.

    Args:
        broker: where the queues are.
        max_retries: a message whose processing fails is tried again so many times, then it is a dead letter.
        retry_policy: the waits before the retries.
        ack_deadline_seconds: a message that was dequeued comes back after so long, if nothing became of it.
    """

    def __init__(
        self, broker: Broker, *, max_retries: int, retry_policy: RetryPolicy, ack_deadline_seconds: float
    ) -> None:
        self.backing = broker
        self.routing = Routing.of(broker)
        self.settings = SubscriptionSettings(
            message_retention_ns=0,  # spec 004, §12: messages persist until they are acknowledged
            ack_deadline_ns=round(ack_deadline_seconds * SECOND_NS),
            retry_policy=retry_policy,
            dead_letter_policy=DeadLetterPolicy(None, max_retries + 1),
            default_priority=band_of(Priority.MEDIUM),
            prioritised=True,
            prefetch=_HELD_MAX,
        )
        self.leases: LeaseKeeper[PriorityMessage] = LeaseKeeper(broker, ack_deadline_seconds)
        self._settling = threading.Lock()
        self._closed = False

    def check_open(self) -> None:
        """Raises: FailedPrecondition, once closed."""
        if self._closed:
            raise FailedPrecondition("This PriorityPubSub is closed")

    def close(self) -> None:
        """Give back what was dequeued and not settled; it counts as no failure. Idempotent."""
        self._closed = True
        self.leases.close()

    # ── messages in ─────────────────────────────────────────────────────────────────────────────────────────────────

    def enqueue(self, topic: str, message: Any, priority: int = 3) -> str:
        """Put a message into the queue of its topic, or of those who subscribed (spec 004, §4.2).

        Args:
            topic: words between dots, at most 255 bytes.
            message: any JSON value, or bytes; 10 MB at most.
            priority: 1 = high, 2 = medium, 3 = low.

        Returns:
            The message's id. It is durable when this returns, if the broker keeps anything.

        Raises:
            InvalidArgument, InvalidPriority, MessageTooLarge: nothing was published.
            FailedPrecondition: closed.
            Unavailable: the broker cannot make it durable now.
        """
        return self.enqueue_many(topic, [message], priority)[0]

    def enqueue_many(self, topic: str, messages: Sequence[Any], priority: int = 3) -> list[str]:
        """Several messages of one topic at once: all or none, and one commit for all. As `enqueue` otherwise."""
        self.check_open()
        topic, band = check_topic(topic), band_of(priority)
        if isinstance(messages, str | bytes | bytearray | memoryview | dict) or not hasattr(messages, "__iter__"):
            raise InvalidArgument(f"Several messages are a list, not {type(messages).__name__}")
        payloads = [encode(message) for message in messages]
        ids = [reply.result() for reply in self._publish(topic, payloads, band)]
        return ids[0]

    def _publish(self, topic: str, payloads: Sequence[tuple[bytes, str]], band: int) -> list[Reply[list[str]]]:
        """A copy to each queue that the topic leads to, all under one lock, where nothing waits for a commit."""
        replies: list[Reply[list[str]]] = []
        with self.routing.lock:
            self.routing.look()
            while not replies:
                for queue in self.routing.route(topic) or (self.routing.made(topic, self.settings),):
                    drafts = self._drafts(queue, topic, payloads, band, replies[0].provisional if replies else None)
                    try:
                        replies.append(self.backing.publish(queue.resource, drafts))
                    except TopicNotFound:
                        self.routing.lost(queue)  # somebody deleted it through another door
        return replies

    def _drafts(
        self,
        queue: Queue,
        topic: str,
        payloads: Sequence[tuple[bytes, str]],
        band: int,
        published_ids: Sequence[str] | None,
    ) -> list[Draft]:
        # a queue keeps the settings that it was made with; the number of retries is the publisher's all the same
        ours, theirs = self.settings.dead_letter_policy, queue.settings.dead_letter_policy
        own_attempts = 0 if ours is None or ours == theirs else ours.max_delivery_attempts
        extras = {
            content_type: Extras(band, max_delivery_attempts=own_attempts, content_type=content_type)
            for _, content_type in payloads
        }
        attributes = {_TOPIC: topic} if is_pattern(queue.name) else {}
        if published_ids is None:
            return [Draft(data, attributes, extras=extras[content_type]) for data, content_type in payloads]
        return [
            Draft(data, attributes | {_PUBLISHED_ID: published_id}, extras=extras[content_type])
            for (data, content_type), published_id in zip(payloads, published_ids, strict=True)
        ]

    # ── messages out ────────────────────────────────────────────────────────────────────────────────────────────────

    def dequeue(self, topic: str) -> PriorityMessage | None:
        """Take the message of a topic (or pattern) that has the highest priority (spec 004, §4.2).

        It is leased: unless it is acknowledged, retried or moved to the dead letters before the ack deadline, it comes
        again, with one more retry. Whoever dequeues has subscribed: from now on the topic's messages are kept for him,
        whichever patterns match them too.

        Returns:
            The message; None when none is ready.

        Raises:
            InvalidArgument, FailedPrecondition, Unavailable: as `enqueue`.
        """
        self.check_open()
        name = check_pattern(topic)
        while True:
            with self.routing.lock:  # so that nobody subscribes to a topic while we take what it has kept
                queues = self.routing.subscribe(name, self.settings)
                fronts = [front for front in (self.front(queue) for queue in queues) if front is not None]
                if not fronts:
                    return None
                queue = self.routing.queue(min(fronts)[2])
                reply = self.pull(queue, consumer="")
            for delivery in reply.result():
                message = self.received(queue, delivery)
                if message is not None:
                    self.leases.hold(message)
                    return message

    def front(self, queue: Queue) -> tuple[int, int, str] | None:
        """What a queue would hand out next, so that the least of several goes first: its priority, its time and the
        queue's name. None when nothing is ready."""
        message = next(iter(self.backing.peek(queue.resource, 1)), None)
        if message is None:
            return None
        return -_band(queue, message), message.publish_time_ns, queue.name

    def pull(self, queue: Queue, consumer: str) -> Reply[list[Delivery]]:
        """Lease one message."""
        return self.backing.pull(queue.resource, 1, ack_deadline_ns=self.settings.ack_deadline_ns, consumer=consumer)

    def received(self, queue: Queue, delivery: Delivery) -> PriorityMessage | None:
        """A delivery in the API's words; None, and a dead letter, if another door put no JSON there."""
        message = delivery.message
        try:
            value = decode(message)
        except ValueError:
            _log.error("message %s of %s is no JSON: it becomes a dead letter", delivery.message_id, queue.name)
            self.backing.reject(queue.resource, [delivery.ack_id])
            return None
        return PriorityMessage(
            id=delivery.message_id,
            published_id=message.attributes.get(_PUBLISHED_ID, delivery.message_id),
            message=value,
            priority=level_of(_band(queue, message)),
            retries=delivery.attempt - 1,
            topic=_topic(queue, message),
            queue=queue,
            ack_id=delivery.ack_id,
            settle=self.settle,
        )

    # ── what becomes of them ────────────────────────────────────────────────────────────────────────────────────────

    def acknowledge(self, message_id: str) -> None:
        """The message is processed, and gone (spec 004, §9.3). It is durable when this returns.

        Raises:
            InvalidArgument: not an id.
            MessageNotFound: nobody holds such a message: it was acknowledged before, its ack deadline has passed, or it
                was never handed out.
            FailedPrecondition, Unavailable: as `enqueue`.
        """
        self.check_open()
        if not isinstance(message_id, str):
            raise InvalidArgument(f"A message id is a string, not {type(message_id).__name__}")
        with self.routing.lock:
            self.routing.look()
            queue = self.routing.by_number(split_message_id(message_id)[0])
        if queue is None:
            raise MessageNotFound(message_id)
        ack_id = _known(queue, lambda: self.backing.current_ack_id(queue.resource, message_id))
        held = self.leases.find(ack_id)
        if held is not None:
            self.settle(held, "acknowledge")
        elif self.backing.acknowledge(queue.resource, [ack_id]).result():
            raise MessageNotFound(message_id)

    def retry_message(self, topic: str, message: PriorityMessage) -> None:
        """Put a failed message back with one more retry counted; after the last one it is a dead letter (spec 004,
        §4.2). It comes again after its backoff.

        Args:
            topic: where it was dequeued.
            message: as `dequeue` gave it.

        Raises:
            InvalidArgument: it is no such message, or is of another topic.
            AckDeadlineExceeded: too late, it has been given out again.
            FailedPrecondition, Unavailable: as `enqueue`.
        """
        self._of(topic, message).retry()

    def move_to_dlq(self, topic: str, message: PriorityMessage) -> None:
        """Make a message a dead letter at once, whatever retries are left (spec 004, §4.2). As `retry_message`
        otherwise."""
        self._of(topic, message).dead_letter()

    def _of(self, topic: str, message: object) -> PriorityMessage:
        self.check_open()
        name = check_pattern(topic)
        if not isinstance(message, PriorityMessage):
            raise InvalidArgument(f"A message that was dequeued is wanted, not {type(message).__name__}")
        if name not in (message.queue.name, message.topic):
            raise InvalidArgument(f"Message {message.id} is of topic {message.topic!r}, not of {name!r}")
        return message

    def settle(self, message: PriorityMessage, how: str) -> None:
        """Do with a message what was said first; durable when this returns. For `how` see `PriorityMessage`."""
        self.check_open()
        reply = self.settle_soon(message, how)
        if reply is not None and reply.result():
            raise AckDeadlineExceeded(message.id)

    def settle_soon(self, message: PriorityMessage, how: str) -> Reply[list[str]] | None:
        """As `settle`, without waiting until it is durable. None if it was settled before."""
        with self._settling:
            if message.settled:
                return None
            message.settled = True
        self.leases.let_go(message)
        queue, ack_ids = message.queue, [message.ack_id]
        if how == "acknowledge":
            return _known(queue, lambda: self.backing.acknowledge(queue.resource, ack_ids))
        if how == "retry":
            return _known(queue, lambda: self.backing.modify_ack_deadline(queue.resource, ack_ids, 0))
        return _known(queue, lambda: self.backing.reject(queue.resource, ack_ids))

    # ── dead letters ────────────────────────────────────────────────────────────────────────────────────────────────

    def dead_letters(self, topic: str) -> list[PriorityDeadLetter]:
        """The messages of a topic that were given up, the oldest first. A pattern's are those of its own copies.

        Raises:
            TopicNotFound: nothing was published to it, and nobody subscribed.
            InvalidArgument, FailedPrecondition.
        """
        queue = self._queue(topic)
        letters = _known(queue, lambda: self.backing.dead_letters(queue.resource))
        return [
            PriorityDeadLetter(
                id=message_id(queue.number, message.sequence),
                message=_shown(message),
                priority=level_of(_band(queue, message)),
                retries=max(letter.failures - 1, 0),
                topic=_topic(queue, message),
                reason=letter.reason.value,
                dead_lettered_at=datetime.fromtimestamp(letter.dead_lettered_ns / 1e9, UTC),
            )
            for letter, message in letters
        ]

    def retry_dead_letters(self, topic: str, ids: Sequence[str] | None = None) -> int:
        """Put dead letters back into their queue, all or those named, with their retries counted afresh.

        Returns:
            How many.

        Raises:
            MessageNotFound: an id is none of this topic's dead letters; none is put back then.
            TopicNotFound, InvalidArgument, FailedPrecondition, Unavailable.
        """
        queue = self._queue(topic)
        chosen = None if ids is None else _ids(ids)
        return _known(queue, lambda: self.backing.retry_dead_letters(queue.resource, chosen).result())

    def purge_dead_letters(self, topic: str) -> int:
        """Forget the dead letters of a topic. Returns how many. Raises as `dead_letters`, and Unavailable."""
        queue = self._queue(topic)
        return _known(queue, lambda: self.backing.purge_dead_letters(queue.resource).result())

    def _queue(self, topic: str) -> Queue:
        self.check_open()
        with self.routing.lock:
            self.routing.look()
            return self.routing.queue(check_pattern(topic))


def _known(queue: Queue, operation: Callable[[], T]) -> T:
    """The result of an operation on a queue, whose name the user knows and whose resource he does not."""
    try:
        return operation()
    except (SubscriptionNotFound, TopicNotFound):
        raise TopicNotFound(queue.name) from None


def _ids(ids: object) -> list[str]:
    if isinstance(ids, list | tuple | set | frozenset) and all(isinstance(one, str) for one in ids):
        return list(ids)
    raise InvalidArgument("Ids of dead letters are a list of strings")


def _band(queue: Queue, message: Message) -> int:
    """The engine's priority of a message in its queue."""
    return priority_of(message, queue.settings.default_priority)


def _topic(queue: Queue, message: Message) -> str:
    return message.attributes.get(_TOPIC, queue.name)


def _shown(message: Message) -> Any:
    try:
        return decode(message)
    except ValueError:
        return message.data
