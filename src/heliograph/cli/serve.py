"""`heliograph serve`: a store, a broker on it, and the server in front."""

from __future__ import annotations

import asyncio
import errno
import gc
import ipaddress
import logging
import os
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heliograph import __version__
from heliograph.broker.broker import LocalBroker
from heliograph.broker.housekeeping import MEMORY_BUDGET_BYTES
from heliograph.cli.config import CONFIG_DEFAULT, ConfigFile, Entry, read_config
from heliograph.cli.duration import parse_duration
from heliograph.cli.failure import ExitCode, Failure, import_extra, reason_of
from heliograph.cli.projects import entries_of_environment
from heliograph.cli.serving_options import (
    DATA_DIR_DEFAULT,
    EVENT_RETENTION_DEFAULT,
    PORT_DEFAULT,
    DurabilityKind,
    Given,
    ServingOptions,
    StoreKind,
)
from heliograph.cli.size import parse_size, show_size
from heliograph.errors import InvalidArgument

if TYPE_CHECKING:
    from heliograph.server.initial import Initial
    from heliograph.testing.hooks import TestHooks

_SURVIVES = {
    DurabilityKind.FULL: "an answer survives a killed process and a power cut",
    DurabilityKind.PROCESS: "an answer survives a killed process; a power cut may take the last ones",
    DurabilityKind.NONE: "an answer survives a killed process; a power cut may destroy the file",
}


def serve(
    config: Annotated[
        Path | None,
        typer.Option(
            help="A file with options for this command under [server], and what is to exist (docs/configuration.md).  "
            f"[default: {CONFIG_DEFAULT}, if there is one]",
            metavar="FILE",
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on.  [default: localhost, which is 127.0.0.1 and ::1]")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(help=f"Port to listen on; 0 = a free one.  [default: {PORT_DEFAULT}]", min=0, max=65535),
    ] = None,
    host_port: Annotated[
        str | None, typer.Option(help="Both at once, as for the official emulator: [::1]:8085", metavar="HOST:PORT")
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(help=f"Directory for the data, made if missing.  [default: {DATA_DIR_DEFAULT}]", metavar="DIR"),
    ] = None,
    store: Annotated[
        StoreKind | None,
        typer.Option(
            help="Keep everything in a file (sqlite), or nothing beyond the process (memory).  [default: sqlite]"
        ),
    ] = None,
    durability: Annotated[
        DurabilityKind | None,
        typer.Option(
            help="What an answer survives: a killed process and a power cut (full), a killed process (process), or a "
            "killed process while a power cut may destroy the file (none).  [default: full]"
        ),
    ] = None,
    memory_budget: Annotated[
        int | None,
        typer.Option(
            help="Messages beyond so much leave memory and are read from the file when due: 64MB, 1GiB, or bytes.  "
            f"[default: {show_size(MEMORY_BUDGET_BYTES)}]",
            parser=parse_size,
            metavar="SIZE",
        ),
    ] = None,
    event_retention: Annotated[
        int | None,
        typer.Option(
            help="How long the event log is kept (what was published, delivered, acknowledged, nacked, expired or "
            "dead-lettered, and when): 24h, 7d, or 0 for none; at most 256 MB of it.  "
            f"[default: {EVENT_RETENTION_DEFAULT}]",
            parser=parse_duration,
            metavar="SPAN",
        ),
    ] = None,
    project: Annotated[
        str | None, typer.Option(help="Project of the names in the configuration file that are short.")
    ] = None,
    lenient: Annotated[
        bool | None,
        typer.Option(
            "--lenient",
            help="Take what the official emulator takes, though the real service refuses it: any name, ack deadlines "
            "from 1 s.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A further name that browsers may reach it by; may be repeated.", metavar="NAME"),
    ] = None,
    admin_test_hooks: Annotated[
        bool,
        typer.Option(
            "--admin-test-hooks",
            help="For tests: serve /admin/v1, where whoever reaches it can move time on, make calls fail and empty the "
            "broker.",
        ),
    ] = False,
) -> None:
    """Start a broker. It ends in order on SIGTERM and Ctrl-C."""
    file = read_config(config)
    given = Given(host, port, host_port, data_dir, store, durability, memory_budget, event_retention)
    options = ServingOptions(given, file, project=project, lenient=lenient, allowed_hosts=allow_host or ())
    server = import_extra("heliograph.server.app", extra="server", for_what="serve")
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    wanted = [*file.entries, *entries_of_environment(os.environ)]
    initial = _initial(wanted, file, options.project) if wanted else None
    hooks = _test_hooks() if admin_test_hooks else None

    def open_broker() -> LocalBroker:
        if not _is_loopback(options.host):
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
            file.refuse(error.message, wanted.kind, wanted.position, error.field)
        raise Failure(error.message, ExitCode.USAGE) from error


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


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _tell(text: str) -> None:
    """To standard error: standard output has the readiness line alone."""
    print(f"heliograph {__version__}: {text}", file=sys.stderr, flush=True)
