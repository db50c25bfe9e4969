"""Whatever a client of the work-queue door sends, it is answered, and never as a defect of the broker."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from heliograph.broker.broker import LocalBroker
from heliograph.server.closing import Closing
from heliograph.server.feed import Feeds
from heliograph.server.queue_commands import Caller, QueueCommands
from heliograph.server.queue_envelope import perform

COMMANDS = [
    *(f"queue.{name}" for name in ("create", "delete", "list", "stats", "peek", "publish", "publish_batch", "consume")),
    *(f"queue.{name}" for name in ("subscribe", "unsubscribe", "ack", "nack", "extend", "purge")),
    *(f"dlq.{name}" for name in ("list", "retry", "purge")),
]
FIELDS = [
    *("queue", "name", "message", "payload", "priority", "ttl", "delay", "headers", "max_retries", "dedup_id"),
    *("messages", "consumer_id", "timeout", "ack_deadline", "prefetch", "max_messages", "message_id", "lease_id"),
    *("message_ids", "lease_ids", "requeue", "count", "limit", "offset", "config", "max_depth", "retry_delays"),
]
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False, allow_infinity=False), st.text()
)
VALUES = st.recursive(
    st.one_of(SCALARS, st.sampled_from(["q", "2-1-1", "1000000000001", 0, 1, 5, 9, 600])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(FIELDS), inner, max_size=3)),
    max_leaves=6,
)
PAYLOADS = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=5)


def answers(*requests: bytes) -> list[dict[str, Any]]:
    """Of a door with a queue `q`, whose waiting consumes end at once."""

    async def run() -> list[dict[str, Any]]:
        broker, closing = LocalBroker(), Closing()
        closing.begin()
        commands = QueueCommands(broker, Feeds(broker), closing)

        async def receive() -> dict[str, Any]:
            await asyncio.Event().wait()
            return {}

        told = []
        for request in (b'{"command": "queue.create", "payload": {"name": "q"}}', *requests):
            status, body = await perform(commands, request, Caller(receive))
            told.append({"status": status} | json.loads(body))
        broker.close()
        return told[1:]

    return asyncio.run(run())


def check(answer: dict[str, Any]) -> None:
    assert answer["status"] not in (500, 501), answer
    assert answer["success"] == (answer["status"] == 200)
    assert (answer["payload"] is None) != answer["success"]
    assert answer["success"] or (answer["error"] and answer["code"])


@given(st.binary(max_size=100))
def test_any_bytes_are_answered(request: bytes) -> None:
    (answer,) = answers(request)
    check(answer)


@given(st.lists(st.tuples(st.sampled_from(COMMANDS), PAYLOADS, st.booleans()), min_size=1, max_size=6))
def test_any_payloads_of_any_commands_are_answered(sent: list[tuple[str, dict[str, Any], bool]]) -> None:
    requests = [
        json.dumps({"command": command, "payload": payload | ({"queue": "q"} if ours else {}), "request_id": payload})
        for command, payload, ours in sent
    ]
    for answer, (_, payload, _) in zip(answers(*[request.encode() for request in requests]), sent, strict=True):
        check(answer)
        if answer["request_id"] is not None:
            assert answer["request_id"] == payload
