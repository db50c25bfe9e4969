"""Whatever callbacks, publishers and the clock do: nothing is lost, the limits hold, and the books are right.

Each seed is one course of events, the same every time. A seed that failed once stays in `SEEDS`.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from heliograph import Message
from tests.client.conftest import Bench, idle, until

SEEDS = range(25)
STEPS = 60
ERROR = RuntimeError("the callback's own")


class World:
    """One subscription with an unreliable listener."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.bench = Bench()
        self.held: list[Message] = []  # delivered, and forgotten for now
        self.acknowledged: Counter[str] = Counter()
        self.published: list[str] = []
        self.kind = True  # whether every message is acknowledged from now on

    async def build(self) -> None:
        self.max_messages = self.random.choice([1, 3, 50])
        self.ordered = self.random.random() < 0.5
        self.subscription = await self.bench.subscription(
            flow_control={"max_messages": self.max_messages},
            ack_deadline=self.random.choice([1, 30]),
            message_ordering=self.ordered,
            retry_policy=self.random.choice([None, {"minimum_backoff": 1, "maximum_backoff": 4}]),
            streaming_options={"high_water_mark": self.random.choice([0, 5])},
        )
        self.kind = False
        self.subscription.on("message", self.receive_later if self.random.random() < 0.5 else self.receive)
        self.subscription.on("error", self.expect)
        self.subscription.open()

    def expect(self, error: Exception) -> None:
        assert error is ERROR

    def acknowledge(self, message: Message) -> None:
        message.ack()
        self.acknowledged[message.id] += 1

    def receive(self, message: Message) -> None:
        assert len(self.subscription.outstanding) <= self.max_messages
        what = 1.0 if self.kind else self.random.random()
        if what < 0.1:
            raise ERROR
        if what < 0.2:
            message.nack()
        elif what < 0.3:
            message.modify_ack_deadline(0)
        elif what < 0.5:
            self.held.append(message)
        elif what < 0.6:
            message.modify_ack_deadline(5)
            self.held.append(message)
        else:
            self.acknowledge(message)

    async def receive_later(self, message: Message) -> None:
        for _ in range(self.random.randrange(3)):
            await asyncio.sleep(0)
        self.receive(message)

    async def step(self) -> None:
        what = self.random.random()
        if what < 0.4:
            keys = [None, "a", "b"]
            for _ in range(self.random.randrange(8)):
                key = self.random.choice(keys)
                self.published += await self.bench.publish(str(len(self.published)), key=key)
        elif what < 0.6:
            self.bench.clock.advance(self.random.choice([0.1, 1, 3]))
        elif what < 0.7 and self.held:
            self.acknowledge(self.held.pop(self.random.randrange(len(self.held))))
        elif what < 0.75:
            self.subscription.pause()
        elif what < 0.85:
            self.subscription.resume()
        elif what < 0.88:
            self.held.clear()
            stopping = asyncio.create_task(self.subscription.close())
            while not stopping.done():
                self.bench.clock.advance(1)
                await idle()
            self.subscription.open()
        await asyncio.sleep(0)

    async def check_books(self) -> None:
        await idle()
        statistics = self.subscription.queue.statistics("my-sub")
        assert len(self.subscription.outstanding) == statistics.outstanding
        assert self.subscription.outstanding.bytes == statistics.outstanding_bytes

    async def drain(self) -> None:
        """Everything is acknowledged in the end."""
        self.kind = True
        self.held.clear()
        self.subscription.resume()
        for _ in range(100):
            self.bench.clock.advance(1)
            await idle()
        await until(lambda: set(self.acknowledged) == set(self.published))


@pytest.mark.parametrize("seed", SEEDS)
async def test_nothing_is_lost_and_the_books_are_right(seed: int) -> None:
    world = World(seed)
    await world.build()
    for _ in range(STEPS):
        await world.step()
        if world.random.random() < 0.2:
            await world.check_books()
    await world.drain()
    await world.check_books()
    statistics = world.subscription.queue.statistics("my-sub")
    assert (statistics.ready, statistics.delayed, statistics.outstanding) == (0, 0, 0)
    assert statistics.totals.acknowledged == len(world.published)
    await world.subscription.close()
