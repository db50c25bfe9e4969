"""The composition root: one ASGI application on one port, in front of one broker.

Requests for gRPC methods go to `server/grpc/`; everything else goes through the table of HTTP routes
(`server/routing.py`). To add an HTTP door, give its module a ``ROUTES`` constant and name the module in `HTTP_DOORS`.
Nothing here decides anything about messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass

from h2corn import Config, Server

from heliograph import __version__
from heliograph.broker.protocol import Broker
from heliograph.errors import HeliographError, Internal, NotFound
from heliograph.server import claims, events, health, queue_openapi, unacknowledged
from heliograph.server import log as topic_log
from heliograph.server.broker_socket import BrokerSocket
from heliograph.server.closing import Closing
from heliograph.server.console.door import console_routes
from heliograph.server.courtesy import DEMAND
from heliograph.server.feed import Feeds
from heliograph.server.grpc.call import GrpcApplication
from heliograph.server.grpc.health import health_methods
from heliograph.server.grpc.reflection import reflection_methods
from heliograph.server.hooks import Hooks, hooked
from heliograph.server.hosts import Hosts
from heliograph.server.http import BODY_BYTES_MAX, MethodNotAllowed, answer, answer_error, check_origin
from heliograph.server.initial import Initial
from heliograph.server.job_status import JobStatuses
from heliograph.server.listening import listen
from heliograph.server.pipelines import pipeline_routes
from heliograph.server.pubsub.methods import pubsub_methods
from heliograph.server.pubsub.profile import LENIENT, STRICT, Profile
from heliograph.server.pubsub.schema_checks import SchemaChecks
from heliograph.server.pubsub.schema_store import SchemaStore
from heliograph.server.pubsub.texts import translate
from heliograph.server.push.routes import push_routes
from heliograph.server.push.service import Pushing
from heliograph.server.queue_commands import QueueCommands
from heliograph.server.queue_rest import rest_routes
from heliograph.server.queue_socket import QueueSocket
from heliograph.server.queues import queue_routes
from heliograph.server.rest.bindings import pubsub_bindings
from heliograph.server.rest.door import PREFIX as REST_PREFIX
from heliograph.server.rest.door import RestDoor
from heliograph.server.rest.openapi import openapi_route
from heliograph.server.routing import ClientGone, Receive, Route, RouteTable, Scope, Send
from heliograph.server.staging import staging_routes
from heliograph.server.statistics import statistics_routes

HTTP_DOORS = (health, topic_log, events, claims, unacknowledged)
"""Modules with ``ROUTES``."""

GRACE_SECONDS = 3.0
"""How long a shutdown waits for requests in flight; afterwards they are cancelled."""

STREAMS_PER_CONNECTION_MAX = 4096
"""Official clients put all their streams and calls to one address on one connection."""

PING_SECONDS = 20.0
"""A WebSocket's client that does not answer a ping for so long is gone, and so are its leases."""

CLIENT_GONE_STATUS = 499

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How to serve.

    Args:
        host: address to listen on; "localhost" = 127.0.0.1 and ::1.
        port: 0 = a free one.
        announce: print the readiness line on standard output.
        handle_signals: SIGTERM and SIGINT shut down; only possible in the main thread.
        grace_seconds: see `GRACE_SECONDS`.
        lenient: the Pub/Sub door takes short names, short deadlines and mixed ordering keys (`pubsub/profile.py`).
        allowed_hosts: names that browsers may reach it by, besides this machine's own (`hosts.py`).
    """

    host: str = "127.0.0.1"
    port: int = 8085
    announce: bool = True
    handle_signals: bool = True
    grace_seconds: float = GRACE_SECONDS
    lenient: bool = False
    allowed_hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Serving:
    """A server that is up.

    Args:
        host, port: where it listens.
        stop: begin a graceful shutdown; from any thread, idempotent.
    """

    host: str
    port: int
    stop: Callable[[], None]


class Application:
    """The ASGI application.

    Args:
        broker: what the doors talk to.
        closing: begun when the server shuts down.
        profile: how strict the Pub/Sub door is.
        hooks: for tests; None = none.
        hosts: by which names it may be reached; None = as on loopback.
    """

    def __init__(
        self,
        broker: Broker,
        closing: Closing,
        profile: Profile = STRICT,
        hooks: Hooks | None = None,
        hosts: Hosts | None = None,
    ) -> None:
        self._broker = broker
        self._hosts = hosts or Hosts("127.0.0.1")
        routes: list[Route] = [route for door in HTTP_DOORS for route in door.ROUTES]
        if hooks is not None:
            routes += hooks.routes
        feeds = Feeds(broker)
        commands = QueueCommands(broker, feeds, closing, None if hooks is None else hooks.before)
        self._sockets: dict[str, Callable[[Scope, Receive, Send], Awaitable[None]]] = {
            QueueSocket.PATH: QueueSocket(broker, feeds, closing, commands, self._hosts),
            BrokerSocket.PATH: BrokerSocket(broker, feeds, closing, commands.holders, self._hosts),
        }
        self.pushing = Pushing(broker)
        methods = pubsub_methods(broker, feeds, closing, profile, subscription_changed=self.pushing.look)
        self.methods = methods
        """Of Pub/Sub, by full name."""
        if hooks is not None:
            hooks.serves([*methods, *commands.names])
            methods = hooked(methods, hooks)
        bindings = pubsub_bindings()
        routes += staging_routes(SchemaChecks(broker, SchemaStore(broker), profile).checked)
        routes += [*queue_routes(commands), *rest_routes(commands), *push_routes(self.pushing)]
        statuses = JobStatuses(broker)
        routes += [*pipeline_routes(statuses), *console_routes(statuses)]
        routes += statistics_routes(self.pushing)
        routes.append(queue_openapi.openapi_route(__version__))
        self._rest = RestDoor(bindings, methods, translate)
        routes += self._rest.routes()
        routes.append(openapi_route(bindings, methods, __version__))
        self._routes = RouteTable(routes)
        services = {name.split("/")[1] for name in methods}
        methods |= health_methods(services, broker, closing)
        self._grpc = GrpcApplication(methods | reflection_methods(methods), translate)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request, as ASGI calls it."""
        DEMAND.requests += 1
        if scope["type"] == "http":
            if self._grpc.speaks(scope):
                await self._grpc(scope, receive, send)
            else:
                await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        socket = self._sockets.get(scope["path"])
        if socket is not None:
            await socket(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1000})

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def watched_send(event: Scope) -> None:
            nonlocal started
            started = True
            await send(event)

        try:
            self._hosts.check(scope)
            handlers = self._routes.handlers(scope["path"])
            handler = handlers.get(scope["method"])
            if handler is None:
                raise _no_handler(scope, handlers)
            if scope["method"] not in ("GET", "HEAD"):
                check_origin(scope)
            await handler(scope, receive, watched_send, self._broker)
        except ClientGone:
            with contextlib.suppress(Exception):  # for nobody; but the server under this wants every request answered
                await answer(send, b"", status=CLIENT_GONE_STATUS)
        except HeliographError as error:
            if started:
                raise
            if scope["path"].startswith(REST_PREFIX):
                await self._rest.refuse(error, scope, send)
            else:
                await answer_error(send, error)
        except Exception:
            if started:
                raise
            log.exception("%s %s failed", scope["method"], scope["path"])
            await answer_error(send, Internal("The broker failed on this request; its log tells more"))


def _no_handler(scope: Scope, handlers: object) -> HeliographError:
    if handlers:
        return MethodNotAllowed(f"{scope['path']} does not take {scope['method']}")
    return NotFound(f"Nothing is served at {scope['path']}")


async def serve(
    broker: Broker | Callable[[], Broker],
    options: ServeOptions | None = None,
    *,
    on_started: Callable[[Serving], object] | None = None,
    hooks: Hooks | None = None,
    initial: Initial | None = None,
) -> None:
    """Serve until SIGTERM, SIGINT, `Serving.stop` or cancellation; then end the streams, answer what is pending and
    close the broker.

    Args:
        broker: a broker, or how to open one: called in a thread once the port is taken, so that a second server on a
            taken port never touches a data directory. It is closed in the end, whatever happens.
        options: see `ServeOptions`.
        on_started: called when the server accepts requests.
        hooks: for tests (`server/hooks.py`); None = none.
        initial: what is to exist before the first request; None = nothing.

    Raises:
        OSError: the port cannot be had; nothing has happened then.
        StoreRefused: from opening the broker.
        Refused: from `initial`.
    """
    options = options or ServeOptions()
    opened: Broker | None = None if callable(broker) else broker
    try:
        with contextlib.ExitStack() as listening:
            listeners = [listening.enter_context(one) for one in listen(options.host, options.port)]
            if callable(broker):
                opened = await asyncio.to_thread(broker)
            assert opened is not None
            closing = Closing()
            hosts = Hosts(options.host, options.allowed_hosts)
            application = Application(opened, closing, LENIENT if options.lenient else STRICT, hooks, hosts)
            if initial is not None:
                await initial.establish(opened, application.methods)
            await _serve_on(listeners, application, closing, options, on_started)
    finally:
        if opened is not None:
            await asyncio.to_thread(opened.close)


async def _serve_on(
    listeners: Sequence[socket.socket],
    application: Application,
    closing: Closing,
    options: ServeOptions,
    on_started: Callable[[Serving], object] | None,
) -> None:
    config = Config(
        bind=tuple(f"fd://{listener.fileno()}" for listener in listeners),
        grpc=True,
        access_log=False,
        lifespan="off",
        max_concurrent_streams=STREAMS_PER_CONNECTION_MAX,
        websocket_max_message_size=BODY_BYTES_MAX,
        websocket_ping_interval=PING_SECONDS,
        websocket_ping_timeout=PING_SECONDS,
        h2_timeout_response_stall=0,  # a subscriber may leave its stream unread for as long as it works on a message
        timeout_graceful_shutdown=options.grace_seconds,
    )
    _silence_banner()
    server = Server(application, config)
    loop = asyncio.get_running_loop()

    def begin() -> None:
        closing.begin()
        server.shutdown()

    def stop() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: it has stopped already
            loop.call_soon_threadsafe(begin)

    with _signals(loop, begin) if options.handle_signals else contextlib.nullcontext():
        serving = asyncio.ensure_future(server.serve())
        try:
            await server.wait_started()
            host, port = listeners[0].getsockname()[:2]
            application.pushing.start()
            if options.announce:
                print(f"Server started, listening on {port}", flush=True)
            if on_started is not None:
                on_started(Serving(host, port, stop))
            await asyncio.shield(serving)
        finally:
            begin()
            await asyncio.gather(serving, return_exceptions=True)
            await application.pushing.close()


def _silence_banner() -> None:
    """h2corn prints three lines about itself on standard error and has no option against it."""
    import h2corn._lib

    h2corn._lib.emit_banner = lambda *_: None


@contextlib.contextmanager
def _signals(loop: asyncio.AbstractEventLoop, begin: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT call `begin` within the block."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, begin)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
