"""The test hooks over HTTP, for tests in any language: `/admin/v1/…`, JSON in and out. They are served only where they
were asked for (`heliograph serve --admin-test-hooks`): whoever reaches them can empty the broker.

========================================  ===============================================================
`GET /admin/v1/messages?topic=NAME`       what was published since the start, of one topic or of all
`GET /admin/v1/clock`                     the broker's time
`POST /admin/v1/clock/advance`            `{"seconds": 600}`: let time pass at once
`GET /admin/v1/faults`                    the orders to fail that stand
`POST /admin/v1/faults`                   `{"method": "Publish", "code": "UNAVAILABLE", "times": 2}`
`POST /admin/v1/faults/clear`             nothing fails on order any more
`POST /admin/v1/clear`                    everything goes
========================================  ===============================================================
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from heliograph.broker.protocol import Broker
from heliograph.errors import InvalidArgument
from heliograph.server.http import answer_json, query, read_json
from heliograph.server.routing import Receive, Route, Scope, Send
from heliograph.testing.ledger import PublishedMessage

if TYPE_CHECKING:
    from heliograph.testing.hooks import TestHooks


class Advance(msgspec.Struct, forbid_unknown_fields=True):
    """By how much, in seconds."""

    seconds: float


class Order(msgspec.Struct, forbid_unknown_fields=True):
    """See `Faults.fail`; `times` null = all calls until the orders are cleared."""

    method: str
    code: str | int
    times: int | None = 1
    message: str = ""


_decode_advance = msgspec.json.Decoder(Advance).decode
_decode_order = msgspec.json.Decoder(Order).decode


class _Admin:
    def __init__(self, hooks: TestHooks) -> None:
        self._hooks = hooks

    async def messages(self, scope: Scope, _receive: Receive, send: Send, _broker: Broker) -> None:
        """Those of a topic, or of all, oldest first."""
        topic = query(scope).get("topic") or None
        await answer_json(send, {"messages": [_shown(message) for message in self._hooks.messages(topic)]})

    async def clock(self, _scope: Scope, _receive: Receive, send: Send, _broker: Broker) -> None:
        """The broker's time."""
        await answer_json(send, {"now_ns": str(self._hooks.clock.now_ns())})

    async def advance(self, scope: Scope, receive: Receive, send: Send, broker: Broker) -> None:
        """Let time pass."""
        request = await read_json(receive, _decode_advance)
        if not 0 <= request.seconds <= 10 * 366 * 86_400:
            raise InvalidArgument(f"seconds must be between 0 and ten years, not {request.seconds}")
        await asyncio.to_thread(self._hooks.advance, request.seconds)
        await self.clock(scope, receive, send, broker)

    async def faults(self, _scope: Scope, _receive: Receive, send: Send, _broker: Broker) -> None:
        """The orders that stand."""
        await answer_json(send, {"faults": self._hooks.faults.pending()})

    async def fail(self, scope: Scope, receive: Receive, send: Send, broker: Broker) -> None:
        """A new order."""
        order = await read_json(receive, _decode_order)
        self._hooks.fail(order.method, order.code, times=order.times, message=order.message)
        await self.faults(scope, receive, send, broker)

    async def clear_faults(self, scope: Scope, receive: Receive, send: Send, broker: Broker) -> None:
        """No more orders."""
        self._hooks.faults.clear()
        await self.faults(scope, receive, send, broker)

    async def clear(self, _scope: Scope, _receive: Receive, send: Send, _broker: Broker) -> None:
        """Everything goes."""
        await asyncio.to_thread(self._hooks.clear)
        await answer_json(send, {})


def routes(hooks: TestHooks) -> list[Route]:
    """The table of the module's head."""
    admin = _Admin(hooks)
    return [
        Route("GET", "/admin/v1/messages", admin.messages),
        Route("GET", "/admin/v1/clock", admin.clock),
        Route("POST", "/admin/v1/clock/advance", admin.advance),
        Route("GET", "/admin/v1/faults", admin.faults),
        Route("POST", "/admin/v1/faults", admin.fail),
        Route("POST", "/admin/v1/faults/clear", admin.clear_faults),
        Route("POST", "/admin/v1/clear", admin.clear),
    ]


def _shown(message: PublishedMessage) -> dict[str, Any]:
    """Its fields, `data` in base64, 64-bit numbers as strings (as JSON of Pub/Sub has them), and the sums."""
    shown: dict[str, Any] = msgspec.to_builtins(message)
    shown["publish_time_ns"] = str(message.publish_time_ns)
    shown["deliveries"] = message.deliveries
    shown["acknowledgements"] = message.acknowledgements
    return shown
