"""Topics that have a schema: are their settings right, and does what is published follow them (protocol 1.4.9, 1.15.4).

A topic without one costs a look into a set for each publish.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from google.rpc.error_details_pb2 import ErrorInfo

from heliograph.broker.protocol import Broker, TopicInfo
from heliograph.engine.message import Draft
from heliograph.engine.settings import TopicSettings
from heliograph.errors import InvalidArgument, SchemaViolation
from heliograph.server.grpc.status import INVALID_ARGUMENT, RpcError
from heliograph.server.pubsub import proto
from heliograph.server.pubsub.names import is_of_pubsub
from heliograph.server.pubsub.profile import Profile
from heliograph.server.pubsub.schema_resources import DELETED_SCHEMA, encoding
from heliograph.server.pubsub.schema_store import Revision, SchemaStore, StoredSchema
from heliograph.server.pubsub.texts import ERROR_INFO_URL
from heliograph.wire.schemas.schema import Encoding, Schema, SchemaType

REASON_CHARACTERS_MAX = 500

INLINE_BYTES_MAX = 256 * 1024
"""What is checked on the event loop; more would hold up everyone else for more than some tens of milliseconds, and is
checked in a thread."""

_SHORT_TYPES = {SchemaType.AVRO.value: "AVRO", SchemaType.PROTOCOL_BUFFER.value: "PROTO"}


class _Use(msgspec.Struct, frozen=True, gc=False):
    """What a topic's `schema_settings` say."""

    schema: str
    encoding: Encoding
    first_revision_id: str
    last_revision_id: str


class SchemaChecks:
    """See the module. Only the event loop's thread uses it.

    Args:
        broker: who has the topics.
        store: who has the schemas.
        profile: how strictly.
    """

    def __init__(self, broker: Broker, store: SchemaStore, profile: Profile) -> None:
        self._broker = broker
        self._store = store
        self._profile = profile
        self._uses: dict[str, tuple[TopicSettings, _Use]] = {}
        self._topics: set[str] | None = None  # that may have a schema; None = not looked yet

    def may_have(self, topic: str) -> bool:
        """Whether the topic may have a schema: False = it has none."""
        return topic in (self._look_at_all() if self._topics is None else self._topics)

    def note(self, info: TopicInfo) -> None:
        """A topic was created or changed."""
        if self._topics is not None and _use(info) is not None:
            self._topics.add(info.name)

    def forget(self, topic: str) -> None:
        """A topic was deleted."""
        self._uses.pop(topic, None)
        if self._topics is not None:
            self._topics.discard(topic)

    def _look_at_all(self) -> set[str]:
        topics = {info.name for info in self._broker.list_topics() if _use(info) is not None}
        self._topics = topics
        return topics

    def check_topic(self, topic: Any, before: Any = None) -> None:
        """The `schema_settings` of a Topic that is to be created or changed.

        Args:
            topic: what is asked for, or what it would be with the changes.
            before: the topic as it is; None = there is none.

        Raises:
            InvalidArgument: they make no sense.
            SchemaNotFound: the schema or a revision does not exist.
        """
        settings = topic.schema_settings
        if not topic.HasField("schema_settings") or (before is not None and before.schema_settings == settings):
            return
        self._profile.check_name(settings.schema, "schemas")
        encoding(settings.encoding)
        _, first = self._store.find(settings.schema, settings.first_revision_id)
        _, last = self._store.find(settings.schema, settings.last_revision_id)
        if settings.first_revision_id and first.created_ns > last.created_ns:
            raise InvalidArgument("The first revision of schema_settings must not be newer than the last one.")

    async def checked(self, topic: str, drafts: Sequence[Draft]) -> Sequence[Draft]:
        """The same messages with the attributes that tell their schema (1.4.9).

        Args:
            topic: one that `may_have` a schema.
            drafts: what is to be published.

        Raises:
            TopicNotFound: it is gone.
            InvalidArgument: its schema was deleted.
            RpcError: a message matches no revision; with the reason of the last one tried, as the real service has it.
        """
        use = self._use_of(self._broker.get_topic(topic))
        if use is None:
            return drafts
        if use.schema == DELETED_SCHEMA or not self._store.exists(use.schema):
            raise InvalidArgument("Invalid data in message: The schema of the topic was deleted.")
        stored = self._store.get(use.schema)
        revisions = stored.between(use.first_revision_id, use.last_revision_id)
        understood = [(revision, self._store.understood(use.schema, stored, revision)) for revision in revisions]
        if sum([len(draft.data) for draft in drafts]) > INLINE_BYTES_MAX:
            return await asyncio.to_thread(_with_schema, use, stored.schema_type, understood, drafts)
        return _with_schema(use, stored.schema_type, understood, drafts)

    def detach(self, schema: str) -> None:
        """The schema is about to be deleted: its topics show `_deleted-schema_` (1.2.4) and accept nothing more. It is
        durable with whatever comes next."""
        for info in self._broker.list_topics():
            use = self._use_of(info)
            if use is not None and use.schema == schema:
                topic = proto.Topic.FromString(info.settings.resource)
                topic.schema_settings.schema = DELETED_SCHEMA
                resource = topic.SerializeToString(deterministic=True)
                self._broker.update_topic(info.name, msgspec.structs.replace(info.settings, resource=resource))

    def check_message(self, name: str, stored: StoredSchema, revision: Revision, data: bytes, how: Encoding) -> None:
        """Whether `data` follow one revision.

        Raises:
            RpcError: they do not; see `violation`.
        """
        try:
            self._store.understood(name, stored, revision).check(data, how)
        except SchemaViolation as error:
            raise violation(name, stored.schema_type, revision, how, error) from None

    def _use_of(self, info: TopicInfo) -> _Use | None:
        known = self._uses.get(info.name)
        if known is not None and known[0] is info.settings:
            return known[1]
        use = _use(info)
        if use is None:
            self.forget(info.name)
        else:
            self._uses[info.name] = info.settings, use
        return use


def _with_schema(
    use: _Use, schema_type: str, revisions: Sequence[tuple[Revision, Schema]], drafts: Sequence[Draft]
) -> list[Draft]:
    checked = []
    for draft in drafts:
        revision = _matching(use, schema_type, revisions, draft.data)
        attributes = {
            "googclient_schemaencoding": use.encoding.value,
            "googclient_schemarevisionid": revision.revision_id,
            "googclient_schemaname": use.schema,
        }
        checked.append(msgspec.structs.replace(draft, service_attributes=attributes))
    return checked


def _matching(use: _Use, schema_type: str, revisions: Sequence[tuple[Revision, Schema]], data: bytes) -> Revision:
    """The first revision that `data` follow."""
    failure: RpcError | None = None
    for revision, schema in revisions:
        try:
            schema.check(data, use.encoding)
        except SchemaViolation as error:
            failure = violation(use.schema, schema_type, revision, use.encoding, error)
        else:
            return revision
    raise failure or InvalidArgument("Invalid data in message: The topic allows no revision of its schema.")


def violation(
    name: str, schema_type: str, revision: Revision | None, how: Encoding, error: SchemaViolation
) -> RpcError:
    """The failure of a message, in the words of the real service: a short text, and the reason in an ErrorInfo."""
    reason = error.message[:REASON_CHARACTERS_MAX]
    kind = _SHORT_TYPES[schema_type]
    info = ErrorInfo(reason=f"INVALID_{how.value}_{kind}_MESSAGE", domain="pubsub.googleapis.com")
    info.metadata["message"] = "Message failed schema validation"
    if revision is not None:
        reason = (
            f"Could not validate message with any schema revision for schema: {name}, last checked revision: "
            f"revision_id={revision.revision_id} failed with status: {reason}"
        )
    info.metadata["revisionInfo"] = reason
    return RpcError(
        INVALID_ARGUMENT,
        "Invalid data in message: Message failed schema validation.",
        [(ERROR_INFO_URL, info.SerializeToString())],
    )


def _use(info: TopicInfo) -> _Use | None:
    if not is_of_pubsub(info.name) or not info.settings.resource:
        return None
    topic = proto.Topic.FromString(info.settings.resource)
    if not topic.HasField("schema_settings"):
        return None
    own = topic.schema_settings
    return _Use(own.schema, encoding(own.encoding), own.first_revision_id, own.last_revision_id)
