"""Much at a time: wide flow control and several streams (spec 001, "High-Throughput Subscriber")."""

import asyncio
import time

from heliograph import Message, PubSub

MESSAGES = 20_000
IN_FLIGHT = 5_000  # a subscription holds 10,000 messages; a publisher that is far ahead would lose some


async def main() -> None:
    async with PubSub() as pubsub:
        topic = await pubsub.topic("measurements").create()
        subscription = topic.subscription(
            "high-volume",
            flow_control={"max_messages": 5000, "max_bytes": 500 * 1024 * 1024},
            streaming_options={"max_streams": 10},
        )
        await subscription.create()
        processed = 0

        @subscription.on("message")
        def process(message: Message) -> None:
            nonlocal processed
            processed += 1
            message.ack()

        subscription.open()

        began = time.perf_counter()
        published = 0
        while processed < MESSAGES:
            if published < MESSAGES and published - processed <= IN_FLIGHT - 500:
                await asyncio.gather(*[topic.publish_nowait(b"x" * 100) for _ in range(500)])
                published += 500
            else:
                await asyncio.sleep(0)
        seconds = time.perf_counter() - began
        print(f"{processed:,} messages in {seconds:.2f} s: {processed / seconds:,.0f} a second")


asyncio.run(main())
