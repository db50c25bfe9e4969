"""Export subscriptions, message transforms and ingestion (1.14): checked, kept, given back. And push endpoints
(1.5.16)."""

from __future__ import annotations

from typing import Any

import grpc
import pytest

from tests.server.clients import Failure, Rpc

INVALID = grpc.StatusCode.INVALID_ARGUMENT
ACTIVE = 1


@pytest.fixture
def name(project: str) -> str:
    return f"{project}/subscriptions/export"


def code(rpc: Rpc, method: str, /, **fields: Any) -> grpc.StatusCode:
    with pytest.raises(Failure) as raised:
        rpc(method, **fields)
    return raised.value.code()


# ── exports ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "config",
    [
        {"bigquery_config": {"table": "p.d.t", "write_metadata": True, "use_topic_schema": True}},
        {"bigquery_config": {"table": "example.com:p.d.t"}},
        {
            "cloud_storage_config": {
                "bucket": "bucket",
                "filename_prefix": "a/",
                "avro_config": {"write_metadata": True},
            }
        },
        {"bigtable_config": {"table": "projects/p/instances/i/tables/t", "app_profile_id": "default"}},
    ],
    ids=["bigquery", "bigquery of a domain's project", "cloud storage", "bigtable"],
)
def test_1_14_1_an_export_is_kept_given_back_and_active(
    rpc: Rpc, topic: str, name: str, config: dict[str, Any]
) -> None:
    ((field, wanted),) = config.items()
    created = rpc.create_subscription(name, topic, **config)
    given = getattr(created, field)
    assert given.state == ACTIVE
    for key, value in wanted.items():
        if isinstance(value, str | bool):
            assert getattr(given, key) == value
    assert rpc("GetSubscription", subscription=name) == created


def test_1_14_1_a_file_is_written_after_5_minutes_unless_said_otherwise(rpc: Rpc, topic: str, name: str) -> None:
    created = rpc.create_subscription(name, topic, cloud_storage_config={"bucket": "bucket"})
    assert created.cloud_storage_config.max_duration.seconds == 300


@pytest.mark.parametrize(
    "config",
    [
        {"bigquery_config": {"table": "table"}},
        {"bigquery_config": {"table": ""}},
        {"bigquery_config": {"table": "p.d.t", "use_topic_schema": True, "use_table_schema": True}},
        {"cloud_storage_config": {"bucket": ""}},
        {"cloud_storage_config": {"bucket": "gs://bucket"}},
        {"cloud_storage_config": {"bucket": "bucket", "filename_suffix": "a/"}},
        {"cloud_storage_config": {"bucket": "bucket", "max_duration": {"seconds": 59}}},
        {"cloud_storage_config": {"bucket": "bucket", "max_duration": {"seconds": 601}}},
        {"cloud_storage_config": {"bucket": "bucket", "max_bytes": 999}},
        {"cloud_storage_config": {"bucket": "bucket", "max_bytes": 10 * 1024**3 + 1}},
        {"cloud_storage_config": {"bucket": "bucket", "max_messages": 999}},
        {"bigtable_config": {"table": "t"}},
        {"bigtable_config": {"table": "projects/p/instances/i/tables/t"}, "bigquery_config": {"table": "p.d.t"}},
        {"bigquery_config": {"table": "p.d.t"}, "push_config": {"push_endpoint": "http://localhost"}},
        {"bigquery_config": {"table": "p.d.t"}, "enable_exactly_once_delivery": True},
    ],
    ids=str,
)
def test_1_14_1_a_wrong_export_is_refused(rpc: Rpc, topic: str, name: str, config: dict[str, Any]) -> None:
    assert code(rpc, "CreateSubscription", name=name, topic=topic, **config) is INVALID


# ── transforms ──────────────────────────────────────────────────────────────────────────────────────────────────────

UDF = {"javascript_udf": {"function_name": "keep", "code": "function keep(message, metadata) { return message; }"}}


def udf(name: str) -> dict[str, Any]:
    return {"javascript_udf": {"function_name": name, "code": f"function {name}(message) {{ return null; }}"}}


def test_1_14_2_transforms_are_kept_and_given_back(rpc: Rpc, project: str, name: str) -> None:
    topic = f"{project}/topics/topic-1"
    transforms = [UDF, udf("drop") | {"disabled": True}, {"ai_inference": {"endpoint": "projects/p/endpoints/e"}}]
    created = [rpc.create_topic(topic, message_transforms=transforms)]
    created.append(rpc.create_subscription(name, topic, message_transforms=transforms))
    for resource in created:
        assert [one.javascript_udf.function_name for one in resource.message_transforms] == ["keep", "drop", ""]
        assert [one.disabled for one in resource.message_transforms] == [False, True, False]


@pytest.mark.parametrize(
    "transforms",
    [
        [{}],
        [udf("f"), udf("f")],
        [udf(f"f{number}") for number in range(6)],
        [{"javascript_udf": {"function_name": "", "code": "x"}}],
        [{"javascript_udf": {"function_name": "f()", "code": "f()"}}],
        [{"javascript_udf": {"function_name": "f", "code": "function ff() {}"}}],
        [{"javascript_udf": {"function_name": "f", "code": "function f() {}" + " " * 20_500}}],
        [{"ai_inference": {}}],
        [{"compression": {}}],
    ],
    ids=[
        "nothing",
        "same name",
        "six",
        "no name",
        "no identifier",
        "not defined",
        "too long",
        "no endpoint",
        "no mode",
    ],
)
def test_1_14_2_wrong_transforms_are_refused(
    rpc: Rpc, topic: str, name: str, project: str, transforms: list[dict[str, Any]]
) -> None:
    assert code(rpc, "CreateTopic", name=f"{project}/topics/other", message_transforms=transforms) is INVALID
    assert code(rpc, "CreateSubscription", name=name, topic=topic, message_transforms=transforms) is INVALID


# ── ingestion ───────────────────────────────────────────────────────────────────────────────────────────────────────

SOURCES: dict[str, dict[str, Any]] = {
    "aws_kinesis": {"stream_arn": "s", "consumer_arn": "c", "aws_role_arn": "r", "gcp_service_account": "a"},
    "cloud_storage": {"bucket": "bucket", "text_format": {"delimiter": ","}},
    "azure_event_hubs": {"namespace": "n", "event_hub": "e"},
    "aws_msk": {"cluster_arn": "c", "topic": "t", "aws_role_arn": "r", "gcp_service_account": "a"},
    "confluent_cloud": {
        "bootstrap_server": "b:9092",
        "topic": "t",
        "identity_pool_id": "i",
        "gcp_service_account": "a",
    },
}


@pytest.mark.parametrize("source", SOURCES)
def test_1_14_3_ingestion_is_kept_given_back_and_active(rpc: Rpc, project: str, source: str) -> None:
    settings = {source: SOURCES[source], "platform_logs_settings": {"severity": 2}}
    created = rpc.create_topic(f"{project}/topics/topic-1", ingestion_data_source_settings=settings)
    assert getattr(created.ingestion_data_source_settings, source).state == ACTIVE
    assert created.ingestion_data_source_settings.platform_logs_settings.severity == 2
    assert rpc("GetTopic", topic=created.name) == created


@pytest.mark.parametrize("source", SOURCES)
def test_1_14_3_a_source_that_lacks_something_is_refused(rpc: Rpc, project: str, source: str) -> None:
    for field in SOURCES[source]:
        if field != "text_format":
            lacking = {key: value for key, value in SOURCES[source].items() if key != field}
            settings = {source: lacking}
            assert (
                code(rpc, "CreateTopic", name=f"{project}/topics/t", ingestion_data_source_settings=settings) is INVALID
            )


# ── push endpoints ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("endpoint", ["https://example.com/push", "http://localhost:8080/?a=b", "http://[::1]:80/"])
def test_1_5_16_an_endpoint_may_be_http(rpc: Rpc, topic: str, name: str, endpoint: str) -> None:
    created = rpc.create_subscription(name, topic, push_config={"push_endpoint": endpoint})
    assert created.push_config.push_endpoint == endpoint


@pytest.mark.parametrize("endpoint", ["localhost", "ftp://host/", "http://", "https:///path", "http://host:99999/"])
def test_1_5_16_what_is_no_url_is_refused(rpc: Rpc, topic: str, name: str, endpoint: str) -> None:
    with pytest.raises(Failure) as raised:
        rpc.create_subscription(name, topic, push_config={"push_endpoint": endpoint})
    assert raised.value.code() is INVALID
    assert raised.value.details().startswith(f"Invalid push endpoint given (endpoint={endpoint}). Refer to ")


def test_1_13_6_only_the_version_attribute_may_be_set(rpc: Rpc, topic: str, name: str) -> None:
    push = {"push_endpoint": "http://localhost", "attributes": {"x-goog-version": "v1"}}
    assert rpc.create_subscription(name, topic, push_config=push).push_config.attributes["x-goog-version"] == "v1"
    for attributes in ({"x-goog-version": "v2"}, {"other": "v1"}):
        config = push | {"attributes": attributes}
        assert code(rpc, "CreateSubscription", name=f"{name}-2", topic=topic, push_config=config) is INVALID
