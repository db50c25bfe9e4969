"""Protocol Buffers: data in the binary encoding and in the JSON mapping, held against compiled descriptors.

Strict where the format is lenient: a field that the schema does not have is refused in both encodings, and a required
field of proto2 must be there.
"""

from __future__ import annotations

from typing import Any

import msgspec
from google.protobuf import (
    any_pb2,
    api_pb2,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    json_format,
    source_context_pb2,
    struct_pb2,
    timestamp_pb2,
    type_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from heliograph.errors import InvalidSchema, SchemaViolation
from heliograph.wire.schemas.schema import Encoding

_MODULES: tuple[Any, ...] = (
    any_pb2,
    api_pb2,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    source_context_pb2,
    struct_pb2,
    timestamp_pb2,
    type_pb2,
    wrappers_pb2,
)

WELL_KNOWN: dict[str, bytes] = {module.DESCRIPTOR.name: module.DESCRIPTOR.serialized_pb for module in _MODULES}
"""The files that every definition may import, with their descriptors."""


class _Bundle(msgspec.Struct, array_like=True):
    root_message: str
    descriptors: bytes


_BUNDLES = msgspec.msgpack.Decoder(_Bundle)


def bundle(root_message: str, descriptors: bytes) -> bytes:
    """What `ProtobufSchema` takes: descriptors and the message in them that data are.

    Args:
        root_message: full name.
        descriptors: a serialized `FileDescriptorSet`; well-known types may be left out.
    """
    return msgspec.msgpack.encode(_Bundle(root_message, descriptors))


class ProtobufSchema:
    """See `wire.schemas.schema.Schema`.

    Args:
        bundled: from `bundle`.

    Raises:
        InvalidSchema: the descriptors do not fit together, or do not have the message.
    """

    def __init__(self, bundled: bytes) -> None:
        given = _BUNDLES.decode(bundled)
        self._pool = DescriptorPool()
        try:
            files = {file.name: file for file in FileDescriptorSet.FromString(given.descriptors).file}
            added: set[str] = set()
            for name in files:
                self._add(name, files, added, depth=0)
            descriptor = self._pool.FindMessageTypeByName(given.root_message)
        except KeyError:
            raise InvalidSchema(f"The compiled definition has no message {given.root_message}") from None
        except (DecodeError, TypeError, ValueError) as error:
            raise InvalidSchema(f"The compiled definition is invalid: {error}") from None
        self._message: Any = GetMessageClass(descriptor)

    def _add(self, name: str, files: dict[str, FileDescriptorProto], added: set[str], depth: int) -> None:
        """A file goes into the pool after those that it imports, whatever the order that they came in."""
        if name in added:
            return
        if name in WELL_KNOWN:
            file = FileDescriptorProto.FromString(WELL_KNOWN[name])
        elif name in files:
            file = files[name]
        else:
            raise ValueError(f"{name} is imported, but is not there")
        if depth > len(files) + len(WELL_KNOWN):
            raise ValueError(f"{name} imports itself")
        for imported in file.dependency:
            self._add(imported, files, added, depth + 1)
        added.add(name)
        self._pool.Add(file)

    def check(self, data: bytes, encoding: Encoding) -> None:
        """See `Schema`."""
        self._parse(data, encoding)

    def decode(self, data: bytes, encoding: Encoding) -> Any:
        """See `Schema`."""
        message = self._parse(data, encoding)
        try:
            return json_format.MessageToDict(message, preserving_proto_field_name=True, descriptor_pool=self._pool)
        except (json_format.Error, DecodeError, ValueError, TypeError, OverflowError) as error:
            # a time or an Any that is none
            raise SchemaViolation(f"The message has no JSON form: {_one_line(str(error))}") from None

    def _parse(self, data: bytes, encoding: Encoding) -> Any:
        message = self._from_json(data) if encoding is Encoding.JSON else self._from_binary(data)
        if not message.IsInitialized():
            missing = ", ".join(message.FindInitializationErrors())
            raise SchemaViolation(f"Required fields are missing: {missing}")
        return message

    def _from_json(self, data: bytes) -> Any:
        if data.lstrip()[:1] != b"{":  # the parser takes an empty list for a message without fields
            raise SchemaViolation("The message is not a JSON object")
        try:
            return json_format.Parse(data, self._message(), descriptor_pool=self._pool)
        except json_format.ParseError as error:
            raise SchemaViolation(_one_line(str(error))) from None
        except (UnicodeDecodeError, ValueError, TypeError, KeyError, RecursionError) as error:
            raise SchemaViolation(f"The message is not valid JSON: {_one_line(str(error))}") from None

    def _from_binary(self, data: bytes) -> Any:
        try:
            message = self._message.FromString(data)
        except DecodeError as error:
            raise SchemaViolation(_one_line(str(error))) from None
        unknown = _unknown_field(message)
        if unknown:
            raise SchemaViolation(f"The schema has no field {unknown}")
        return message


def _unknown_field(message: Any) -> str:
    """The first field that the schema does not have, as type and number; "" = there is none."""
    waiting = [message]
    while waiting:
        one = waiting.pop()
        fields: Any = UnknownFieldSet(one)  # its type information lacks that it is a sequence
        for field in fields:
            return f"{field.field_number} in {one.DESCRIPTOR.full_name}"
        for descriptor, value in one.ListFields():
            if descriptor.type not in (FieldDescriptor.TYPE_MESSAGE, FieldDescriptor.TYPE_GROUP):
                continue
            if descriptor.message_type.GetOptions().map_entry:
                if descriptor.message_type.fields_by_name["value"].message_type is not None:
                    waiting += value.values()
            elif descriptor.is_repeated:
                waiting += value
            else:
                waiting.append(value)
    return ""


def _one_line(text: str) -> str:
    return " ".join(text.split())
