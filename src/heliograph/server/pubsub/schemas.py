"""The methods of `google.pubsub.v1.SchemaService` (protocol 1.15)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from heliograph.errors import InvalidArgument, SchemaNotFound, SchemaViolation
from heliograph.server.call import Call
from heliograph.server.pubsub import proto
from heliograph.server.pubsub.paging import page_of
from heliograph.server.pubsub.profile import STRICT, Profile
from heliograph.server.pubsub.proto import serialized
from heliograph.server.pubsub.schema_checks import SchemaChecks, violation
from heliograph.server.pubsub.schema_resources import encoding, resource, split_name, understand
from heliograph.server.pubsub.schema_store import Revision, SchemaStore, StoredSchema
from heliograph.server.pubsub.texts import exists
from heliograph.wire.schemas.schema import SchemaType, read_schema


class Schemas:
    """See the module.

    Args:
        store: who has them.
        checks: who knows the topics that use them.
        profile: how strictly.
    """

    def __init__(self, store: SchemaStore, checks: SchemaChecks, profile: Profile = STRICT) -> None:
        self._store = store
        self._checks = checks
        self._profile = profile

    async def create_schema(self, request: Any, _call: Call) -> bytes:
        """CreateSchema: with its first revision (1.15.1)."""
        self._profile.check_project(request.parent)
        name = f"{request.parent}/schemas/{request.schema_id}"
        self._profile.check_new_name(name, "schemas")
        schema_type, revision = await understand(request.schema)
        if self._store.exists(name):
            raise exists(name)
        stored = StoredSchema(schema_type, (self._new(revision, None),))
        await self._store.put(name, stored)
        return serialized(resource(name, stored, stored.latest))

    async def get_schema(self, request: Any, _call: Call) -> bytes:
        """GetSchema: the newest revision, or the named one; with its definition unless told otherwise (1.15.2)."""
        name, revision_id = split_name(request.name, self._profile)
        stored, revision = self._store.find(name, revision_id)
        return serialized(resource(name, stored, revision, request.view))

    async def list_schemas(self, request: Any, _call: Call) -> bytes:
        """ListSchemas of a project, by name; without definitions unless told otherwise (1.15.2)."""
        self._profile.check_project(request.parent)
        found = self._store.all(f"{request.parent}/schemas/")

        def show(index: int) -> Any:
            name, stored = found[index]
            return resource(name, stored, stored.latest, request.view, default_full=False)

        shown, token = page_of([name for name, _ in found], request.page_size, request.page_token, show)
        return serialized(proto.ListSchemasResponse(schemas=shown, next_page_token=token))

    async def list_schema_revisions(self, request: Any, _call: Call) -> bytes:
        """ListSchemaRevisions: newest first (1.15.2)."""
        name, _ = split_name(request.name, self._profile, revision=False)
        stored = self._store.get(name)
        revisions = stored.live[::-1]
        # pages are by name: these sort as the revisions do, and stay what they are when others come
        places = [f"{name}@{2**63 - revision.created_ns:019}" for revision in revisions]

        def show(index: int) -> Any:
            return resource(name, stored, revisions[index], request.view, default_full=False)

        shown, token = page_of(places, request.page_size, request.page_token, show)
        return serialized(proto.ListSchemaRevisionsResponse(schemas=shown, next_page_token=token))

    async def commit_schema(self, request: Any, _call: Call) -> bytes:
        """CommitSchema: a new revision of the same type (1.15.2)."""
        name, _ = split_name(request.name, self._profile, revision=False)
        if request.schema.name and request.schema.name.partition("@")[0] != name:
            raise InvalidArgument("The schema's name must be that of the schema that the revision is for.")
        self._store.get(name)
        schema_type, revision = await understand(request.schema)
        stored = self._store.get(name)
        if schema_type != stored.schema_type:
            raise InvalidArgument(f"The schema is of type {stored.schema_type}, and a revision cannot change that.")
        return await self._commit(name, stored, revision)

    async def rollback_schema(self, request: Any, _call: Call) -> bytes:
        """RollbackSchema: a new revision with the definition of an old one (1.15.2)."""
        name, _ = split_name(request.name, self._profile, revision=False)
        if not request.revision_id:
            raise InvalidArgument("The revision_id to roll back to must be set.")
        stored, revision = self._store.find(name, request.revision_id)
        return await self._commit(name, stored, revision)

    async def delete_schema_revision(self, request: Any, _call: Call) -> bytes:
        """DeleteSchemaRevision: answers the schema as it is then; the only one cannot go (1.15.2)."""
        named = request.name
        if "@" not in named and request.revision_id:  # how it was said before names had revisions
            named = f"{named}@{request.revision_id}"
        name, revision_id = split_name(named, self._profile, revision=True)
        stored, revision = self._store.find(name, revision_id)
        stored = stored.without_revision(revision)
        await self._store.put(name, stored)
        return serialized(resource(name, stored, stored.latest))

    async def delete_schema(self, request: Any, _call: Call) -> bytes:
        """DeleteSchema: its topics stay, and say that it is deleted (1.2.4)."""
        name, _ = split_name(request.name, self._profile, revision=False)
        if not self._store.exists(name):
            raise SchemaNotFound(name)
        # nothing is awaited in between, so no other topic can begin to use it meanwhile
        self._checks.detach(name)
        await self._store.delete(name)
        return b""

    async def validate_schema(self, request: Any, _call: Call) -> bytes:
        """ValidateSchema: whether CreateSchema would take the definition (1.15.3)."""
        self._profile.check_project(request.parent)
        await understand(request.schema)
        return serialized(proto.ValidateSchemaResponse())

    async def validate_message(self, request: Any, _call: Call) -> bytes:
        """ValidateMessage: against a schema that exists, or one that comes along (1.15.3)."""
        self._profile.check_project(request.parent)
        how = encoding(request.encoding)
        if request.HasField("name"):
            name, revision_id = split_name(request.name, self._profile)
            stored, revision = self._store.find(name, revision_id)
            self._checks.check_message(name, stored, revision, request.message, how)
        elif request.HasField("schema"):
            schema_type, revision = await understand(request.schema)
            schema = read_schema(SchemaType(schema_type), revision.readable or revision.definition)
            try:
                await asyncio.to_thread(schema.check, request.message, how)
            except SchemaViolation as error:
                raise violation("", schema_type, None, how, error) from None
        else:
            raise InvalidArgument("A message is validated against a name or a schema; neither is set.")
        return serialized(proto.ValidateMessageResponse())

    async def _commit(self, name: str, stored: StoredSchema, revision: Revision) -> bytes:
        stored = stored.with_revision(self._new(revision, stored))
        await self._store.put(name, stored)
        return serialized(resource(name, stored, stored.latest))

    def _new(self, revision: Revision, stored: StoredSchema | None) -> Revision:
        return msgspec.structs.replace(
            revision,
            revision_id=self._store.new_revision_id(stored),
            created_ns=self._store.created_ns(stored),
        )
