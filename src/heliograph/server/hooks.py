"""The seam for test hooks: who may look at every call first, and serve routes of its own. A server that is not told to
have any has none; what they do is not this package's business (`heliograph.testing`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from heliograph.server.call import Call
from heliograph.server.grpc.call import BidiCall, Method, Unary
from heliograph.server.routing import Route


class Hooks(Protocol):
    """See the module. Its methods come on the event loop's thread."""

    @property
    def routes(self) -> Sequence[Route]:
        """HTTP routes to serve beside the doors'."""

    def serves(self, methods: Collection[str]) -> None:
        """These are the methods that there are: of Pub/Sub by full name (``/google.pubsub.v1.Publisher/Publish``), and
        the commands of work queues (``queue.publish``)."""

    def before(self, method: str) -> None:
        """A call of `method` is about to be done, whatever carried it. What this raises is its answer instead.

        Raises:
            HeliographError: as its code says.
        """


def hooked(methods: Mapping[str, Method], hooks: Hooks) -> dict[str, Method]:
    """The same methods, each asking the hooks first."""
    return {name: _hooked(name, method, hooks) for name, method in methods.items()}


def _hooked(name: str, method: Method, hooks: Hooks) -> Method:
    if isinstance(method, Unary):
        do_unary = method.handler

        async def unary(request: Any, call: Call) -> bytes:
            hooks.before(name)
            return await do_unary(request, call)

        return method._replace(handler=unary)
    do_bidi = method.handler

    async def bidi(call: BidiCall) -> None:
        hooks.before(name)
        await do_bidi(call)

    return method._replace(handler=bidi)
