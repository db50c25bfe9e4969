"""Extend the deadline before a long operation (spec 002, "Long-Running Processing")."""

import asyncio

from heliograph import Message, PubSub


async def long_running_operation(data: bytes) -> None:
    await asyncio.sleep(1.1)  # longer than the ack deadline below


async def main() -> None:
    async with PubSub() as pubsub:
        topic = await pubsub.topic("videos").create()
        subscription = await topic.subscription("encoder", ack_deadline=1).create()
        attempts: list[int] = []
        done = asyncio.Event()

        @subscription.on("message")
        async def encode(message: Message) -> None:
            attempts.append(message.delivery_attempt)
            # Extend deadline before long operation
            message.modify_ack_deadline(300)  # 5 minutes

            try:
                await long_running_operation(message.data)
                message.ack()
            except OSError:
                message.nack()
            done.set()

        subscription.open()
        await topic.publish_message(b"a film")
        await done.wait()
        print("encoded at attempt", attempts)
        assert attempts == [1]


asyncio.run(main())
