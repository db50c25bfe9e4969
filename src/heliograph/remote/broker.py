"""`RemoteBroker`: the broker of a server, with the operations of `heliograph.broker.protocol.Broker`.

An operation waits for one round trip, and raises what it raises in process; what must be durable first answers through
a `Reply`, as there. Leases belong to the connection: when it is lost, the server gives them back at once, and counts no
failure.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import msgspec

from heliograph.broker.protocol import Broker, Watch
from heliograph.broker.reply import Reply
from heliograph.engine.message import Message
from heliograph.engine.settings import SECOND_NS
from heliograph.errors import Unavailable, Unimplemented
from heliograph.remote import operations as o
from heliograph.remote.link import Link

TIMEOUT_SECONDS = 30.0
"""How long an answer may take before the call fails."""

CLOCK_AGE_NS = 60 * SECOND_NS

_decode_messages = msgspec.msgpack.Decoder(list[Message]).decode
_decode_instant = msgspec.msgpack.Decoder(int).decode


def remote_broker(url: str, *, timeout_seconds: float = TIMEOUT_SECONDS) -> Broker:
    """The broker of the server at `url`. It is connected to with the first call.

    Args:
        url: `http://HOST:PORT`.
        timeout_seconds: how long an answer may take.

    Raises:
        InvalidArgument: no such URL is possible.
        FailedPrecondition: the extra `client` is not installed.
    """
    return cast(Broker, RemoteBroker(url, timeout_seconds))


class RemoteBroker:
    """See the module. Its operations are those of `Broker`; `operations.py` makes them."""

    def __init__(self, url: str, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._link = Link(url, timeout_seconds, self._on_event, self._on_connected, self._on_late)
        self._lock = threading.Lock()
        self._watches: dict[int, _RemoteWatch] = {}
        self._settled: dict[str, list[str]] = {}  # of `acknowledge_later`
        self._names: dict[str, str] = {}  # subscriptions by the number that their ack ids begin with
        self._offset_ns: int | None = None  # from this process's monotonic clock to the broker's
        self._asked_ns = 0  # when it was learnt

    # ── operations ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _call(self, operation: o.Operation, arguments: dict[str, Any]) -> Any:
        body, commit = self._link.call(
            operation.name, arguments, before=self._acknowledge_settled if self._settled else None
        )
        value = operation.decode_result(body)
        if operation.name == "pull" and value:
            with self._lock:
                self._names[value[0].ack_id.partition("-")[0]] = arguments["subscription"]
        return Reply(value, commit) if operation.replies else value

    def subscription_of(self, ack_id: str) -> str:
        """See `Broker`. One that was pulled here is known here."""
        name = self._names.get(ack_id.partition("-")[0])
        return self._call(o.OPERATIONS["subscription_of"], {"ack_id": ack_id}) if name is None else name

    def acknowledge_later(self, subscription: str, ack_id: str) -> None:
        """See `Broker`."""
        with self._lock:
            self._settled.setdefault(subscription, []).append(ack_id)

    def _acknowledge_settled(self) -> list[bytes]:
        with self._lock:
            settled, self._settled = self._settled, {}
        return [
            o.encode((0, "acknowledge", {"subscription": name, "ack_ids": ack_ids}))
            for name, ack_ids in settled.items()
        ]

    def now_ns(self) -> int:
        """See `Broker`. It is asked once a minute, and counted on from there."""
        asked_ns = time.monotonic_ns()
        if self._offset_ns is None or asked_ns - self._asked_ns > CLOCK_AGE_NS:
            try:
                body, _ = self._link.call("now_ns", {})
            except Unavailable:
                if self._offset_ns is None:
                    raise
            else:
                self._offset_ns = _decode_instant(body) - (asked_ns + time.monotonic_ns()) // 2
            self._asked_ns = asked_ns
        return time.monotonic_ns() + self._offset_ns

    def read_log(self, topic: str, first: int, last: int) -> Iterator[list[Message]]:
        """See `Broker`."""
        while first <= last:
            body, _ = self._link.call(o.READ_LOG, {"topic": topic, "first": first, "last": last})
            messages = _decode_messages(body)
            if not messages:
                return
            yield messages
            first = messages[-1].sequence + 1

    def close(self) -> None:
        """End the connection; the server's broker goes on. Idempotent."""
        with self._lock:
            watches, self._watches = list(self._watches.values()), {}
        if self._settled:
            for frame in self._acknowledge_settled():
                self._link.tell(frame)
        self._link.close()
        for watch in watches:
            watch.callback()  # as a local broker does: whoever waits finds it closed

    # ── watches ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def watch(self, subscription: str, callback: Callable[[], None]) -> Watch:
        """See `Broker`; `callback` also comes with every new connection."""
        watch = _RemoteWatch(self, self._link.number(), subscription, callback)
        with self._lock:
            self._watches[watch.number] = watch
        try:
            self._link.call(o.WATCH, {"subscription": subscription}, number=watch.number)
        except BaseException:
            self._forget(watch.number)
            raise
        return watch

    def _forget(self, number: int) -> None:
        with self._lock:
            self._watches.pop(number, None)

    def unwatch(self, number: int) -> None:
        """A watch is closed."""
        self._forget(number)
        self._link.tell(o.encode((0, o.UNWATCH, {"number": number})))

    def _on_event(self, number: int) -> None:
        with self._lock:
            watch = self._watches.get(number)
        if watch is not None:
            watch.callback()

    def _on_late(self, operation: str, arguments: dict[str, Any], body: msgspec.Raw) -> None:
        """Messages that nobody waits for any more go back at once: with the end of their leases it would count as a
        failure of theirs."""
        if operation == "pull":
            ack_ids = [delivery.ack_id for delivery in o.OPERATIONS[operation].decode_result(body)]
            if ack_ids:
                given_back = {"subscription": arguments["subscription"], "ack_ids": ack_ids}
                self._link.tell(o.encode((0, "release", given_back)))

    def _on_connected(self) -> list[bytes]:
        """What is watched is watched again."""
        with self._lock:
            watches = list(self._watches.values())
        return [o.encode((watch.number, o.WATCH, {"subscription": watch.subscription})) for watch in watches]


class _RemoteWatch:
    def __init__(self, broker: RemoteBroker, number: int, subscription: str, callback: Callable[[], None]) -> None:
        self.number = number
        self.subscription = subscription
        self.callback = callback
        self._broker = broker

    def close(self) -> None:
        """See `Watch`."""
        self._broker.unwatch(self.number)


def _method(operation: o.Operation) -> Callable[..., Any]:
    def call(self: RemoteBroker, *args: Any, **kwargs: Any) -> Any:
        return self._call(operation, operation.signature.bind(*args, **kwargs).arguments)

    call.__name__ = operation.name
    call.__doc__ = f"See `Broker.{operation.name}`."
    return call


def _not_remote(name: str) -> Callable[..., Any]:
    def refuse(self: RemoteBroker, *_args: Any, **_kwargs: Any) -> Any:
        raise Unimplemented(f"{name} is not available from another process this way: use the server's HTTP")

    refuse.__name__ = name
    refuse.__doc__ = f"Not `Broker.{name}`, whose result has no end that could be waited for."
    return refuse


for _name in o.NOT_REMOTE:
    setattr(RemoteBroker, _name, _not_remote(_name))
for _operation in o.OPERATIONS.values():
    if _operation.name not in vars(RemoteBroker):
        setattr(RemoteBroker, _operation.name, _method(_operation))
