"""gRPC server reflection, asked as grpcurl and gRPC's own client ask."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf import descriptor_pool, message_factory
from grpc_reflection.v1alpha import reflection_pb2 as proto
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.server.clients import METHODS, Rpc

VERSIONS = ["v1", "v1alpha"]


def ask(rpc: Rpc, version: str, **asked: Any) -> Any:
    stream = rpc.channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=lambda request: request.SerializeToString(),
        response_deserializer=proto.ServerReflectionResponse.FromString,
    )
    (response,) = stream(iter([proto.ServerReflectionRequest(**asked)]), timeout=30)
    return response


@pytest.mark.parametrize("version", VERSIONS)
def test_every_service_is_listed(rpc: Rpc, version: str) -> None:
    listed = {service.name for service in ask(rpc, version, list_services="").list_services_response.service}
    assert listed == {path.split("/")[1] for path, _ in METHODS.values()} | {
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    }


def test_a_client_that_knows_nothing_can_describe_and_call_every_service(rpc: Rpc, topic: str) -> None:
    database = ProtoReflectionDescriptorDatabase(rpc.channel)
    pool = descriptor_pool.DescriptorPool(database)
    described = {
        f"/{service}/{method.name}": (method.input_type.full_name, method.output_type.full_name)
        for service in database.get_services()
        for method in pool.FindServiceByName(service).methods
    }
    for path, method in METHODS.values():
        assert described[path] == (
            method.request_class.DESCRIPTOR.full_name,
            method.response_class.DESCRIPTOR.full_name,
        )
    get = pool.FindServiceByName("google.pubsub.v1.Publisher").methods_by_name["GetTopic"]
    request = message_factory.GetMessageClass(get.input_type)(topic=topic)
    call = rpc.channel.unary_unary(
        "/google.pubsub.v1.Publisher/GetTopic",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=message_factory.GetMessageClass(get.output_type).FromString,
    )
    assert call(request, timeout=30).name == topic


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    "asked",
    [
        {"file_containing_symbol": "google.pubsub.v1.Publisher.Publish"},
        {"file_containing_symbol": "grpc.reflection.v1.ServerReflectionRequest"},
        {"file_by_filename": "google/protobuf/duration.proto"},
        {"file_containing_symbol": "google.pubsub.v1.Topic"},
    ],
)
def test_a_file_is_found_by_name_and_by_symbol(rpc: Rpc, version: str, asked: dict[str, str]) -> None:
    assert len(ask(rpc, version, **asked).file_descriptor_response.file_descriptor_proto) == 1


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"file_containing_symbol": "no.such.Thing"}, 5),
        ({"file_by_filename": "no_such.proto"}, 5),
        ({"file_containing_extension": {"containing_type": "google.pubsub.v1.Topic", "extension_number": 7}}, 5),
        ({"all_extension_numbers_of_type": "no.such.Thing"}, 5),
        ({}, 3),
    ],
)
def test_what_cannot_be_answered_is_an_error_of_the_answer_alone(rpc: Rpc, asked: dict[str, Any], code: int) -> None:
    assert ask(rpc, "v1", **asked).error_response.error_code == code


def test_extensions_of_a_message_are_listed(rpc: Rpc) -> None:
    response = ask(rpc, "v1", all_extension_numbers_of_type="google.pubsub.v1.Topic")
    assert list(response.all_extension_numbers_response.extension_number) == []
