"""Avro and Protocol Buffers: which definitions there are, and which data follow them (protocol 1.15.1, 1.15.3)."""

from __future__ import annotations

import contextlib
import io
import json
import sys
from typing import Any

import fastavro
import pytest
from fastavro.utils import generate_one
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from hypothesis import given
from hypothesis import strategies as st

from heliograph.errors import FailedPrecondition, InvalidSchema, SchemaViolation, Unavailable
from heliograph.wire.schemas.protobuf import ProtobufSchema, bundle
from heliograph.wire.schemas.schema import Encoding, Schema, SchemaType, compile_schema, read_schema

JSON, BINARY = Encoding.JSON, Encoding.BINARY


def avro(definition: Any) -> Schema:
    text = definition if isinstance(definition, str) else json.dumps(definition)
    return read_schema(SchemaType.AVRO, compile_schema(SchemaType.AVRO, text))


def proto(definition: str, root_message: str = "") -> Schema:
    compiled = compile_schema(SchemaType.PROTOCOL_BUFFER, definition, root_message=root_message)
    return read_schema(SchemaType.PROTOCOL_BUFFER, compiled)


def violation(schema: Schema, data: bytes, encoding: Encoding) -> str:
    with pytest.raises(SchemaViolation) as raised:
        schema.check(data, encoding)
    return raised.value.message


ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "amount", "type": ["null", "int", {"type": "enum", "name": "Amount", "symbols": ["MANY"]}]},
        {"name": "prices", "type": {"type": "array", "items": "long"}, "default": []},
        {"name": "code", "type": {"type": "fixed", "name": "Code", "size": 2}},
        {"name": "tags", "type": {"type": "map", "values": "double"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "before", "type": ["null", "Code"]},
    ],
}
GOOD = {"id": "a", "amount": {"int": 3}, "prices": [1], "code": "ab", "tags": {"x": 1}, "day": 9, "before": None}
DATUM = {"id": "a", "amount": 3, "prices": [1], "code": b"ab", "tags": {"x": 1.0}, "day": 9, "before": None}


def order(**changes: Any) -> bytes:
    return json.dumps(GOOD | changes).encode()


# ── Avro ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_1_15_3_avro_json_is_avros_own_encoding() -> None:
    schema = avro(ORDER)
    assert schema.decode(order(), JSON) == DATUM
    assert schema.decode(json.dumps(GOOD, indent=2).encode(), JSON) == DATUM
    assert schema.decode(order(amount={"shop.Amount": "MANY"}), JSON)["amount"] == "MANY"
    assert schema.decode(order(before={"shop.Code": "é\xff"}), JSON)["before"] == b"\xe9\xff"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (order(amount=3), "At $.amount: expected a union, written as {type: value} of int, shop.Amount, got a number"),
        (order(amount={"Amount": "MANY"}), "At $.amount: the union has no Amount"),
        (order(amount={"int": 3.0}), "At $.amount.int: expected int, a whole number, got a number"),
        (order(amount={"int": 2**31}), "At $.amount.int: 2147483648 does not fit int"),
        (order(amount={"int": True}), "At $.amount.int: expected int, a whole number, got a boolean"),
        (order(amount={"int": 1, "null": None}), "At $.amount: expected a union"),
        (order(amount={"shop.Amount": "FEW"}), "At $.amount.shop.Amount: 'FEW' is not a symbol of the enum"),
        (order(id=None), "At $.id: expected a string, got null"),
        (order(prices=[1, "2"]), "At $.prices[1]: expected long, a whole number, got a string"),
        (order(prices={}), "At $.prices: expected an array, got an object"),
        (order(code="abc"), "At $.code: expected 2 bytes, got 3"),
        (order(code="a€"), "At $.code: bytes have code points up to 255"),
        (order(tags={"x": "1"}), "At $.tags['x']: expected a number, got a string"),
        (order(more=1), "At $: there is no field more"),
        (b'{"id": "a"}', "At $: field amount is missing"),  # a default is for readers, it does not make it optional
        (b"[]", "At $: expected an object, got an array"),
        (b"{", "The message is not valid JSON"),
        (b'{"id": NaN}', "The message is not valid JSON"),
        (b"\xff", "The message is not valid JSON"),
        (b"", "The message is not valid JSON"),
    ],
)
def test_1_15_3_avro_json_that_does_not_follow_the_schema_is_refused_with_the_place(data: bytes, why: str) -> None:
    assert violation(avro(ORDER), data, JSON).startswith(why)


def test_1_15_3_avro_binary_is_one_whole_datum() -> None:
    schema = avro(ORDER)
    data = b"\x02a\x02\x06\x02\x02\x00ab\x02\x02x\x00\x00\x00\x00\x00\x00\xf0\x3f\x00\x12\x00"
    assert schema.decode(data, BINARY) == DATUM
    assert violation(schema, data[:-1], BINARY) == "The message ends before its schema does"
    assert violation(schema, data + b"\0", BINARY) == "Too much data to parse for schema"
    assert violation(schema, b"\x02a\x08", BINARY).startswith("The message is not valid Avro")
    assert violation(schema, b"", BINARY) == "The message ends before its schema does"


TREE = {"type": "record", "name": "Tree", "fields": [{"name": "left", "type": ["null", "Tree"]}]}
SCHEMAS = [
    ORDER,
    ["null", "string", {"type": "array", "items": ["boolean", "bytes"]}],
    {"type": "map", "values": {"type": "record", "name": "a.B", "fields": [{"name": "f", "type": "float"}]}},
]


@given(which=st.sampled_from(SCHEMAS), number=st.integers(0, 1000))
def test_what_fastavro_writes_is_read_back_the_same_in_both_encodings(which: Any, number: int) -> None:
    import random

    random.seed(number)
    schema, raw = avro(which), json.loads(json.dumps(which).replace('"logicalType"', '"was"'))
    parsed = fastavro.parse_schema(raw)
    datum = generate_one(parsed)
    binary, text = io.BytesIO(), io.StringIO()
    fastavro.schemaless_writer(binary, parsed, datum)
    fastavro.json_writer(text, parsed, [datum])
    read = schema.decode(binary.getvalue(), BINARY)
    as_binary = io.BytesIO()
    fastavro.schemaless_writer(as_binary, parsed, schema.decode(text.getvalue().encode(), JSON))
    assert binary.getvalue() == as_binary.getvalue()
    assert read == fastavro.schemaless_reader(io.BytesIO(binary.getvalue()), parsed, None)


def test_1_15_3_an_int_of_avro_has_32_bits_in_binary_too() -> None:
    fields = [{"name": "n", "type": "int"}, {"name": "m", "type": ["null", "int"]}]
    schema = avro({"type": "record", "name": "R", "fields": fields})
    schema.check(b"\xfe\xff\xff\xff\x0f\x02\xff\xff\xff\xff\x0f", BINARY)  # the largest, and the smallest
    assert "2147483648" in violation(schema, b"\x80\x80\x80\x80\x10\x00", BINARY)
    assert "2147483648" in violation(schema, b"\x00\x02\x80\x80\x80\x80\x10", BINARY)


@given(which=st.sampled_from(SCHEMAS), data=st.binary(max_size=60) | st.text(max_size=40).map(str.encode))
def test_whatever_the_bytes_are_they_follow_the_schema_or_violate_it(which: Any, data: bytes) -> None:
    for encoding in Encoding:
        with contextlib.suppress(SchemaViolation):
            avro(which).check(data, encoding)


@pytest.mark.parametrize(
    "definition",
    [
        "",
        "order",
        '"order"',
        "5",
        "[]",
        '["int", "int"]',
        '[["int"], "string"]',
        '{"type": "record", "fields": []}',
        '{"type": "record", "name": "1a", "fields": []}',
        '{"type": "record", "name": "a", "fields": 5}',
        '{"type": "record", "name": "a", "fields": [{"name": "x"}]}',
        '{"type": "record", "name": "a", "fields": [{"name": "x-y", "type": "int"}]}',
        '{"type": "record", "name": "a", "fields": [{"name": "x", "type": "int", "default": "none"}]}',
        '{"type": "record", "name": "a", "fields": [{"name": "x", "type": "int"}, {"name": "x", "type": "int"}]}',
        '{"type": "enum", "name": "a", "symbols": []}',
        '{"type": "enum", "name": "a", "symbols": ["x", "x"]}',
        '{"type": "fixed", "name": "a"}',
        '{"type": "fixed", "name": "a", "size": -1}',
        '{"type": "array"}',
        '{"type": "array", "items": "b"}',
        '{"type": "array", "items":' * 3000,
    ],
)
def test_1_15_1_what_avro_does_not_allow_is_no_definition(definition: str) -> None:
    with pytest.raises(InvalidSchema):
        avro(definition)


def test_data_nested_without_end_are_refused_and_do_not_end_the_process() -> None:
    schema = avro(TREE)
    assert violation(schema, b"\x02" * 1_000_000 + b"\0", BINARY) == "The message is nested too deeply"
    assert violation(schema, b'{"left":{"Tree":' * 5_000, JSON) == "The message is nested too deeply"


@pytest.mark.parametrize(
    "items",
    ["null", {"type": "fixed", "name": "F", "size": 0}, {"type": "record", "name": "R", "fields": []}],
)
def test_items_that_take_no_bytes_are_refused_since_five_bytes_would_be_any_number_of_them(items: Any) -> None:
    with pytest.raises(InvalidSchema, match="take no bytes"):
        avro({"type": "array", "items": items})


def test_a_definition_of_many_types_within_one_another_is_understood_in_no_time() -> None:
    fields = [{"name": "x", "type": "int"}]
    definition: Any = {"type": "record", "name": "R0", "fields": fields}
    for number in range(1, 60):  # each uses the one before twice: 2**60 ways through it
        uses = [{"name": "a", "type": definition}, {"name": "b", "type": f"R{number - 1}"}]
        definition = {"type": "record", "name": f"R{number}", "fields": uses}
    assert avro(definition)


# ── Protocol Buffers ────────────────────────────────────────────────────────────────────────────────────────────────

DEFINITION = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
message Order {
  enum Kind { NEW = 0; OLD = 1; }
  string id = 1;
  google.protobuf.Timestamp at = 2;
  Kind kind = 3;
  map<string, Order> parts = 4;
  repeated Order others = 5;
}
"""


@pytest.fixture(scope="module")
def protobuf_order() -> Schema:
    return proto(DEFINITION)


def test_1_15_3_protobuf_in_both_encodings(protobuf_order: Schema) -> None:
    data = b'{"id": "a", "at": "2026-01-02T03:04:05Z", "kind": "OLD", "parts": {"x": {"id": "b"}}}'
    datum = {"id": "a", "at": "2026-01-02T03:04:05Z", "kind": "OLD", "parts": {"x": {"id": "b"}}}
    assert datum == protobuf_order.decode(data, JSON)
    binary = b"\x0a\x01a\x12\x06\x08\xa5\xeb\xdc\xca\x06\x18\x01\x22\x08\x0a\x01x\x12\x03\x0a\x01b"
    assert datum == protobuf_order.decode(binary, BINARY)
    assert protobuf_order.decode(b"", BINARY) == {}


@pytest.mark.parametrize(
    ("data", "encoding", "why"),
    [
        (b'{"name": 1}', JSON, 'no field named "name"'),
        (b'{"id": 1}', JSON, "expected string"),
        (b'{"kind": "LOST"}', JSON, "Invalid enum value LOST"),
        (b"[]", JSON, "not a JSON object"),
        (b"", JSON, "not a JSON object"),
        (b'{"id": "\xff"}', JSON, "not valid JSON"),
        (b'{"others":' + b'[{"others":' * 500, JSON, ""),
        (b"\x0a\x05a", BINARY, "corrupt"),
        (b"\x0a\x01\xff", BINARY, "UTF-8"),
        (b"\x50\x01", BINARY, "The schema has no field 10 in shop.Order"),
        (b"\x2a\x02\x50\x01", BINARY, "The schema has no field 10 in shop.Order"),
        (b"\x22\x04\x12\x02\x50\x01", BINARY, "The schema has no field 10 in shop.Order"),
    ],
)
def test_1_15_3_protobuf_that_does_not_follow_the_schema_is_refused(
    protobuf_order: Schema, data: bytes, encoding: Encoding, why: str
) -> None:
    assert why in violation(protobuf_order, data, encoding)


def test_1_15_3_required_fields_of_proto2_must_be_there() -> None:
    schema = proto("message Order { required string id = 1; }")
    schema.check(b'{"id": "a"}', JSON)
    assert "id" in violation(schema, b"{}", JSON)
    assert "id" in violation(schema, b"", BINARY)


def test_a_time_that_is_none_cannot_be_decoded(protobuf_order: Schema) -> None:
    data = b"\x12\x06\x10\x80\x94\xeb\xdc\x03"  # 1,000,000,000 nanoseconds
    protobuf_order.check(data, BINARY)  # the format has no rule for it
    with pytest.raises(SchemaViolation, match="no JSON form"):
        protobuf_order.decode(data, BINARY)


@given(data=st.binary(max_size=60) | st.text(max_size=40).map(lambda text: f'{{"id":"{text}"}}'.encode()))
def test_whatever_the_bytes_are_they_follow_the_protobuf_schema_or_violate_it(
    protobuf_order: Schema, data: bytes
) -> None:
    for encoding in Encoding:
        with contextlib.suppress(SchemaViolation):
            protobuf_order.check(data, encoding)


@pytest.mark.parametrize(
    ("definition", "why"),
    [
        ("", "exactly one message at its top, not none"),
        ("message A {} message B {}", "exactly one message at its top, not A, B"),
        ('syntax = "proto3"; message A { string a = 1 }', r'schema.proto:1:45: Expected ";"'),
        ('import "other.proto"; message A {}', "other.proto"),
        ('import "google/protobuf/descriptor.proto"; message A {}', "well-known types only"),
        ('edition = "2023"; message A {}', "proto2 or proto3"),
    ],
)
def test_1_15_1_what_protobuf_schemas_may_not_be(definition: str, why: str) -> None:
    with pytest.raises(InvalidSchema, match=why):
        proto(definition)


def test_a_missing_compiler_is_told_and_is_nothing_to_try_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "grpc_tools", None)
    with pytest.raises(FailedPrecondition, match="install grpcio-tools"):
        proto("message A {}")


def test_a_compiler_that_does_not_come_to_an_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heliograph.wire.schemas.protoc.COMPILER_SECONDS_MAX", 0.001)
    with pytest.raises(Unavailable, match="TimeoutExpired"):
        proto("message A {}")


def test_1_15_1_a_compiled_definition_names_its_message_and_may_have_several_files() -> None:
    part = FileDescriptorProto(name="part.proto", package="shop", syntax="proto3")
    part.message_type.add(name="Part").field.add(name="number", number=1, type=5, label=1)
    whole = FileDescriptorProto(name="whole.proto", package="shop", syntax="proto3", dependency=["part.proto"])
    whole.message_type.add(name="Whole").field.add(name="part", number=1, type=11, type_name=".shop.Part", label=1)
    descriptors = FileDescriptorSet(file=[whole, part]).SerializeToString()
    assert ProtobufSchema(bundle("shop.Whole", descriptors)).decode(b'{"part": {"number": 3}}', JSON) == {
        "part": {"number": 3}
    }
    with pytest.raises(InvalidSchema, match=r"no message shop\.Other"):
        ProtobufSchema(bundle("shop.Other", descriptors))
    with pytest.raises(InvalidSchema, match=r"part\.proto is imported, but is not there"):
        ProtobufSchema(bundle("shop.Whole", FileDescriptorSet(file=[whole]).SerializeToString()))
    with pytest.raises(InvalidSchema):
        ProtobufSchema(bundle("shop.Whole", b"\xff\xff"))
    circle = FileDescriptorSet(file=[FileDescriptorProto(name="a", dependency=["a"])]).SerializeToString()
    with pytest.raises(InvalidSchema, match="imports itself"):
        ProtobufSchema(bundle("A", circle))
