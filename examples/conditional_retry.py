"""Try a few times, then put the message aside (spec 002, "Conditional Retry with Delivery Attempt")."""

import asyncio

from heliograph import Message, PubSub

MAX_RETRIES = 5


async def process_message(data: bytes) -> None:
    raise ValueError(f"{data!r} makes no sense")


async def main() -> None:
    async with PubSub() as pubsub:
        topic = await pubsub.topic("orders").create()
        subscription = await topic.subscription("billing").create()
        failed: list[Message] = []
        done = asyncio.Event()

        @subscription.on("message")
        async def handle(message: Message) -> None:
            try:
                await process_message(message.data)
                message.ack()
            except ValueError:
                attempt = message.delivery_attempt

                if attempt < MAX_RETRIES:
                    print(f"Retry attempt {attempt}/{MAX_RETRIES}")
                    message.nack()
                else:
                    print("Max retries exceeded, giving up")
                    failed.append(message)
                    message.ack()  # Ack to prevent infinite loop
                    done.set()

        subscription.open()
        await topic.publish_message(b"?")
        await done.wait()
        assert [message.delivery_attempt for message in failed] == [5]


asyncio.run(main())
