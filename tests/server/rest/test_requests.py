"""What a REST request may look like, and how it is refused (pubsub-protocol.md 1.17)."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.server.rest.echo import Answer, Echo

TOPIC = "projects/p/topics/t-1"
SUBSCRIPTION = "projects/p/subscriptions/s-1"


@pytest.fixture
def echo() -> Echo:
    return Echo()


def publish(echo: Echo, **message: Any) -> Any:
    request = echo.understood("POST", f"/v1/{TOPIC}:publish", {"messages": [message]})
    assert request.topic == TOPIC
    return request.messages[0]


def test_names_are_taken_in_camel_case_and_in_snake_case(echo: Echo) -> None:
    camel = {"ackDeadlineSeconds": 20, "retryPolicy": {"minimumBackoff": "1.5s"}, "labels": {"a_b": "c"}}
    snake = {"ack_deadline_seconds": 20, "retry_policy": {"minimum_backoff": "1.5s"}, "labels": {"a_b": "c"}}
    first = echo.understood("PUT", f"/v1/{SUBSCRIPTION}", camel)
    second = echo.understood("PUT", f"/v1/{SUBSCRIPTION}", snake)
    assert first == second
    assert (first.name, first.retry_policy.minimum_backoff.nanos, first.labels["a_b"]) == (SUBSCRIPTION, 5 * 10**8, "c")


def test_both_spellings_at_once_are_refused(echo: Echo) -> None:
    refusal = echo.refusal("PUT", f"/v1/{SUBSCRIPTION}", {"ackDeadlineSeconds": 20, "ack_deadline_seconds": 20})
    assert refusal == (
        'Invalid JSON payload received. "ackDeadlineSeconds" is given twice, once as "ack_deadline_seconds".'
    )


def test_the_schema_type_is_called_type(echo: Echo) -> None:
    body = {"type": "AVRO", "definition": "{}"}
    request = echo.understood("POST", "/v1/projects/p/schemas", body, schemaId="s-1")
    assert (request.parent, request.schema_id, request.schema.definition) == ("projects/p", "s-1", "{}")
    assert echo("POST", "/v1/projects/p/schemas", body).body["schema"]["type"] == "AVRO"


def test_a_name_that_is_no_field_is_told_with_its_place(echo: Echo) -> None:
    answer = echo("POST", f"/v1/{TOPIC}:publish", {"messages": [{"data": "", "colour": 1}]})
    text = "Invalid JSON payload received. Unknown name \"colour\" at 'messages[0]': Cannot find field."
    assert answer.body == {
        "error": {
            "code": 400,
            "message": text,
            "status": "INVALID_ARGUMENT",
            "details": [
                {
                    "@type": "type.googleapis.com/google.rpc.BadRequest",
                    "fieldViolations": [{"field": "messages[0]", "description": text}],
                }
            ],
        }
    }
    assert (answer.status, answer.headers["content-type"]) == (400, "application/json")


@pytest.mark.parametrize("query", ["colour", "topic.colour", "topic.name.colour", "topic", "x." * 50])
def test_a_query_parameter_that_is_no_field_is_refused(echo: Echo, query: str) -> None:
    assert f'Unknown name "{query[:100]}"' in echo.refusal("PATCH", f"/v1/{TOPIC}", {}, **{query: "1"})


# ── what the path says ───────────────────────────────────────────────────────────────────────────────────────────────


def test_the_body_may_repeat_what_the_path_says_as_phps_client_does(echo: Echo) -> None:
    body = {"subscription": SUBSCRIPTION, "maxMessages": 3}
    assert echo.understood("POST", f"/v1/{SUBSCRIPTION}:pull", body).subscription == SUBSCRIPTION
    update = {"topic": {"name": TOPIC, "labels": {}}, "updateMask": "labels"}
    assert echo.understood("PATCH", f"/v1/{TOPIC}", update).topic.name == TOPIC


def test_a_method_without_a_body_takes_one_that_repeats_the_path_or_is_empty(echo: Echo) -> None:
    path = f"/v1/{SUBSCRIPTION}:detach"
    for body in (b"", b" \n", {}, {"subscription": SUBSCRIPTION}):
        assert echo.understood("POST", path, body).subscription == SUBSCRIPTION
    assert 'Unknown name "force"' in echo.refusal("POST", path, {"force": True})


def test_a_body_that_contradicts_the_path_is_refused(echo: Echo) -> None:
    assert echo.refusal("PUT", f"/v1/{TOPIC}", {"name": "projects/p/topics/other"}) == (
        "Invalid JSON payload received. Invalid value at 'name', the body says \"projects/p/topics/other\", the path "
        f'"{TOPIC}": they must be equal'
    )
    assert "must be equal" in echo.refusal("PATCH", f"/v1/{TOPIC}", {"topic": {"name": "projects/p/topics/other"}})
    assert "an object is wanted" in echo.refusal("PATCH", f"/v1/{TOPIC}", {"topic": "t"})


def test_a_path_that_means_nothing_is_404(echo: Echo) -> None:
    for path in ("/v1/", "/v1/projects/p/queues/q", f"/v1/{TOPIC}/messages", "/v1/projects//topics"):
        answer = echo("GET", path)
        assert (answer.status, answer.body["error"]["status"]) == (404, "NOT_FOUND")


def test_a_wrong_http_method_is_405_and_told_which_are_right(echo: Echo) -> None:
    answer = echo("POST", f"/v1/{TOPIC}")
    assert (answer.status, answer.headers["allow"]) == (405, "DELETE, GET, PATCH, PUT")
    assert answer.body["error"]["code"] == 405


# ── values ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("data", [b"", b"a", b"ab", b"abc", bytes(range(256))])
def test_base64_is_taken_in_both_alphabets_with_and_without_padding(echo: Echo, data: bytes) -> None:
    for encoded in (base64.b64encode(data), base64.urlsafe_b64encode(data)):
        for text in (encoded.decode(), encoded.decode().rstrip("=")):
            assert publish(echo, data=text).data == data


def test_bytes_are_answered_in_the_standard_alphabet_with_padding(echo: Echo) -> None:
    answer = echo("POST", f"/v1/{TOPIC}:publish", {"messages": [{"data": "-_-_Pg"}]})
    assert answer.body["messages"] == [{"data": "+/+/Pg=="}]


@pytest.mark.parametrize(
    "data",
    ["a", "abcde", "YQ=", "YQ===", "YWI==", "YWJj=", "=", "a b=", "ab\ncd", "ä", "{}", "ab==cd", 7, True, ["YQ=="], {}],
)
def test_what_is_not_base64_is_refused_and_not_repaired(echo: Echo, data: object) -> None:
    refusal = echo.refusal("POST", f"/v1/{TOPIC}:publish", {"messages": [{"data": data}]})
    assert "Invalid value at 'messages[0].data', Base64 decoding failed for" in refusal


def test_large_integers_are_strings_both_ways(echo: Echo) -> None:
    body = {"cloudStorageConfig": {"bucket": "b", "maxBytes": "9007199254740993"}}
    answer = echo("PUT", f"/v1/{SUBSCRIPTION}", body)
    assert echo.requests[-1].cloud_storage_config.max_bytes == 9007199254740993
    assert answer.body["cloudStorageConfig"]["maxBytes"] == "9007199254740993"


@pytest.mark.parametrize("value", ["2020-01-01T02:00:00+02:00", "2020-01-01T00:00:00Z", "2020-01-01T00:00:00.000Z"])
def test_instants_are_answered_in_utc(echo: Echo, value: str) -> None:
    assert echo("POST", f"/v1/{SUBSCRIPTION}:seek", {"time": value}).body["time"] == "2020-01-01T00:00:00Z"


@pytest.mark.parametrize("value", ["AVRO", 2, "2"])
def test_enums_are_taken_by_name_and_by_number(echo: Echo, value: object) -> None:
    assert echo.understood("POST", "/v1/projects/p/schemas", {"type": value}).schema.type_ == 2


def test_an_unknown_enum_name_is_refused(echo: Echo) -> None:
    assert "JSONSCHEMA" in echo.refusal("POST", "/v1/projects/p/schemas", {"type": "JSONSCHEMA"})


@pytest.mark.parametrize("mask", ["pushConfig.pushEndpoint,labels", "push_config.push_endpoint, labels"])
@pytest.mark.parametrize("place", ["body", "query"])
def test_field_masks_are_taken_in_both_spellings_in_the_body_and_the_query(echo: Echo, mask: str, place: str) -> None:
    body: dict[str, Any] = {"subscription": {"labels": {"a": "b"}}}
    query = {}
    if place == "body":
        body["updateMask"] = mask
    else:
        query["updateMask"] = mask
    request = echo.understood("PATCH", f"/v1/{SUBSCRIPTION}", body, **query)
    assert list(request.update_mask.paths) == ["push_config.push_endpoint", "labels"]


def test_null_is_as_if_it_had_not_been_given(echo: Echo) -> None:
    request = echo.understood("PUT", f"/v1/{SUBSCRIPTION}", {"topic": None, "retryPolicy": None, "filter": "x"})
    assert (request.topic, request.HasField("retry_policy"), request.filter) == ("", False, "x")


def test_the_query_says_what_neither_path_nor_body_does(echo: Echo) -> None:
    listing = echo.understood("GET", "/v1/projects/p/topics", pageSize=3, page_token="x")
    assert (listing.project, listing.page_size, listing.page_token) == ("projects/p", 3, "x")
    policy = echo.understood("GET", f"/v1/{TOPIC}:getIamPolicy", **{"options.requestedPolicyVersion": 3})
    assert policy.options.requested_policy_version == 3
    permissions = echo.understood("POST", f"/v1/{TOPIC}:testIamPermissions", {}, permissions=["a", "b"])
    assert list(permissions.permissions) == ["a", "b"]
    assert echo.understood("GET", "/v1/projects/p/schemas/s-1", view="FULL").view == 2
    assert echo.understood("POST", f"/v1/{SUBSCRIPTION}:pull", {}, returnImmediately="true").return_immediately


def test_a_parameter_given_twice_is_refused_where_there_is_one_value(echo: Echo) -> None:
    assert "more than once" in echo.refusal("GET", "/v1/projects/p/topics", pageSize=["1", "2"])


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"\xff",
        b'"\\ud800"',
        b"[]",
        b"null",
        b"7",
        b'{"maxMessages": "many"}',
        b'{"maxMessages": 1.5}',
        b'{"maxMessages": 4294967296}',
        b'{"maxMessages": []}',
        b'{"maxMessages": {}}',
        b'{"returnImmediately": 1}',
        b'{"subscription": 7}',
        b"[" * 100_000,
        b'{"subscription":' * 100_000,
    ],
    ids=lambda body: body[:30].decode(errors="replace"),
)
def test_a_body_that_is_not_the_request_is_refused(echo: Echo, body: bytes) -> None:
    assert echo.refusal("POST", f"/v1/{SUBSCRIPTION}:pull", body).startswith("Invalid JSON payload received. ")


@pytest.mark.parametrize("value", ["10", "9e99s", "1e9999s", "NaNs", "99999999999999999999s", 10, "", "s", {}])
def test_what_is_not_a_duration_is_refused(echo: Echo, value: object) -> None:
    echo.refusal("PUT", f"/v1/{TOPIC}", {"messageRetentionDuration": value})


@pytest.mark.parametrize("value", ["2020", "2020-13-01T00:00:00Z", "99999-01-01T00:00:00Z", 5, "", "Z", {}])
def test_what_is_not_an_instant_is_refused(echo: Echo, value: object) -> None:
    echo.refusal("POST", f"/v1/{SUBSCRIPTION}:seek", {"time": value})


def test_ten_megabytes_of_data_arrive(echo: Echo) -> None:
    data = bytes(10_000_000)
    request = echo.understood("POST", f"/v1/{TOPIC}:publish", {"messages": [{"data": base64.b64encode(data).decode()}]})
    assert request.messages[0].data == data
    assert echo.calls[-1].request_bytes == request.ByteSize()


def test_a_body_beyond_all_bounds_is_refused_with_a_code_that_nobody_retries(echo: Echo) -> None:
    refusal = echo.refusal("POST", f"/v1/{TOPIC}:publish", b" " * (20 * 1024 * 1024 + 1))
    assert refusal == "Request payload size exceeds the limit: 20971520 bytes."


# ── how the answer is wanted ─────────────────────────────────────────────────────────────────────────────────────────


def subscription(echo: Echo, **query: Any) -> Answer:
    body = {"topic": TOPIC, "labels": {"a": "1", "b": "2"}, "retryPolicy": {"minimumBackoff": "1s"}, "state": "ACTIVE"}
    return echo("PUT", f"/v1/{SUBSCRIPTION}", body, **query)


@pytest.mark.parametrize(
    ("fields", "selected"),
    [
        ("name,topic", {"name": SUBSCRIPTION, "topic": TOPIC}),
        ("labels", {"labels": {"a": "1", "b": "2"}}),
        ("labels/a", {"labels": {"a": "1"}}),
        ("labels(b),retryPolicy(minimumBackoff)", {"labels": {"b": "2"}, "retryPolicy": {"minimumBackoff": "1s"}}),
        ("retry_policy/minimum_backoff", {"retryPolicy": {"minimumBackoff": "1s"}}),
        ("labels/a,labels/b", {"labels": {"a": "1", "b": "2"}}),
        ("labels/a,labels", {"labels": {"a": "1", "b": "2"}}),
        ("filter", {}),
    ],
)
def test_fields_select_a_part_of_the_answer(echo: Echo, fields: str, selected: object) -> None:
    assert subscription(echo, fields=fields).body == selected


def test_fields_select_within_each_element_of_a_list(echo: Echo) -> None:
    messages = [{"data": "YQ==", "orderingKey": "k"}, {"data": "Yg=="}]
    for fields in ("messages/data", "messages(data)", "*/data"):
        answer = echo("POST", f"/v1/{TOPIC}:publish", {"messages": messages}, **{"$fields": fields})
        assert answer.body["messages"] == [{"data": "YQ=="}, {"data": "Yg=="}]


@pytest.mark.parametrize("fields", [",", "a,", "name(", "name)", "colour", "labels/", "/a", "na me", "é", "(" * 999])
def test_a_selection_that_cannot_be_is_refused_before_anything_is_done(echo: Echo, fields: str) -> None:
    answer = subscription(echo, fields=fields)
    assert answer.message.startswith("Invalid field selection")
    assert echo.requests == []


def test_system_parameters_of_every_google_api_are_no_fields(echo: Echo) -> None:
    query = {"$.xgafv": 2, "$alt": "json;enum-encoding=int", "key": "k", "prettyPrint": "false", "access_token": "t"}
    assert subscription(echo, **query).body["state"] == 1
    assert subscription(echo, alt="json", prettyPrint="True", trace="t").body["state"] == "ACTIVE"


@pytest.mark.parametrize("query", [{"alt": "proto"}, {"alt": "media"}, {"prettyPrint": "x"}, {"callback": "f"}])
def test_what_this_server_does_not_answer_in_is_refused(echo: Echo, query: dict[str, str]) -> None:
    assert subscription(echo, **query).status == 400


def test_answers_are_laid_out_for_people_unless_asked_otherwise(echo: Echo) -> None:
    assert echo.text("GET", f"/v1/{TOPIC}") == f'{{\n  "topic": "{TOPIC}"\n}}\n'
    assert echo.text("GET", f"/v1/{TOPIC}", prettyPrint="false") == f'{{"topic":"{TOPIC}"}}'


def test_an_iam_policy_can_be_asked_for_in_both_forms_that_clients_know(echo: Echo) -> None:
    body = {"options": {"requestedPolicyVersion": 3}}
    policy = echo.understood("POST", f"/v1/{TOPIC}:getIamPolicy", body)
    assert policy == echo.understood("GET", f"/v1/{TOPIC}:getIamPolicy", **{"options.requestedPolicyVersion": 3})
