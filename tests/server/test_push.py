"""Push subscriptions, against a real HTTP endpoint (protocol 1.13)."""

from __future__ import annotations

import asyncio
import base64
import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import Request
from google.oauth2 import id_token
from joserfc import jwt
from joserfc.jwk import KeySet

from heliograph.broker.broker import LocalBroker
from heliograph.engine.settings import SubscriptionSettings
from heliograph.server.pubsub import proto
from heliograph.server.push.pusher import PushState
from heliograph.server.push.service import Pushing
from tests.server.clients import Http, Rpc, wait_until
from tests.server.conftest import Timed, serving
from tests.server.push_endpoint import Endpoint, Pushed


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint() as up:
        yield up


def push_to(rpc: Rpc, project: str, url: str, push: dict[str, Any] | None = None, **fields: Any) -> tuple[str, str]:
    """A topic, and a subscription of it that is pushed to `url`: their names."""
    topic, name = f"{project}/topics/pushed", f"{project}/subscriptions/pushed"
    rpc.create_topic(topic)
    rpc.create_subscription(name, topic, push_config={"push_endpoint": url} | (push or {}), **fields)
    return topic, name


def status(http: Http, subscription: str) -> Any:
    answer = http.request("GET", f"/api/v1/statistics?subscription={subscription}")
    assert answer.status == 200
    (row,) = answer.body["subscriptions"]
    return row


def settled(http: Http, subscription: str) -> bool:
    """Nothing waits and nothing is under way."""
    gauges = status(http, subscription)
    return gauges["ready"] + gauges["delayed"] + gauges["outstanding"] == 0


def is_paused(http: Http, subscription: str) -> bool:
    """A push has failed, and the broker knows."""
    push = status(http, subscription)["push"]
    return bool(push["paused_until"]) and push["outstanding"] == 0


def text(pushed: Pushed) -> str:
    return base64.b64decode(pushed.message["data"]).decode()


# ── what is pushed ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_1_13_1_a_message_is_pushed_in_its_envelope(rpc: Rpc, http: Http, project: str, endpoint: Endpoint) -> None:
    topic, name = push_to(rpc, project, endpoint.url)
    (message_id,) = rpc.publish(topic, b"\x00hello", attributes={"a": "ä"}, ordering_key="k")
    (pushed,) = endpoint.wait(1)
    message = pushed.message
    published = message.pop("publishTime")
    assert message.pop("publish_time") == published
    assert published.endswith("Z")
    assert message == {
        "attributes": {"a": "ä"},
        "data": base64.b64encode(b"\x00hello").decode(),
        "messageId": message_id,
        "message_id": message_id,
        "orderingKey": "k",
    }
    assert pushed.envelope["subscription"] == name
    assert "deliveryAttempt" not in pushed.envelope
    assert (pushed.path, pushed.headers["content-type"]) == ("/push", "application/json")
    assert pushed.headers["user-agent"].startswith("APIs-Google")
    assert "authorization" not in pushed.headers
    wait_until(lambda: settled(http, name))


def test_1_13_4_without_a_wrapper_the_body_is_the_data(rpc: Rpc, project: str, endpoint: Endpoint) -> None:
    topic, _ = push_to(rpc, project, endpoint.url, {"no_wrapper": {}})
    rpc.publish(topic, b"\x00raw", attributes={"a": "1"})
    (pushed,) = endpoint.wait(1)
    assert pushed.body == b"\x00raw"
    assert not {"a", "x-goog-pubsub-message-id"} & pushed.headers.keys()


def test_1_13_4_metadata_go_into_headers_if_asked_for(rpc: Rpc, project: str, endpoint: Endpoint) -> None:
    topic, name = push_to(
        rpc,
        project,
        endpoint.url,
        {"no_wrapper": {"write_metadata": True}},
        dead_letter_policy={"dead_letter_topic": f"{project}/topics/pushed"},
    )
    attributes = {
        "Event-Type": "order",
        "content-type": "text/csv",
        "host": "elsewhere",
        "Content-Length": "1",
        "two words": "no header",
        "injected": "a\r\nx-evil: 1",
    }
    (message_id,) = rpc.publish(topic, b"raw", attributes=attributes, ordering_key="k")
    (pushed,) = endpoint.wait(1)
    headers = pushed.headers
    assert headers["x-goog-pubsub-subscription-name"] == name
    assert headers["x-goog-pubsub-message-id"] == message_id
    assert headers["x-goog-pubsub-ordering-key"] == "k"
    assert headers["x-goog-pubsub-delivery-attempt"] == "1"
    assert headers["x-goog-pubsub-publish-time"].endswith("Z")
    assert (headers["event-type"], headers["content-type"]) == ("order", "text/csv")
    assert (headers["host"], headers["content-length"]) == (endpoint.url.split("/")[2], "3")
    assert not {"injected", "x-evil", "two words"} & headers.keys()


@pytest.mark.parametrize("code", [200, 201, 202, 204])
def test_1_13_2_these_answers_acknowledge(rpc: Rpc, http: Http, project: str, endpoint: Endpoint, code: int) -> None:
    endpoint.answer = lambda _: code
    topic, name = push_to(rpc, project, endpoint.url)
    rpc.publish(topic, b"1", b"2", b"3")
    wait_until(lambda: settled(http, name))
    assert sorted(text(pushed) for pushed in endpoint.requests) == ["1", "2", "3"]
    assert status(http, name)["acknowledged_total"] == 3


def test_1_13_2_processing_acknowledges_even_if_nothing_follows(rpc: Rpc, http: Http, project: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            for _ in range(2):
                connection, _ = listener.accept()
                with connection:
                    connection.recv(65536)
                    connection.sendall(b"HTTP/1.1 102 Processing\r\n\r\n")
                    connection.recv(1)  # until the client hangs up

        thread = threading.Thread(target=answer)
        thread.start()
        topic, name = push_to(rpc, project, f"http://127.0.0.1:{listener.getsockname()[1]}")
        rpc.publish(topic, b"1", b"2")
        wait_until(lambda: settled(http, name))
        thread.join(30)
    assert status(http, name)["push"]["last_error"] is None


def self_signed(path: Path) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "nobody")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .sign(key, SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(private + certificate.public_bytes(Encoding.PEM))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context


def test_1_13_8_an_endpoint_with_a_certificate_of_its_own_making_will_do(
    rpc: Rpc, http: Http, project: str, tmp_path: Path
) -> None:
    with Endpoint(tls=self_signed(tmp_path / "endpoint.pem")) as endpoint:
        topic, name = push_to(rpc, project, endpoint.url)
        rpc.publish(topic, b"1")
        wait_until(lambda: settled(http, name))
        assert [text(pushed) for pushed in endpoint.requests] == ["1"]


def test_the_largest_message_is_pushed(rpc: Rpc, http: Http, project: str, endpoint: Endpoint) -> None:
    topic, name = push_to(rpc, project, endpoint.url, {"no_wrapper": {}})
    rpc.publish(topic, b"x" * 9_900_000)
    wait_until(lambda: settled(http, name))
    assert [len(pushed.body) for pushed in endpoint.requests] == [9_900_000]


@pytest.mark.parametrize("code", [0, 301, 404, 500])
def test_1_13_2_anything_else_is_a_failure_that_is_told_and_the_message_comes_again(
    rpc: Rpc, http: Http, project: str, endpoint: Endpoint, code: int
) -> None:
    endpoint.answer = lambda _: code if len(endpoint.requests) == 1 else 200
    topic, name = push_to(rpc, project, endpoint.url)
    (message_id,) = rpc.publish(topic, b"1")
    endpoint.wait(2)
    wait_until(lambda: settled(http, name))
    error = status(http, name)["push"]["last_error"]
    assert (error["message_id"], error["endpoint"], error["delivery_attempt"]) == (message_id, endpoint.url, 1)
    assert error["error"].startswith(f"HTTP {code}" if code else "ServerDisconnectedError")
    assert status(http, name)["nacked_total"] == 1


def test_1_13_2_an_endpoint_that_is_not_there_is_a_failure(rpc: Rpc, http: Http, project: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    topic, name = push_to(rpc, project, url)
    rpc.publish(topic, b"1")
    wait_until(lambda: bool(status(http, name)["push"]["last_error"]))
    assert "Connect" in status(http, name)["push"]["last_error"]["error"]
    rpc("DeleteSubscription", subscription=name)


# ── time ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def attempts(timed: Timed, subscription: str) -> int:
    return int(status(timed.http, subscription)["delivered_total"])


def test_1_13_3_failures_pause_the_subscription_longer_each_time(timed: Timed, endpoint: Endpoint) -> None:
    endpoint.answer = lambda _: 500
    topic, name = push_to(timed.rpc, "projects/p", endpoint.url)
    timed.rpc.publish(topic, b"1", b"2")
    for number, pause in enumerate((0.1, 0.2, 0.4, 0.8), 1):
        wait_until(lambda: is_paused(timed.http, name))
        assert (len(endpoint.requests), attempts(timed, name)) == (number, number)
        timed.clock.advance(pause - 0.001)
        assert status(timed.http, name)["push"]["paused_until"]
        timed.clock.advance(0.001)
        endpoint.wait(number + 1)


def test_1_13_2_an_answer_later_than_the_ack_deadline_is_none(timed: Timed, endpoint: Endpoint) -> None:
    late = threading.Event()
    endpoint.answer = lambda _: 200 if late.wait(30) else 500
    topic, name = push_to(timed.rpc, "projects/p", endpoint.url, ack_deadline_seconds=20)
    timed.rpc.publish(topic, b"1")
    endpoint.wait(1)
    timed.clock.advance(19.9)
    assert status(timed.http, name)["push"]["outstanding"] == 1
    timed.clock.advance(0.1)
    wait_until(lambda: bool(status(timed.http, name)["push"]["last_error"]))
    state = status(timed.http, name)
    assert state["push"]["last_error"]["error"] == "No answer within the ack deadline of 20 s"
    assert state["push"]["outstanding"] == 0
    assert state["expired_total"] == 1
    late.set()
    timed.clock.advance(0.1)
    endpoint.wait(2)
    wait_until(lambda: settled(timed.http, name))


def test_1_13_2_a_request_under_a_shorter_deadline_ends_before_an_older_one(timed: Timed, endpoint: Endpoint) -> None:
    topic, name = push_to(timed.rpc, "projects/p", endpoint.url, ack_deadline_seconds=600)
    timed.rpc.publish(topic, b"opens the window")
    wait_until(lambda: status(timed.http, name)["push"]["window"] == 2)
    late = threading.Event()
    endpoint.answer = lambda _: 200 if late.wait(30) else 500
    timed.rpc.publish(topic, b"long")
    endpoint.wait(2)
    fields = {"name": name, "ack_deadline_seconds": 10}
    timed.rpc("UpdateSubscription", subscription=fields, update_mask={"paths": ["ack_deadline_seconds"]})
    timed.rpc.publish(topic, b"short")
    endpoint.wait(3)
    timed.clock.advance(10)
    wait_until(lambda: bool(status(timed.http, name)["push"]["last_error"]))
    state = status(timed.http, name)
    assert state["push"]["last_error"]["error"] == "No answer within the ack deadline of 10 s"
    assert (state["push"]["outstanding"], state["outstanding"]) == (1, 1)
    late.set()


def test_1_13_3_the_retry_policy_of_the_subscription_applies_to_each_message(timed: Timed, endpoint: Endpoint) -> None:
    endpoint.answer = lambda pushed: 500 if text(pushed) == "bad" else 200
    policy = {"minimum_backoff": {"seconds": 30}, "maximum_backoff": {"seconds": 60}}
    topic, name = push_to(timed.rpc, "projects/p", endpoint.url, retry_policy=policy)
    timed.rpc.publish(topic, b"bad")
    wait_until(lambda: is_paused(timed.http, name))
    timed.clock.advance(0.1)
    timed.rpc.publish(topic, b"good")  # not held up by the other
    endpoint.wait(2)
    wait_until(lambda: status(timed.http, name)["push"]["outstanding"] == 0)
    timed.clock.advance(29.8)
    assert status(timed.http, name)["delayed"] == 1
    timed.clock.advance(0.1)
    assert [text(pushed) for pushed in endpoint.wait(3)] == ["bad", "good", "bad"]


def test_1_10_4_after_its_last_attempt_a_message_goes_to_the_dead_letters(timed: Timed, endpoint: Endpoint) -> None:
    endpoint.answer = lambda _: 500
    timed.rpc.create_topic("projects/p/topics/dead")
    timed.rpc.create_subscription("projects/p/subscriptions/dead", "projects/p/topics/dead")
    policy = {"dead_letter_topic": "projects/p/topics/dead", "max_delivery_attempts": 5}
    topic, name = push_to(timed.rpc, "projects/p", endpoint.url, dead_letter_policy=policy)
    timed.rpc.publish(topic, b"1")
    for number in range(1, 6):
        endpoint.wait(number)
        wait_until(lambda: is_paused(timed.http, name))
        timed.clock.advance(0.1 * 2 ** (number - 1))
    (dead,) = timed.rpc.pull("projects/p/subscriptions/dead")
    assert dead.message.attributes["CloudPubSubDeadLetterSourceDeliveryCount"] == "5"
    assert [pushed.envelope["deliveryAttempt"] for pushed in endpoint.requests] == [1, 2, 3, 4, 5]
    assert settled(timed.http, name)


# ── how many at a time ──────────────────────────────────────────────────────────────────────────────────────────────


def test_1_13_3_the_window_opens_while_all_goes_well(rpc: Rpc, http: Http, project: str, endpoint: Endpoint) -> None:
    topic, name = push_to(rpc, project, endpoint.url)
    rpc.publish(topic, *[str(number).encode() for number in range(60)])
    wait_until(lambda: settled(http, name))
    assert sorted(int(text(pushed)) for pushed in endpoint.requests) == list(range(60))
    assert status(http, name)["push"]["window"] == 61
    assert status(http, name)["push"]["outstanding"] == 0


def test_1_13_3_the_first_message_goes_alone(rpc: Rpc, http: Http, project: str, endpoint: Endpoint) -> None:
    go_on = threading.Event()
    endpoint.answer = lambda _: 200 if go_on.wait(30) else 500
    topic, name = push_to(rpc, project, endpoint.url)
    rpc.publish(topic, b"1", b"2", b"3", b"4")
    endpoint.wait(1)
    assert status(http, name)["push"]["outstanding"] == 1
    go_on.set()
    wait_until(lambda: settled(http, name))


def test_1_13_7_of_an_ordering_key_one_message_is_under_way(
    rpc: Rpc, http: Http, project: str, endpoint: Endpoint
) -> None:
    topic, name = push_to(rpc, project, endpoint.url, enable_message_ordering=True)
    rpc.publish(topic, *[b"warm"] * 20)  # the window opens
    wait_until(lambda: settled(http, name))
    endpoint.requests.clear()
    open_by_key: dict[str, int] = {}
    most: list[int] = []
    lock = threading.Lock()

    def answer(pushed: Pushed) -> int:
        key = pushed.message["orderingKey"]
        with lock:
            open_by_key[key] = open_by_key.get(key, 0) + 1
            most.append(open_by_key[key])
        threading.Event().wait(0.001)
        with lock:
            open_by_key[key] -= 1
            seen = sum(text(one) == text(pushed) and one.message["orderingKey"] == key for one in endpoint.requests)
        return 500 if text(pushed) == "3" and seen == 1 else 200

    endpoint.answer = answer
    for key in ("a", "b"):
        rpc.publish(topic, *[str(number).encode() for number in range(10)], ordering_key=key)
    wait_until(lambda: settled(http, name))
    assert max(most) == 1
    for key in ("a", "b"):
        order = [text(pushed) for pushed in endpoint.requests if pushed.message["orderingKey"] == key]
        assert order == ["0", "1", "2", "3", "3", "4", "5", "6", "7", "8", "9"]


# ── from push to pull and back, and the end ─────────────────────────────────────────────────────────────────────────


def test_1_5_16_a_subscription_turns_from_pull_to_push_and_back_while_running(
    rpc: Rpc, http: Http, project: str, topic: str, subscription: str, endpoint: Endpoint
) -> None:
    rpc.publish(topic, b"1")
    assert status(http, subscription)["push"] is None
    rpc("ModifyPushConfig", subscription=subscription, push_config={"push_endpoint": endpoint.url})
    assert [text(pushed) for pushed in endpoint.wait(1)] == ["1"]
    wait_until(lambda: settled(http, subscription))
    rpc("ModifyPushConfig", subscription=subscription, push_config={})
    rpc.publish(topic, b"2")
    assert [one.message.data for one in rpc.pull(subscription)] == [b"2"]
    assert status(http, subscription)["push"] is None
    with Endpoint() as other:
        changed = {"name": subscription, "push_config": {"push_endpoint": other.url}}
        rpc("UpdateSubscription", subscription=changed, update_mask={"paths": ["push_config"]})
        rpc.publish(topic, b"3")
        assert [text(pushed) for pushed in other.wait(1)] == ["3"]
        rpc("ModifyPushConfig", subscription=subscription, push_config={"push_endpoint": endpoint.url})
        rpc.publish(topic, b"4")
        assert [text(pushed) for pushed in endpoint.wait(2)] == ["1", "4"]
        assert len(other.requests) == 1


def test_1_5_16_what_is_under_way_when_a_subscription_turns_to_pull_is_still_acknowledged(
    rpc: Rpc, http: Http, project: str, endpoint: Endpoint
) -> None:
    go_on = threading.Event()
    endpoint.answer = lambda _: 200 if go_on.wait(30) else 500
    topic, name = push_to(rpc, project, endpoint.url)
    rpc.publish(topic, b"1", b"2")
    endpoint.wait(1)
    rpc("ModifyPushConfig", subscription=name, push_config={})
    assert [one.message.data for one in rpc.pull(name)] == [b"2"]
    go_on.set()
    wait_until(lambda: status(http, name)["acknowledged_total"] == 1)
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize("method", ["DeleteSubscription", "DetachSubscription"])
def test_1_5_14_and_1_5_15_deleting_or_detaching_stops_the_pushes(
    timed: Timed, endpoint: Endpoint, method: str
) -> None:
    endpoint.answer = lambda _: 500
    topic, name = push_to(timed.rpc, "projects/p", endpoint.url)
    timed.rpc.publish(topic, b"1", b"2")
    wait_until(lambda: is_paused(timed.http, name))
    timed.rpc(method, subscription=name)
    timed.clock.advance(60)
    if method == "DeleteSubscription":
        assert timed.http.request("GET", f"/api/v1/statistics?subscription={name}").status == 404
        timed.rpc.create_subscription(name, topic, push_config={"push_endpoint": endpoint.url})
        timed.rpc.publish(topic, b"new")
        assert [text(pushed) for pushed in endpoint.wait(2)] == ["1", "new"]
    else:
        assert status(timed.http, name)["push"] is None
        assert [text(pushed) for pushed in endpoint.requests] == ["1"]


def test_1_3_5_after_its_topic_is_deleted_the_backlog_is_still_pushed(timed: Timed, endpoint: Endpoint) -> None:
    endpoint.answer = lambda _: 500 if len(endpoint.requests) == 1 else 200
    topic, name = push_to(timed.rpc, "projects/p", endpoint.url)
    timed.rpc.publish(topic, b"1", b"2")
    wait_until(lambda: is_paused(timed.http, name))
    timed.rpc("DeleteTopic", topic=topic)
    timed.clock.advance(1)
    wait_until(lambda: settled(timed.http, name))
    assert [text(pushed) for pushed in endpoint.requests] == ["1", "1", "2"]


def test_a_restart_pushes_what_is_left_and_keeps_the_signing_key(tmp_path: Path) -> None:
    hold = threading.Event()
    with Endpoint(lambda _: 200 if hold.wait(30) else 500) as endpoint:
        with serving(LocalBroker.open(tmp_path)) as up, Rpc(up.port) as rpc:
            keys = Http(up.port).request("GET", "/oauth2/v3/certs").body
            topic, name = push_to(rpc, "projects/p", endpoint.url)
            rpc.publish(topic, b"1", b"2")
            endpoint.wait(1)  # under way when the server stops: given back, so that the next one need not wait for it
        hold.set()
        with serving(LocalBroker.open(tmp_path)) as up:
            http = Http(up.port)
            wait_until(lambda: settled(http, name))
            assert http.request("GET", "/oauth2/v3/certs").body == keys
    assert [text(pushed) for pushed in endpoint.requests] == ["1", "1", "2"]


def test_many_idle_push_subscriptions_have_no_task_no_thread_and_no_connection() -> None:
    broker = LocalBroker()
    config = proto.Subscription(push_config={"push_endpoint": "http://127.0.0.1:9/"}).SerializeToString()
    broker.create_topic("projects/p/topics/t").result()
    for number in range(500):
        settings = SubscriptionSettings(resource=config)
        broker.create_subscription(f"projects/p/subscriptions/s{number}", "projects/p/topics/t", settings).result()

    async def serve() -> None:
        before = set(threading.enumerate())  # others' may end meanwhile
        pushing = Pushing(broker)
        pushing.start()
        await asyncio.sleep(0)
        assert [task is asyncio.current_task() for task in asyncio.all_tasks()] == [True]
        assert set(threading.enumerate()) <= before
        state = pushing.state("projects/p/subscriptions/s499")
        assert state == PushState("http://127.0.0.1:9/", 0, 1, None, None)
        await pushing.close()

    asyncio.run(serve())
    broker.close()


# ── tokens ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_1_13_5_a_token_is_signed_with_the_key_that_is_served(timed: Timed, endpoint: Endpoint) -> None:
    oidc = {"oidc_token": {"service_account_email": "push@example.com"}}
    topic, _ = push_to(timed.rpc, "projects/p", endpoint.url, oidc)
    timed.rpc.publish(topic, b"1")
    timed.rpc.publish(topic, b"2")
    first, second = (pushed.headers["authorization"] for pushed in endpoint.wait(2))
    assert first == second  # a token serves for an hour
    token = verified(timed.http, first)
    now = timed.clock.now_ns() // 10**9
    assert token.header["alg"] == "RS256"
    assert {key: token.claims[key] for key in ("aud", "email", "email_verified", "iss", "iat", "exp")} == {
        "aud": endpoint.url,
        "email": "push@example.com",
        "email_verified": True,
        "iss": "https://accounts.google.com",
        "iat": now,
        "exp": now + 3600,
    }
    timed.clock.advance(3301)
    timed.rpc.publish(topic, b"3")
    later = verified(timed.http, endpoint.wait(3)[2].headers["authorization"])
    assert later.claims["exp"] > token.claims["exp"]


def verified(http: Http, authorization: str) -> Any:
    discovery = http.request("GET", "/.well-known/openid-configuration").body
    assert discovery["jwks_uri"] == f"{http.url}/oauth2/v3/certs"
    keys = http.request("GET", discovery["jwks_uri"].removeprefix(http.url)).body
    assert not {"d", "p", "q"} & keys["keys"][0].keys()
    return jwt.decode(authorization.removeprefix("Bearer "), KeySet.import_key_set(keys), algorithms=["RS256"])


def test_1_13_5_googles_own_library_verifies_a_token_when_it_is_told_where_the_keys_are(
    rpc: Rpc, http: Http, project: str, endpoint: Endpoint
) -> None:
    oidc = {"oidc_token": {"service_account_email": "push@example.com", "audience": "my-service"}}
    topic, _ = push_to(rpc, project, endpoint.url, oidc)
    rpc.publish(topic, b"1")
    token = endpoint.wait(1)[0].headers["authorization"].removeprefix("Bearer ")
    certificates = f"{http.url}/oauth2/v1/certs"
    claims = id_token.verify_token(token, Request(), audience="my-service", certs_url=certificates)
    assert (claims["email"], claims["iss"]) == ("push@example.com", "https://accounts.google.com")
    with pytest.raises(GoogleAuthError):
        id_token.verify_token(token, Request(), audience="another", certs_url=certificates)
    with pytest.raises(GoogleAuthError):
        id_token.verify_token(token[:-8] + "AAAAAAAA", Request(), audience="my-service", certs_url=certificates)


def test_1_13_5_the_audience_may_be_another(rpc: Rpc, http: Http, project: str, endpoint: Endpoint) -> None:
    oidc = {"oidc_token": {"service_account_email": "push@example.com", "audience": "my-service"}}
    topic, _ = push_to(rpc, project, endpoint.url, oidc)
    rpc.publish(topic, b"1")
    (pushed,) = endpoint.wait(1)
    assert verified(http, pushed.headers["authorization"]).claims["aud"] == "my-service"


def test_the_broker_says_how_a_subscription_is_doing(
    rpc: Rpc, http: Http, project: str, topic: str, subscription: str
) -> None:
    rpc.publish(topic, b"1", b"2")
    rpc.pull(subscription, 1)
    body = status(http, subscription)
    assert (body["name"], body["topic"], body["push"]) == (subscription, topic, None)
    assert (body["ready"], body["outstanding"]) == (1, 1)
    assert http.request("GET", f"/api/v1/statistics?subscription={subscription}-not").status == 404
