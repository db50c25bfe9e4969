"""The broker's operations for another process, over one WebSocket (`heliograph.remote`, docs/adr/0015).

Requests are begun in the order in which they came, each as a call of the broker in this process. What a client has
pulled belongs to its connection, and goes back when that ends.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Coroutine
from functools import partial
from typing import Any

import msgspec

from heliograph.broker.protocol import Broker, Watch
from heliograph.broker.reply import Reply
from heliograph.errors import HeliographError, Internal, InvalidArgument
from heliograph.remote import operations as o
from heliograph.server.closing import Closing
from heliograph.server.feed import Feeds
from heliograph.server.held import Connection, Holders
from heliograph.server.hosts import Hosts
from heliograph.server.http import UNREADABLE
from heliograph.server.loop_signal import LoopSignal
from heliograph.server.routing import Receive, Scope, Send
from heliograph.server.websocket import Socket, is_welcome

log = logging.getLogger(__name__)

LOG_PART_MESSAGES = 1_000

_decode_watch = msgspec.msgpack.Decoder(o.WatchArguments).decode
_decode_unwatch = msgspec.msgpack.Decoder(o.UnwatchArguments).decode
_decode_read_log = msgspec.msgpack.Decoder(o.ReadLogArguments).decode


class BrokerSocket:
    """The door.

    Args:
        broker: whose operations they are.
        feeds: whose streams are told what becomes of their deliveries.
        closing: ends the connections.
        holders: whose connections are told the same.
        hosts: by which names it may be reached.
    """

    PATH = o.PATH

    def __init__(self, broker: Broker, feeds: Feeds, closing: Closing, holders: Holders, hosts: Hosts) -> None:
        self._broker = broker
        self._feeds = feeds
        self._closing = closing
        self._holders = holders
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection, from its handshake to its end."""
        if not await is_welcome(scope, receive, send, self._hosts):
            return
        socket = Socket(send, self._closing)
        connection = Connection(self._broker, self._holders)
        client = _Client(self._broker, self._feeds, self._holders, socket, connection)
        try:
            await socket.run(receive, client.begin)
        finally:
            client.close()
            connection.close()


class _Client:
    def __init__(self, broker: Broker, feeds: Feeds, holders: Holders, socket: Socket, connection: Connection) -> None:
        self._broker = broker
        self._feeds = feeds
        self._holders = holders
        self._socket = socket
        self._connection = connection
        self._watches: dict[int, Watch] = {}
        self._events: dict[int, None] = {}  # watches that have something to tell; many signals are one
        self._telling = False

    def close(self) -> None:
        """It is gone."""
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()

    # ── requests ────────────────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, frame: bytes) -> Coroutine[Any, Any, None] | None:
        """A request: it is done at once, and what is left is to answer."""
        number = 0
        try:
            try:
                number, name, arguments = o.decode_request(frame)
                if name == o.READ_LOG:
                    return self._read_log(number, _decode_read_log(arguments))
                answer = self._perform(number, name, arguments)
            except UNREADABLE as error:
                raise InvalidArgument(f"The request cannot be read: {error}") from None
        except HeliographError as error:
            answer = (o.ERROR, o.error_body(error), None)
        except Exception:
            log.exception("an operation of another process failed")
            answer = (o.ERROR, o.error_body(Internal("The broker failed on this call; its log tells more")), None)
        return self._answer(number, *answer) if number or answer[2] is not None else None

    def _perform(self, number: int, name: str, body: msgspec.Raw) -> tuple[str, Any, Reply[Any] | None]:
        """The kind and the body of the answer, and what it waits for."""
        if name == o.WATCH:
            self._watch(number, _decode_watch(body).subscription)
            return o.VALUE, None, None
        if name == o.UNWATCH:
            watch = self._watches.pop(_decode_unwatch(body).number, None)
            if watch is not None:
                watch.close()
            return o.VALUE, None, None
        if name == "now_ns":
            return o.VALUE, self._broker.now_ns(), None
        operation = o.OPERATIONS.get(name)
        if operation is None:
            raise InvalidArgument(f"Unknown operation: {name}")
        given = operation.decode_arguments(body)
        values = {key: value for key in given.__struct_fields__ if (value := getattr(given, key)) is not msgspec.UNSET}
        result = getattr(self._broker, name)(**values)
        if not operation.replies:
            return o.VALUE, result, None
        self._note(name, values, result.provisional)
        return (o.VALUE, result.provisional, None) if _is_durable(result) else (o.PENDING, result.provisional, result)

    def _note(self, name: str, values: dict[str, Any], result: Any) -> None:
        """Who holds what, after this operation."""
        if name == "pull":
            self._connection.hold(values["subscription"], result)
            return
        ack_ids = values.get("ack_ids")
        if ack_ids is None:
            return
        feed = self._feeds.get(values["subscription"])
        deadline_ns = values.get("ack_deadline_ns", 0)
        if deadline_ns:
            ends_ns = self._broker.now_ns() + deadline_ns
            self._holders.extended(ack_ids, ends_ns)
            if feed is not None:
                feed.extended(ack_ids, ends_ns)
            return
        self._holders.settled(ack_ids)
        if feed is not None:
            if name in ("acknowledge", "reject"):
                feed.settled(ack_ids)
            else:
                feed.returned(ack_ids)

    async def _answer(self, number: int, kind: str, body: Any, reply: Reply[Any] | None) -> None:
        if number:
            await self._socket.send_bytes(o.encode((number, kind, body)))
        if reply is None:
            return
        try:
            await reply
        except HeliographError as error:
            ending = (number, o.FAILED, error.message.removeprefix("The store cannot commit: "))
        else:
            ending = (number, o.DURABLE, "")
        if number:
            await self._socket.send_bytes(o.encode(ending))

    async def _read_log(self, number: int, wanted: o.ReadLogArguments) -> None:
        """One part of a log: reading blocks on the store."""

        def read() -> list[Any]:
            last = min(wanted.last, wanted.first + LOG_PART_MESSAGES - 1)
            for upper in (last, wanted.last):
                parts = itertools.islice(self._broker.read_log(wanted.topic, wanted.first, upper), 1)
                messages = [message for part in parts for message in part]
                if messages or upper == wanted.last:
                    return messages
            return []

        try:
            body: tuple[str, Any] = (o.VALUE, await asyncio.to_thread(read))
        except HeliographError as error:
            body = (o.ERROR, o.error_body(error))
        await self._socket.send_bytes(o.encode((number, *body)))

    # ── watches ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _watch(self, number: int, subscription: str) -> None:
        old = self._watches.pop(number, None)
        if old is not None:
            old.close()
        self._watches[number] = self._broker.watch(subscription, LoopSignal(partial(self._signalled, number)))

    def _signalled(self, number: int) -> None:
        self._events[number] = None
        if not self._telling:
            self._telling = True
            self._socket.add(self._tell())

    async def _tell(self) -> None:
        try:
            while self._events:
                events, self._events = self._events, {}
                await self._socket.send_bytes(*[o.encode((number, o.EVENT, None)) for number in events])
        finally:
            self._telling = False


def _is_durable(reply: Reply[Any]) -> bool:
    """Whether its commit is over, and did not fail."""
    if not reply.done:
        return False
    try:
        reply.result()
    except HeliographError:
        return False
    return True
