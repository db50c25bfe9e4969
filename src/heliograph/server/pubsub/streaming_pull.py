"""`Subscriber.StreamingPull` (protocol 1.7): one object per open stream.

Two tasks: one reads the client's requests (acknowledgements, deadlines, pings), the other writes. The writer sleeps
until there is something for it: messages and room for them, an answer to give, or the end. What the stream holds is
counted here, so that flow control also sees acknowledgements that come as calls of their own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from heliograph.broker.protocol import Broker
from heliograph.engine.message import Delivery
from heliograph.engine.settings import SECOND_NS
from heliograph.errors import InvalidArgument, SubscriptionDetached, SubscriptionNotFound, Unavailable
from heliograph.server.closing import Closing
from heliograph.server.feed import Feed, Feeds
from heliograph.server.grpc.call import BidiCall
from heliograph.server.pubsub import proto
from heliograph.server.pubsub.limits import (
    PULL_MESSAGES_MAX,
    check_modified_ack_deadline,
)
from heliograph.server.pubsub.outstanding import UNREAD_BYTES_MAX, Held, Unread
from heliograph.server.pubsub.profile import STRICT, Profile
from heliograph.server.pubsub.subscriber import distinct, settle_deadline
from heliograph.server.taking import give_back, leased
from heliograph.wire.pubsub import DeliveryEncoder

BATCH_MIN = 100
"""Messages that one of many streams takes at once, at least; a single stream takes `PULL_MESSAGES_MAX`."""

BATCH_BYTES = UNREAD_BYTES_MAX // 2 - 64 * 1024
"""Of a batch, without ids and tags; a larger message goes alone."""

RESPONSE_BYTES = UNREAD_BYTES_MAX // 2
"""Of a response, save with one larger message."""

LAST_WORD_SECONDS = 0.5
"""How long after the end of a stream its client may still settle by another call what it was handed again."""


class StreamingPull:
    """The method.

    Args:
        broker: who does it.
        feeds: who waits on which subscription.
        encoder: of deliveries.
        closing: ends the streams.
        profile: how strictly.
    """

    def __init__(
        self, broker: Broker, feeds: Feeds, encoder: DeliveryEncoder, closing: Closing, profile: Profile = STRICT
    ) -> None:
        self._broker = broker
        self._profile = profile
        self._feeds = feeds
        self._encoder = encoder
        self._closing = closing

    async def __call__(self, call: BidiCall) -> None:
        """One stream, from its first request to its end."""
        requests = await call.read()
        if requests is None:
            raise InvalidArgument("The stream ended before its first request.")
        first = requests[0]
        self._profile.check_name(first.subscription, "subscriptions")
        self._profile.check_ack_deadline(first.stream_ack_deadline_seconds)
        feed = self._feeds.join(first.subscription)
        stream = _Stream(self._broker, feed, self._encoder, self._closing, self._profile, call, first)
        feed.attach(stream.wake)
        self._closing.add(stream.wake)
        try:
            await stream.run(requests)
        finally:
            self._closing.discard(stream.wake)
            feed.detach(stream.wake)
            try:
                stream.forget()
            finally:
                self._feeds.leave(feed)


class _Stream:
    def __init__(
        self,
        broker: Broker,
        feed: Feed,
        encoder: DeliveryEncoder,
        closing: Closing,
        profile: Profile,
        call: BidiCall,
        first: Any,
    ) -> None:
        self._broker = broker
        self._feed = feed
        self._encoder = encoder
        self._closing = closing
        self._profile = profile
        self._call = call
        self._subscription: str = first.subscription
        self._ack_deadline_seconds: int = first.stream_ack_deadline_seconds
        self._messages_max = max(first.max_outstanding_messages, 0)
        self._bytes_max = max(first.max_outstanding_bytes, 0)
        self._held = Held()
        self._woken = asyncio.Event()
        self._blocked = False
        self._answers: list[bytes] = []
        self._properties = b""  # goes with every response: the Python client takes a response without it for "off"
        self._half_closed = False
        self._failure: Exception | None = None
        self.wake = self._woken.set
        """The writer looks at everything again. The same object every time."""
        # it moves the deadline of all that it receives, and waits for the answer before it reads on
        is_steady = b"gl-python" in (call.header(b"x-goog-api-client") or b"")
        self._unread = Unread(call.connection, self.wake, is_steady=is_steady)

    async def run(self, requests: Sequence[Any]) -> None:
        """Serve the stream until it ends.

        Args:
            requests: those that came with the first.
        """
        reader = asyncio.ensure_future(self._read(requests))
        try:
            await self._write()
        finally:
            reader.cancel()

    def forget(self) -> None:
        """The stream is over. Its leases stay until their deadline (1.7.9), save what it had given back itself, was
        handed again, and does not settle within a moment: a client that is closing gives back everything, and hears no
        more. Its last word may come by another call, just after the stream has ended."""
        held, holders = self._held, self._feed.holders
        for ack_id in held.deliveries:
            holders.pop(ack_id, None)
        self._unread.wait(False)
        self._unread.forgive()
        if held.handed_back and not self._feed.lost and not self._closing.begun:
            ack_ids = list(held.handed_back)
            loop = asyncio.get_running_loop()
            loop.call_later(LAST_WORD_SECONDS, give_back, self._broker, self._subscription, ack_ids)

    # ── writing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _write(self) -> None:
        feed = self._feed
        while True:
            self._woken.clear()
            await self._answer()
            if self._is_over():
                return
            if self._has_room():
                if feed.may_have:
                    await self._deliver()
                    continue
                feed.stand_in_row(self.wake)
                await self._woken.wait()
            else:
                await self._wait_for_room()

    def _is_over(self) -> bool:
        """Whether the stream ends with OK; raises what else it ends with."""
        if self._failure is not None:
            raise self._failure
        if self._feed.lost:
            raise SubscriptionNotFound(self._subscription)
        if self._feed.info.detached:
            raise SubscriptionDetached(self._subscription)
        if self._closing.begun:
            raise Unavailable("The server is shutting down.")
        return self._half_closed

    async def _answer(self) -> None:
        settings = self._feed.info.settings
        properties = _properties(settings.enable_exactly_once_delivery, settings.enable_message_ordering)
        if properties != self._properties:
            self._properties = properties
            self._answers.insert(0, properties)
        while self._answers:
            await self._call.write(self._answers.pop(0))

    def _has_room(self) -> bool:
        held = self._held
        if not self._is_full() and len(held.deliveries) < held.look_at:
            return True
        ended = held.drop_ended(self._broker.now_ns())
        for ack_id in ended:
            self._feed.holders.pop(ack_id, None)
        self._unread.confirm(ended)
        return not self._is_full()

    def _is_full(self) -> bool:
        held = self._held
        return bool(
            (self._messages_max and len(held.deliveries) >= self._messages_max)
            or (self._bytes_max and held.bytes >= self._bytes_max)
        )

    async def _wait_for_room(self) -> None:
        """Until deliveries are settled, or the earliest of their leases ends."""
        self._feed.stand_aside(self.wake, self._held.earliest_ns)
        self._blocked = True
        # with a retry policy the end of a lease is no event for the feed; then the timer wakes the stream
        seconds = max(self._held.earliest_ns - self._broker.now_ns(), 0) / SECOND_NS
        timer = asyncio.get_running_loop().call_later(seconds + 0.001, self.wake)
        try:
            await self._woken.wait()
        finally:
            timer.cancel()
            self._blocked = False
            self._feed.step_back(self.wake)

    async def _deliver(self) -> None:
        """Lease a batch and send it."""
        feed = self._feed
        signals = feed.signals
        wanted = max(BATCH_MIN, PULL_MESSAGES_MAX // max(feed.streams, 1))
        if self._messages_max:
            wanted = min(wanted, self._messages_max - len(self._held.deliveries))
        room = min(BATCH_BYTES, self._bytes_max - self._held.bytes) if self._bytes_max else BATCH_BYTES
        deadline_ns = self._ack_deadline_seconds * SECOND_NS
        reply = self._broker.pull(self._subscription, wanted, max_bytes=room, ack_deadline_ns=deadline_ns)
        deliveries = await leased(self._broker, self._subscription, reply)
        if not deliveries:
            feed.nothing(signals)
            return
        feed.found(self.wake, enough=len(deliveries) == wanted)
        sent = 0
        try:
            for sizes, response in self._responses(deliveries):
                if not self._unread.has_room(len(response)):
                    await self._wait_until_read(len(response))
                first, sent = sent, sent + len(sizes)  # from now on the client may have them
                self._unread.add([delivery.ack_id for delivery in deliveries[first:sent]], sizes)
                await self._call.write(response)
        except BaseException:
            # the client is gone: what was not on its way to it is nobody's
            give_back(self._broker, self._subscription, [delivery.ack_id for delivery in deliveries[sent:]])
            raise
        await asyncio.sleep(0)  # other streams, and the reader, get their turn

    async def _wait_until_read(self, size: int) -> None:
        """Until the client has shown that it reads, or its time for that is over."""
        loop, unread = asyncio.get_running_loop(), self._unread
        ends_at = loop.time() + unread.patience_seconds
        timer = loop.call_at(ends_at, self.wake)
        unread.wait(True)
        try:
            while not unread.has_room(size) and not self._is_over():
                if loop.time() >= ends_at:
                    unread.forgive()
                    return
                self._woken.clear()
                await self._answer()
                await self._woken.wait()
        finally:
            timer.cancel()
            unread.wait(False)

    def _responses(self, deliveries: Sequence[Delivery]) -> list[tuple[list[int], bytes]]:
        """The responses that carry `deliveries`, each with the sizes of its own; they are held from now on."""
        tell_attempt = self._feed.info.settings.dead_letter_policy is not None
        entries = self._encoder.encode(deliveries, tell_attempt=tell_attempt)
        sizes = [len(entry) for entry in entries]
        self._held.add(deliveries, sizes)
        self._feed.holders.update(dict.fromkeys([delivery.ack_id for delivery in deliveries], self))
        responses: list[tuple[list[int], bytes]] = []
        first = size = 0
        for index, own in enumerate(sizes):
            if size + own > RESPONSE_BYTES and index > first:
                responses.append((sizes[first:index], b"".join((*entries[first:index], self._properties))))
                first, size = index, 0
            size += own
        responses.append((sizes[first:], b"".join((*entries[first:], self._properties))))
        return responses

    # ── reading ─────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _read(self, requests: Sequence[Any]) -> None:
        try:
            await self._apply(requests[0])
            for request in requests[1:]:
                await self._apply_later(request)
            while (following := await self._call.read()) is not None:
                for request in following:
                    await self._apply_later(request)
            self._half_closed = True
        except Exception as error:
            self._failure = error
        self.wake()

    async def _apply_later(self, request: Any) -> None:
        """Any request but the first (1.7.1, 1.7.2)."""
        if request.subscription:
            raise InvalidArgument("The subscription may be set in the first request of a stream only.")
        if request.max_outstanding_messages or request.max_outstanding_bytes or request.protocol_version:
            raise InvalidArgument(
                "max_outstanding_messages, max_outstanding_bytes and protocol_version may be set in the first request "
                "of a stream only."
            )
        if request.stream_ack_deadline_seconds:
            self._profile.check_ack_deadline(request.stream_ack_deadline_seconds)
            self._ack_deadline_seconds = request.stream_ack_deadline_seconds
        elif not request.ack_ids and not request.modify_deadline_ack_ids:
            self._answers.append(self._properties)  # a ping; some clients close when it is not answered (1.7.6)
            self.wake()
            return
        await self._apply(request)

    async def _apply(self, request: Any) -> None:
        """Acknowledgements and deadlines."""
        groups = _deadline_groups(request)
        confirms = self._feed.info.settings.enable_exactly_once_delivery
        if request.ack_ids:
            ack_ids = distinct(request.ack_ids)
            stale = await self._broker.acknowledge(self._subscription, ack_ids)
            self._feed.settled(ack_ids)
            if confirms:
                self._confirm("acknowledge_confirmation", ack_ids, stale)
        for seconds, ack_ids in groups.items():
            reply = self._broker.modify_ack_deadline(self._subscription, ack_ids, seconds * SECOND_NS)
            stale = await settle_deadline(self._broker, self._feed, reply, ack_ids, seconds)
            if confirms:
                self._confirm("modify_ack_deadline_confirmation", ack_ids, stale)

    def _confirm(self, field: str, ack_ids: Sequence[str], stale: Sequence[str]) -> None:
        """Under exactly-once delivery the client is told what became of each id (1.8.8)."""
        gone = set(stale)
        response = proto.StreamingPullResponse()
        confirmation = getattr(response, field)
        confirmation.ack_ids.extend([ack_id for ack_id in ack_ids if ack_id not in gone])
        confirmation.invalid_ack_ids.extend(stale)
        self._answers.append(response.SerializeToString() + self._properties)
        self.wake()

    # ── what becomes of its deliveries (`feed.Holder`) ──────────────────────────────────────────────────────────────

    def settled(self, ack_ids: Sequence[str]) -> None:
        """See `feed.Holder`."""
        self._unread.confirm(ack_ids)
        self._held.drop(ack_ids)
        if self._blocked:
            self.wake()

    def returned(self, ack_id: str) -> None:
        """See `feed.Holder`."""
        self._unread.confirm([ack_id])
        self._held.give_back(ack_id)
        self._feed.to_end_of_row(self.wake)
        if self._blocked:
            self.wake()

    def extended(self, ack_ids: Sequence[str], deadline_ns: int) -> None:
        """See `feed.Holder`."""
        self._unread.confirm(ack_ids)
        self._held.extend(ack_ids, deadline_ns)


def _deadline_groups(request: Any) -> dict[int, list[str]]:
    """The deadlines of a request: ack ids by seconds; nearly always one group (1.7.4)."""
    seconds, ack_ids = request.modify_deadline_seconds, request.modify_deadline_ack_ids
    if len(seconds) != len(ack_ids):
        raise InvalidArgument("modify_deadline_seconds and modify_deadline_ack_ids must have the same length.")
    groups: dict[int, dict[str, None]] = {}
    for own, ack_id in zip(seconds, ack_ids, strict=True):
        groups.setdefault(own, {})[ack_id] = None
    for own in groups:
        check_modified_ack_deadline(own)
    return {own: list(group) for own, group in groups.items()}


def _properties(exactly_once: bool, ordering: bool) -> bytes:
    """A response with `subscription_properties` (field 4: exactly once 1, ordering 2) and nothing else."""
    body = (b"\x08\x01" if exactly_once else b"") + (b"\x10\x01" if ordering else b"")
    return b"\x22" + bytes([len(body)]) + body
