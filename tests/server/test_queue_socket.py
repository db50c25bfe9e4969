"""What only the WebSocket of the work-queue door does: pushes, credit, leases that end with the connection; and clients
that misbehave (queue-protocol.md)."""

from __future__ import annotations

import itertools
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from heliograph.broker.broker import LocalBroker
from heliograph.server import websocket
from heliograph.server.app import Serving
from tests.server.clients import Http, wait_until
from tests.server.conftest import Timed, serving
from tests.server.queue_doors import SocketDoor

_numbers = itertools.count(1)


@pytest.fixture
def queue(http: Http) -> str:
    name = f"pushed-{next(_numbers)}"
    http.command("queue.create", name=name)
    return name


@contextmanager
def socket_to(port: int) -> Iterator[SocketDoor]:
    door = SocketDoor(port)
    try:
        yield door
    finally:
        door.close()


@pytest.fixture
def door(server: Serving) -> Iterator[SocketDoor]:
    with socket_to(server.port) as opened:
        yield opened


def stats(http: Http, queue: str, *names: str) -> tuple[Any, ...]:
    answer = http.command("queue.stats", queue=queue)
    return tuple(answer[name] for name in names)


# ── pushes and credit ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_message_is_pushed_with_every_field_as_soon_as_it_is_there(door: SocketDoor, http: Http, queue: str) -> None:
    subscribed = door.command("queue.subscribe", queue=queue, consumer_id="c", prefetch=5)
    assert subscribed == {"success": True, "consumer_id": "c", "prefetch": 5}
    sent = http.command("queue.publish", queue=queue, message={"n": 1}, priority=8, headers={"source": "web"})
    pushed = door.pushed()
    assert pushed.pop("lease_id")
    assert pushed == {
        "type": "message",
        "queue": queue,
        "message_id": sent["message_id"],
        "message": {"n": 1},
        "priority": 8,
        "retry_count": 0,
        "headers": {"source": "web"},
    }


def test_no_more_is_pushed_than_there_is_credit_and_an_ack_makes_room(door: SocketDoor, http: Http, queue: str) -> None:
    door.command("queue.subscribe", queue=queue, prefetch=2)
    http.command("queue.publish_batch", queue=queue, messages=[{"message": number} for number in range(5)])
    first, second = door.pushed(), door.pushed()
    assert stats(http, queue, "outstanding", "depth") == (2, 3)
    door.command("queue.ack", queue=queue, message_id=first["message_id"], lease_id=first["lease_id"])
    assert door.pushed()["message"] == 2
    # whichever door settles it
    http.command("queue.ack", queue=queue, message_id=second["message_id"])
    assert door.pushed()["message"] == 3
    assert stats(http, queue, "outstanding", "depth") == (2, 1)


def test_one_ack_may_name_several_messages(door: SocketDoor, http: Http, queue: str) -> None:
    http.command("queue.publish_batch", queue=queue, messages=[{"message": number} for number in range(20)])
    door.command("queue.subscribe", queue=queue, prefetch=10)
    for _ in range(2):
        pushed = [door.pushed() for _ in range(10)]
        ids = [one["message_id"] for one in pushed]
        results = door.command(
            "queue.ack", queue=queue, message_ids=ids, lease_ids=[one["lease_id"] for one in pushed]
        )["results"]
        assert [one["success"] for one in results] == [True] * 10
    assert stats(http, queue, "acked_total", "outstanding") == (20, 0)


def test_with_max_messages_several_come_in_one_push(door: SocketDoor, http: Http, queue: str) -> None:
    http.command("queue.publish_batch", queue=queue, messages=[{"message": number} for number in range(10)])
    door.command("queue.subscribe", queue=queue, prefetch=10, max_messages=4)
    pushes = [[one["message"] for one in door.pushed()["messages"]] for _ in range(3)]
    assert pushes == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_without_prefetch_the_queues_own_counts(door: SocketDoor, http: Http) -> None:
    http.command("queue.create", name="own-prefetch", prefetch=3)
    assert door.command("queue.subscribe", queue="own-prefetch")["prefetch"] == 3


def test_a_lease_that_ends_makes_room_and_the_message_comes_again(timed: Timed) -> None:
    timed.http.command("queue.create", name="tasks")
    timed.http.command("queue.publish", queue="tasks", message=1)
    port = int(timed.http.url.rpartition(":")[2])
    with socket_to(port) as door:
        door.command("queue.subscribe", queue="tasks", prefetch=1, ack_deadline=5)
        assert door.pushed()["retry_count"] == 0
        timed.clock.advance(6)
        assert door.pushed()["retry_count"] == 1


def test_what_is_nacked_goes_to_others_first(door: SocketDoor, server: Serving, http: Http, queue: str) -> None:
    door.command("queue.subscribe", queue=queue, prefetch=1)
    http.command("queue.publish", queue=queue, message=1)
    pushed = door.pushed()
    answer = door.command("queue.nack", queue=queue, message_id=pushed["message_id"])
    assert answer == {"success": True, "action": "requeued"}
    assert door.pushed()["retry_count"] == 1


def test_unsubscribe_ends_the_pushes_and_leaves_what_is_held(door: SocketDoor, http: Http, queue: str) -> None:
    door.command("queue.subscribe", queue=queue)
    http.command("queue.publish", queue=queue, message=1)
    pushed = door.pushed()
    assert door.command("queue.unsubscribe", queue=queue) == {"success": True}
    http.command("queue.publish", queue=queue, message=2)
    assert stats(http, queue, "depth", "outstanding") == (1, 1)
    door.command("queue.ack", queue=queue, message_id=pushed["message_id"], lease_id=pushed["lease_id"])
    assert door.failure("queue.unsubscribe", queue=queue) == (404, "ConsumerNotFound")


def test_a_connection_subscribes_once_to_a_queue_and_may_to_several(door: SocketDoor, http: Http, queue: str) -> None:
    http.command("queue.create", name="another")
    door.command("queue.subscribe", queue=queue)
    door.command("queue.subscribe", queue="another")
    assert door.failure("queue.subscribe", queue=queue) == (409, "AlreadyExists")
    assert door.failure("queue.subscribe", queue="missing") == (404, "QueueNotFound")
    http.command("queue.publish", queue="another", message=1)
    assert door.pushed()["queue"] == "another"


def test_a_subscription_needs_a_websocket(http: Http, queue: str) -> None:
    for command in ("queue.subscribe", "queue.unsubscribe"):
        assert http.failure(command, queue=queue) == (400, "InvalidArgument")


def test_subscribed_connections_and_named_consumers_with_a_lease_are_counted_once(
    door: SocketDoor, http: Http, queue: str
) -> None:
    door.command("queue.subscribe", queue=queue)
    assert stats(http, queue, "consumers") == (1,)
    http.command("queue.publish", queue=queue, message=1)
    door.pushed()
    assert stats(http, queue, "consumers") == (1,)
    door.command("queue.unsubscribe", queue=queue)
    http.command("queue.publish", queue=queue, message=2)
    http.command("queue.consume", queue=queue, consumer_id="other")
    assert stats(http, queue, "consumers") == (2,)


def test_a_consumer_is_told_when_its_queue_is_deleted(door: SocketDoor, http: Http, queue: str) -> None:
    door.command("queue.subscribe", queue=queue)
    http.command("queue.delete", queue=queue)
    told = door.pushed()
    assert told == {"type": "error", "queue": queue, "error": f"Queue not found: {queue}", "code": "QueueNotFound"}
    http.command("queue.create", name=queue)
    door.command("queue.subscribe", queue=queue)


# ── commands side by side ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_consume_that_waits_holds_up_nothing_else(door: SocketDoor, queue: str) -> None:
    waiting = door.send("queue.consume", queue=queue, timeout=60)
    door.command("queue.publish", queue=queue, message="here")
    assert waiting.get(timeout=30)["payload"]["message"] == "here"


def test_commands_begin_in_the_order_in_which_they_came(door: SocketDoor, queue: str) -> None:
    answers = [door.send("queue.publish", queue=queue, message=number) for number in range(50)]
    for answer in answers:
        answer.get(timeout=30)
    consumed = door.command("queue.consume", queue=queue, max_messages=50, prefetch=50)["messages"]
    assert [one["message"] for one in consumed] == list(range(50))


# ── the end of a connection ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["closed", "lost"])
def test_a_closed_connection_returns_its_leases_at_once_and_no_failure_is_counted(
    server: Serving, http: Http, queue: str, how: str
) -> None:
    http.command("queue.publish_batch", queue=queue, messages=[{"message": number} for number in range(3)])
    with socket_to(server.port) as door:
        door.command("queue.consume", queue=queue, ack_deadline=600)
        door.command("queue.subscribe", queue=queue, prefetch=2, ack_deadline=600)
        door.pushed()
        door.pushed()
        assert stats(http, queue, "outstanding") == (3,)
        if how == "lost":
            door.socket.socket.shutdown(socket.SHUT_RDWR)
    wait_until(lambda: stats(http, queue, "outstanding") == (0,))
    again = http.command("queue.consume", queue=queue, max_messages=3)["messages"]
    assert [(one["message"], one["retry_count"]) for one in again] == [(0, 0), (1, 0), (2, 0)]
    assert stats(http, queue, "expired_total", "nacked_total", "redelivered_total") == (0, 0, 3)


def test_a_waiting_consume_whose_connection_has_gone_takes_no_message(
    server: Serving, broker: LocalBroker, http: Http, queue: str
) -> None:
    with socket_to(server.port) as door:
        door.send("queue.consume", queue=queue, timeout=60)
        wait_until(lambda: bool(broker._watches.of([f"queues/{queue}"])))
    wait_until(lambda: not broker._watches.of([f"queues/{queue}"]))
    http.command("queue.publish", queue=queue, message=1)
    assert stats(http, queue, "depth", "outstanding") == (1, 0)


def test_what_was_settled_in_time_does_not_come_back_with_the_connections_end(
    server: Serving, http: Http, queue: str
) -> None:
    http.command("queue.publish_batch", queue=queue, messages=[{"message": 1}, {"message": 2}])
    with socket_to(server.port) as door:
        door.command("queue.subscribe", queue=queue)
        first, second = door.pushed(), door.pushed()
        door.command("queue.ack", queue=queue, message_id=first["message_id"])
        http.command("queue.ack", queue=queue, message_id=second["message_id"])
    wait_until(lambda: stats(http, queue, "consumers") == (0,))
    assert stats(http, queue, "depth", "outstanding", "acked_total") == (0, 0, 2)


def test_a_batch_held_by_a_crashing_consumer_does_not_dead_letter_the_innocent_ones(
    server: Serving, http: Http
) -> None:
    http.command("queue.create", name="crashes", default_max_retries=0)
    http.command("queue.publish_batch", queue="crashes", messages=[{"message": number} for number in range(10)])
    for _ in range(5):
        with socket_to(server.port) as door:
            door.command("queue.subscribe", queue="crashes", prefetch=10)
            for _ in range(10):
                door.pushed()
        wait_until(lambda: stats(http, "crashes", "outstanding") == (0,))
    assert stats(http, "crashes", "depth", "dead_letters") == (10, 0)


def test_a_server_that_shuts_down_closes_its_connections_and_returns_the_leases() -> None:
    broker = LocalBroker()
    with serving(broker) as server:
        Http(server.port).command("queue.create", name="tasks")
        Http(server.port).command("queue.publish", queue="tasks", message=1)
        with socket_to(server.port) as door:
            door.command("queue.subscribe", queue="tasks", ack_deadline=600)
            door.pushed()
            server.stop()
            door.pushes.put(None)
            door._reader.join(30)
            assert door.socket.close_code == 1001


# ── clients that misbehave ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("garbage", ["", "{", "[]", "7", '{"payload": {}}', '{"command": "queue.fly"}', b"\x00\xff"])
def test_garbage_is_answered_with_an_error_and_the_connection_goes_on(server: Serving, garbage: str | bytes) -> None:
    with connect(f"ws://127.0.0.1:{server.port}/api/v1/ws") as client:
        client.send(garbage)
        answer = json.loads(client.recv(timeout=30))
        assert (answer["success"], answer["code"], answer["request_id"]) == (False, "InvalidArgument", None)
        client.send('{"command": "queue.list"}')
        assert json.loads(client.recv(timeout=30))["success"] is True


def raw_socket(port: int) -> socket.socket:
    """A WebSocket whose client does as it likes."""
    raw = socket.create_connection(("127.0.0.1", port), timeout=30)
    raw.sendall(
        b"GET /api/v1/ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    while not raw.recv(4096).endswith(b"\r\n\r\n"):
        pass
    return raw


def masked(text: bytes) -> bytes:
    """A text frame of a client, masked with zeros."""
    length = bytes([0x80 | len(text)]) if len(text) < 126 else b"\xfe" + len(text).to_bytes(2, "big")
    return b"\x81" + length + bytes(4) + text


@pytest.mark.parametrize(
    ("sent", "code"),
    [(b"\x81\x82" + bytes(4) + b"\xff\xfe", 1007), (b"\xff\xff\xff garbage", 1002), (b"\x81\x02hi", 1002)],
    ids=["no UTF-8", "no frame", "not masked"],
)
def test_what_is_no_websocket_closes_the_connection_of_who_sent_it_alone(
    server: Serving, http: Http, door: SocketDoor, queue: str, sent: bytes, code: int
) -> None:
    door.command("queue.subscribe", queue=queue)
    with raw_socket(server.port) as raw:
        raw.sendall(sent)
        assert raw.recv(100) == b"\x88\x02" + code.to_bytes(2, "big")
    http.command("queue.publish", queue=queue, message=1)
    assert door.pushed()["message"] == 1


def test_a_message_above_the_limit_closes_the_connection(server: Serving, http: Http) -> None:
    with connect(f"ws://127.0.0.1:{server.port}/api/v1/ws", compression=None) as client:
        with suppress(ConnectionClosed):  # refused while it was being sent
            client.send(" " * 30_000_000)
        with pytest.raises(ConnectionClosed) as closed:
            client.recv(timeout=30)
        assert closed.value.rcvd is None or closed.value.rcvd.code == 1009
    http.command("queue.list")


def test_a_consumer_that_never_reads_is_closed_and_its_messages_go_to_others(
    server: Serving, http: Http, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "SEND_SECONDS_MAX", 0.3)
    big = "x" * 100_000
    with raw_socket(server.port) as raw:
        subscribe = {"command": "queue.subscribe", "payload": {"queue": queue, "prefetch": 1000, "ack_deadline": 600}}
        raw.sendall(masked(json.dumps(subscribe).encode()))
        wait_until(lambda: stats(http, queue, "consumers") == (1,))
        for number in range(200):
            http.command("queue.publish", queue=queue, message=[number, big])
        # what it has not read is held up for it alone
        wait_until(lambda: stats(http, queue, "consumers", "outstanding") == (0, 0))
    again = http.command("queue.consume", queue=queue, max_messages=10)["messages"]
    assert [(one["message"][0], one["retry_count"]) for one in again] == [(number, 0) for number in range(10)]


def send_without_end(raw: socket.socket, frames: bytes) -> None:
    while True:
        raw.sendall(frames)


def test_a_client_that_sends_and_never_reads_is_not_read_from_without_end(
    server: Serving, http: Http, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(websocket, "REQUESTS_MAX", 10)
    monkeypatch.setattr(websocket, "SEND_SECONDS_MAX", 0.5)
    http.command("queue.publish", queue=queue, message="x" * 1_000_000)
    with raw_socket(server.port) as raw:
        peek = masked(json.dumps({"command": "queue.peek", "payload": {"queue": queue}}).encode())
        raw.settimeout(1)
        with pytest.raises((ConnectionError, TimeoutError)):
            send_without_end(raw, peek * 1_000)
    http.command("queue.list")


def test_no_more_than_16_mib_are_pushed_and_not_settled(door: SocketDoor, http: Http, queue: str) -> None:
    for _ in range(6):
        http.command("queue.publish", queue=queue, message="x" * 5_000_000)
    door.command("queue.subscribe", queue=queue, prefetch=10)
    pushed = [door.pushed() for _ in range(4)]
    assert stats(http, queue, "outstanding") == (4,)
    door.command("queue.ack", queue=queue, message_id=pushed[0]["message_id"])
    door.pushed()
    assert stats(http, queue, "outstanding") == (4,)


def test_a_page_of_another_origin_gets_no_websocket(server: Serving) -> None:
    url = f"ws://127.0.0.1:{server.port}/api/v1/ws"
    with pytest.raises(InvalidStatus) as refused, connect(url, origin="http://evil.example"):  # type: ignore[arg-type]  # a NewType
        pass
    assert refused.value.response.status_code == 403
    with connect(url, origin=f"http://127.0.0.1:{server.port}"):  # type: ignore[arg-type]  # as above
        pass


def test_there_is_no_other_websocket(server: Serving) -> None:
    with pytest.raises(InvalidStatus), connect(f"ws://127.0.0.1:{server.port}/api/v1/other"):
        pass
