"""Avro 1.11: definitions, data in Avro's binary encoding, and data in Avro's own JSON encoding.

fastavro reads definitions and binary data. It takes several things that Avro forbids (a union of two ints, a name that
begins with a digit), and its JSON reader fills missing fields and ignores unknown ones, so that a publisher's mistake
would pass; the rules that it leaves out are here.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any, NoReturn

import fastavro
import msgspec
from fastavro import _read_py
from fastavro.schema import SchemaParseException, UnknownType
from fastavro.validation import ValidationError, validate

from heliograph.errors import InvalidSchema, SchemaViolation
from heliograph.wire.schemas.schema import Encoding

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*")
_SIMPLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_INT = (-(2**31), 2**31 - 1)
_LONG = (-(2**63), 2**63 - 1)
_PRIMITIVES = frozenset(("null", "boolean", "int", "long", "float", "double", "bytes", "string"))
_WITH_TYPES = ("type", "items", "values", "fields")

_Reader = Callable[[Any, str], Any]
"""Takes a value of the JSON encoding and where it stands, gives the datum; raises SchemaViolation."""


class AvroSchema:
    """See `wire.schemas.schema.Schema`.

    Args:
        definition: the text, JSON.

    Raises:
        InvalidSchema: it is none.
    """

    def __init__(self, definition: str) -> None:
        try:
            raw = msgspec.json.decode(definition)
            parsed = fastavro.parse_schema(_without_logical_types(raw))
            named = _named(parsed)
            self._from_json = _Definition(named).reader(parsed)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidSchema(f"The Avro definition is no JSON that can be read: {error}") from None
        except (SchemaParseException, UnknownType, ValueError) as error:
            raise InvalidSchema(f"The Avro definition is invalid: {error}") from None
        except (KeyError, TypeError, AttributeError) as error:
            raise InvalidSchema(f"The Avro definition is invalid: {_shape(error)}") from None
        self._parsed = parsed
        self._has_int = '"int"' in definition
        # fastavro's compiled reader does not watch the depth of recursive data, and would end the process with them
        self._read = _read_py.schemaless_reader if _is_recursive(named) else fastavro.schemaless_reader

    def check(self, data: bytes, encoding: Encoding) -> None:
        """See `Schema`."""
        self.decode(data, encoding)

    def decode(self, data: bytes, encoding: Encoding) -> Any:
        """See `Schema`."""
        try:
            return self._decode_json(data) if encoding is Encoding.JSON else self._decode_binary(data)
        except RecursionError:
            raise SchemaViolation("The message is nested too deeply") from None

    def _decode_json(self, data: bytes) -> Any:
        try:
            value = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise SchemaViolation(f"The message is not valid JSON: {error}") from None
        return self._from_json(value, "$")

    def _decode_binary(self, data: bytes) -> Any:
        source = io.BytesIO(data)
        try:
            datum = self._read(source, self._parsed, None)
        except RecursionError:
            raise
        except EOFError:
            raise SchemaViolation("The message ends before its schema does") from None
        except Exception as error:  # whatever the bytes make it stumble over
            raise SchemaViolation(f"The message is not valid Avro: {type(error).__name__}: {error}") from None
        if source.read(1):
            raise SchemaViolation("Too much data to parse for schema")
        if self._has_int:  # read as a long
            try:
                validate(datum, self._parsed)
            except ValidationError as error:
                raise SchemaViolation(f"The message is not valid Avro: {' '.join(str(error).split())}") from None
        return datum


# ── definitions ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _without_logical_types(schema: Any) -> Any:
    """The same schema without logical types: they say what a value means, not which values there are, and fastavro
    would refuse a date that Python does not have."""
    if isinstance(schema, list):
        return [_without_logical_types(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _without_logical_types(value) if key in _WITH_TYPES else value
        for key, value in schema.items()
        if key != "logicalType"
    }


def _named(parsed: Any) -> dict[str, Any]:
    """Every named type of a parsed schema by its full name."""
    found: dict[str, Any] = {}
    waiting = [parsed]
    while waiting:
        schema = waiting.pop()
        if isinstance(schema, dict) and "name" in schema:
            found[schema["name"]] = schema
        waiting += _parts(schema)
    return found


def _parts(schema: Any) -> list[Any]:
    """The schemas immediately within one."""
    if isinstance(schema, list):
        return schema
    if not isinstance(schema, dict):
        return []
    nested = [schema["type"]] if not isinstance(schema["type"], str) else []
    return (
        nested
        + [schema[key] for key in ("items", "values") if key in schema]
        + [field["type"] for field in schema.get("fields", ())]
    )


def _is_recursive(named: dict[str, Any]) -> bool:
    """Whether data may be nested without end: a named type is within itself."""
    within = {name: _names_within(schema) & named.keys() for name, schema in named.items()}
    while within:  # whatever has nothing left within it cannot be part of a circle
        ends = {name for name, inner in within.items() if not inner}
        if not ends:
            return True
        within = {name: inner - ends for name, inner in within.items() if name not in ends}
    return False


def _names_within(schema: Any) -> set[str]:
    names: set[str] = set()
    waiting = _parts(schema).copy()
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            names.add(part)
        elif isinstance(part, dict) and "name" in part:
            names.add(part["name"])
        else:
            waiting += _parts(part)
            if isinstance(part, dict):
                names.add(part["type"])
    return names


def _shape(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error.args[0]!r} is missing"
    return "a part of it has the wrong JSON type"


class _Definition:
    """Walks a parsed definition once: checks the rules that fastavro does not, and makes the reader of JSON.

    Args:
        named: from `_named`.
    """

    def __init__(self, named: dict[str, Any]) -> None:
        self._named = named
        self._readers: dict[str, _Reader] = {}
        self._empty: dict[str, bool] = {}

    def reader(self, schema: Any) -> _Reader:
        """Of the JSON encoding of `schema`.

        Raises:
            InvalidSchema: the schema breaks a rule of Avro.
        """
        if isinstance(schema, list):
            return self._union(schema)
        if isinstance(schema, str):
            return _PRIMITIVE_READERS[schema] if schema in _PRIMITIVES else self._reference(schema)
        kind = schema["type"]
        if not isinstance(kind, str):
            return self.reader(kind)
        if kind in _PRIMITIVES:
            return _PRIMITIVE_READERS[kind]
        if kind == "array":
            return self._array(schema)
        if kind == "map":
            return _map_reader(self.reader(schema["values"]))
        return self._named_type(kind, schema)

    def _reference(self, name: str) -> _Reader:
        readers = self._readers
        if name not in self._named:
            raise InvalidSchema(f"The Avro definition is invalid: unknown type {name}")
        return lambda value, where: readers[name](value, where)

    def _named_type(self, kind: str, schema: Any) -> _Reader:
        name = schema["name"]
        if not _NAME.fullmatch(name) or name in _PRIMITIVES:
            _refuse(f"{name} is not a name")
        if kind == "enum":
            symbols = schema["symbols"]
            if not symbols:
                _refuse(f"the enum {name} has no symbols")
            reader = _enum_reader(frozenset(symbols))
        elif kind == "fixed":
            size = schema["size"]
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                _refuse(f"the size of {name} is not a number of bytes")
            reader = _fixed_reader(size)
        elif kind == "record":
            reader = self._record(schema)
        else:
            _refuse(f"{kind} is not a type of data")
        self._readers[name] = reader
        return reader

    def _record(self, schema: Any) -> _Reader:
        names = [field["name"] for field in schema["fields"]]
        for name in names:
            if not isinstance(name, str) or not _SIMPLE_NAME.fullmatch(name):
                _refuse(f"{name} is not a field's name")
        if len(set(names)) < len(names):
            _refuse(f"the record {schema['name']} has two fields of one name")
        fields = [(field["name"], self.reader(field["type"])) for field in schema["fields"]]
        known = frozenset(names)

        def read(value: Any, where: str) -> Any:
            if not isinstance(value, dict):
                _mismatch(where, "an object", value)
            if value.keys() != known:
                missing, unknown = sorted(known - value.keys()), sorted(value.keys() - known)
                what = f"field {missing[0]} is missing" if missing else f"there is no field {unknown[0]}"
                raise SchemaViolation(f"At {where}: {what}")
            return {name: reader(value[name], f"{where}.{name}") for name, reader in fields}

        return read

    def _array(self, schema: Any) -> _Reader:
        items = schema["items"]
        reader = self.reader(items)
        if self._takes_no_bytes(items):
            # five bytes of binary data could then mean as many items as there is memory
            _refuse("an array whose items take no bytes is not allowed")

        def read(value: Any, where: str) -> Any:
            if not isinstance(value, list):
                _mismatch(where, "an array", value)
            return [reader(item, f"{where}[{index}]") for index, item in enumerate(value)]

        return read

    def _union(self, branches: list[Any]) -> _Reader:
        readers: dict[str, _Reader] = {}
        for branch in branches:
            if isinstance(branch, list):
                _refuse("a union immediately within a union")
            label = _label(branch)
            if label in readers:
                _refuse(f"a union has {label} twice")
            readers[label] = self.reader(branch)
        if not readers:
            _refuse("a union of nothing")
        nullable = readers.pop("null", None) is not None

        def read(value: Any, where: str) -> Any:
            if value is None and nullable:
                return None
            if not isinstance(value, dict) or len(value) != 1:
                _mismatch(where, f"a union, written as {{type: value}} of {', '.join(readers)}", value)
            ((label, inner),) = value.items()
            reader = readers.get(label)
            if reader is None:
                raise SchemaViolation(f"At {where}: the union has no {label}")
            return reader(inner, f"{where}.{label}")

        return read

    def _takes_no_bytes(self, schema: Any) -> bool:
        if isinstance(schema, list):
            return False
        if isinstance(schema, str):
            return schema == "null" or (schema not in _PRIMITIVES and self._takes_no_bytes(self._named[schema]))
        kind = schema["type"]
        if kind != "record":
            return bool(kind == "null" or (kind == "fixed" and schema["size"] == 0))
        name = schema["name"]
        if name not in self._empty:
            self._empty[name] = False  # one that is within itself never ends
            self._empty[name] = all(self._takes_no_bytes(field["type"]) for field in schema["fields"])
        return self._empty[name]


def _label(schema: Any) -> str:
    """What a branch of a union is called in JSON."""
    if isinstance(schema, str):
        return schema
    return str(schema.get("name") or schema["type"])


def _refuse(what: str) -> NoReturn:
    raise InvalidSchema(f"The Avro definition is invalid: {what}")


# ── data in JSON ────────────────────────────────────────────────────────────────────────────────────────────────────


def _mismatch(where: str, expected: str, value: Any) -> NoReturn:
    kinds = {
        bool: "a boolean",
        int: "a number",
        float: "a number",
        str: "a string",
        list: "an array",
        dict: "an object",
    }
    raise SchemaViolation(f"At {where}: expected {expected}, got {kinds.get(type(value), 'null')}")


def _null(value: Any, where: str) -> None:
    if value is not None:
        _mismatch(where, "null", value)


def _boolean(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        _mismatch(where, "a boolean", value)
    return value


def _whole(name: str, bounds: tuple[int, int]) -> _Reader:
    low, high = bounds

    def read(value: Any, where: str) -> Any:
        if type(value) is not int:
            _mismatch(where, f"{name}, a whole number", value)
        if not low <= value <= high:
            raise SchemaViolation(f"At {where}: {value} does not fit {name}")
        return value

    return read


def _number(value: Any, where: str) -> float:
    if type(value) is not int and type(value) is not float:
        _mismatch(where, "a number", value)
    try:
        return float(value)
    except OverflowError:
        raise SchemaViolation(f"At {where}: the number is too large") from None


def _string(value: Any, where: str) -> str:
    if not isinstance(value, str):
        _mismatch(where, "a string", value)
    return value


def _bytes(value: Any, where: str) -> bytes:
    """Bytes are strings of the code points 0-255."""
    try:
        return _string(value, where).encode("latin-1")
    except UnicodeEncodeError:
        raise SchemaViolation(f"At {where}: bytes have code points up to 255") from None


def _fixed_reader(size: int) -> _Reader:
    def read(value: Any, where: str) -> bytes:
        fixed = _bytes(value, where)
        if len(fixed) != size:
            raise SchemaViolation(f"At {where}: expected {size} bytes, got {len(fixed)}")
        return fixed

    return read


def _enum_reader(symbols: frozenset[str]) -> _Reader:
    def read(value: Any, where: str) -> str:
        if _string(value, where) not in symbols:
            raise SchemaViolation(f"At {where}: {value[:100]!r} is not a symbol of the enum")
        return str(value)

    return read


def _map_reader(reader: _Reader) -> _Reader:
    def read(value: Any, where: str) -> Any:
        if not isinstance(value, dict):
            _mismatch(where, "an object", value)
        return {key: reader(item, f"{where}[{key[:40]!r}]") for key, item in value.items()}

    return read


_PRIMITIVE_READERS: dict[str, _Reader] = {
    "null": _null,
    "boolean": _boolean,
    "int": _whole("int", _INT),
    "long": _whole("long", _LONG),
    "float": _number,
    "double": _number,
    "bytes": _bytes,
    "string": _string,
}
