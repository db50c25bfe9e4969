"""JSON documents → protobuf messages: protobuf's own JSON mapping, and where the real service is stricter or kinder
than it (pubsub-protocol.md 1.17).

`json_format` does the conversion. Before it, each document is brought into one form: fields under their lowerCamel
names, whichever of both spellings came; a name that is no field is told in the service's words; base64 that would be
silently repaired is refused; field masks may be spelled either way.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeAlias

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.rpc.error_details_pb2 import BadRequest

from heliograph.server.grpc.status import INVALID_ARGUMENT, RpcError

Document: TypeAlias = dict[str, Any]

BAD_REQUEST_URL = "type.googleapis.com/google.rpc.BadRequest"

_BASE64_DIGITS = (string.ascii_letters + string.digits + "+/-_").encode()
_AT_FIELD = re.compile(r"Failed to parse (\w+) field: ")
_SNAKE = re.compile(r"_([a-z0-9])")
_FIELD_MASK = "google.protobuf.FieldMask"
_NULLABLE = ("google.protobuf.Value", "google.protobuf.NullValue")


class BadDocument(RpcError):
    """The refusal of a document.

    Args:
        problem: what is wrong, after "Invalid JSON payload received."
        where: the field at fault, such as ``messages[0].data``; of an unknown name, where it was found.
        name: the unknown name.
    """

    def __init__(self, problem: str, where: str = "", name: str = "") -> None:
        text = f"Invalid JSON payload received. {problem}"
        violation = BadRequest.FieldViolation(field=where, description=text)
        detail = BadRequest(field_violations=[violation]).SerializeToString()
        super().__init__(INVALID_ARGUMENT, text, [(BAD_REQUEST_URL, detail)])
        self.problem = problem
        self.where = where
        self.name = name


def invalid_value(where: str, problem: str) -> BadDocument:
    """The refusal of a field's value."""
    return BadDocument(f"Invalid value at '{where}', {problem}", where)


@cache
def fields_of(descriptor: Descriptor) -> Mapping[str, FieldDescriptor]:
    """The fields of a message by both of their names, lowerCamel and as in the protocol definition."""
    fields = {field.name: field for field in descriptor.fields}
    return fields | {field.json_name: field for field in descriptor.fields}


def message_in(descriptor: Descriptor, name: str) -> tuple[str, Descriptor]:
    """The lowerCamel name of a field and the message that it holds.

    Raises:
        ValueError: there is no such field, or it holds none.
    """
    field = fields_of(descriptor).get(name)
    if field is None or field.message_type is None:
        raise ValueError(f"{descriptor.full_name}.{name} holds no message")
    return field.json_name, field.message_type


def canonical(value: Any, descriptor: Descriptor, where: str = "") -> Document:
    """A document in the one form that `message_of` and comparisons take.

    Args:
        value: as it was decoded.
        descriptor: of the message that it should be.
        where: the way to it, for the refusal.

    Raises:
        BadDocument: with the field at fault.
    """
    if not isinstance(value, dict):
        raise invalid_value(where or descriptor.name, f"an object is wanted, not {_shown(value)}")
    fields = fields_of(descriptor)
    document: Document = {}
    for name, given in value.items():
        field = fields.get(name)
        if field is None:
            raise unknown_name(name, where)
        if given is None and not _takes_null(field):
            continue  # as if it had not been given
        if field.json_name in document:
            raise BadDocument(f'"{field.json_name}" is given twice, once as "{field.name}".', where)
        document[field.json_name] = _canonical_field(given, field, f"{where}.{name}" if where else name)
    return document


def unknown_name(name: str, where: str = "") -> BadDocument:
    """The refusal of a name that is no field, in the real service's words."""
    place = f" at '{where}'" if where else ""
    return BadDocument(f'Unknown name "{name[:100]}"{place}: Cannot find field.', where, name)


def message_of(document: Document, message: Any) -> Any:
    """`message`, filled from a document.

    Args:
        document: from `canonical`.
        message: an empty protobuf message.

    Raises:
        BadDocument: a value is not one of its field.
    """
    try:
        return json_format.ParseDict(document, message)
    except (json_format.ParseError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        # the library promises ParseError alone, and lets others through for durations, timestamps and deep nesting
        text = " ".join(str(error).split()) or type(error).__name__
        where = ".".join(_AT_FIELD.findall(text))
        problem = _AT_FIELD.sub("", text).rstrip(".")[:500]
        raise (invalid_value(where, problem) if where else BadDocument(problem)) from None


def put(document: Document, descriptor: Descriptor, field_path: str, value: Any, source: str) -> None:
    """Set a field that the path or the query binds; the body may repeat it, as PHP's client does, if it is equal.

    Args:
        document: canonical; changed.
        descriptor: of its message.
        field_path: ``topic.name``, either spelling.
        value: a string, or what else JSON has.
        source: where it comes from, for the refusal: "path" or "query".

    Raises:
        BadDocument: there is no such field, or the body has another value.
    """
    *way, last = field_path.split(".")
    for name in way:
        field = fields_of(descriptor).get(name)
        if field is None or field.message_type is None or field.is_repeated:
            raise unknown_name(field_path)
        document = document.setdefault(field.json_name, {})
        descriptor = field.message_type
        if not isinstance(document, dict):
            raise unknown_name(field_path)
    field = fields_of(descriptor).get(last)
    if field is None:
        raise unknown_name(field_path)
    value = _canonical_field(value, field, field_path)
    if document.setdefault(field.json_name, value) != value:
        raise invalid_value(
            field_path,
            f"the body says {_shown(document[field.json_name])}, the {source} {_shown(value)}: they must be equal",
        )


def _canonical_field(value: Any, field: FieldDescriptor, where: str) -> Any:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return _canonical_map(value, field.message_type.fields_by_name["value"], where)
    if field.is_repeated:
        if not isinstance(value, list):
            raise invalid_value(where, f"a list is wanted, not {_shown(value)}")
        if field.message_type is not None or field.type == FieldDescriptor.TYPE_BYTES:
            return [_canonical_value(item, field, f"{where}[{index}]") for index, item in enumerate(value)]
        return value
    return _canonical_value(value, field, where)


def _canonical_map(value: Any, field: FieldDescriptor, where: str) -> Any:
    if not isinstance(value, dict):
        raise invalid_value(where, f"an object is wanted, not {_shown(value)}")
    if field.message_type is None:
        return value
    return {key: _canonical_value(item, field, f"{where}[{key}]") for key, item in value.items()}


def _canonical_value(value: Any, field: FieldDescriptor, where: str) -> Any:
    if field.type == FieldDescriptor.TYPE_BYTES:
        _check_base64(value, where)
    elif field.message_type is not None:
        name = field.message_type.full_name
        if name == _FIELD_MASK:
            return _lower_camel_paths(value, where)
        if not name.startswith("google.protobuf."):
            return canonical(value, field.message_type, where)
    return value


def _check_base64(value: Any, where: str) -> None:
    """Both alphabets, with and without padding."""
    if isinstance(value, str) and value.isascii():
        digits = value.encode().rstrip(b"=")
        padding = len(value) - len(digits)
        if padding in (0, -len(digits) % 4) and len(digits) % 4 != 1 and not digits.translate(None, _BASE64_DIGITS):
            return
    raise invalid_value(where, f"Base64 decoding failed for {_shown(value)}")


def _lower_camel_paths(value: Any, where: str) -> str:
    """A field mask as JSON has it. The official emulator and people write ``push_config`` as well."""
    if not isinstance(value, str):
        raise invalid_value(where, f"field paths with commas between them are wanted, not {_shown(value)}")
    paths = (path.strip() for path in value.split(","))
    return ",".join(_SNAKE.sub(lambda match: match[1].upper(), path) for path in paths)


def _takes_null(field: FieldDescriptor) -> bool:
    named = field.message_type or field.enum_type
    return named is not None and named.full_name in _NULLABLE


def _shown(value: Any) -> str:
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 80 else text[:77] + "..."
