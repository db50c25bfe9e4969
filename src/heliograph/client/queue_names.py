"""Which work queues there are."""

from __future__ import annotations

from heliograph.broker.protocol import Broker
from heliograph.broker.queues import QUEUE_PREFIX
from heliograph.client.backing import backing
from heliograph.client.message_queue import MessageQueue


def queues(*, url: str | None = None, broker: Broker | None = None) -> list[str]:
    """The names of all work queues, of a server or of a broker of this process; see `Queue`."""
    if url is None and broker is None:
        broker = MessageQueue.get_instance().broker
    asked, owned = backing(broker, None, url)
    try:
        names = [info.name for info in asked.list_subscriptions()]
    finally:
        if owned is not None:
            owned.close()
    return [name.removeprefix(QUEUE_PREFIX) for name in names if name.startswith(QUEUE_PREFIX)]


__all__ = ["queues"]
