"""The work-queue client of the original system, unmodified: `synap-sdk` from PyPI over HTTP (queue-protocol.md)."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from heliograph.server.app import Serving

synap_sdk = pytest.importorskip("synap_sdk", reason="synap-sdk is not installed")

_numbers = itertools.count(1)

Story = Callable[[Any, str], Awaitable[None]]


@asynccontextmanager
async def client_of(server: Serving) -> AsyncIterator[Any]:
    config = synap_sdk.SynapConfig(f"http://127.0.0.1:{server.port}")
    async with synap_sdk.SynapClient(config) as client:
        yield client


def tell(server: Serving, story: Story) -> None:
    """Let the story happen with a queue of its own."""

    async def run() -> None:
        name = f"synap-{next(_numbers)}"
        async with client_of(server) as client:
            await client.queue.create_queue(name, max_size=100, message_ttl=30)
            await story(client, name)

    asyncio.run(run())


def test_messages_are_consumed_by_priority_with_what_was_published(server: Serving) -> None:
    async def story(client: Any, name: str) -> None:
        ids = [
            await client.queue.publish(name, {"n": 1}, priority=1, max_retries=5),
            await client.queue.publish(name, "text ü", priority=9),
            await client.queue.publish(name, b"\x00\xff", priority=5),
        ]
        got = [await client.queue.consume(name, "worker-1") for _ in range(3)]
        assert [message.id for message in got] == [ids[1], ids[2], ids[0]]
        assert [message.payload for message in got] == ["text ü", b"\x00\xff", {"n": 1}]
        assert [message.priority for message in got] == [9, 5, 1]
        assert [message.max_retries for message in got] == [3, 3, 5]
        assert await client.queue.consume(name, "worker-1") is None

    tell(server, story)


def test_ack_ends_a_message_and_nack_brings_it_again(server: Serving) -> None:
    async def story(client: Any, name: str) -> None:
        await client.queue.publish(name, "first")
        await client.queue.publish(name, "second")
        first = await client.queue.consume(name, "worker-1")
        await client.queue.ack(name, first.id)
        second = await client.queue.consume(name, "worker-1")
        await client.queue.nack(name, second.id)
        again = await client.queue.consume(name, "worker-2")
        assert (again.id, again.retries) == (second.id, 1)

    tell(server, story)


def test_stats_list_purge_and_delete(server: Serving) -> None:
    async def story(client: Any, name: str) -> None:
        await client.queue.publish(name, "x")
        stats = await client.queue.stats(name)
        assert (stats["depth"], stats["published_total"]) == (1, 1)
        assert name in await client.queue.list()
        assert (await client.send_command("queue.purge", {"queue": name}))["purged"] == 1
        await client.queue.delete_queue(name)
        assert name not in await client.queue.list()

    tell(server, story)


def test_what_fails_is_its_own_exception_with_our_text(server: Serving) -> None:
    async def story(client: Any, _name: str) -> None:
        with pytest.raises(synap_sdk.exceptions.SynapException, match="missing"):
            await client.queue.publish("missing", "x")

    tell(server, story)
