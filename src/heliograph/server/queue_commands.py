"""The commands of the work-queue door, whatever carries them (queue-protocol.md). A queue `tasks` is the topic and the
subscription `queues/tasks` of the broker."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, NamedTuple

import msgspec

from heliograph.broker.protocol import Broker
from heliograph.broker.queues import QUEUE_PREFIX, in_words_of_queues
from heliograph.engine.message import Delivery, Message, message_id, size_bytes, split_message_id
from heliograph.engine.settings import SubscriptionSettings
from heliograph.errors import (
    AckDeadlineExceeded,
    HeliographError,
    InvalidArgument,
    MessageNotFound,
    SubscriptionNotFound,
)
from heliograph.server import queue_requests as q
from heliograph.server.closing import Closing
from heliograph.server.feed import Feeds
from heliograph.server.held import Holders
from heliograph.server.http import UNREADABLE
from heliograph.server.queue_session import Session
from heliograph.server.routing import Receive
from heliograph.server.taking import take_or_wait
from heliograph.server.waiting import Wait
from heliograph.wire.queues import (
    check_name,
    is_bytes,
    max_retries_of,
    nanoseconds,
    prefetch_of,
    priority_in,
    stats_of,
)

Answer = dict[str, Any]


class Caller(NamedTuple):
    """Who gave a command.

    Args:
        receive: tells a waiting command that the caller has gone.
        session: the connection, where it outlives the command; None = a request of its own.
    """

    receive: Receive
    session: Session | None = None


class Outcome(NamedTuple):
    """What became of leases.

    Args:
        stale: ack ids that were not current any more.
        dead_lettered: ids of messages that were given up.
        action: what became of the others, in the words of a nack; "" = it goes without saying.
    """

    stale: Sequence[str]
    dead_lettered: Sequence[str] = ()
    action: str = ""


class Command(NamedTuple):
    """One entry of the table.

    Args:
        decode: from the JSON of the payload to the request.
        run: takes the request and who gave it.
    """

    decode: Callable[[bytes], Any]
    run: Callable[[Any, Caller], Awaitable[Answer]]


class QueueCommands:
    """See the module.

    Args:
        broker: who does them.
        feeds: who waits on which queue.
        closing: ends the waiting.
        before: called with the name of each command before it is done; what it raises is the answer instead.
    """

    def __init__(
        self, broker: Broker, feeds: Feeds, closing: Closing, before: Callable[[str], None] | None = None
    ) -> None:
        self._broker = broker
        self._feeds = feeds
        self._closing = closing
        self._before = before
        self.holders = Holders()
        """Which WebSocket holds which delivery."""
        table: dict[str, tuple[type, Callable[[Any, Caller], Awaitable[Answer]]]] = {
            "queue.create": (q.Create, self._create),
            "queue.delete": (q.Queue, self._delete),
            "queue.list": (q.Nothing, self._list),
            "queue.stats": (q.Queue, self._stats),
            "queue.peek": (q.Peek, self._peek),
            "queue.publish": (q.Publish, self._publish),
            "queue.publish_batch": (q.PublishBatch, self._publish_batch),
            "queue.consume": (q.Consume, self._consume),
            "queue.subscribe": (q.Subscribe, self._subscribe),
            "queue.unsubscribe": (q.Queue, self._unsubscribe),
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

    @property
    def names(self) -> Collection[str]:
        """Of all commands."""
        return self._commands.keys()

    async def run(self, command: str, payload: bytes, caller: Caller) -> Answer:
        """Run a command.

        Args:
            command: its name.
            payload: JSON.
            caller: who gave it.

        Raises:
            HeliographError: with the reasons of queue-protocol.md.
            ClientGone: the client did not wait.
        """
        entry = self._commands.get(command)
        if entry is None:
            raise InvalidArgument(f"Unknown command: {command}")
        try:
            request = entry.decode(payload)
        except UNREADABLE as error:
            raise InvalidArgument(f"{command}: {error}") from None
        return await self.run_request(command, request, caller)

    async def run_request(self, command: str, request: Any, caller: Caller) -> Answer:
        """As `run`, with a request that was decoded elsewhere."""
        try:
            if self._before is not None:
                self._before(command)
            return await self._commands[command].run(request, caller)
        except HeliographError as error:
            translated = in_words_of_queues(error)
            if translated is error:
                raise
            raise translated from None

    # ── queues ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _create(self, request: q.Create, _caller: Caller) -> Answer:
        check_name(request.name)
        await self._broker.create_queue(request.name, (request.config or request).settings())
        return {"name": request.name, "success": True}

    async def _delete(self, request: q.Queue, _caller: Caller) -> Answer:
        await self._broker.delete_queue(request.queue)
        return {"success": True}

    async def _list(self, _request: q.Nothing, _caller: Caller) -> Answer:
        names = [info.name for info in self._broker.list_subscriptions()]
        return {"queues": [name.removeprefix(QUEUE_PREFIX) for name in names if name.startswith(QUEUE_PREFIX)]}

    async def _stats(self, request: q.Queue, _caller: Caller) -> Answer:
        name = QUEUE_PREFIX + request.queue
        statistics = self._broker.statistics(name)
        subscribed = self.holders.subscribed(name)
        holding = sum(self._broker.outstanding(name, one) > 0 for one in subscribed)
        waiting = sum(subscribed.values()) - holding
        stats = stats_of(request.queue, statistics, self._broker.now_ns(), waiting_consumers=waiting)
        return msgspec.structs.asdict(stats)

    async def _purge(self, request: q.Queue, _caller: Caller) -> Answer:
        ready, delayed = await self._broker.purge(QUEUE_PREFIX + request.queue)
        return {"purged": ready + delayed, "ready": ready, "delayed": delayed}

    async def _peek(self, request: q.Peek, _caller: Caller) -> Answer:
        settings, number = self._settings(request.queue)
        messages = _within_answer(self._broker.peek(QUEUE_PREFIX + request.queue, request.count))
        return {"messages": [_told(message, message_id(number, message.sequence), settings) for message in messages]}

    # ── messages in ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _publish(self, request: q.Publish, _caller: Caller) -> Answer:
        name = QUEUE_PREFIX + request.queue
        settings, _ = self._settings(request.queue)
        draft = request.draft(settings, self._broker.now_ns())
        reply = self._broker.publish(name, [draft])
        position = self._broker.position(name, priority_in(draft, settings))
        return {"message_id": (await reply)[0], "position": position}

    async def _publish_batch(self, request: q.PublishBatch, _caller: Caller) -> Answer:
        settings, _ = self._settings(request.queue)
        now_ns = self._broker.now_ns()
        drafts = [message.draft(settings, now_ns) for message in request.messages]
        return {"message_ids": await self._broker.publish(QUEUE_PREFIX + request.queue, drafts)}

    # ── messages out ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _consume(self, request: q.Consume, caller: Caller) -> Answer:
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
                    max_bytes=ANSWER_BYTES_MAX,
                    ack_deadline_ns=0 if request.ack_deadline is None else nanoseconds(request.ack_deadline),
                    consumer=request.consumer_id,
                ),
                wait=Wait(caller.receive, self._closing, request.timeout) if request.timeout else None,
            )
        if caller.session is not None and deliveries:
            caller.session.hold(name, deliveries)
        answers = [_delivered(delivery, settings) for delivery in deliveries]
        at_limit = {"at_prefetch_limit": not answers and not room}
        if request.max_messages > 1:
            return {"messages": answers} | at_limit
        return (answers[0] if answers else _NOTHING) | at_limit

    def _room(self, request: q.Consume, settings: SubscriptionSettings) -> int:
        """How many messages the consumer may take now. Unnamed, each call is a consumer of its own."""
        prefetch = request.prefetch or prefetch_of(settings)
        held = self._broker.outstanding(QUEUE_PREFIX + request.queue, request.consumer_id) if request.consumer_id else 0
        return max(min(request.max_messages, prefetch - held), 0)

    async def _subscribe(self, request: q.Subscribe, caller: Caller) -> Answer:
        if caller.session is None:
            raise InvalidArgument("queue.subscribe needs a WebSocket, at /api/v1/ws")
        settings, _ = self._settings(request.queue)
        prefetch = request.prefetch or prefetch_of(settings)
        consumer = caller.session.subscribe(
            QUEUE_PREFIX + request.queue,
            consumer=request.consumer_id,
            prefetch=prefetch,
            ack_deadline_ns=0 if request.ack_deadline is None else nanoseconds(request.ack_deadline),
            together=request.max_messages,
        )
        return {"success": True, "consumer_id": consumer, "prefetch": prefetch}

    async def _unsubscribe(self, request: q.Queue, caller: Caller) -> Answer:
        if caller.session is None:
            raise InvalidArgument("queue.unsubscribe needs a WebSocket, at /api/v1/ws")
        self._settings(request.queue)
        caller.session.unsubscribe(QUEUE_PREFIX + request.queue, request.queue)
        return {"success": True}

    def pushed(self, name: str, deliveries: Sequence[Delivery], together: int) -> list[bytes]:
        """What is pushed to a WebSocket: each delivery by itself, or up to `together` as one list, as `queue.consume`
        answers."""
        try:
            settings = self._broker.get_subscription(name).settings
        except SubscriptionNotFound:
            return []
        start = {"type": "message", "queue": name.removeprefix(QUEUE_PREFIX)}
        answers = [_delivered(delivery, settings) for delivery in deliveries]
        if together == 1:
            return [_encode(start | one) for one in answers]
        return [_encode(start | {"messages": answers[at : at + together]}) for at in range(0, len(answers), together)]

    # ── what becomes of them ────────────────────────────────────────────────────────────────────────────────────────

    async def _ack(self, request: q.Settle, _caller: Caller) -> Answer:
        async def acknowledge(ack_ids: Sequence[str]) -> Outcome:
            return Outcome(await self._broker.acknowledge(QUEUE_PREFIX + request.queue, ack_ids))

        return await self._settle(request, acknowledge)

    async def _nack(self, request: q.Nack, _caller: Caller) -> Answer:
        name = QUEUE_PREFIX + request.queue

        async def give_back(ack_ids: Sequence[str]) -> Outcome:
            if request.requeue:
                return Outcome(*await self._broker.nack(name, ack_ids), action="requeued")
            return Outcome(await self._broker.reject(name, ack_ids), action="dead_lettered")

        return await self._settle(request, give_back)

    async def _extend(self, request: q.Extend, _caller: Caller) -> Answer:
        name = QUEUE_PREFIX + request.queue
        deadline_ns = nanoseconds(request.ack_deadline)

        async def extend(ack_ids: Sequence[str]) -> Outcome:
            stale = await self._broker.modify_ack_deadline(name, ack_ids, deadline_ns)
            self.holders.extended(ack_ids, self._broker.now_ns() + deadline_ns)
            return Outcome(stale)

        return await self._settle(request, extend, ends=False)

    async def _settle(
        self, request: q.Settle, settle: Callable[[Sequence[str]], Awaitable[Outcome]], *, ends: bool = True
    ) -> Answer:
        """One message: its answer, or its error. Several: an answer for each, whatever becomes of the others."""
        leases = request.leases()
        current = self._current(request.queue, leases)
        # one that is named twice is settled once, and both are told what became of it
        ack_ids = list(dict.fromkeys(ack_id for ack_id in current if isinstance(ack_id, str)))
        outcome = Outcome([])
        if ack_ids:
            outcome = await settle(ack_ids)
            if ends:
                self.holders.settled(ack_ids)
        stale, dead = set(outcome.stale), set(outcome.dead_lettered)
        answers: list[Answer | HeliographError] = []
        for (own_id, _), ack_id in zip(leases, current, strict=True):
            if not isinstance(ack_id, str):
                answers.append(ack_id)
            elif ack_id in stale:
                answers.append(AckDeadlineExceeded(own_id))
            elif not outcome.action:
                answers.append({"success": True})
            else:
                answers.append({"success": True, "action": "dead_lettered" if own_id in dead else outcome.action})
        if request.message_id is None:
            return {"results": [_result(lease[0], answer) for lease, answer in zip(leases, answers, strict=True)]}
        if isinstance(answers[0], HeliographError):
            raise answers[0]
        return answers[0]

    def _current(self, queue: str, leases: Sequence[tuple[str, str | None]]) -> list[str | HeliographError]:
        """The ack id to settle each with; else what is wrong with it: MessageNotFound where nobody holds the message,
        and the caller did not say that he does, AckDeadlineExceeded where what he says cannot be. Whether a lease that
        he names is current still, the broker tells.

        Raises:
            SubscriptionNotFound: an unknown queue is one error, not many.
        """
        name, current = QUEUE_PREFIX + queue, list[str | HeliographError]()
        subscription = self._broker.get_subscription(name)
        topic_number = self._broker.get_topic(name).number
        for own_id, lease_id in leases:
            if lease_id is not None:
                of_topic, sequence = split_message_id(own_id)
                start = f"{subscription.number}-{sequence}-"
                number = lease_id.removeprefix(start)
                is_lease = number is not lease_id and number.isdigit() and number.isascii() and len(number) < 20
                current.append(lease_id if is_lease and of_topic == topic_number else AckDeadlineExceeded(own_id))
                continue
            try:
                current.append(self._broker.current_ack_id(name, own_id))
            except MessageNotFound as error:
                current.append(error)
        return current

    # ── dead letters ────────────────────────────────────────────────────────────────────────────────────────────────

    async def _list_dead_letters(self, request: q.ListDeadLetters, _caller: Caller) -> Answer:
        settings, number = self._settings(request.queue)
        name = QUEUE_PREFIX + request.queue
        letters = self._broker.dead_letters(name, offset=request.offset, limit=request.limit)
        told = []
        for letter, message in letters[: len(_within_answer([message for _, message in letters]))]:
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

    async def _retry_dead_letters(self, request: q.RetryDeadLetters, _caller: Caller) -> Answer:
        if request.message_id is not None and request.message_ids is not None:
            raise InvalidArgument("Either message_id or message_ids may be given")
        message_ids = [request.message_id] if request.message_id is not None else request.message_ids
        return {"retried": await self._broker.retry_dead_letters(QUEUE_PREFIX + request.queue, message_ids)}

    async def _purge_dead_letters(self, request: q.Queue, _caller: Caller) -> Answer:
        return {"purged": await self._broker.purge_dead_letters(QUEUE_PREFIX + request.queue)}

    def _settings(self, queue: str) -> tuple[SubscriptionSettings, int]:
        """Of a queue, and the number that its message ids begin with."""
        name = QUEUE_PREFIX + queue
        return self._broker.get_subscription(name).settings, self._broker.get_topic(name).number


_encode = msgspec.json.Encoder().encode

ANSWER_BYTES_MAX = 4 * 1024 * 1024
"""Of the messages in one answer; a single one may be larger."""


def _within_answer(messages: Sequence[Message]) -> Sequence[Message]:
    """As many as one answer carries; the first may be larger by itself."""
    left = ANSWER_BYTES_MAX
    for index, message in enumerate(messages):
        left -= size_bytes(message)
        if left < 0 and index:
            return messages[:index]
    return messages


def _result(message_id: str, answer: Answer | HeliographError) -> Answer:
    if isinstance(answer, HeliographError):
        answer = {"success": False, "error": answer.message, "code": answer.reason}
    return {"message_id": message_id} | answer


_NOTHING: Answer = {"message_id": None, "message": None}


def _told(message: Message, id_of_message: str, settings: SubscriptionSettings) -> Answer:
    """A message as it came: any JSON as `message`, or bytes as an object of their own beside the flat fields."""
    told: Answer = {
        "message_id": id_of_message,
        "message": msgspec.Raw(message.data or b"null"),
        "priority": priority_in(message, settings),
        "headers": dict(message.attributes),
    }
    if is_bytes(message):
        told["message"] = {
            "id": id_of_message,
            "payload": list(message.data),
            "priority": told["priority"],
            "max_retries": max_retries_of(message, settings),
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
