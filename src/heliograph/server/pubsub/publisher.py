"""The methods of `google.pubsub.v1.Publisher` (protocol 1.3, 1.4). Each takes a request and gives the serialized
response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from heliograph.broker.protocol import Broker
from heliograph.engine.message import Draft
from heliograph.errors import AlreadyExists, InvalidArgument
from heliograph.server.call import Call
from heliograph.server.pubsub import masks, names, policies, proto, topics
from heliograph.server.pubsub.limits import (
    PUBLISH_MESSAGES_MAX,
    PUBLISH_PAYLOAD_BYTES_MAX,
    PUBLISH_REQUEST_BYTES_MAX,
    check_between,
    check_request_bytes,
)
from heliograph.server.pubsub.paging import page, page_of
from heliograph.server.pubsub.profile import STRICT, Profile
from heliograph.server.pubsub.proto import serialized
from heliograph.server.pubsub.quotas import Quota, in_project
from heliograph.server.pubsub.schema_checks import SchemaChecks
from heliograph.server.pubsub.texts import exists
from heliograph.wire.pubsub import draft, publish_response


class Publisher:
    """See the module.

    Args:
        broker: who does it.
        schemas: what topics that have one demand.
        profile: how strictly.
    """

    def __init__(self, broker: Broker, schemas: SchemaChecks, profile: Profile = STRICT) -> None:
        self._broker = broker
        self._schemas = schemas
        self._profile = profile
        topics_of = in_project(lambda: [info.name for info in broker.list_topics()], "topics")
        self._topics = Quota("topics", profile.topics_max, topics_of)

    async def create_topic(self, request: Any, _call: Call) -> bytes:
        """CreateTopic: the topic as stored; a second time AlreadyExists, even with the same fields (1.3.1)."""
        self._profile.check_new_name(request.name, "topics")
        settings = topics.settings(request)
        self._schemas.check_topic(request)
        try:
            with self._topics.room(names.project(request.name)):
                created = self._broker.create_topic(request.name, settings)
                await policies.forget(self._broker, request.name)
                info = await created
        except AlreadyExists:
            raise exists(request.name) from None
        self._schemas.note(info)
        return serialized(topics.resource(info))

    async def update_topic(self, request: Any, _call: Call) -> bytes:
        """UpdateTopic: what the mask names, all or nothing (1.3.4)."""
        name: str = request.topic.name
        self._profile.check_name(name, "topics")
        # nothing is awaited between reading and changing, so no other call comes in between
        info = self._broker.get_topic(name)
        current = topics.resource(info)
        wanted = masks.merged(topics.resource(info), request.topic, request.update_mask, topics.IMMUTABLE)
        self._schemas.check_topic(wanted, current)
        info = await self._broker.update_topic(name, topics.settings(wanted, info.settings))
        self._schemas.note(info)
        return serialized(topics.resource(info))

    async def get_topic(self, request: Any, _call: Call) -> bytes:
        """GetTopic."""
        self._profile.check_name(request.topic, "topics")
        return serialized(topics.resource(self._broker.get_topic(request.topic)))

    async def list_topics(self, request: Any, _call: Call) -> bytes:
        """ListTopics of a project, by name (1.3.6)."""
        self._profile.check_project(request.project)
        prefix = f"{request.project}/topics/"
        infos = [info for info in self._broker.list_topics() if info.name.startswith(prefix)]
        resources, token = page_of(
            [info.name for info in infos],
            request.page_size,
            request.page_token,
            lambda index: topics.resource(infos[index]),
        )
        return serialized(proto.ListTopicsResponse(topics=resources, next_page_token=token))

    async def list_topic_subscriptions(self, request: Any, _call: Call) -> bytes:
        """ListTopicSubscriptions: full names (1.3.7)."""
        self._profile.check_name(request.topic, "topics")
        attached = [info.name for info in self._broker.list_subscriptions(request.topic)]
        attached = [name for name in attached if names.is_of_pubsub(name)]
        part, token = page(attached, request.page_size, request.page_token)
        return serialized(proto.ListTopicSubscriptionsResponse(subscriptions=attached[part], next_page_token=token))

    async def delete_topic(self, request: Any, _call: Call) -> bytes:
        """DeleteTopic: its subscriptions stay and keep their backlog (1.3.5)."""
        self._profile.check_name(request.topic, "topics")
        deleted = self._broker.delete_topic(request.topic)
        self._schemas.forget(request.topic)  # before anybody can have made another of its name
        await policies.forget(self._broker, request.topic)
        await deleted
        return b""

    async def detach_subscription(self, request: Any, _call: Call) -> bytes:
        """DetachSubscription: its backlog goes, and it gets nothing more (1.5.15)."""
        self._profile.check_name(request.subscription, "subscriptions")
        await self._broker.detach_subscription(request.subscription)
        return b""

    async def publish(self, request: Any, call: Call) -> bytes:
        """Publish: all messages or none (1.4)."""
        topic: str = request.topic
        messages = request.messages
        self._profile.check_name(topic, "topics")
        if call.request_bytes > PUBLISH_REQUEST_BYTES_MAX:
            _refuse_size(call.request_bytes)
        if not 1 <= len(messages) <= PUBLISH_MESSAGES_MAX:
            check_between("message_count", len(messages), (1, PUBLISH_MESSAGES_MAX))
        drafts: Sequence[Draft] = [draft(message) for message in messages]
        for one in drafts:
            if not one.data and not one.attributes:
                raise InvalidArgument(
                    "One or more messages in the publish request is empty. Each message must contain either non-empty "
                    "data, or at least one attribute."
                )
        if not self._profile.mixed_ordering_keys and len(drafts) > 1 and len({one.ordering_key for one in drafts}) > 1:
            raise InvalidArgument("All messages in a publish request must have the same ordering key.")
        if self._schemas.may_have(topic):
            drafts = await self._schemas.checked(topic, drafts)
        return publish_response(await self._broker.publish(topic, drafts))


def _refuse_size(size: int) -> None:
    if size > PUBLISH_PAYLOAD_BYTES_MAX:
        raise InvalidArgument(f"Request payload size exceeds the limit: {PUBLISH_PAYLOAD_BYTES_MAX} bytes.")
    check_request_bytes(size, PUBLISH_REQUEST_BYTES_MAX)
