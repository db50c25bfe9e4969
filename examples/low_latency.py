"""Little at a time, and at once (spec 001, "Low-Latency Subscriber")."""

import asyncio
import statistics
import time

from heliograph import Message, PubSub


async def main() -> None:
    async with PubSub() as pubsub:
        topic = await pubsub.topic("events").create()
        subscription = topic.subscription("real-time", flow_control={"max_messages": 100}, ack_deadline=30)
        await subscription.create()
        waits: list[float] = []
        received = asyncio.Event()

        @subscription.on("message")
        def handle(message: Message) -> None:
            # Process quickly
            waits.append(time.perf_counter() - float(message.data))
            message.ack()
            received.set()

        subscription.open()

        for _ in range(200):
            received.clear()
            await topic.publish_message(str(time.perf_counter()).encode())
            await received.wait()
        print(f"median {statistics.median(waits) * 1000:.3f} ms from publishing to the callback")


asyncio.run(main())
