"""How failures of handlers are answered (pubsub-protocol.md 1.17)."""

from __future__ import annotations

import logging

import pytest

from heliograph.errors import HTTP_STATUS, HeliographError, QueueFull, SubscriptionNotFound, Unavailable
from heliograph.server.grpc.status import RpcError
from heliograph.server.pubsub.texts import stale_ack_ids
from tests.server.rest.echo import Echo

PATH = "/v1/projects/p/subscriptions/s-1"


def failing(error: Exception) -> Echo:
    echo = Echo()
    echo.failure = error
    return echo


def test_an_error_of_the_broker_has_the_words_and_the_status_of_pubsub() -> None:
    answer = failing(SubscriptionNotFound("projects/p/subscriptions/s-1"))("GET", PATH)
    message = "Resource not found (resource=s-1)."
    assert answer.body == {"error": {"code": 404, "message": message, "status": "NOT_FOUND"}}
    assert answer.status == 404


def test_details_are_told_as_json_in_their_order() -> None:
    answer = failing(stale_ack_ids(["1-2-3"]))("POST", f"{PATH}:acknowledge", {"ackIds": ["1-2-3"]})
    assert answer.status == 400
    assert answer.body["error"]["details"] == [
        {
            "@type": "type.googleapis.com/google.rpc.ErrorInfo",
            "reason": "EXACTLY_ONCE_ACKID_FAILURE",
            "domain": "pubsub.googleapis.com",
            "metadata": {"1-2-3": "PERMANENT_FAILURE_INVALID_ACK_ID"},
        }
    ]


@pytest.mark.parametrize("code", [code for code in HTTP_STATUS if code])
def test_every_code_has_its_http_status(code: int) -> None:
    answer = failing(RpcError(code, "why"))("GET", PATH)
    assert (answer.status, answer.body["error"]["code"]) == (HTTP_STATUS[code], HTTP_STATUS[code])


@pytest.mark.parametrize(("error", "status"), [(Unavailable("full"), 503), (QueueFull("q", 1), 429)])
def test_pubsub_has_its_own_status_for_errors_that_other_doors_answer_otherwise(
    error: HeliographError, status: int
) -> None:
    assert failing(error)("GET", PATH).status == status


def test_a_defect_is_a_500_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.ERROR):
        answer = failing(RuntimeError("secret"))("GET", PATH)
    assert (answer.status, answer.body["error"]["status"]) == (500, "INTERNAL")
    assert "secret" not in answer.message
    assert "secret" in caplog.text
