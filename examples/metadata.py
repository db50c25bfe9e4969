"""Everything that a message says of itself (spec 002, "Accessing Message Metadata")."""

import asyncio

from heliograph import Message, PubSub


async def main() -> None:
    async with PubSub() as pubsub:
        topic = await pubsub.topic("orders").create()
        subscription = await topic.subscription("audit").create()
        done = asyncio.Event()

        @subscription.on("message")
        def show(message: Message) -> None:
            print(f"Message ID: {message.id}")
            print(f"Published: {message.publish_time.isoformat()}")
            print(f"Size: {message.length} bytes")
            print(f"Ordering Key: {message.ordering_key or 'none'}")
            print(f"Delivery Attempt: {message.delivery_attempt}")

            print("Attributes:")
            for key, value in message.attributes.items():
                print(f"  {key}: {value}")

            print(f"Data: {message.data.decode()}")

            message.ack()
            done.set()

        subscription.open()
        await topic.publish_message(data=b"Order #1", attributes={"orderId": "12345", "region": "eu"})
        await done.wait()


asyncio.run(main())
