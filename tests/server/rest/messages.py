"""Random protobuf messages, made from their descriptors."""

from __future__ import annotations

import string
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import strategies as st

_INT32 = st.integers(-(2**31), 2**31 - 1)
_INT64 = st.integers(-(2**63), 2**63 - 1)
_TEXT = st.text(max_size=8)
_PATH = st.text(string.ascii_lowercase, min_size=1, max_size=5).map(lambda name: f"{name}.{name}_field")

_SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=8),
    FieldDescriptor.TYPE_DOUBLE: st.floats(allow_nan=False),
    FieldDescriptor.TYPE_FLOAT: st.floats(allow_nan=False, width=32),
    FieldDescriptor.TYPE_INT32: _INT32,
    FieldDescriptor.TYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_INT64: _INT64,
    FieldDescriptor.TYPE_UINT64: st.integers(0, 2**64 - 1),
    FieldDescriptor.TYPE_STRING: _TEXT,
}


@st.composite
def messages(draw: st.DrawFn, message_class: Any, depth: int = 0) -> Any:
    """A message with some of its fields, and of each oneof at most one."""
    message = message_class()
    _fill(draw, message, depth)
    return message


def _fill(draw: st.DrawFn, message: Any, depth: int) -> None:
    descriptor: Descriptor = message.DESCRIPTOR
    if descriptor.full_name == "google.protobuf.Duration":
        message.seconds = draw(st.integers(0, 10**6))
        message.nanos = draw(st.integers(0, 999_999_999))
    elif descriptor.full_name == "google.protobuf.Timestamp":
        message.seconds = draw(st.integers(0, 4 * 10**9))
        message.nanos = draw(st.integers(0, 999_999_999))
    elif descriptor.full_name == "google.protobuf.FieldMask":
        message.paths.extend(draw(st.lists(_PATH, max_size=2)))
    else:
        taken: set[str] = set()
        for field in descriptor.fields:
            oneof = field.containing_oneof
            if (oneof is not None and oneof.name in taken) or not draw(st.booleans()):
                continue
            if oneof is not None:
                taken.add(oneof.name)
            if field.message_type is None or depth < 3:
                _fill_field(draw, message, field, depth)


def _fill_field(draw: st.DrawFn, message: Any, field: FieldDescriptor, depth: int) -> None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        getattr(message, field.name).update(draw(st.dictionaries(_TEXT, _TEXT, max_size=2)))
    elif field.message_type is not None and field.is_repeated:
        for _ in range(draw(st.integers(0, 2))):
            _fill(draw, getattr(message, field.name).add(), depth + 1)
    elif field.message_type is not None:
        inner = getattr(message, field.name)
        inner.SetInParent()
        _fill(draw, inner, depth + 1)
    elif field.is_repeated:
        getattr(message, field.name).extend(draw(st.lists(_scalar(field), max_size=2)))
    else:
        setattr(message, field.name, draw(_scalar(field)))


def _scalar(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    if field.enum_type is not None:
        return st.sampled_from([value.number for value in field.enum_type.values])
    return _SCALARS[field.type]
