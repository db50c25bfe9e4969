"""On SIGTERM take nothing new, and finish what is in flight (spec 001, "Graceful Shutdown")."""

import asyncio
import os
import signal

from heliograph import Message, PubSub


async def main() -> None:
    async with PubSub() as pubsub:
        topic = await pubsub.topic("jobs").create()
        subscription = await topic.subscription("my-sub").create()
        begun = asyncio.Event()

        @subscription.on("message")
        async def process(message: Message) -> None:
            begun.set()
            await asyncio.sleep(0.1)
            print("processed", message.data.decode())
            message.ack()

        subscription.open()
        await topic.publish_message(b"a job")

        # Handle shutdown signal
        shutdown = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, shutdown.set)

        await begun.wait()
        os.kill(os.getpid(), signal.SIGTERM)  # somebody stops us while we work
        await shutdown.wait()
        print("Shutting down gracefully...")

        # Stop receiving new messages, wait for in-flight to complete
        await subscription.close()
        print("All messages processed, exiting")


asyncio.run(main())
