"""Which messages a subscription has not acknowledged, over HTTP: what the pipeline holds the event log against.

::

    GET /api/v1/unacknowledged?subscription=projects/p/subscriptions/s
        → {"subscription": …, "topic": …, "topic_number": 3, "at_ns": 1372680000000000000, "created_ns": …,
           "is_filtered": false, "is_detached": false, "runs": [[1042, 1050], [1060, 1061]]}

A run is a sequence, and the one behind the last. The answer is that of the instant `at_ns`, and comes when everything
that led to it is durable: the event log tells it then. Dead letters are not among the messages. A subscription that
`is_filtered` gets some of what its topic publishes only.
"""

from __future__ import annotations

from heliograph.broker.protocol import Broker
from heliograph.server.http import answer_json, required
from heliograph.server.routing import Receive, Route, Scope, Send


async def unacknowledged(scope: Scope, _receive: Receive, send: Send, broker: Broker) -> None:
    """`GET /api/v1/unacknowledged`, see the module. Raises: SubscriptionNotFound, InvalidArgument (none is named)."""
    name = required(scope, "subscription")
    info, found = broker.get_subscription(name), await broker.unacknowledged(name)
    told = {"subscription": name, "topic": info.topic, "topic_number": found.topic_number, "at_ns": found.at_ns}
    told |= {"created_ns": info.created_ns, "is_filtered": bool(info.settings.filter), "is_detached": info.detached}
    told["runs"] = found.runs
    await answer_json(send, told)


ROUTES = (Route("GET", "/api/v1/unacknowledged", unacknowledged),)
