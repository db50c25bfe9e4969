"""`heliograph serve`: a store, a broker on it, and the server in front."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING

from heliograph import __version__
from heliograph.broker.broker import LocalBroker
from heliograph.cli import serve_arguments as arguments
from heliograph.cli.config import ConfigFile, Entry, read_config
from heliograph.cli.door import explained
from heliograph.cli.failure import ExitCode, Failure, import_extra, reason_of
from heliograph.cli.projects import entries_of_environment
from heliograph.cli.serving_options import DurabilityKind, Given, ServingOptions, StoreKind
from heliograph.errors import InvalidArgument
from heliograph.server.hosts import is_loopback

if TYPE_CHECKING:
    from heliograph.server.initial import Initial
    from heliograph.testing.hooks import TestHooks

_SURVIVES = {
    DurabilityKind.FULL: "an answer survives a killed process and a power cut",
    DurabilityKind.PROCESS: "an answer survives a killed process; a power cut may take the last ones",
    DurabilityKind.NONE: "an answer survives a killed process; a power cut may destroy the file",
}


def serve(
    config: arguments.Config = None,
    host: arguments.Host = None,
    port: arguments.Port = None,
    host_port: arguments.HostPort = None,
    data_dir: arguments.DataDir = None,
    store: arguments.Store = None,
    durability: arguments.Durability = None,
    memory_budget: arguments.MemoryBudget = None,
    event_retention: arguments.EventRetention = None,
    project: arguments.Project = None,
    lenient: arguments.Lenient = None,
    allow_host: arguments.AllowHost = None,
    end_with_stdin: arguments.EndWithStdin = False,
    admin_test_hooks: arguments.AdminTestHooks = False,
) -> None:
    """Start a broker. It ends in order on SIGTERM and Ctrl-C.

    Example: heliograph serve --data-dir ./data --port 8085
    """
    file = read_config(config)
    given = Given(host, port, host_port, data_dir, store, durability, memory_budget, event_retention)
    options = ServingOptions(given, file, project=project, lenient=lenient, allowed_hosts=allow_host or ())
    server = import_extra("heliograph.server.app", extra="server", for_what="serve")
    if file.path is not None and config is None:
        _tell(f"configured by the {file.path} of this directory")
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    wanted = [*file.entries, *entries_of_environment(os.environ)]
    initial = _initial(wanted, file, options.project) if wanted else None
    hooks = _test_hooks() if admin_test_hooks else None

    def open_broker() -> LocalBroker:
        if not is_loopback(options.host):
            _tell(
                f"{options.host} is reachable from other machines, and whoever reaches it may use it: there are no "
                "passwords"
            )
        if options.store is StoreKind.MEMORY:
            return _memory_broker(hooks, options.event_retention_ns)
        return _sqlite_broker(options, hooks)

    serve_options = server.ServeOptions(
        host=options.host, port=options.port, lenient=options.lenient, allowed_hosts=options.allowed_hosts
    )
    _calm_collector()
    if end_with_stdin:
        threading.Thread(target=_end_with_standard_input, name="standard-input", daemon=True).start()
    try:
        asyncio.run(server.serve(open_broker, serve_options, hooks=hooks, initial=initial))
    except OSError as error:
        failure = _cannot_listen(error, options.host, options.port)
        if failure is None:
            raise
        raise failure from error
    except InvalidArgument as error:
        _refuse_entry(error, file)
        raise


def _initial(wanted: list[Entry], file: ConfigFile, project: str) -> Initial:
    """What is to exist, understood.

    Raises:
        Failure: something of it cannot be.
    """
    from heliograph.server.initial import Initial, Wanted

    try:
        return Initial([Wanted(*entry) for entry in wanted], project, _tell)
    except InvalidArgument as error:
        _refuse_entry(error, file)
        raise


def _refuse_entry(error: InvalidArgument, file: ConfigFile) -> None:
    """Tell what was asked for and cannot be, with its line where it stands in the file.

    Raises:
        Failure: if `error` is of this kind.
    """
    from heliograph.server.initial import Refused

    if isinstance(error, Refused):
        wanted = error.wanted
        if wanted.place.startswith(wanted.kind):
            file.refuse(explained(error.message), wanted.kind, wanted.position, error.field)
        raise Failure(explained(error.message), ExitCode.USAGE) from error


def _test_hooks() -> TestHooks:
    from heliograph.testing.hooks import TestHooks

    _tell("the test hooks at /admin/v1 are on: whoever reaches them can empty this broker")
    return TestHooks(serves_admin=True)


def _memory_broker(hooks: TestHooks | None, event_retention_ns: int) -> LocalBroker:
    _tell("keeping everything in memory: it is gone when this process ends")
    if hooks is not None:
        return hooks.open_broker(event_retention_ns=event_retention_ns)
    return LocalBroker(event_retention_ns=event_retention_ns)


def _sqlite_broker(options: ServingOptions, hooks: TestHooks | None) -> LocalBroker:
    directory, durability = options.data_dir, options.durability
    open_broker = LocalBroker.open if hooks is None else hooks.open_broker
    broker = open_broker(
        directory,
        durability=durability.value,
        memory_budget_bytes=options.memory_budget_bytes,
        event_retention_ns=options.event_retention_ns,
    )
    _tell(f"keeping data in {directory}, durability {durability}: {_SURVIVES[durability]}")
    return broker


def _calm_collector() -> None:
    """A broker keeps many objects and makes few cycles: looking for those as often as Python does by default took a
    sixth of its time under load. What the libraries brought is not looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def _end_with_standard_input() -> None:
    """As on SIGTERM, once nobody has the other end any more: also a program that was killed has let go of it."""
    with contextlib.suppress(OSError):  # a terminal that has gone
        while os.read(sys.stdin.fileno(), 4096):
            pass
    os.kill(os.getpid(), signal.SIGTERM)


def _cannot_listen(error: OSError, host: str, port: int) -> Failure | None:
    """What to do when the port cannot be had (by then nothing else has happened); None for any other error."""
    if error.errno == errno.EADDRINUSE:
        return Failure(
            f"port {port} on {host} is taken: end the program that uses it, or choose another with --port "
            "(0 = a free one)",
            ExitCode.NOT_READY,
        )
    if error.errno == errno.EACCES:
        return Failure(
            f"port {port} is not yours to use ({reason_of(error)}): choose one above 1023 with --port",
            ExitCode.NOT_READY,
        )
    if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
        return Failure(
            f"{host} is not an address of this machine ({reason_of(error)}): choose another with --host",
            ExitCode.NOT_READY,
        )
    return None


def _tell(text: str) -> None:
    """To standard error: standard output has the readiness line alone."""
    print(f"heliograph {__version__}: {text}", file=sys.stderr, flush=True)
