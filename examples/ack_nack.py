"""Acknowledge what was processed, give back what was not (spec 002, "Basic Ack/Nack")."""

import asyncio

from heliograph import Message, PubSub

attempts = 0


async def process_message(data: bytes) -> None:
    global attempts
    attempts += 1
    if attempts == 1:
        raise RuntimeError("the database is away")


async def main() -> None:
    async with PubSub() as pubsub:
        topic = await pubsub.topic("orders").create()
        subscription = await topic.subscription("billing").create()
        done = asyncio.Event()

        @subscription.on("message")
        async def handle(message: Message) -> None:
            try:
                # Process message
                await process_message(message.data)

                # Success - acknowledge
                message.ack()
                print("processed", message.data.decode(), "at attempt", message.delivery_attempt)
                done.set()
            except RuntimeError as error:
                print("Processing failed:", error)

                # Failure - requeue for retry
                message.nack()

        subscription.open()
        await topic.publish_message(b"Order #1")
        await done.wait()


asyncio.run(main())
