"""Events of one user in order, those of different users side by side (spec 001, "Ordered Message Processing")."""

import asyncio

from heliograph import Message, PubSub


async def main() -> None:
    async with PubSub() as pubsub:
        topic = await pubsub.topic("users").create()
        # 5 minutes for complex processing
        subscription = topic.subscription("user-events", message_ordering=True, ack_deadline=300)
        await subscription.create()
        seen: dict[str | None, list[str]] = {}
        done = asyncio.Event()

        @subscription.on("message")
        async def process(message: Message) -> None:
            print(f"Processing event for user {message.ordering_key}: {message.data.decode()}")
            await asyncio.sleep(0.01)  # events arrive in order per user, and the next one waits

            seen.setdefault(message.ordering_key, []).append(message.data.decode())
            message.ack()
            if sum(map(len, seen.values())) == 6:
                done.set()

        subscription.open()

        for event in ("login", "page-view", "logout"):
            for user in ("user-1", "user-2"):
                await topic.publish_message(data=event.encode(), ordering_key=user)
        await done.wait()
        assert seen == {user: ["login", "page-view", "logout"] for user in ("user-1", "user-2")}


asyncio.run(main())
