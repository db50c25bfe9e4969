"""Taking messages for one client: at once or when they come. What the client cannot get any more, because it went
meanwhile, is nobody's, and goes back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from heliograph.broker.protocol import Broker
from heliograph.broker.reply import Reply
from heliograph.engine.message import Delivery
from heliograph.errors import HeliographError, SubscriptionNotFound
from heliograph.server.feed import Feeds
from heliograph.server.routing import ClientGone
from heliograph.server.waiting import Wait

log = logging.getLogger(__name__)


async def leased(broker: Broker, name: str, reply: Reply[list[Delivery]]) -> list[Delivery]:
    """The deliveries of a pull, once their leases are durable. A client that goes until then does not keep them.

    Args:
        broker: who was asked.
        name: the subscription.
        reply: of the pull.
    """
    try:
        return await reply
    except asyncio.CancelledError:
        give_back(broker, name, [delivery.ack_id for delivery in reply.provisional])
        raise


def give_back(broker: Broker, name: str, ack_ids: Sequence[str]) -> None:
    """Release deliveries that reached nobody. Where that fails, they come back at the end of their leases: whoever
    gives back is at its end, and has nobody to tell."""
    if ack_ids:
        try:
            broker.release(name, ack_ids)
        except HeliographError as error:
            log.info("%d deliveries of %s could not be given back: %s", len(ack_ids), name, error)


async def take_or_wait(
    feeds: Feeds,
    broker: Broker,
    name: str,
    room: Callable[[], int],
    take: Callable[[int], Reply[list[Delivery]]],
    wait: Wait | None,
) -> Sequence[Delivery]:
    """What there is; where there is nothing, the first that comes.

    Args:
        feeds: who waits on which subscription.
        broker: who has the messages.
        name: the subscription.
        room: how many messages the client may have now.
        take: pulls up to so many, never none.
        wait: how long; entered only where it is needed; None = not at all.

    Returns:
        The deliveries; none when the wait is over.

    Raises:
        SubscriptionNotFound: it does not exist, or not any more.
        ClientGone: nobody waits any more.
    """
    wanted = room()
    deliveries = await leased(broker, name, take(wanted)) if wanted else []
    if deliveries or wait is None:
        return deliveries
    async with wait:
        return await _wait_and_take(feeds, broker, name, room, take, wait)


async def _wait_and_take(
    feeds: Feeds,
    broker: Broker,
    name: str,
    room: Callable[[], int],
    take: Callable[[int], Reply[list[Delivery]]],
    wait: Wait,
) -> Sequence[Delivery]:
    feed = feeds.join(name)
    try:
        while True:
            signals = feed.signals
            wanted = room()
            if wanted and feed.may_have:
                deliveries = await leased(broker, name, take(wanted))
                if deliveries:
                    feed.found(wait.wake, enough=len(deliveries) == wanted)
                    return _unless_gone(broker, name, deliveries, wait)
                feed.nothing(signals)
            if feed.lost:
                raise SubscriptionNotFound(name)
            if wait.is_over:
                return ()
            if wanted:
                feed.stand_in_row(wait.wake)
            else:
                feed.stand_aside(wait.wake, 0)  # who has no room must not keep the first place from those who have
            try:
                await wait.woken()
            finally:
                feed.step_back(wait.wake)
    finally:
        feed.detach(wait.wake)
        feeds.leave(feed)


def _unless_gone(broker: Broker, name: str, deliveries: Sequence[Delivery], wait: Wait) -> Sequence[Delivery]:
    try:
        wait.check()
    except ClientGone:
        give_back(broker, name, [delivery.ack_id for delivery in deliveries])
        raise
    return deliveries
