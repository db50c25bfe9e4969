"""`heliograph serve`: a store, a broker on it, and the server in front."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import socket
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heliograph import __version__
from heliograph.broker.broker import LocalBroker
from heliograph.broker.housekeeping import MEMORY_BUDGET_BYTES
from heliograph.cli.duration import parse_duration
from heliograph.cli.failure import ExitCode, Failure, import_extra, reason_of
from heliograph.cli.size import parse_size, show_size
from heliograph.store.sqlite import SqliteStore

if TYPE_CHECKING:
    from heliograph.testing.hooks import TestHooks

DATA_DIR_DEFAULT = Path("heliograph-data")


class StoreKind(StrEnum):
    """Where a broker keeps what it knows."""

    SQLITE = "sqlite"
    MEMORY = "memory"


class DurabilityKind(StrEnum):
    """What an answer survives."""

    FULL = "full"
    PROCESS = "process"
    NONE = "none"


_SURVIVES = {
    DurabilityKind.FULL: "an answer survives a killed process and a power cut",
    DurabilityKind.PROCESS: "an answer survives a killed process; a power cut may take the last ones",
    DurabilityKind.NONE: "an answer survives a killed process; a power cut may destroy the file",
}


def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 = a free one.", min=0, max=65535)] = 8085,
    data_dir: Annotated[
        Path | None,
        typer.Option(help=f"Directory for the data, made if missing.  [default: {DATA_DIR_DEFAULT}]", metavar="DIR"),
    ] = None,
    store: Annotated[
        StoreKind, typer.Option(help="Keep everything in a file (sqlite), or nothing beyond the process (memory).")
    ] = StoreKind.SQLITE,
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
        int,
        typer.Option(
            help="How long the event log is kept (what was published, delivered, acknowledged, nacked, expired or "
            "dead-lettered, and when): 24h, 7d, or 0 for none; at most 256 MB of it.",
            parser=parse_duration,
            metavar="SPAN",
        ),
    ] = "24h",  # type: ignore[assignment]  # typer parses defaults, too
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
    if store is StoreKind.MEMORY:
        _refuse_what_needs_a_file(data_dir, durability, memory_budget)
    server = import_extra("heliograph.server.app", extra="server", for_what="serve")
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", level=logging.WARNING)
    directory = (data_dir or DATA_DIR_DEFAULT).absolute()
    hooks = _test_hooks() if admin_test_hooks else None

    def open_broker() -> LocalBroker:
        if not _is_loopback(host):
            _tell(f"{host} is reachable from other machines, and whoever reaches it may use it: there are no passwords")
        if store is StoreKind.MEMORY:
            return _memory_broker(hooks, event_retention)
        budget = memory_budget or MEMORY_BUDGET_BYTES
        return _sqlite_broker(directory, durability or DurabilityKind.FULL, budget, hooks, event_retention)

    try:
        asyncio.run(server.serve(open_broker, server.ServeOptions(host=host, port=port), hooks=hooks))
    except OSError as error:
        failure = _cannot_listen(error, host, port)
        if failure is None:
            raise
        raise failure from error


def _refuse_what_needs_a_file(data_dir: Path | None, durability: str | None, memory_budget: int | None) -> None:
    given = {"--data-dir": data_dir, "--durability": durability, "--memory-budget": memory_budget}
    for option, value in given.items():
        if value is not None:
            raise typer.BadParameter(f"a memory store has no file: leave out {option}", param_hint=option)


def _test_hooks() -> TestHooks:
    from heliograph.testing.hooks import TestHooks

    _tell("the test hooks at /admin/v1 are on: whoever reaches them can empty this broker")
    return TestHooks(serves_admin=True)


def _memory_broker(hooks: TestHooks | None, event_retention_ns: int) -> LocalBroker:
    _tell("keeping everything in memory: it is gone when this process ends")
    return LocalBroker(event_retention_ns=event_retention_ns) if hooks is None else hooks.open_broker()


def _sqlite_broker(
    directory: Path,
    durability: DurabilityKind,
    memory_budget_bytes: int,
    hooks: TestHooks | None,
    event_retention_ns: int,
) -> LocalBroker:
    if hooks is None:
        broker = LocalBroker.open(
            directory,
            durability=durability.value,
            memory_budget_bytes=memory_budget_bytes,
            event_retention_ns=event_retention_ns,
        )
    else:
        store = SqliteStore(directory, durability=durability.value)
        broker = hooks.open_broker(store, memory_budget_bytes=memory_budget_bytes)
    _tell(f"keeping data in {directory}, durability {durability}: {_SURVIVES[durability]}")
    return broker


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
