"""What the tests of the client share: a fresh process-wide queue, and ways to let asyncio settle without waiting."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator

import pytest

from heliograph import LocalBroker, Message, MessageQueue, PubSub, SimulatedClock, Subscription, Topic

# The tests run in one thread, so what is going to happen happens within a few turns of the event loop.
_TURNS_MAX = 2_000
_TURNS_IDLE = 30


@pytest.fixture(autouse=True)
def _fresh_queue() -> Iterator[None]:
    MessageQueue.reset_instance()
    yield
    MessageQueue.reset_instance()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test may be an async function; it has an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


async def until(condition: Callable[[], object]) -> None:
    """Let the event loop turn until the condition holds."""
    for _ in range(_TURNS_MAX):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not come to that")


async def idle() -> None:
    """Let the event loop turn until all that could happen has happened."""
    for _ in range(_TURNS_IDLE):
        await asyncio.sleep(0)


class Inbox:
    """A listener that remembers its messages.

    Args:
        then: what to do with each of them, such as `Message.ack`.
    """

    def __init__(self, then: Callable[[Message], object] | None = None) -> None:
        self.messages: list[Message] = []
        self._then = then

    def __call__(self, message: Message) -> None:
        self.messages.append(message)
        if self._then is not None:
            self._then(message)

    @property
    def data(self) -> list[str]:
        return [message.data.decode() for message in self.messages]

    @property
    def attempts(self) -> list[int]:
        return [message.delivery_attempt for message in self.messages]

    def __len__(self) -> int:
        return len(self.messages)


class Bench:
    """A PubSub with topic `my-topic` and a clock that stands until it is moved."""

    def __init__(self) -> None:
        self.clock = SimulatedClock()
        self.pubsub = PubSub(broker=LocalBroker(clock=self.clock))
        self.topic: Topic = self.pubsub.topic("my-topic")

    async def subscription(self, name: str = "my-sub", **options: object) -> Subscription:
        """A new subscription of the topic."""
        if not await self.topic.exists():
            await self.topic.create()
        return await self.topic.subscription(name, **options).create()

    async def publish(self, *payloads: str, key: str | None = None) -> list[str]:
        """One message after the other."""
        return [await self.topic.publish_message(data=payload.encode(), ordering_key=key) for payload in payloads]
