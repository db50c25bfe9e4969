"""What subscriptions and queues hold and have done, over HTTP: what `heliograph top` shows.

::

    GET /api/v1/statistics                       all subscriptions and queues
    GET /api/v1/statistics?subscription=NAME     one, by its full name
        → {"now": 1764297357.1, "topics": 2, "subscriptions": [{"name": …, "topic": …, "kind": …, "ready": 3, …}]}

A queue's kind is "queue", and its name is the one that queue commands know. "push" tells how the endpoint of a push
subscription is doing, with its last error (pubsub-protocol.md 1.13); null = nothing is pushed.
"""

from __future__ import annotations

import asyncio
from typing import Any

from heliograph.broker.protocol import Broker, SubscriptionInfo
from heliograph.broker.queues import QUEUE_PREFIX
from heliograph.errors import SubscriptionNotFound
from heliograph.server.http import answer_json, query
from heliograph.server.push.service import Pushing
from heliograph.server.routing import Receive, Route, Scope, Send


def statistics_routes(pushing: Pushing) -> list[Route]:
    """The route of the module.

    Args:
        pushing: who pushes.
    """

    async def statistics(scope: Scope, _receive: Receive, send: Send, broker: Broker) -> None:
        """See the module. Raises: SubscriptionNotFound."""
        name = query(scope).get("subscription")
        told = await asyncio.to_thread(_counted, broker, name)
        for row in told["subscriptions"]:
            row["push"] = None if row["kind"] == "queue" else pushing.state(row["name"])
        await answer_json(send, told)

    return [Route("GET", "/api/v1/statistics", statistics)]


def _counted(broker: Broker, name: str | None) -> dict[str, Any]:
    infos = broker.list_subscriptions() if name is None else [broker.get_subscription(name)]
    counted = []
    for info in infos:
        try:
            counted.append(_of(broker, info))
        except SubscriptionNotFound:  # deleted meanwhile
            if name is not None:
                raise
    return {"now": broker.now_ns() / 1e9, "topics": len(broker.list_topics()), "subscriptions": counted}


def _of(broker: Broker, info: SubscriptionInfo) -> dict[str, Any]:
    found = broker.statistics(info.name)
    is_queue = info.name.startswith(QUEUE_PREFIX)
    told: dict[str, Any] = {
        "name": info.name.removeprefix(QUEUE_PREFIX),
        "topic": info.topic.removeprefix(QUEUE_PREFIX),
        "kind": "queue" if is_queue else "subscription",
        "detached": info.detached,
        "ready": found.ready,
        "delayed": found.delayed,
        "outstanding": found.outstanding,
        "outstanding_bytes": found.outstanding_bytes,
        "dead_letters": found.dead_letters,
        "consumers": found.consumers,
        "oldest_waiting_age_seconds": _age_seconds(broker, found.oldest_waiting_ns),
        "oldest_unacknowledged_age_seconds": _age_seconds(broker, found.oldest_unacknowledged_ns),
        "average_wait_seconds": found.average_wait_ns / 1e9,
    }
    totals = found.totals
    names = ("published", "delivered", "redelivered", "acknowledged", "nacked", "expired", "dead_lettered", "dropped")
    told |= {f"{each}_total": getattr(totals, each) for each in names}
    return told | {"created_ns": info.created_ns}


def _age_seconds(broker: Broker, instant_ns: int) -> float:
    return max(broker.now_ns() - instant_ns, 0) / 1e9 if instant_ns else 0.0
