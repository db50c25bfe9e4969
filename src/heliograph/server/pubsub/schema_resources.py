"""The resource Schema ⇄ what is kept of it (protocol 1.15)."""

from __future__ import annotations

import asyncio
from typing import Any

from heliograph.engine.settings import SECOND_NS
from heliograph.errors import InvalidArgument, InvalidSchema
from heliograph.server.pubsub import proto
from heliograph.server.pubsub.profile import Profile
from heliograph.server.pubsub.schema_store import Revision, StoredSchema
from heliograph.wire.schemas.schema import Encoding, SchemaType, compile_schema, read_schema

DELETED_SCHEMA = "_deleted-schema_"
DEFINITION_BYTES_MAX = 300 * 1024  # 1.15.1

_ENCODINGS = {int(proto.Encoding[one.value]): one for one in Encoding}
_TYPES = {value.number: value.name for value in proto.Schema.Type.DESCRIPTOR.values if value.number}


def split_name(name: str, profile: Profile, *, revision: bool | None = None) -> tuple[str, str]:
    """`projects/p/schemas/s` or `projects/p/schemas/s@revision` as (schema, revision id or "").

    Args:
        name: from a request.
        profile: how strictly.
        revision: True = it must name one, False = it must not, None = as it likes.

    Raises:
        InvalidArgument: it is none of that.
    """
    schema, at, revision_id = name.partition("@")
    profile.check_name(schema, "schemas")
    if at and (revision is False or not revision_id):
        raise InvalidArgument(f"Invalid resource name given (name={name}): a schema without a revision is expected.")
    if revision and not at:
        raise InvalidArgument(f"Invalid resource name given (name={name}): a revision is expected, as SCHEMA@REVISION.")
    return schema, revision_id


def encoding(value: int) -> Encoding:
    """Raises: InvalidArgument."""
    if value not in _ENCODINGS:
        raise InvalidArgument("The encoding must be JSON or BINARY.")
    return _ENCODINGS[value]


def resource(name: str, stored: StoredSchema, revision: Revision, view: int = 0, *, default_full: bool = True) -> Any:
    """The Schema that a client is shown.

    Args:
        name: full, without a revision.
        stored, revision: what is kept.
        view: of the request; 0 = the method's default (1.15.2).
        default_full: what that is: with the definition, or without.
    """
    schema = proto.Schema(name=name, type_=stored.schema_type, revision_id=revision.revision_id)
    seconds, schema.revision_create_time.nanos = divmod(revision.created_ns, SECOND_NS)
    schema.revision_create_time.seconds = seconds
    if view == proto.SchemaView.FULL or (default_full and not view):
        if revision.compiled_bytes:
            schema.compiled_proto_schema.root_message = revision.root_message
            schema.compiled_proto_schema.compiled_bytes = revision.compiled_bytes
        else:
            schema.definition = revision.definition
    return schema


async def understand(schema: Any) -> tuple[str, Revision]:
    """What a requested Schema is: its type, and a revision still without id and time.

    Raises:
        InvalidArgument: a field is missing, too large, or contradicts another.
        InvalidSchema: the definition is wrong.
    """
    schema_type = _TYPES.get(schema.type_)
    if schema_type is None:
        raise InvalidArgument("The type of a schema must be AVRO or PROTOCOL_BUFFER.")
    compiled = schema.HasField("compiled_proto_schema")
    if compiled and schema.definition:
        raise InvalidArgument("A schema has a definition or a compiled_proto_schema, not both.")
    size = len(schema.compiled_proto_schema.compiled_bytes) if compiled else len(schema.definition.encode())
    if size > DEFINITION_BYTES_MAX:
        raise InvalidSchema(f"The definition of a schema has at most {DEFINITION_BYTES_MAX} bytes, not {size}.")
    if not size:
        raise InvalidSchema("The definition of a schema must not be empty.")
    # compiling takes a while, and so may reading a large definition
    if compiled:
        return schema_type, await asyncio.to_thread(_compiled_revision, schema_type, schema.compiled_proto_schema)
    return schema_type, await asyncio.to_thread(_revision, SchemaType(schema_type), schema.definition)


def _revision(schema_type: SchemaType, definition: str) -> Revision:
    readable = compile_schema(schema_type, definition)
    return Revision("", 0, definition, readable=readable if isinstance(readable, bytes) else b"")


def _compiled_revision(schema_type: str, compiled: Any) -> Revision:
    if schema_type != SchemaType.PROTOCOL_BUFFER.value:
        raise InvalidArgument("Only a schema of type PROTOCOL_BUFFER can be given compiled.")
    if not compiled.root_message:
        raise InvalidArgument("A compiled_proto_schema must name its root_message.")
    from heliograph.wire.schemas.protobuf import bundle

    readable = bundle(compiled.root_message, compiled.compiled_bytes)
    read_schema(SchemaType.PROTOCOL_BUFFER, readable)
    return Revision(
        "", 0, root_message=compiled.root_message, compiled_bytes=compiled.compiled_bytes, readable=readable
    )
