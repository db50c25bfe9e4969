"""Many streams, many pullers, slow consumers: against `heliograph serve` as a process of its own, whose CPU time and
memory the system tells. Nothing here depends on how fast the machine is."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from benchmarks.server import ServerProcess, server_process
from heliograph.server.pubsub import proto

TOPIC = "projects/load/topics/orders"
SUBSCRIPTION = "projects/load/subscriptions/billing"
SECONDS_MAX = 120
MB = 1024 * 1024

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system does not tell of other processes"),
]


def cpu_seconds(pid: int) -> float:
    """What a process has used of the processors since it began."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """What a process has in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Client:
    """The raw methods, on one connection."""

    def __init__(self, endpoint: str) -> None:
        self.channel = grpc.aio.insecure_channel(
            endpoint, options=[("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        )
        self.create_topic = self._unary("Publisher/CreateTopic", proto.Topic)
        self.publish = self._unary("Publisher/Publish", proto.PublishResponse)
        self.create_subscription = self._unary("Subscriber/CreateSubscription", proto.Subscription)
        self.pull = self._unary("Subscriber/Pull", proto.PullResponse)
        self.acknowledge = self._unary("Subscriber/Acknowledge", proto.Empty)
        self._streaming_pull: Any = self.channel.stream_stream(
            "/google.pubsub.v1.Subscriber/StreamingPull", _serialize, proto.StreamingPullResponse.FromString
        )

    def _unary(self, method: str, response: Any) -> Callable[[Any], Awaitable[Any]]:
        call: Any = self.channel.unary_unary(f"/google.pubsub.v1.{method}", _serialize, response.FromString)
        return lambda request: call(request, timeout=SECONDS_MAX)

    async def stream(self, subscription: str, **fields: Any) -> Any:
        """A streaming pull; whoever opened it reads and writes."""
        stream = self._streaming_pull()
        await stream.write(
            proto.StreamingPullRequest(subscription=subscription, stream_ack_deadline_seconds=60, **fields)
        )
        return stream

    async def fill(self, messages: int, payload_bytes: int, *, batch: int = 500) -> set[str]:
        """Publish so many; their ids."""
        request = proto.PublishRequest(topic=TOPIC, messages=[{"data": bytes(payload_bytes)}] * batch)
        ids: set[str] = set()
        for _ in range(messages // batch):
            ids.update((await self.publish(request)).message_ids)
        return ids


def _serialize(request: Any) -> bytes:
    return bytes(request.SerializeToString())


@asynccontextmanager
async def clients(server: ServerProcess, count: int) -> AsyncIterator[list[Client]]:
    """Clients with a connection each; the topic exists."""
    async with AsyncExitStack() as stack:
        made = [Client(server.endpoint) for _ in range(count)]
        for client in made:
            await stack.enter_async_context(client.channel)
        await made[0].create_topic(proto.Topic(name=TOPIC))
        yield made


async def subscribe(client: Client, name: str = SUBSCRIPTION) -> None:
    await client.create_subscription(proto.Subscription(name=name, topic=TOPIC, ack_deadline_seconds=60))


def test_a_hundred_idle_streams_cost_less_than_two_percent_of_a_core() -> None:
    async def measure(server: ServerProcess) -> float:
        async with clients(server, 4) as (first, *others):
            for number in range(20):
                await subscribe(first, f"{SUBSCRIPTION}-{number}")
            streams = [
                await client.stream(f"{SUBSCRIPTION}-{number}", max_outstanding_messages=1000, protocol_version=1)
                for client in (first, *others, first)
                for number in range(20)
            ]
            for stream in streams:
                await stream.read()  # what the subscription is like: the stream is up
            before = cpu_seconds(server.pid)
            await asyncio.sleep(20)
            used = cpu_seconds(server.pid) - before
            for stream in streams:
                stream.cancel()
        return used

    with server_process("memory") as server:
        used = asyncio.run(measure(server))
    print(f"{used / 20:.2%} of a core")
    assert used < 0.02 * 20


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_fifty_thousand_messages_over_five_streams_come_exactly_once_each(store: str) -> None:
    messages = 50_000

    async def consume(client: Client, seen: Counter[str], done: asyncio.Event) -> None:
        stream = await client.stream(SUBSCRIPTION)
        while (response := await stream.read()) is not grpc.aio.EOF:
            received = response.received_messages
            seen.update(one.message.message_id for one in received)
            await stream.write(proto.StreamingPullRequest(ack_ids=[one.ack_id for one in received]))
            if len(seen) >= messages:
                done.set()

    async def run(server: ServerProcess) -> tuple[set[str], Counter[str]]:
        seen: Counter[str] = Counter()
        done = asyncio.Event()
        async with clients(server, 6) as (publisher, *consumers):
            await subscribe(publisher)
            consuming = [asyncio.create_task(consume(client, seen, done)) for client in consumers]
            published = await publisher.fill(messages, 1_000)
            await asyncio.wait_for(done.wait(), SECONDS_MAX)
            await asyncio.sleep(1)  # for what should not come
            for task in consuming:
                task.cancel()
            await asyncio.gather(*consuming, return_exceptions=True)
        return published, seen

    with server_process(store) as server:
        published, seen = asyncio.run(run(server))
    assert seen.keys() == published
    assert len(published) == messages
    assert set(seen.values()) == {1}


def test_twenty_pullers_get_no_message_twice() -> None:
    messages = 20_000

    async def pull(client: Client, seen: Counter[str]) -> int:
        own = 0
        while len(seen) < messages:
            response = await client.pull(
                proto.PullRequest(subscription=SUBSCRIPTION, max_messages=100, return_immediately=True)
            )
            ack_ids = [one.ack_id for one in response.received_messages]
            seen.update(one.message.message_id for one in response.received_messages)
            own += len(ack_ids)
            if ack_ids:
                await client.acknowledge(proto.AcknowledgeRequest(subscription=SUBSCRIPTION, ack_ids=ack_ids))
            else:
                await asyncio.sleep(0.01)  # others hold what is left
        return own

    async def run(server: ServerProcess) -> tuple[set[str], Counter[str], list[int]]:
        seen: Counter[str] = Counter()
        async with clients(server, 20) as pullers:
            await subscribe(pullers[0])
            published = await pullers[0].fill(messages, 100)
            shares = await asyncio.wait_for(asyncio.gather(*[pull(one, seen) for one in pullers]), SECONDS_MAX)
        return published, seen, list(shares)

    with server_process("memory") as server:
        published, seen, shares = asyncio.run(run(server))
    assert seen.keys() == published
    assert set(seen.values()) == {1}
    assert min(shares) > 0


@pytest.mark.parametrize("reads", [True, False], ids=["that reads and acknowledges nothing", "that reads nothing"])
def test_a_slow_consumer_costs_no_more_memory_than_its_window(reads: bool) -> None:
    backlog, payload_bytes, window = 100_000, 1_000, 5 * MB
    # 2 MB of responses that wait, the window once more as encoded, and what Python makes of 5,000 leases
    slack = 20 * MB

    async def read_on(stream: Any) -> None:
        while await stream.read() is not grpc.aio.EOF:
            pass

    async def growth(server: ServerProcess) -> int:
        async with clients(server, 2) as (publisher, consumer):
            await subscribe(publisher)
            await publisher.fill(backlog, payload_bytes)
            before = resident_bytes(server.pid)
            # one that reads is bound by what it asked for; one that does not, by what the connection takes
            stream = await consumer.stream(SUBSCRIPTION, max_outstanding_bytes=window if reads else 0)
            reading = asyncio.create_task(read_on(stream)) if reads else None
            most = 0
            for _ in range(30):
                await asyncio.sleep(0.1)
                most = max(most, resident_bytes(server.pid) - before)
            if reading is not None:
                reading.cancel()
            stream.cancel()
        return most

    with server_process("memory") as server:
        grown = asyncio.run(growth(server))
    print(f"grown by {grown / MB:.1f} MB")
    assert grown < window + slack
