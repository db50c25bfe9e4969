"""The methods of `google.pubsub.v1.Subscriber` (protocol 1.5, 1.6, 1.8). StreamingPull has a module of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from heliograph.broker.protocol import Broker, SubscriptionInfo
from heliograph.broker.reply import Reply
from heliograph.engine.message import Delivery
from heliograph.engine.settings import SECOND_NS, SubscriptionSettings
from heliograph.errors import AlreadyExists, InvalidArgument, TopicNotFound
from heliograph.server.call import Call
from heliograph.server.closing import Closing
from heliograph.server.feed import Feed, Feeds
from heliograph.server.pubsub import masks, names, policies, proto, subscriptions
from heliograph.server.pubsub.limits import (
    ACKNOWLEDGE_REQUEST_BYTES_MAX,
    PULL_BYTES,
    PULL_MESSAGES_MAX,
    RESPONSE_BYTES_MAX,
    check_modified_ack_deadline,
    check_request_bytes,
)
from heliograph.server.pubsub.paging import page_of
from heliograph.server.pubsub.profile import STRICT, Profile
from heliograph.server.pubsub.proto import serialized
from heliograph.server.pubsub.quotas import Quota, in_project
from heliograph.server.pubsub.texts import exists, stale_ack_ids
from heliograph.server.taking import give_back, take_or_wait
from heliograph.server.waiting import Wait
from heliograph.wire.pubsub import DeliveryEncoder

PULL_WAIT_SECONDS_MAX = 10.0
"""How long a Pull waits for a first message, where the client waits longer."""


class Subscriber:
    """See the module.

    Args:
        broker: who does it.
        feeds: who waits on which subscription.
        encoder: of deliveries.
        closing: ends the waiting.
        profile: how strictly.
        changed: told the name of each subscription that was created or updated: it may be pushed now, or no more.
    """

    def __init__(
        self,
        broker: Broker,
        feeds: Feeds,
        encoder: DeliveryEncoder,
        closing: Closing,
        profile: Profile = STRICT,
        changed: Callable[[str], object] = str,
    ) -> None:
        self._broker = broker
        self._changed = changed
        self._profile = profile
        self._feeds = feeds
        self._encoder = encoder
        self._closing = closing
        all_of = in_project(lambda: [info.name for info in broker.list_subscriptions()], "subscriptions")
        self._of_project = Quota("subscriptions", profile.subscriptions_max, all_of)
        self._of_topic = Quota(
            "subscriptions", profile.topic_subscriptions_max, lambda topic: len(broker.list_subscriptions(topic))
        )

    # ── the resource ────────────────────────────────────────────────────────────────────────────────────────────────

    async def create_subscription(self, request: Any, _call: Call) -> bytes:
        """CreateSubscription; without a name it gets one (1.2.3)."""
        self._profile.check_name(request.topic, "topics")
        if not request.name:
            request.name = names.assigned(request.topic, "subscriptions")
        self._profile.check_new_name(request.name, "subscriptions")
        settings = subscriptions.settings(request, self._profile)
        self._check_dead_letter_topic(settings)
        try:
            with self._of_project.room(names.project(request.name)), self._of_topic.room(request.topic):
                created = self._broker.create_subscription(request.name, request.topic, settings)
                await policies.forget(self._broker, request.name)
                info = await created
        except AlreadyExists:
            raise exists(request.name) from None
        self._changed(info.name)
        return serialized(self._resource(info))

    async def get_subscription(self, request: Any, _call: Call) -> bytes:
        """GetSubscription."""
        self._profile.check_name(request.subscription, "subscriptions")
        return serialized(self._resource(self._broker.get_subscription(request.subscription)))

    async def list_subscriptions(self, request: Any, _call: Call) -> bytes:
        """ListSubscriptions of a project, by name."""
        self._profile.check_project(request.project)
        prefix = f"{request.project}/subscriptions/"
        infos = [info for info in self._broker.list_subscriptions() if info.name.startswith(prefix)]
        resources, token = page_of(
            [info.name for info in infos],
            request.page_size,
            request.page_token,
            lambda index: self._resource(infos[index]),
        )
        return serialized(proto.ListSubscriptionsResponse(subscriptions=resources, next_page_token=token))

    async def delete_subscription(self, request: Any, _call: Call) -> bytes:
        """DeleteSubscription: backlog and leases go, open streams end (1.5.14)."""
        self._profile.check_name(request.subscription, "subscriptions")
        deleted = self._broker.delete_subscription(request.subscription)
        await policies.forget(self._broker, request.subscription)
        await deleted
        return b""

    async def update_subscription(self, request: Any, _call: Call) -> bytes:
        """UpdateSubscription: what the mask names, all or nothing (1.5.11-1.5.13)."""
        name: str = request.subscription.name
        self._profile.check_name(name, "subscriptions")
        info = self._broker.get_subscription(name)
        current = self._resource(info)
        wanted = masks.merged(current, request.subscription, request.update_mask, subscriptions.IMMUTABLE)
        return serialized(self._resource(await self._updated(info, wanted)))

    async def modify_push_config(self, request: Any, _call: Call) -> bytes:
        """ModifyPushConfig: with an empty one messages are pulled (1.5.16)."""
        self._profile.check_name(request.subscription, "subscriptions")
        info = self._broker.get_subscription(request.subscription)
        wanted = self._resource(info)
        wanted.push_config.CopyFrom(request.push_config)
        await self._updated(info, wanted)
        return b""

    async def _updated(self, info: SubscriptionInfo, wanted: Any) -> SubscriptionInfo:
        """Nothing is awaited between reading `info` and this, so no other call comes in between."""
        settings = subscriptions.settings(wanted, self._profile, info.settings)
        if settings.dead_letter_policy != info.settings.dead_letter_policy:
            self._check_dead_letter_topic(settings)
        info = await self._broker.update_subscription(info.name, settings)
        self._changed(info.name)
        return info

    def _check_dead_letter_topic(self, settings: SubscriptionSettings) -> None:
        policy = settings.dead_letter_policy
        if policy is not None and policy.topic is not None:
            self._broker.get_topic(policy.topic)

    def _resource(self, info: SubscriptionInfo) -> Any:
        retention_ns = 0
        if not info.topic_deleted:
            with contextlib.suppress(TopicNotFound):  # deleted just now
                retention_ns = self._broker.get_topic(info.topic).settings.message_retention_ns
        return subscriptions.resource(info, retention_ns)

    # ── messages ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def pull(self, request: Any, call: Call) -> bytes:
        """Pull: what there is, up to the maximum; where there is nothing, the first that comes within the wait
        (1.6.1)."""
        name: str = request.subscription
        self._profile.check_name(name, "subscriptions")
        if request.max_messages <= 0:
            raise InvalidArgument("You have passed an invalid argument to the service (argument=max_messages).")
        wanted = min(request.max_messages, PULL_MESSAGES_MAX)
        wait = None
        if not request.return_immediately:
            wait = Wait(call.receive, self._closing, _wait_seconds(call.timeout_seconds()))
        deliveries = await take_or_wait(
            self._feeds,
            self._broker,
            name,
            room=lambda: wanted,
            take=lambda room: self._broker.pull(name, room, max_bytes=PULL_BYTES),
            wait=wait,
        )
        return self._pull_response(name, deliveries)

    def _pull_response(self, name: str, deliveries: Sequence[Delivery]) -> bytes:
        if not deliveries:
            return b""
        tell_attempt = self._broker.get_subscription(name).settings.dead_letter_policy is not None
        entries = self._encoder.encode(deliveries, tell_attempt=tell_attempt)
        size = 0
        for index, entry in enumerate(entries):
            size += len(entry)
            if size > RESPONSE_BYTES_MAX and index:
                give_back(self._broker, name, [other.ack_id for other in deliveries[index:]])
                del entries[index:]
                break
        return b"".join(entries)

    async def acknowledge(self, request: Any, call: Call) -> bytes:
        """Acknowledge. Stale ids are ignored, save under exactly-once delivery (1.6.3, 1.8.2)."""
        name, ack_ids = self._ack_ids(request, call)
        stale = await self._broker.acknowledge(name, ack_ids)
        feed = self._feeds.get(name)
        if feed is not None:
            feed.settled(ack_ids)
        self._tell_stale(name, stale)
        return b""

    async def modify_ack_deadline(self, request: Any, call: Call) -> bytes:
        """ModifyAckDeadline: from now on; 0 gives the messages back (1.6.4)."""
        name, ack_ids = self._ack_ids(request, call)
        seconds: int = request.ack_deadline_seconds
        check_modified_ack_deadline(seconds)
        reply = self._broker.modify_ack_deadline(name, ack_ids, seconds * SECOND_NS)
        self._tell_stale(name, await settle_deadline(self._broker, self._feeds.get(name), reply, ack_ids, seconds))
        return b""

    def _ack_ids(self, request: Any, call: Call) -> tuple[str, list[str]]:
        name: str = request.subscription
        self._profile.check_name(name, "subscriptions")
        check_request_bytes(call.request_bytes, ACKNOWLEDGE_REQUEST_BYTES_MAX)
        ack_ids = distinct(request.ack_ids)
        if not ack_ids:
            raise InvalidArgument("You have not specified an ack ID in the request.")
        return name, ack_ids

    def _tell_stale(self, name: str, stale: Sequence[str]) -> None:
        if stale and self._broker.get_subscription(name).settings.enable_exactly_once_delivery:
            raise stale_ack_ids(stale)


def distinct(ack_ids: Iterable[str]) -> list[str]:
    """Each once, in order: one that a request names twice would be current the first time and stale the second, and the
    client would be told that it failed."""
    return list(dict.fromkeys(ack_ids))


async def settle_deadline(
    broker: Broker, feed: Feed | None, reply: Reply[list[str]], ack_ids: Sequence[str], seconds: int
) -> list[str]:
    """Wait for the reply to a changed deadline, and tell the streams that hold the deliveries.

    What was given back is told first, before the broker's signal can hand it to the same stream again; anything else
    afterwards, so that the call's answer is on its way before a stream sends more.

    Returns:
        The ids that were not current.
    """
    if not seconds and feed is not None:
        feed.returned(ack_ids)
    stale = await reply
    if seconds and feed is not None:
        if stale:  # they weigh on no stream any more; the others do
            feed.settled(stale)
        feed.extended(ack_ids, broker.now_ns() + seconds * SECOND_NS)
    return stale


def _wait_seconds(timeout_seconds: float | None) -> float:
    """How long a Pull may wait, so that an empty answer arrives before the client's own timeout."""
    if timeout_seconds is None:
        return PULL_WAIT_SECONDS_MAX
    margin = min(max(timeout_seconds * 0.25, 0.1), 1.0)
    return min(max(timeout_seconds - margin, 0.0), PULL_WAIT_SECONDS_MAX)
