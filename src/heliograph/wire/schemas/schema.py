"""One schema, whatever its language."""

from __future__ import annotations

import enum
from typing import Any, Protocol

from heliograph.errors import InvalidSchema


class SchemaType(enum.Enum):
    """The language of a definition; the values are Pub/Sub's names."""

    AVRO = "AVRO"
    PROTOCOL_BUFFER = "PROTOCOL_BUFFER"


class Encoding(enum.Enum):
    """How data are written; the values are Pub/Sub's names."""

    JSON = "JSON"
    BINARY = "BINARY"


class Schema(Protocol):
    """A definition that was understood. Thread-safe."""

    def check(self, data: bytes, encoding: Encoding) -> None:
        """Whether `data` are one whole datum of this schema.

        Raises:
            SchemaViolation: they are not; the text says where and why.
        """

    def decode(self, data: bytes, encoding: Encoding) -> Any:
        """The datum as plain values: dict, list, str, bytes, int, float, bool, None. Avro's logical types are left as
        the values under them; Protocol Buffers follow their JSON mapping, with the fields' own names.

        Raises:
            SchemaViolation: as `check`.
        """


def read_schema(schema_type: SchemaType, definition: str | bytes) -> Schema:
    """Understand a definition that was compiled before (see `compile_schema`), without starting a compiler.

    Args:
        schema_type: its language.
        definition: Avro: the text; Protocol Buffers: what `compile_schema` gave.

    Raises:
        InvalidSchema: it means nothing.
    """
    if schema_type is SchemaType.AVRO:
        from heliograph.wire.schemas.avro import AvroSchema

        return AvroSchema(_text(definition))
    from heliograph.wire.schemas.protobuf import ProtobufSchema

    if isinstance(definition, str):
        raise InvalidSchema("a Protocol Buffers definition has to be compiled first")
    return ProtobufSchema(definition)


def compile_schema(schema_type: SchemaType, definition: str, *, root_message: str = "") -> str | bytes:
    """Check a definition and give the form of it that `read_schema` takes; to be kept beside the definition. For
    Protocol Buffers it starts the compiler as a process: up to a tenth of a second, in which the caller waits.

    Args:
        schema_type: its language.
        definition: the text.
        root_message: which message data are; only Protocol Buffers, "" = the only one there is.

    Raises:
        InvalidSchema: it is wrong; the text says where.
        FailedPrecondition: the compiler is not installed.
        Unavailable: the compiler cannot be started now.
    """
    compiled: str | bytes = definition
    if schema_type is SchemaType.PROTOCOL_BUFFER:
        from heliograph.wire.schemas.protoc import compile_definition

        compiled = compile_definition(definition, root_message)
    read_schema(schema_type, compiled)
    return compiled


def _text(definition: str | bytes) -> str:
    return definition if isinstance(definition, str) else definition.decode()
