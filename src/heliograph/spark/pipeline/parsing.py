"""What a message's data say, by the schema that it was published under. Runs on executors, and never raises."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from heliograph.errors import HeliographError, SchemaViolation
from heliograph.wire.schemas.schema import Encoding, Schema, SchemaType, read_schema

SCHEMA_NAME = "googclient_schemaname"
SCHEMA_REVISION = "googclient_schemarevisionid"
SCHEMA_ENCODING = "googclient_schemaencoding"

ERROR_CHARACTERS_MAX = 500

PARSED = ("schema", "json", "reason", "error")
"""The fields of `Parsed`, as columns."""


class Definition(NamedTuple):
    """A schema as executors get it.

    Args:
        name: for people, with the revision.
        schema_type: its language, by Pub/Sub's name.
        readable: what `read_schema` takes; "" = it could not be had.
    """

    name: str
    schema_type: str
    readable: str | bytes


class Parsed(NamedTuple):
    """Of one message: its schema's name, its data as JSON (None = it has none), or why it has to be left out."""

    schema: str
    json: str | None = None
    reason: str = ""
    error: str = ""


class Parser:
    """Reads messages by their schemas.

    Args:
        definitions: by what `key_of` gives; "" is the one for messages that tell no schema of their own.
        encoding: of those.
    """

    def __init__(self, definitions: Mapping[str, Definition], encoding: str = "JSON") -> None:
        self._definitions = dict(definitions)
        self._encoding = encoding
        self._read: dict[str, Schema | str] = {}

    def parse(self, data: bytes, attributes: Mapping[str, str]) -> Parsed:
        """One message. Never raises for what is in it."""
        key = key_of(attributes)
        definition = self._definitions.get(key)
        if definition is None:
            return Parsed(key, reason="schema_unknown", error=f"There is no schema {key}") if key else _plain(data)
        schema = self._schema(key, definition)
        if isinstance(schema, str):
            return Parsed(definition.name, reason="schema_unknown", error=schema)
        try:
            how = Encoding(attributes.get(SCHEMA_ENCODING) or self._encoding)
            value = schema.decode(data, how)
            return Parsed(definition.name, msgspec.json.encode(value).decode())
        except SchemaViolation as error:
            return Parsed(definition.name, reason="schema_violation", error=error.message[:ERROR_CHARACTERS_MAX])
        except Exception as error:  # whatever a library does not foresee in bytes from anywhere
            return Parsed(definition.name, reason="schema_violation", error=repr(error)[:ERROR_CHARACTERS_MAX])

    def _schema(self, key: str, definition: Definition) -> Schema | str:
        """Or why there is none."""
        known = self._read.get(key)
        if known is None:
            try:
                if not definition.readable:
                    raise SchemaViolation(f"The schema {definition.name} is gone from the broker")
                known = read_schema(SchemaType(definition.schema_type), definition.readable)
            except HeliographError as error:
                known = error.message
            self._read[key] = known
        return known


def key_of(attributes: Mapping[str, str]) -> str:
    """`projects/p/schemas/s@0123abcd` of a message that was held against a schema; "" of any other."""
    name = attributes.get(SCHEMA_NAME, "")
    return f"{name}@{attributes.get(SCHEMA_REVISION, '')}" if name else ""


def _plain(data: bytes) -> Parsed:
    """Without a schema: JSON, or no data at all."""
    if not data:
        return Parsed("")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        return Parsed("", reason="not_utf8", error=f"byte {error.start}: {error.reason}")
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
        msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        return Parsed("", reason="not_json", error=str(error)[:ERROR_CHARACTERS_MAX])
    return Parsed("", text)


def arrow_parser(definitions: Mapping[str, Definition], encoding: str) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """A function for `DataFrame.mapInArrow`: adds the columns of `PARSED` to messages."""

    def parse(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa

        parser = Parser(definitions, encoding)
        for batch in batches:
            columns = (batch.column("data").to_pylist(), batch.column("attributes").to_pylist())
            rows = [parser.parse(data or b"", dict(pairs or ())) for data, pairs in zip(*columns, strict=True)]
            added = [pa.array([row[place] for row in rows], pa.string()) for place in range(len(PARSED))]
            yield pa.RecordBatch.from_arrays([*batch.columns, *added], names=[*batch.schema.names, *PARSED])

    return parse
