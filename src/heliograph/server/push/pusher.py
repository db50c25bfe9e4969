"""One push subscription: takes its messages as its pace allows, and settles each by what the endpoint answers.

Between messages nothing runs: the broker's watch wakes it, or the one alarm clock of all pushers. Time is the broker's,
so a test that moves the clock moves pauses and deadlines too. Event loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from heliograph.broker.protocol import Broker, SubscriptionInfo
from heliograph.engine.message import Delivery, size_bytes
from heliograph.engine.settings import NEVER_NS, SECOND_NS
from heliograph.errors import HeliographError, SubscriptionNotFound
from heliograph.server.loop_signal import LoopSignal
from heliograph.server.pubsub import proto
from heliograph.server.push.envelope import NotAcknowledged, push_request, rfc3339
from heliograph.server.push.pace import Pace
from heliograph.server.taking import give_back, leased

if TYPE_CHECKING:
    from heliograph.server.push.endpoint import Client
    from heliograph.server.push.tokens import Tokens

OUTSTANDING_BYTES_MAX = 32 * 1024 * 1024
"""Of the messages under way for one subscription; a larger one goes alone."""

TROUBLE_NS = SECOND_NS
"""When the broker cannot give messages at present, it is asked again so much later."""

log = logging.getLogger(__name__)


class PushError(msgspec.Struct, frozen=True):
    """Why a push was not acknowledged.

    Args:
        time: RFC 3339.
        error: one line.
        endpoint: where to.
        message_id, delivery_attempt: which delivery.
    """

    time: str
    error: str
    endpoint: str
    message_id: str
    delivery_attempt: int


class PushState(msgspec.Struct, frozen=True):
    """How a push subscription is doing.

    Args:
        endpoint: where its messages go.
        outstanding: messages under way: sent, and the broker does not know yet what became of them.
        window: how many there may be.
        paused_until: RFC 3339; None = pushing.
        last_error: the latest failure since the server started; None = there was none.
    """

    endpoint: str
    outstanding: int
    window: int
    paused_until: str | None
    last_error: PushError | None


class Shared(NamedTuple):
    """What all pushers have in common.

    Args:
        broker: who has the messages.
        client: sends.
        tokens: signs.
        alarm: calls `Pusher.due` of a pusher at an instant of the broker's time.
        forget: a pusher has ended.
    """

    broker: Broker
    client: Callable[[], Awaitable[Client]]
    tokens: Callable[[], Awaitable[Tokens]]
    alarm: Callable[[int, Pusher], None]
    forget: Callable[[Pusher], None]


class _Push(NamedTuple):
    delivery: Delivery
    began_ns: int
    size: int
    task: asyncio.Task[None]


def push_config(info: SubscriptionInfo) -> Any:
    """The `PushConfig` of a subscription; None = it is not pushed."""
    if not info.settings.resource or info.detached:
        return None
    config = proto.Subscription.FromString(info.settings.resource).push_config
    return config if config.push_endpoint else None


class Pusher:
    """See the module.

    Args:
        shared: see `Shared`.
        info: the subscription.
        config: its `PushConfig`.

    Raises:
        SubscriptionNotFound: it is gone.
    """

    def __init__(self, shared: Shared, info: SubscriptionInfo, config: Any) -> None:
        self.name = info.name
        self.alarm_ns = 0
        """When `due` will be called; 0 = not at all. The alarm clock's."""
        self._shared = shared
        self._broker = shared.broker
        self._info = info
        self._config = config
        self._pace = Pace()
        self._outstanding: dict[str, _Push] = {}  # by ack id, oldest first
        self._earliest_ns = NEVER_NS  # no lease of those ends before
        self._bytes = 0
        self._settled: list[tuple[str, bool]] = []  # (ack id, acknowledged) that the broker is not told yet
        self._last_error: PushError | None = None
        self._signals = 0
        self._may_have = False
        self._taking: asyncio.Task[None] | None = None
        self._ended = False
        self._loop = asyncio.get_running_loop()
        self._watch = self._broker.watch(info.name, LoopSignal(self._arrived))

    @property
    def state(self) -> PushState:
        """How it is doing."""
        pace = self._pace
        paused = pace.resume_ns > self._broker.now_ns()
        return PushState(
            self._config.push_endpoint,
            len(self._outstanding) + len(self._settled),
            pace.window,
            rfc3339(pace.resume_ns) if paused else None,
            self._last_error,
        )

    # ── what wakes it ───────────────────────────────────────────────────────────────────────────────────────────────

    def _arrived(self) -> None:
        """There may be messages, or the subscription is gone or changed."""
        self._signals += 1
        self._may_have = True
        self.go_on()

    def due(self) -> None:
        """The alarm clock's call: a pause or a deadline is over."""
        self._end_overdue()
        self.go_on()

    def go_on(self) -> None:
        """Begin what may begin. It may be called at any time."""
        if self._ended or not self._refresh():
            return
        self._end_overdue()
        now_ns = self._broker.now_ns()
        if self._taking is not None or not self._may_have or self._bytes >= OUTSTANDING_BYTES_MAX:
            return
        room = self._pace.room(len(self._outstanding), now_ns)
        if room:
            self._taking = self._loop.create_task(self._take(room))
        elif now_ns < self._pace.resume_ns:
            self._shared.alarm(self._pace.resume_ns, self)

    def _refresh(self) -> bool:
        """See what the subscription is by now; False = it is pushed no more."""
        try:
            info = self._broker.get_subscription(self.name)
        except SubscriptionNotFound:
            info = None
        if info is None or info.number != self._info.number or info.detached:
            self._end()
            for push in self._outstanding.values():
                push.task.cancel()
            self._outstanding.clear()
            return False
        if info.settings is not self._info.settings:
            config = push_config(info)
            if config is None:  # it is pulled from now on; what is under way may still be acknowledged
                self._end()
                return False
            self._config = config
        self._info = info
        return True

    # ── messages ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _take(self, room: int) -> None:
        signals = self._signals
        try:
            reply = self._broker.pull(self.name, room, max_bytes=OUTSTANDING_BYTES_MAX - self._bytes)
            deliveries = await leased(self._broker, self.name, reply)
        except HeliographError as error:
            log.warning("%s has no messages to push at present: %s", self.name, error)
            self._shared.alarm(self._broker.now_ns() + TROUBLE_NS, self)
            return
        finally:
            self._taking = None
        if self._ended:
            give_back(self._broker, self.name, [delivery.ack_id for delivery in deliveries])
            return
        if not deliveries and self._signals == signals:
            self._may_have = False
        now_ns = self._broker.now_ns()
        for delivery in deliveries:
            size = size_bytes(delivery.message)
            task = self._loop.create_task(self._push(self._config, delivery))
            self._outstanding[delivery.ack_id] = _Push(delivery, now_ns, size, task)
            self._bytes += size
            self._earliest_ns = min(self._earliest_ns, delivery.deadline_ns)
        self._set_deadline()
        self.go_on()

    async def _push(self, config: Any, delivery: Delivery) -> None:
        error = ""
        try:
            tell_attempt = self._info.settings.dead_letter_policy is not None
            request = push_request(config, self.name, delivery, tell_attempt=tell_attempt)
            if config.HasField("oidc_token"):
                oidc = config.oidc_token
                tokens = await self._shared.tokens()
                token = await tokens.token(oidc.service_account_email, oidc.audience or config.push_endpoint)
                request.headers["authorization"] = f"Bearer {token}"
            client = await self._shared.client()
            await client.post(config.push_endpoint, request)
        except (NotAcknowledged, HeliographError) as failure:
            error = str(failure)
        except Exception as failure:
            log.exception("a push of %s failed", self.name)
            error = f"{type(failure).__name__}: {failure}"
        push = self._outstanding.pop(delivery.ack_id, None)
        if push is None:
            return
        self._bytes -= push.size
        if error:
            self._failed(push, config.push_endpoint, error)
        else:
            self._pace.succeeded()
        self._settle(delivery.ack_id, acknowledged=not error)
        self.go_on()

    def _failed(self, push: _Push, endpoint: str, error: str) -> None:
        now_ns = self._broker.now_ns()
        self._pace.failed(push.began_ns, now_ns)
        self._last_error = PushError(rfc3339(now_ns), error, endpoint, push.delivery.message_id, push.delivery.attempt)

    def _end_overdue(self) -> None:
        """Requests whose leases are over, have failed (1.13.2). The broker has taken the messages back already."""
        now_ns = self._broker.now_ns()
        if now_ns < self._earliest_ns:
            return
        for ack_id, push in list(self._outstanding.items()):
            if push.delivery.deadline_ns > now_ns:
                continue
            del self._outstanding[ack_id]
            self._bytes -= push.size
            push.task.cancel()
            seconds = (push.delivery.deadline_ns - push.began_ns) / SECOND_NS
            self._failed(push, self._config.push_endpoint, f"No answer within the ack deadline of {seconds:.3g} s")
        # the oldest need not be the first to end: the ack deadline may have been changed
        self._earliest_ns = min((push.delivery.deadline_ns for push in self._outstanding.values()), default=NEVER_NS)
        self._set_deadline()

    def _set_deadline(self) -> None:
        if self._outstanding:
            self._shared.alarm(self._earliest_ns, self)

    # ── settling ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _settle(self, ack_id: str, *, acknowledged: bool) -> None:
        if not self._settled:
            self._loop.call_soon(self._tell_broker)
        self._settled.append((ack_id, acknowledged))

    def _tell_broker(self) -> None:
        """What was settled in one turn of the loop is told together."""
        settled, self._settled = self._settled, []
        acknowledged = [ack_id for ack_id, ok in settled if ok]
        refused = [ack_id for ack_id, ok in settled if not ok]
        try:
            if acknowledged:
                self._broker.acknowledge(self.name, acknowledged)
            if refused:
                self._broker.nack(self.name, refused)
        except HeliographError as error:  # then they are delivered again, which at least once allows
            log.info("what became of %d pushes of %s is lost: %s", len(settled), self.name, error)

    # ── the end ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._watch.close()
            self._shared.forget(self)

    async def close(self) -> None:
        """The server stops: what is under way is given back, and is pushed again by the next one."""
        self._end()
        tasks = [push.task for push in self._outstanding.values()]
        if self._taking is not None:
            tasks.append(self._taking)
        left, self._outstanding = list(self._outstanding), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tell_broker()
        give_back(self._broker, self.name, left)
