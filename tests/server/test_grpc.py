"""gRPC itself, spoken as ASGI: statuses, compression, cancellation, health."""

from __future__ import annotations

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from heliograph.broker.broker import LocalBroker
from heliograph.server.app import Serving
from heliograph.server.grpc.call import _timeout_seconds
from heliograph.server.grpc.status import RpcError, trailers
from tests.server.clients import Failure, Rpc
from tests.server.conftest import serving

SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def raw(rpc: Rpc, path: str, request: bytes = b"", timeout: float = 5) -> bytes:
    call = rpc.channel.unary_unary(path, request_serializer=bytes, response_deserializer=bytes)
    response: bytes = call(request, timeout=timeout)
    return response


def test_1_1_an_unknown_method_is_unimplemented(rpc: Rpc) -> None:
    with pytest.raises(Failure) as raised:
        raw(rpc, "/google.pubsub.v1.Publisher/Nothing")
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert raised.value.details() == "Method not found: /google.pubsub.v1.Publisher/Nothing"


def test_1_1_8_a_request_that_is_not_protobuf_has_a_code_that_clients_do_not_retry(rpc: Rpc) -> None:
    with pytest.raises(Failure) as raised:
        raw(rpc, "/google.pubsub.v1.Publisher/GetTopic", b"\xff\xff")
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_1_1_8_a_request_beyond_every_limit_has_a_code_that_clients_do_not_retry(rpc: Rpc) -> None:
    with pytest.raises(Failure) as raised:
        raw(rpc, "/google.pubsub.v1.Publisher/Publish", bytes(21 * 1024 * 1024))
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_compressed_requests_are_understood(server: Serving, topic: str, subscription: str) -> None:
    with Rpc(server.port, **{"grpc.default_compression_algorithm": grpc.Compression.Gzip.value}) as rpc:
        rpc.publish(topic, b"x" * 100_000)
        assert [len(one.message.data) for one in rpc.pull(subscription)] == [100_000]


def test_error_texts_survive_whatever_characters_they_have(rpc: Rpc) -> None:
    with pytest.raises(Failure) as raised:
        rpc("GetTopic", topic="projects/p/topics/§ %41\n")
    assert "(name=projects/p/topics/§ %41\n)" in raised.value.details()


def test_a_long_error_text_is_cut_and_the_status_arrives(rpc: Rpc) -> None:
    with pytest.raises(Failure) as raised:
        rpc("GetTopic", topic="projects/p/topics/" + "ä" * 50_000)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def status_of(rpc: Rpc, service: str = "") -> int:
    stub = health_pb2_grpc.HealthStub(rpc.channel)
    return int(stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=30).status)


def test_health_of_the_server_and_of_its_services(rpc: Rpc) -> None:
    for service in ("", "google.pubsub.v1.Publisher", "google.pubsub.v1.Subscriber"):
        assert status_of(rpc, service) == SERVING


def test_a_broker_that_cannot_work_serves_nothing() -> None:
    broker = LocalBroker()
    with serving(broker) as server, Rpc(server.port) as rpc:
        broker.close()
        assert status_of(rpc) == NOT_SERVING


def test_health_of_an_unknown_service_is_not_found(rpc: Rpc) -> None:
    with pytest.raises(Failure) as raised:
        status_of(rpc, "nobody")
    assert raised.value.code() is grpc.StatusCode.NOT_FOUND


def test_health_can_be_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heliograph.server.grpc.health.LOOK_SECONDS", 0.01)
    broker = LocalBroker()
    with serving(broker) as server, Rpc(server.port) as rpc:
        watch = health_pb2_grpc.HealthStub(rpc.channel).Watch(health_pb2.HealthCheckRequest(), timeout=30)
        assert next(watch).status == SERVING
        broker.close()
        assert next(watch).status == NOT_SERVING
        server.stop()
        with pytest.raises(Failure) as raised:
            next(watch)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


def test_the_health_of_an_unknown_service_is_watched_as_such(rpc: Rpc) -> None:
    watch = health_pb2_grpc.HealthStub(rpc.channel).Watch(health_pb2.HealthCheckRequest(service="nobody"), timeout=30)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watch.cancel()


@pytest.mark.parametrize(
    ("header", "seconds"),
    [(b"5S", 5.0), (b"250m", 0.25), (b"2H", 7200.0), (b"1000000u", 1.0), (b"", None), (b"5", None), (b"xS", None)],
)
def test_timeouts_of_every_unit(header: bytes, seconds: float | None) -> None:
    assert _timeout_seconds(header) == seconds


def test_details_are_a_google_rpc_status_in_base64_without_padding() -> None:
    import base64

    from google.rpc.status_pb2 import Status

    headers = dict(trailers(RpcError(3, "wrong ä", [("type.googleapis.com/x", b"one"), ("y", b"")])))
    assert headers[b"grpc-status"] == b"3"
    assert headers[b"grpc-message"] == b"wrong %C3%A4"
    packed = headers[b"grpc-status-details-bin"]
    assert not packed.endswith(b"=")
    status = Status.FromString(base64.b64decode(packed + b"=" * (-len(packed) % 4)))
    assert (status.code, status.message) == (3, "wrong ä")
    assert [(detail.type_url, detail.value) for detail in status.details] == [
        ("type.googleapis.com/x", b"one"),
        ("y", b""),
    ]
