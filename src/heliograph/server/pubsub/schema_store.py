"""Schemas and their revisions, kept as documents of the broker; one document holds a schema with all its revisions, so
that none of its changes can be seen, or survive a crash, by half."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from secrets import token_hex

import msgspec

from heliograph.broker.protocol import Broker
from heliograph.errors import FailedPrecondition, ResourceExhausted, SchemaNotFound
from heliograph.server.pubsub import policies
from heliograph.wire.schemas.schema import Schema, SchemaType, read_schema

COLLECTION = "schemas"

REVISIONS_MAX = 20  # per schema (1.15.1)
READ_SCHEMAS_MAX = 1_000  # understood revisions that are kept at hand


class Revision(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """One revision of a schema.

    Args:
        revision_id: eight hexadecimal digits.
        created_ns: when; grows with every revision of a schema.
        definition: the text; "" = it was given compiled.
        root_message, compiled_bytes: as given; "" and b"" = it was given as text.
        readable: what `read_schema` takes instead of the text; b"" = the text itself.
        deleted: only its place in the row is left, for topics that name it as the first or last of a range; their range
            must not become wider.
    """

    revision_id: str
    created_ns: int
    definition: str = ""
    root_message: str = ""
    compiled_bytes: bytes = b""
    readable: bytes = b""
    deleted: bool = False


class StoredSchema(msgspec.Struct, frozen=True, array_like=True):
    """A schema.

    Args:
        schema_type: the name of its language, as in Pub/Sub.
        revisions: oldest first; at least one is not deleted.
    """

    schema_type: str
    revisions: tuple[Revision, ...]

    @property
    def latest(self) -> Revision:
        """The newest revision."""
        return next(one for one in reversed(self.revisions) if not one.deleted)

    @property
    def live(self) -> tuple[Revision, ...]:
        """Those that are not deleted, oldest first."""
        return tuple(one for one in self.revisions if not one.deleted)

    def with_revision(self, revision: Revision) -> StoredSchema:
        """The schema with a new revision.

        Raises:
            ResourceExhausted: it has as many as it may have.
        """
        if len(self.live) >= REVISIONS_MAX:
            raise ResourceExhausted(f"A schema has at most {REVISIONS_MAX} revisions; delete one first.")
        return StoredSchema(self.schema_type, (*self.revisions, revision))

    def without_revision(self, revision: Revision) -> StoredSchema:
        """The schema with `revision` deleted.

        Raises:
            FailedPrecondition: it is the only one.
        """
        if len(self.live) == 1:
            raise FailedPrecondition("The only revision of a schema cannot be deleted; delete the schema instead.")
        gone = Revision(revision.revision_id, revision.created_ns, deleted=True)
        return StoredSchema(self.schema_type, tuple([gone if one is revision else one for one in self.revisions]))

    def between(self, first_id: str, last_id: str) -> Sequence[Revision]:
        """The revisions from `first_id` to `last_id`, newest first (1.15.4); "" = from the oldest, to the newest. An id
        that is not known any more bounds nothing."""
        ids = [one.revision_id for one in self.revisions]
        start = ids.index(first_id) if first_id in ids else 0
        end = ids.index(last_id) + 1 if last_id in ids else len(ids)
        return [one for one in reversed(self.revisions[start:end]) if not one.deleted]


_DECODER = msgspec.msgpack.Decoder(StoredSchema)


class SchemaStore:
    """Schemas by full name. Only the event loop's thread uses it.

    Args:
        broker: who keeps them.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._decoded: dict[str, tuple[bytes, StoredSchema]] = {}
        self._read: OrderedDict[tuple[str, str], tuple[Revision, Schema]] = OrderedDict()

    def get(self, name: str) -> StoredSchema:
        """Raises: SchemaNotFound."""
        value = self._broker.get_document(COLLECTION, name)
        if value is None:
            raise SchemaNotFound(name)
        return self._decode(name, value)

    def find(self, name: str, revision_id: str) -> tuple[StoredSchema, Revision]:
        """A schema and one of its revisions; "" = the newest.

        Raises:
            SchemaNotFound: there is no such schema, or no such revision.
        """
        stored = self.get(name)
        if not revision_id:
            return stored, stored.latest
        for one in stored.live:
            if one.revision_id == revision_id:
                return stored, one
        raise SchemaNotFound(f"{name}@{revision_id}")

    def exists(self, name: str) -> bool:
        """Whether there is a schema of that name."""
        return self._broker.get_document(COLLECTION, name) is not None

    def all(self, prefix: str) -> list[tuple[str, StoredSchema]]:
        """Those whose names begin with `prefix`, by name."""
        documents = self._broker.list_documents(COLLECTION)
        return [(name, self._decode(name, value)) for name, value in documents if name.startswith(prefix)]

    async def put(self, name: str, stored: StoredSchema) -> None:
        """Keep a schema; returns when it is durable."""
        await self._broker.put_document(COLLECTION, name, msgspec.msgpack.encode(stored))

    async def delete(self, name: str) -> None:
        """Forget a schema, and who may do what with it; returns when that is durable."""
        self._decoded.pop(name, None)
        for key in [key for key in self._read if key[0] == name]:
            del self._read[key]
        deleted = self._broker.delete_document(COLLECTION, name)
        await policies.forget(self._broker, name)
        await deleted

    def new_revision_id(self, stored: StoredSchema | None) -> str:
        """One that no revision of the schema has or had."""
        taken = {one.revision_id for one in stored.revisions} if stored is not None else ()
        while (revision_id := token_hex(4)) in taken:
            pass
        return revision_id

    def created_ns(self, stored: StoredSchema | None) -> int:
        """When a revision that is made now was made: later than any before."""
        now_ns = self._broker.now_ns()
        return now_ns if stored is None else max(now_ns, stored.revisions[-1].created_ns + 1)

    def understood(self, name: str, stored: StoredSchema, revision: Revision) -> Schema:
        """What a revision means; each is read once."""
        key = (name, revision.revision_id)
        known = self._read.get(key)
        if known is not None and known[0] == revision:
            return known[1]
        schema = read_schema(SchemaType(stored.schema_type), revision.readable or revision.definition)
        self._read[key] = revision, schema
        self._read.move_to_end(key)
        if len(self._read) > READ_SCHEMAS_MAX:
            self._read.popitem(last=False)
        return schema

    def _decode(self, name: str, value: bytes) -> StoredSchema:
        known = self._decoded.get(name)
        if known is not None and known[0] == value:
            return known[1]
        stored = _DECODER.decode(value)
        self._decoded[name] = value, stored
        return stored
