"""What refining makes of a message's data, whatever is in it."""

from __future__ import annotations

import json

import pytest

from heliograph.errors import InvalidArgument
from heliograph.spark.pipeline.parsing import Definition, Parsed, Parser
from heliograph.spark.pipeline.refine import unique_key
from heliograph.wire.schemas.schema import SchemaType, compile_schema

AVRO = json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]})
PROTO = 'syntax = "proto3"; message R { int32 n = 1; }'
HELD = {
    "googclient_schemaname": "projects/p/schemas/s",
    "googclient_schemarevisionid": "0a",
    "googclient_schemaencoding": "BINARY",
}


def test_without_a_schema_data_are_json() -> None:
    assert Parser({}).parse(b'{"n": [1, null]}', {}) == Parsed("", '{"n": [1, null]}')


def test_a_message_of_attributes_alone_has_no_value_and_is_not_wrong() -> None:
    assert Parser({}).parse(b"", {"a": "1"}) == Parsed("")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"{", "not_json"),
        (b'{"n": 1} x', "not_json"),
        (b"NaN", "not_json"),
        (b"[" * 5000 + b"]" * 5000, "not_json"),
        (b"\xff\xfe", "not_utf8"),
    ],
)
def test_what_is_not_json_is_told_by_its_reason(data: bytes, reason: str) -> None:
    parsed = Parser({}).parse(data, {})
    assert (parsed.reason, parsed.json) == (reason, None)
    assert parsed.error


def test_a_message_is_read_by_the_revision_that_it_was_published_under() -> None:
    definition = Definition("s@0a", "PROTOCOL_BUFFER", compile_schema(SchemaType.PROTOCOL_BUFFER, PROTO))
    parser = Parser({"projects/p/schemas/s@0a": definition})
    assert parser.parse(b"\x08\x07", HELD) == Parsed("s@0a", '{"n":7}')
    assert parser.parse(b"\x08", HELD).reason == "schema_violation"
    assert parser.parse(b"\x08\x07", HELD | {"googclient_schemarevisionid": "0b"}).reason == "schema_unknown"


def test_a_revision_in_the_middle_changes_how_later_messages_are_read() -> None:
    later = 'syntax = "proto3"; message R { string n = 1; int32 m = 2; }'
    definitions = {
        f"projects/p/schemas/s@{revision}": Definition(
            f"s@{revision}", "PROTOCOL_BUFFER", compile_schema(SchemaType.PROTOCOL_BUFFER, text)
        )
        for revision, text in (("0a", PROTO), ("0b", later))
    }
    parser = Parser(definitions)
    by_later = HELD | {"googclient_schemarevisionid": "0b"}
    found = [
        parser.parse(b"\x08\x07", HELD),
        parser.parse(b"\x0a\x01x\x10\x02", by_later),
        parser.parse(b'{"n": "y"}', by_later | {"googclient_schemaencoding": "JSON"}),
        parser.parse(b"\x08\x08", HELD),
    ]
    assert [(each.schema, each.json) for each in found] == [
        ("s@0a", '{"n":7}'),
        ("s@0b", '{"n":"x","m":2}'),
        ("s@0b", '{"n":"y"}'),
        ("s@0a", '{"n":8}'),
    ]


def test_an_encoding_that_there_is_not_puts_the_message_aside() -> None:
    definition = Definition("s@0a", "PROTOCOL_BUFFER", compile_schema(SchemaType.PROTOCOL_BUFFER, PROTO))
    parser = Parser({"projects/p/schemas/s@0a": definition})
    assert parser.parse(b"\x08\x07", HELD | {"googclient_schemaencoding": "XML"}).reason == "schema_violation"


def test_what_a_chosen_schema_forbids_is_told_with_the_place() -> None:
    parser = Parser({"": Definition("r.avsc", "AVRO", AVRO)})
    assert parser.parse(b'{"n": 7}', {}) == Parsed("r.avsc", '{"n":7}')
    wrong = parser.parse(b'{"n": "seven"}', {})
    assert wrong.reason == "schema_violation"
    assert "$.n" in wrong.error


def test_a_schema_that_is_gone_or_broken_puts_its_messages_aside() -> None:
    for readable in ("", "{"):
        parser = Parser({"": Definition("s", "AVRO", readable)})
        assert parser.parse(b'{"n": 7}', {}).reason == "schema_unknown"


def test_duplicates_are_told_by_what_the_user_names() -> None:
    assert unique_key("value.flight.row") == "try_variant_get(value, '$.flight.row', 'STRING')"
    assert unique_key("attributes.it's") == "attributes['it\\'s']"
    for wrong in ("", "row", "value.", "attributes"):
        with pytest.raises(InvalidArgument):
            unique_key(wrong)
