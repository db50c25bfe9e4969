"""Schemas and the topics that have one, over gRPC (protocol 1.15, 1.4.9, 1.2.4)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import pubsub_v1
from google.pubsub_v1.types import Encoding, Schema, SchemaSettings
from grpc import StatusCode
from grpc_status import rpc_status

from heliograph.broker.broker import LocalBroker
from heliograph.server.app import Serving
from tests.server.clients import Failure, Http, Rpc
from tests.server.conftest import serving

AVRO = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}]}
WIDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "string"}, {"name": "n", "type": "int"}]}
PROTO = 'syntax = "proto3"; message Order { string id = 1; }'


@contextmanager
def refused(code: StatusCode, text: str = "") -> Iterator[list[Any]]:
    failure: list[Any] = []
    with pytest.raises(Failure) as raised:
        yield failure
    assert (code, text in raised.value.details()) == (raised.value.code(), True), raised.value.details()
    failure.append(raised.value)


@pytest.fixture
def schema(rpc: Rpc, project: str) -> Any:
    """An Avro schema with one revision."""
    return create(rpc, project)


def create(rpc: Rpc, project: str, schema_id: str = "order", definition: Any = AVRO, type_: str = "AVRO") -> Any:
    text = definition if isinstance(definition, str) else json.dumps(definition)
    return rpc("CreateSchema", parent=project, schema_id=schema_id, schema={"type_": type_, "definition": text})


def commit(rpc: Rpc, name: str, definition: Any = WIDER) -> Any:
    return rpc("CommitSchema", name=name, schema={"name": name, "type_": "AVRO", "definition": json.dumps(definition)})


def topic_with(rpc: Rpc, project: str, schema: str, encoding: str = "JSON", **settings: str) -> str:
    name = f"{project}/topics/orders"
    rpc.create_topic(name, schema_settings={"schema": schema, "encoding": encoding, **settings})
    rpc.create_subscription(f"{project}/subscriptions/orders", name)
    return name


def attributes(rpc: Rpc, project: str) -> list[dict[str, str]]:
    pulled = rpc.pull(f"{project}/subscriptions/orders")
    return [dict(one.message.attributes) for one in pulled]


# ── schemas ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_1_15_1_a_created_schema_has_a_revision_id_and_a_time(rpc: Rpc, schema: Any) -> None:
    assert len(schema.revision_id) == 8
    assert int(schema.revision_id, 16) >= 0
    assert schema.revision_create_time.seconds > 0
    assert json.loads(schema.definition) == AVRO
    assert schema == rpc("GetSchema", name=schema.name)


def test_1_15_1_a_name_is_taken_once(rpc: Rpc, project: str, schema: Any) -> None:
    with refused(StatusCode.ALREADY_EXISTS, "Resource already exists in the project (resource=order)."):
        create(rpc, project)


@pytest.mark.parametrize(
    "schema",
    [
        {"type_": "AVRO", "definition": "{"},
        {"type_": "AVRO"},
        {"type_": "PROTOCOL_BUFFER", "definition": "message {"},
        {"definition": '"string"'},
        {"type_": "AVRO", "definition": '"string"' + " " * 300 * 1024},
        {"type_": "AVRO", "compiled_proto_schema": {"root_message": "A", "compiled_bytes": b"x"}},
        {"type_": "PROTOCOL_BUFFER", "compiled_proto_schema": {"root_message": "A", "compiled_bytes": b"x"}},
        {"type_": "PROTOCOL_BUFFER", "compiled_proto_schema": {"compiled_bytes": b"x"}},
    ],
)
def test_1_15_1_and_1_15_3_an_invalid_definition_is_refused(rpc: Rpc, project: str, schema: dict[str, Any]) -> None:
    with refused(StatusCode.INVALID_ARGUMENT):
        rpc("ValidateSchema", parent=project, schema=schema)
    with refused(StatusCode.INVALID_ARGUMENT):
        rpc("CreateSchema", parent=project, schema_id="order", schema=schema)
    assert not rpc("ListSchemas", parent=project).schemas


@pytest.mark.parametrize("schema_id", ["", "ab", "1ab", "google", "a b c", "abc@def"])
def test_1_15_1_the_id_follows_the_rules_of_names(rpc: Rpc, project: str, schema_id: str) -> None:
    with refused(StatusCode.INVALID_ARGUMENT, "Invalid [schemas] name"):
        create(rpc, project, schema_id)


def test_1_15_1_a_compiled_protobuf_schema_is_given_back_compiled(rpc: Rpc, project: str) -> None:
    from google.protobuf import timestamp_pb2
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

    file = FileDescriptorProto.FromString(timestamp_pb2.DESCRIPTOR.serialized_pb)
    compiled = {
        "root_message": "google.protobuf.Timestamp",
        "compiled_bytes": FileDescriptorSet(file=[file]).SerializeToString(),
    }
    schema = {"type_": "PROTOCOL_BUFFER", "compiled_proto_schema": compiled}
    name = rpc("CreateSchema", parent=project, schema_id="compiled", schema=schema).name
    kept = rpc("GetSchema", name=name)
    assert compiled == {
        "root_message": kept.compiled_proto_schema.root_message,
        "compiled_bytes": kept.compiled_proto_schema.compiled_bytes,
    }
    assert not kept.definition
    rpc("ValidateMessage", parent=project, name=name, message=b"\x08\x01", encoding="BINARY")


def test_1_15_2_lists_are_basic_unless_told_otherwise_and_come_in_pages(rpc: Rpc, project: str, schema: Any) -> None:
    create(rpc, project, "another")
    listed = rpc("ListSchemas", parent=project).schemas
    assert [(one.name.rpartition("/")[2], one.definition) for one in listed] == [("another", ""), ("order", "")]
    assert all(one.revision_id and one.type_ for one in listed)
    full = rpc("ListSchemas", parent=project, view="FULL", page_size=1)
    assert json.loads(full.schemas[0].definition) == AVRO
    rest = rpc("ListSchemas", parent=project, page_token=full.next_page_token)
    assert [schema.name] == [one.name for one in rest.schemas]
    assert not rest.next_page_token


def test_1_15_2_get_takes_a_revision_and_a_view(rpc: Rpc, schema: Any) -> None:
    newer = commit(rpc, schema.name)
    assert newer == rpc("GetSchema", name=schema.name)
    assert schema == rpc("GetSchema", name=f"{schema.name}@{schema.revision_id}")
    basic = rpc("GetSchema", name=schema.name, view="BASIC")
    assert ("", newer.revision_id) == (basic.definition, basic.revision_id)
    with refused(StatusCode.NOT_FOUND, "Resource not found (resource=order@00000000)."):
        rpc("GetSchema", name=f"{schema.name}@00000000")
    with refused(StatusCode.NOT_FOUND, "Resource not found (resource=other)."):
        rpc("GetSchema", name=schema.name.replace("order", "other"))
    for wrong in (f"{schema.name}@", schema.name.replace("schemas", "topics"), "order"):
        with refused(StatusCode.INVALID_ARGUMENT, "Invalid resource name given"):
            rpc("GetSchema", name=wrong)


def test_1_15_2_revisions_are_listed_newest_first_and_in_pages(rpc: Rpc, schema: Any) -> None:
    ids = [commit(rpc, schema.name).revision_id for _ in range(4)]
    newest_first = [*reversed(ids), schema.revision_id]
    page = rpc("ListSchemaRevisions", name=schema.name, page_size=2)
    assert newest_first[:2] == [one.revision_id for one in page.schemas]
    commit(rpc, schema.name)  # does not move the second page
    page = rpc("ListSchemaRevisions", name=schema.name, page_size=2, page_token=page.next_page_token)
    assert newest_first[2:4] == [one.revision_id for one in page.schemas]
    page = rpc("ListSchemaRevisions", name=schema.name, view="FULL", page_token=page.next_page_token)
    assert [schema] == list(page.schemas)


def test_a_page_is_no_larger_than_clients_receive(rpc: Rpc, schema: Any) -> None:
    long = AVRO | {"doc": "x" * 290_000}
    ids = [commit(rpc, schema.name, long).revision_id for _ in range(15)]
    listed: list[str] = []
    token = ""
    while token or not listed:
        page = rpc("ListSchemaRevisions", name=schema.name, view="FULL", page_token=token)
        listed += [one.revision_id for one in page.schemas]
        token = page.next_page_token
    assert listed == [*reversed(ids), schema.revision_id]


def test_1_15_2_a_commit_keeps_the_type_and_a_rollback_brings_an_old_definition_back(rpc: Rpc, schema: Any) -> None:
    newer = commit(rpc, schema.name)
    assert newer.revision_id != schema.revision_id
    with refused(StatusCode.INVALID_ARGUMENT, "of type AVRO"):
        rpc("CommitSchema", name=schema.name, schema={"type_": "PROTOCOL_BUFFER", "definition": PROTO})
    back = rpc("RollbackSchema", name=schema.name, revision_id=schema.revision_id)
    assert back.definition == schema.definition
    assert back.revision_id not in (schema.revision_id, newer.revision_id)
    assert back == rpc("GetSchema", name=schema.name)
    with refused(StatusCode.NOT_FOUND):
        rpc("RollbackSchema", name=schema.name, revision_id="00000000")
    with refused(StatusCode.INVALID_ARGUMENT):
        rpc("RollbackSchema", name=schema.name)


def test_1_15_1_a_schema_has_at_most_twenty_revisions(rpc: Rpc, schema: Any) -> None:
    for _ in range(19):
        last = commit(rpc, schema.name)
    with refused(StatusCode.RESOURCE_EXHAUSTED, "at most 20 revisions"):
        commit(rpc, schema.name)
    rpc("DeleteSchemaRevision", name=f"{schema.name}@{schema.revision_id}")
    assert commit(rpc, schema.name).revision_id != last.revision_id


def test_1_15_2_a_revision_can_be_deleted_but_not_the_only_one(rpc: Rpc, schema: Any) -> None:
    newer = commit(rpc, schema.name)
    left = rpc("DeleteSchemaRevision", name=f"{schema.name}@{newer.revision_id}")
    assert schema == left
    assert [schema.revision_id] == [one.revision_id for one in rpc("ListSchemaRevisions", name=schema.name).schemas]
    with refused(StatusCode.FAILED_PRECONDITION, "only revision"):
        rpc("DeleteSchemaRevision", name=f"{schema.name}@{schema.revision_id}")
    with refused(StatusCode.NOT_FOUND):
        rpc("DeleteSchemaRevision", name=schema.name, revision_id=newer.revision_id)
    with refused(StatusCode.INVALID_ARGUMENT, "SCHEMA@REVISION"):
        rpc("DeleteSchemaRevision", name=schema.name)


def test_1_15_2_a_deleted_schema_is_gone(rpc: Rpc, schema: Any) -> None:
    rpc("DeleteSchema", name=schema.name)
    for method in ("GetSchema", "DeleteSchema", "ListSchemaRevisions"):
        with refused(StatusCode.NOT_FOUND):
            rpc(method, name=schema.name)


def test_a_schema_that_takes_the_name_of_a_deleted_one_has_none_of_its_policies(
    rpc: Rpc, project: str, schema: Any
) -> None:
    policy = {"bindings": [{"role": "roles/owner", "members": ["user:a@example.com"]}]}
    rpc("SetIamPolicy", resource=schema.name, policy=policy)
    rpc("DeleteSchema", name=schema.name)
    create(rpc, project)
    assert not rpc("GetIamPolicy", resource=schema.name).bindings


@pytest.mark.parametrize(
    ("type_", "definition", "encoding", "good", "bad", "reason"),
    [
        ("AVRO", json.dumps(AVRO), "JSON", b'{"id":"a"}', b'{"id":1}', "INVALID_JSON_AVRO_MESSAGE"),
        ("AVRO", json.dumps(AVRO), "BINARY", b"\x02a", b"\x02ab", "INVALID_BINARY_AVRO_MESSAGE"),
        ("PROTOCOL_BUFFER", PROTO, "JSON", b'{"id":"a"}', b'{"i":1}', "INVALID_JSON_PROTO_MESSAGE"),
        ("PROTOCOL_BUFFER", PROTO, "BINARY", b"\x0a\x01a", b"\x0a", "INVALID_BINARY_PROTO_MESSAGE"),
    ],
)
def test_1_15_3_a_message_is_validated_against_a_name_or_a_schema_that_comes_along(
    rpc: Rpc, project: str, type_: str, definition: str, encoding: str, good: bytes, bad: bytes, reason: str
) -> None:
    name = create(rpc, project, definition=definition, type_=type_).name
    for spec in ({"name": name}, {"schema": {"type_": type_, "definition": definition}}):
        rpc("ValidateMessage", parent=project, message=good, encoding=encoding, **spec)
        with refused(StatusCode.INVALID_ARGUMENT, "Message failed schema validation.") as failure:
            rpc("ValidateMessage", parent=project, message=bad, encoding=encoding, **spec)
        assert error_info(failure[0])[0] == reason


def error_info(failure: Any) -> tuple[str, dict[str, str]]:
    from google.rpc.error_details_pb2 import ErrorInfo

    info = ErrorInfo()
    assert rpc_status.from_call(failure).details[0].Unpack(info)
    return info.reason, dict(info.metadata)


def test_1_15_3_a_validation_needs_something_to_validate_with(rpc: Rpc, project: str, schema: Any) -> None:
    with refused(StatusCode.INVALID_ARGUMENT, "encoding must be"):
        rpc("ValidateMessage", parent=project, name=schema.name, message=b"{}")
    with refused(StatusCode.INVALID_ARGUMENT, "neither is set"):
        rpc("ValidateMessage", parent=project, message=b"{}", encoding="JSON")
    with refused(StatusCode.NOT_FOUND):
        rpc("ValidateMessage", parent=project, name=f"{schema.name}x", message=b"{}", encoding="JSON")


# ── topics that have one ────────────────────────────────────────────────────────────────────────────────────────────


def test_1_4_9_what_follows_the_schema_is_delivered_with_its_attributes(rpc: Rpc, project: str, schema: Any) -> None:
    topic = topic_with(rpc, project, schema.name)
    rpc.publish(topic, b'{"id": "a"}', attributes={"own": "1"})
    assert attributes(rpc, project) == [
        {
            "own": "1",
            "googclient_schemaencoding": "JSON",
            "googclient_schemarevisionid": schema.revision_id,
            "googclient_schemaname": schema.name,
        }
    ]


def test_1_4_9_one_message_that_does_not_follow_it_and_nothing_is_published(
    rpc: Rpc, project: str, schema: Any
) -> None:
    topic = topic_with(rpc, project, schema.name)
    with refused(StatusCode.INVALID_ARGUMENT, "Invalid data in message: Message failed schema validation.") as failure:
        rpc.publish(topic, b'{"id": "a"}', b'{"id": 1}')
    reason, metadata = error_info(failure[0])
    assert reason == "INVALID_JSON_AVRO_MESSAGE"
    assert metadata["revisionInfo"] == (
        f"Could not validate message with any schema revision for schema: {schema.name}, last checked revision: "
        f"revision_id={schema.revision_id} failed with status: At $.id: expected a string, got a number"
    )
    assert attributes(rpc, project) == []


def test_1_4_9_many_megabytes_are_checked_as_well(rpc: Rpc, project: str, schema: Any) -> None:
    topic = topic_with(rpc, project, schema.name)
    large = json.dumps({"id": "a" * 100_000}).encode()
    rpc.publish(topic, *[large] * 5)
    with refused(StatusCode.INVALID_ARGUMENT, "Message failed schema validation."):
        rpc.publish(topic, *[large] * 5, large[:-1])
    assert len(attributes(rpc, project)) == 5


def test_1_4_9_the_attributes_of_the_schema_are_the_servers_own(rpc: Rpc, project: str, schema: Any) -> None:
    topic = topic_with(rpc, project, schema.name)
    with refused(StatusCode.INVALID_ARGUMENT):
        rpc.publish(topic, b'{"id": "a"}', attributes={"googclient_schemaname": "mine"})
    rpc.publish(topic, b'{"id": "a"}', attributes={f"key{number}": "x" for number in range(100)})
    assert [len(one) for one in attributes(rpc, project)] == [103]


def test_1_10_2_a_message_with_a_schema_keeps_its_attributes_as_a_dead_letter(
    rpc: Rpc, project: str, schema: Any
) -> None:
    dead = f"{project}/topics/dead"
    rpc.create_topic(dead)
    rpc.create_subscription(f"{project}/subscriptions/dead", dead)
    topic = topic_with(rpc, project, schema.name)
    name = f"{project}/subscriptions/strict"
    policy = {"dead_letter_topic": dead, "max_delivery_attempts": 5}
    rpc.create_subscription(name, topic, dead_letter_policy=policy)
    rpc.publish(topic, b'{"id": "a"}')
    for _ in range(5):
        rpc.nack(name, *[one.ack_id for one in rpc.pull(name)])
    (letter,) = rpc.pull(f"{project}/subscriptions/dead")
    assert letter.message.attributes["googclient_schemaname"] == schema.name
    assert letter.message.attributes["CloudPubSubDeadLetterSourceDeliveryCount"] == "5"


def test_1_15_4_any_revision_will_do_the_newest_is_tried_first(rpc: Rpc, project: str, schema: Any) -> None:
    topic = topic_with(rpc, project, schema.name)
    newer = commit(rpc, schema.name)
    rpc.publish(topic, b'{"id": "a"}', b'{"id": "a", "n": 1}')
    used = [one["googclient_schemarevisionid"] for one in attributes(rpc, project)]
    assert [schema.revision_id, newer.revision_id] == used
    again = rpc("RollbackSchema", name=schema.name, revision_id=schema.revision_id)
    rpc.publish(topic, b'{"id": "a"}')
    assert [again.revision_id] == [one["googclient_schemarevisionid"] for one in attributes(rpc, project)]


def test_1_15_4_only_revisions_within_the_topics_range_count(rpc: Rpc, project: str, schema: Any) -> None:
    middle = commit(rpc, schema.name)
    last = rpc("RollbackSchema", name=schema.name, revision_id=schema.revision_id)
    ids = {"first_revision_id": middle.revision_id, "last_revision_id": middle.revision_id}
    topic = topic_with(rpc, project, schema.name, **ids)
    rpc.publish(topic, b'{"id": "a", "n": 1}')
    with refused(StatusCode.INVALID_ARGUMENT):
        rpc.publish(topic, b'{"id": "a"}')
    rpc("DeleteSchemaRevision", name=f"{schema.name}@{middle.revision_id}")
    with refused(StatusCode.INVALID_ARGUMENT, "allows no revision"):
        rpc.publish(topic, b'{"id": "a", "n": 1}')
    settings = {"schema": schema.name, "encoding": "JSON"}
    backwards = settings | {"first_revision_id": last.revision_id, "last_revision_id": schema.revision_id}
    with refused(StatusCode.INVALID_ARGUMENT, "must not be newer"):
        rpc.create_topic(f"{project}/topics/backwards", schema_settings=backwards)


def test_1_15_4_the_range_of_a_topic_does_not_widen_when_its_bounds_are_deleted(
    rpc: Rpc, project: str, schema: Any
) -> None:
    last = commit(rpc, schema.name)
    topic = topic_with(rpc, project, schema.name, first_revision_id=last.revision_id, last_revision_id=last.revision_id)
    rpc("DeleteSchemaRevision", name=f"{schema.name}@{last.revision_id}")
    assert rpc("GetSchema", name=schema.name).revision_id == schema.revision_id
    with refused(StatusCode.INVALID_ARGUMENT, "allows no revision"):
        rpc.publish(topic, b'{"id": "a"}')  # follows the revision before the range
    commit(rpc, schema.name)
    with refused(StatusCode.INVALID_ARGUMENT, "allows no revision"):
        rpc.publish(topic, b'{"id": "a", "n": 1}')  # follows the one behind it


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"schema": "order", "encoding": "JSON"}, StatusCode.INVALID_ARGUMENT),
        ({"schema": "{project}/schemas/none", "encoding": "JSON"}, StatusCode.NOT_FOUND),
        ({"schema": "{project}/schemas/order"}, StatusCode.INVALID_ARGUMENT),
        ({"schema": "_deleted-schema_", "encoding": "JSON"}, StatusCode.INVALID_ARGUMENT),
        (
            {"schema": "{project}/schemas/order", "encoding": "JSON", "last_revision_id": "00000000"},
            StatusCode.NOT_FOUND,
        ),
    ],
)
def test_1_3_2_schema_settings_name_a_schema_that_exists_and_an_encoding(
    rpc: Rpc, project: str, schema: Any, settings: dict[str, str], code: StatusCode
) -> None:
    settings = {key: value.replace("{project}", project) for key, value in settings.items()}
    with refused(code):
        rpc.create_topic(f"{project}/topics/orders", schema_settings=settings)


def test_1_2_4_the_topic_of_a_deleted_schema_says_so_and_takes_nothing_more(
    rpc: Rpc, project: str, schema: Any
) -> None:
    topic = topic_with(rpc, project, schema.name)
    rpc.publish(topic, b'{"id": "a"}')
    rpc("DeleteSchema", name=schema.name)
    assert rpc("GetTopic", topic=topic).schema_settings.schema == "_deleted-schema_"
    with refused(StatusCode.INVALID_ARGUMENT, "was deleted"):
        rpc.publish(topic, b'{"id": "a"}')
    create(rpc, project)  # another one of that name
    with refused(StatusCode.INVALID_ARGUMENT, "was deleted"):
        rpc.publish(topic, b'{"id": "a"}')
    assert [schema.name] == [one["googclient_schemaname"] for one in attributes(rpc, project)]


def test_1_3_4_a_topic_gets_a_schema_other_revisions_of_it_and_none_again(rpc: Rpc, project: str, schema: Any) -> None:
    topic = f"{project}/topics/orders"
    rpc.create_topic(topic)
    rpc.create_subscription(f"{project}/subscriptions/orders", topic)
    rpc.publish(topic, b"anything")

    def update(*paths: str, **settings: str) -> None:
        changed = {"name": topic} | ({"schema_settings": settings} if settings else {})
        rpc("UpdateTopic", topic=changed, update_mask={"paths": paths})

    update("schema_settings", schema=schema.name, encoding="JSON")
    with refused(StatusCode.INVALID_ARGUMENT):
        rpc.publish(topic, b"anything")
    newer = commit(rpc, schema.name)
    rpc.publish(topic, b'{"id": "a"}')
    update("schema_settings.first_revision_id", first_revision_id=newer.revision_id)
    with refused(StatusCode.INVALID_ARGUMENT):
        rpc.publish(topic, b'{"id": "a"}')
    with refused(StatusCode.NOT_FOUND):
        update("schema_settings.first_revision_id", first_revision_id="00000000")
    rpc("DeleteSchema", name=schema.name)
    rpc("UpdateTopic", topic={"name": topic, "labels": {"a": "b"}}, update_mask={"paths": ["labels"]})
    assert rpc("GetTopic", topic=topic).schema_settings.schema == "_deleted-schema_"
    update("schema_settings")
    rpc.publish(topic, b"anything")


def test_schemas_and_the_topics_that_have_them_survive_a_restart(tmp_path: Path) -> None:
    project = "projects/p"
    with serving(LocalBroker.open(tmp_path)) as up, Rpc(up.port) as rpc:
        avro = commit(rpc, create(rpc, project).name)
        create(rpc, project, "compiled", PROTO, "PROTOCOL_BUFFER")
        topic = topic_with(rpc, project, f"{project}/schemas/compiled", "BINARY")
    with serving(LocalBroker.open(tmp_path)) as up, Rpc(up.port) as rpc:
        assert avro == rpc("GetSchema", name=avro.name)
        assert len(rpc("ListSchemaRevisions", name=avro.name).schemas) == 2
        with refused(StatusCode.INVALID_ARGUMENT):
            rpc.publish(topic, b"\x0a")
        rpc.publish(topic, b"\x0a\x01a")
        assert [one["googclient_schemaencoding"] for one in attributes(rpc, project)] == ["BINARY"]


def test_schemas_over_rest(http: Http, project: str) -> None:
    url = f"/v1/{project}/schemas"
    schema = json.dumps({"type": "AVRO", "definition": json.dumps(AVRO)}).encode()
    created = http.request("POST", f"{url}?schemaId=order", schema).body
    assert (created["name"], created["type"]) == (f"{project}/schemas/order", "AVRO")
    assert created == http.request("GET", f"{url}/order").body
    commit = json.dumps({"schema": {"type": "AVRO", "definition": json.dumps(WIDER)}}).encode()
    newer = http.request("POST", f"{url}/order:commit", commit).body["revisionId"]
    listed = http.request("GET", f"{url}/order:listRevisions").body["schemas"]
    assert [one["revisionId"] for one in listed] == [newer, created["revisionId"]]
    message = {"name": created["name"], "encoding": "JSON", "message": "eyJpZCI6MX0="}
    answer = http.request("POST", f"{url}:validateMessage", json.dumps(message).encode())
    assert answer.status == 400
    assert answer.body["error"]["details"][0]["reason"] == "INVALID_JSON_AVRO_MESSAGE"
    assert http.request("DELETE", f"{url}/order@{newer}:deleteRevision").body["revisionId"] == created["revisionId"]
    assert http.request("DELETE", f"{url}/order").status == 200
    assert http.request("GET", f"{url}/order").status == 404


# ── the official client ─────────────────────────────────────────────────────────────────────────────────────────────


def test_the_official_python_client_works_with_schemas_unmodified(server: Serving, project: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PUBSUB_EMULATOR_HOST", f"127.0.0.1:{server.port}")
        publisher = pubsub_v1.PublisherClient()
        client = pubsub_v1.SchemaServiceClient()
    name = client.schema_path(project.removeprefix("projects/"), "order")
    definition = json.dumps(AVRO)
    schema = Schema(name=name, type_=Schema.Type.AVRO, definition=definition)
    first = client.create_schema(request={"parent": project, "schema": schema, "schema_id": "order"})
    assert (name, definition) == (first.name, first.definition)
    client.validate_schema(request={"parent": project, "schema": schema})
    wider = Schema(name=name, type_=Schema.Type.AVRO, definition=json.dumps(WIDER))
    second = client.commit_schema(request={"schema": wider, "name": name})
    third = client.rollback_schema(request={"name": name, "revision_id": first.revision_id})
    listed = [one.revision_id for one in client.list_schema_revisions(request={"name": name})]
    assert [third.revision_id, second.revision_id, first.revision_id] == listed
    client.validate_message(request={"parent": project, "name": name, "message": b'{"id":"a"}', "encoding": "JSON"})
    with pytest.raises(exceptions.InvalidArgument):
        client.validate_message(request={"parent": project, "name": name, "message": b"{}", "encoding": "JSON"})

    topic = f"{project}/topics/orders"
    settings = SchemaSettings(schema=name, encoding=Encoding.JSON)
    publisher.create_topic(request={"name": topic, "schema_settings": settings})
    assert publisher.publish(topic, b'{"id":"a"}').result(30)
    with pytest.raises(exceptions.InvalidArgument) as raised:
        publisher.publish(topic, b'{"id":5}').result(30)
    assert raised.value.reason == "INVALID_JSON_AVRO_MESSAGE"
    publisher.stop()

    assert [one.definition for one in client.list_schemas(request={"parent": project})] == [""]
    client.delete_schema_revision(request={"name": f"{name}@{second.revision_id}"})
    client.delete_schema(request={"name": name})
    with pytest.raises(exceptions.NotFound):
        client.get_schema(request={"name": name})
    client.transport.close()
