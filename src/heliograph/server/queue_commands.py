"""The commands of the work-queue door, whatever carries them (queue-protocol.md). A queue `tasks` is the topic and the
subscription `queues/tasks` of the broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from heliograph.broker.broker import QUEUE_PREFIX
from heliograph.broker.protocol import Broker
from heliograph.engine.message import Delivery, Draft, Message, message_id
from heliograph.engine.settings import SubscriptionSettings
from heliograph.errors import (
    AckDeadlineExceeded,
    HeliographError,
    InvalidArgument,
    QueueFull,
    QueueNotFound,
    SubscriptionNotFound,
    TopicNotFound,
)
from heliograph.server import queue_requests as q
from heliograph.server.closing import Closing
from heliograph.server.feed import Feeds
from heliograph.server.routing import Receive
from heliograph.server.taking import take_or_wait
from heliograph.server.waiting import Wait

Answer = dict[str, Any]


class Command(NamedTuple):
    """One entry of the table.

    Args:
        decode: from the JSON of the payload to the request.
        run: takes the request, and the connection's `receive` for a command that waits.
    """

    decode: Callable[[bytes], Any]
    run: Callable[[Any, Receive], Awaitable[Answer]]


class QueueCommands:
    """See the module.

    Args:
        broker: who does them.
        feeds: who waits on which queue.
        closing: ends the waiting.
    """

    def __init__(self, broker: Broker, feeds: Feeds, closing: Closing) -> None:
        self._broker = broker
        self._feeds = feeds
        self._closing = closing
        table: dict[str, tuple[type, Callable[[Any, Receive], Awaitable[Answer]]]] = {
            "queue.create": (q.Create, self._create),
            "queue.delete": (q.Queue, self._delete),
            "queue.list": (q.Nothing, self._list),
            "queue.stats": (q.Queue, self._stats),
            "queue.peek": (q.Peek, self._peek),
            "queue.publish": (q.Publish, self._publish),
            "queue.publish_batch": (q.PublishBatch, self._publish_batch),
            "queue.consume": (q.Consume, self._consume),
            "queue.ack": (q.Settle, self._ack),
            "queue.nack": (q.Nack, self._nack),
            "queue.extend": (q.Extend, self._extend),
            "queue.purge": (q.Queue, self._purge),
            "dlq.list": (q.ListDeadLetters, self._list_dead_letters),
            "dlq.retry": (q.RetryDeadLetters, self._retry_dead_letters),
            "dlq.purge": (q.Queue, self._purge_dead_letters),
        }
        self._commands = {
            name: Command(msgspec.json.Decoder(request).decode, run) for name, (request, run) in table.items()
        }

    async def run(self, command: str, payload: bytes, receive: Receive) -> Answer:
        """Run a command.

        Args:
            command: its name.
            payload: JSON.
            receive: tells a waiting command that its client has gone.

        Raises:
            HeliographError: with the reasons of queue-protocol.md.
            ClientGone: the client did not wait.
        """
        entry = self._commands.get(command)
        if entry is None:
            raise InvalidArgument(f"Unknown command: {command}")
        try:
            request = entry.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"{command}: {error}") from None
        try:
            return await entry.run(request, receive)
        except (TopicNotFound, SubscriptionNotFound) as error:
            raise QueueNotFound(error.name.removeprefix(QUEUE_PREFIX)) from None
        except QueueFull as error:
            raise QueueFull(error.name.removeprefix(QUEUE_PREFIX), error.depth_max) from None

    # ── queues ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _create(self, request: q.Create, _receive: Receive) -> Answer:
        q.check_name(request.name)
        await self._broker.create_queue(request.name, (request.config or request).settings())
        return {"name": request.name, "success": True}

    async def _delete(self, request: q.Queue, _receive: Receive) -> Answer:
        await self._broker.delete_queue(request.queue)
        return {"success": True}

    async def _list(self, _request: q.Nothing, _receive: Receive) -> Answer:
        names = [info.name for info in self._broker.list_subscriptions()]
        return {"queues": [name.removeprefix(QUEUE_PREFIX) for name in names if name.startswith(QUEUE_PREFIX)]}

    async def _stats(self, request: q.Queue, _receive: Receive) -> Answer:
        statistics = self._broker.statistics(QUEUE_PREFIX + request.queue)
        totals, now_ns = statistics.totals, self._broker.now_ns()
        return {
            "queue": request.queue,
            "depth": statistics.ready + statistics.delayed,
            "consumers": statistics.consumers,
            "published_total": totals.published,
            "consumed_total": totals.delivered,
            "acked_total": totals.acknowledged,
            "nacked_total": totals.nacked,
            "dead_lettered_total": totals.dead_lettered,
            "avg_wait_time_ms": statistics.average_wait_ns / 1e6,
            "oldest_message_age_secs": _age_seconds(statistics.oldest_waiting_ns, now_ns),
            "outstanding": statistics.outstanding,
            "delayed": statistics.delayed,
            "dead_letters": statistics.dead_letters,
            "dead_letters_dropped_total": totals.dead_letters_dropped,
            "redelivered_total": totals.redelivered,
            "expired_total": totals.expired,
            "depth_by_priority": {str(band): count for band, count in statistics.depth_by_priority.items() if count},
            "oldest_unacked_age_secs": _age_seconds(statistics.oldest_unacknowledged_ns, now_ns),
        }

    async def _purge(self, request: q.Queue, _receive: Receive) -> Answer:
        ready, delayed = await self._broker.purge(QUEUE_PREFIX + request.queue)
        return {"purged": ready + delayed, "ready": ready, "delayed": delayed}

    async def _peek(self, request: q.Peek, _receive: Receive) -> Answer:
        settings, number = self._settings(request.queue)
        messages = self._broker.peek(QUEUE_PREFIX + request.queue, request.count)
        return {"messages": [_told(message, message_id(number, message.sequence), settings) for message in messages]}

    # ── messages in ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _publish(self, request: q.Publish, _receive: Receive) -> Answer:
        name = QUEUE_PREFIX + request.queue
        settings, _ = self._settings(request.queue)
        draft = request.draft(settings, self._broker.now_ns())
        reply = self._broker.publish(name, [draft])
        position = self._broker.position(name, _priority(draft, settings))
        return {"message_id": (await reply)[0], "position": position}

    async def _publish_batch(self, request: q.PublishBatch, _receive: Receive) -> Answer:
        settings, _ = self._settings(request.queue)
        now_ns = self._broker.now_ns()
        drafts = [message.draft(settings, now_ns) for message in request.messages]
        return {"message_ids": await self._broker.publish(QUEUE_PREFIX + request.queue, drafts)}

    # ── messages out ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _consume(self, request: q.Consume, receive: Receive) -> Answer:
        settings, _ = self._settings(request.queue)
        name = QUEUE_PREFIX + request.queue
        room = self._room(request, settings)
        deliveries: Sequence[Delivery] = ()
        if room:
            deliveries = await take_or_wait(
                self._feeds,
                self._broker,
                name,
                room=lambda: self._room(request, settings),
                take=lambda wanted: self._broker.pull(
                    name,
                    wanted,
                    ack_deadline_ns=0 if request.ack_deadline is None else q.nanoseconds(request.ack_deadline),
                    consumer=request.consumer_id,
                ),
                wait=Wait(receive, self._closing, request.timeout) if request.timeout else None,
            )
        answers = [_delivered(delivery, settings) for delivery in deliveries]
        at_limit = {"at_prefetch_limit": not answers and not room}
        if request.max_messages > 1:
            return {"messages": answers} | at_limit
        return (answers[0] if answers else _NOTHING) | at_limit

    def _room(self, request: q.Consume, settings: SubscriptionSettings) -> int:
        """How many messages the consumer may take now. Unnamed, each call is a consumer of its own."""
        prefetch = request.prefetch or _kept_config(settings.resource).prefetch
        held = self._broker.outstanding(QUEUE_PREFIX + request.queue, request.consumer_id) if request.consumer_id else 0
        return max(min(request.max_messages, prefetch - held), 0)

    # ── what becomes of them ────────────────────────────────────────────────────────────────────────────────────────

    async def _ack(self, request: q.Settle, _receive: Receive) -> Answer:
        async def acknowledge(message_id: str, ack_id: str) -> Answer:
            _check_current(message_id, await self._broker.acknowledge(QUEUE_PREFIX + request.queue, [ack_id]))
            return {"success": True}

        return await self._each(request, acknowledge)

    async def _nack(self, request: q.Nack, _receive: Receive) -> Answer:
        name = QUEUE_PREFIX + request.queue

        async def give_back(message_id: str, ack_id: str) -> Answer:
            if request.requeue:
                stale, dead_lettered = await self._broker.nack(name, [ack_id])
                action = "dead_lettered" if dead_lettered else "requeued"
            else:
                stale = await self._broker.reject(name, [ack_id])
                action = "dead_lettered"
            _check_current(message_id, stale)
            return {"success": True, "action": action}

        return await self._each(request, give_back)

    async def _extend(self, request: q.Extend, _receive: Receive) -> Answer:
        name = QUEUE_PREFIX + request.queue
        deadline_ns = q.nanoseconds(request.ack_deadline)

        async def extend(message_id: str, ack_id: str) -> Answer:
            _check_current(message_id, await self._broker.modify_ack_deadline(name, [ack_id], deadline_ns))
            return {"success": True}

        return await self._each(request, extend)

    async def _each(self, request: q.Settle, settle: Callable[[str, str], Awaitable[Answer]]) -> Answer:
        """One message: its answer, or its error. Several: an answer for each, whatever becomes of the others."""
        leases = request.leases()
        self._settings(request.queue)  # an unknown queue is one error, not many
        if request.message_id is not None:
            return await settle(request.message_id, self._current(request.queue, *leases[0]))
        results: list[Answer] = []
        for own_id, lease_id in leases:
            try:
                answer = await settle(own_id, self._current(request.queue, own_id, lease_id))
            except HeliographError as error:
                answer = {"success": False, "error": error.message, "code": error.reason}
            results.append({"message_id": own_id} | answer)
        return {"results": results}

    def _current(self, queue: str, message_id: str, lease_id: str | None) -> str:
        """The ack id to settle with.

        Raises:
            MessageNotFound: nobody holds the message, and the caller did not say that he does.
            AckDeadlineExceeded: the lease that the caller names is not the current one.
        """
        try:
            current = self._broker.current_ack_id(QUEUE_PREFIX + queue, message_id)
        except HeliographError:
            if lease_id is None:
                raise
            raise AckDeadlineExceeded(message_id) from None
        if lease_id is not None and lease_id != current:
            raise AckDeadlineExceeded(message_id)
        return current

    # ── dead letters ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _list_dead_letters(self, request: q.ListDeadLetters, _receive: Receive) -> Answer:
        settings, number = self._settings(request.queue)
        name = QUEUE_PREFIX + request.queue
        told = []
        for letter, message in self._broker.dead_letters(name, offset=request.offset, limit=request.limit):
            told.append(
                _told(message, message_id(number, message.sequence), settings)
                | {
                    "retry_count": max(letter.failures - 1, 0),
                    "reason": letter.reason.value,
                    "original_queue": request.queue,
                    "dead_lettered_at": letter.dead_lettered_ns / 1e9,
                }
            )
        return {"messages": told, "total": self._broker.statistics(name).dead_letters}

    async def _retry_dead_letters(self, request: q.RetryDeadLetters, _receive: Receive) -> Answer:
        if request.message_id is not None and request.message_ids is not None:
            raise InvalidArgument("Either message_id or message_ids may be given")
        message_ids = [request.message_id] if request.message_id is not None else request.message_ids
        return {"retried": await self._broker.retry_dead_letters(QUEUE_PREFIX + request.queue, message_ids)}

    async def _purge_dead_letters(self, request: q.Queue, _receive: Receive) -> Answer:
        return {"purged": await self._broker.purge_dead_letters(QUEUE_PREFIX + request.queue)}

    def _settings(self, queue: str) -> tuple[SubscriptionSettings, int]:
        """Of a queue, and the number that its message ids begin with."""
        name = QUEUE_PREFIX + queue
        return self._broker.get_subscription(name).settings, self._broker.get_topic(name).number


_NOTHING: Answer = {"message_id": None, "message": None}


def _priority(message: Message | Draft, settings: SubscriptionSettings) -> int:
    return settings.default_priority if message.extras is None else message.extras.priority


def _max_retries(message: Message, settings: SubscriptionSettings) -> int:
    own = message.extras.max_delivery_attempts if message.extras is not None else 0
    policy = settings.dead_letter_policy
    return (own or (policy.max_delivery_attempts if policy is not None else 1)) - 1


def _told(message: Message, id_of_message: str, settings: SubscriptionSettings) -> Answer:
    """A message as it came: any JSON as `message`, or bytes as an object of their own beside the flat fields."""
    told: Answer = {
        "message_id": id_of_message,
        "message": msgspec.Raw(message.data or b"null"),
        "priority": _priority(message, settings),
        "headers": dict(message.attributes),
    }
    if message.extras is not None and message.extras.content_type == q.BYTES_TYPE:
        told["message"] = {
            "id": id_of_message,
            "payload": list(message.data),
            "priority": told["priority"],
            "max_retries": _max_retries(message, settings),
            "headers": told["headers"],
        }
    return told


def _delivered(delivery: Delivery, settings: SubscriptionSettings) -> Answer:
    answer = _told(delivery.message, delivery.message_id, settings)
    answer["retry_count"] = delivery.attempt - 1
    answer["lease_id"] = delivery.ack_id
    if isinstance(answer["message"], dict):
        answer["message"]["retry_count"] = delivery.attempt - 1
    return answer


def _check_current(message_id: str, stale: Sequence[str]) -> None:
    if stale:
        raise AckDeadlineExceeded(message_id)


def _age_seconds(instant_ns: int, now_ns: int) -> float:
    return max(now_ns - instant_ns, 0) / 1e9 if instant_ns else 0.0


@lru_cache(maxsize=1024)
def _kept_config(resource: bytes) -> q.KeptConfig:
    return msgspec.json.decode(resource, type=q.KeptConfig) if resource else q.KeptConfig()
