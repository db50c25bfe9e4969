"""1,000 consumers of one queue, each on a WebSocket of its own, share what there is."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import pytest
from websockets.asyncio.client import ClientConnection, connect

from benchmarks.server import running_server
from tests.server.clients import Http

CONSUMERS = 1_000
MESSAGES = 100_000
BATCH = 1_000


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_thousand_consumers_share_a_hundred_thousand_messages_fairly_and_none_comes_twice() -> None:
    got: Counter[int] = Counter()
    seen: Counter[int] = Counter()
    with running_server("memory") as endpoint:
        http = Http(int(endpoint.rpartition(":")[2]))
        http.command("queue.create", name="shared", max_depth=MESSAGES)
        asyncio.run(consume_all(endpoint, http, got, seen))
        stats = http.command("queue.stats", queue="shared")
    assert len(seen) == MESSAGES
    assert max(seen.values()) == 1
    assert (stats["acked_total"], stats["redelivered_total"], stats["depth"]) == (MESSAGES, 0, 0)
    assert max(got.values()) <= 2 * MESSAGES / CONSUMERS
    assert len(got) == CONSUMERS


async def consume_all(endpoint: str, http: Http, got: Counter[int], seen: Counter[int]) -> None:
    sockets: list[ClientConnection] = []
    for _ in range(0, CONSUMERS, 100):
        opening = [connect(f"ws://{endpoint}/api/v1/ws", compression=None, ping_interval=None) for _ in range(100)]
        sockets += await asyncio.gather(*opening)
    done = asyncio.Event()
    acked = 0

    async def work(number: int, socket: ClientConnection) -> None:
        nonlocal acked
        payload = {"queue": "shared", "prefetch": 10, "ack_deadline": 300}
        await socket.send(json.dumps({"command": "queue.subscribe", "payload": payload}))
        async for text in socket:
            message = json.loads(text)
            if message.get("type") != "message":
                acked += message["request_id"] == "queue.ack"
                if acked == MESSAGES:
                    done.set()
                continue
            got[number] += 1
            seen[message["message"]] += 1
            settled = {"queue": "shared", "message_id": message["message_id"], "lease_id": message["lease_id"]}
            request = {"command": "queue.ack", "payload": settled, "request_id": "queue.ack"}
            await socket.send(json.dumps(request))

    workers = [asyncio.ensure_future(work(number, socket)) for number, socket in enumerate(sockets)]
    for start in range(0, MESSAGES, BATCH):
        batch = [{"message": number} for number in range(start, start + BATCH)]
        await asyncio.to_thread(http.command, "queue.publish_batch", queue="shared", messages=batch)
    await asyncio.wait_for(done.wait(), 300)
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    await asyncio.gather(*[socket.close() for socket in sockets])
