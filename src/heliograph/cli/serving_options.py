"""The options of `heliograph serve`: what the command line says, else the configuration file, else the default."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, TypeVar

import typer

from heliograph.broker.housekeeping import MEMORY_BUDGET_BYTES
from heliograph.cli.config import ConfigFile
from heliograph.cli.duration import parse_duration
from heliograph.cli.size import parse_size

HOST_DEFAULT = "localhost"
PORT_DEFAULT = 8085
DATA_DIR_DEFAULT = Path("heliograph-data")
EVENT_RETENTION_DEFAULT = "24h"

T = TypeVar("T")


class StoreKind(StrEnum):
    """Where a broker keeps what it knows."""

    SQLITE = "sqlite"
    MEMORY = "memory"


class DurabilityKind(StrEnum):
    """What an answer survives."""

    FULL = "full"
    PROCESS = "process"
    NONE = "none"


class Given(NamedTuple):
    """What the command line says; None = nothing."""

    host: str | None = None
    port: int | None = None
    host_port: str | None = None
    data_dir: Path | None = None
    store: StoreKind | None = None
    durability: DurabilityKind | None = None
    memory_budget_bytes: int | None = None
    event_retention_ns: int | None = None


class ServingOptions:
    """How to serve.

    Args:
        given: on the command line.
        file: what counts where the command line says nothing.
        project, lenient: of the command line.
        allowed_hosts: of the command line; those of the file count too.

    Raises:
        typer.BadParameter: options that cannot be together, or have no sense.
        Failure: the same of the file.
    """

    def __init__(
        self,
        given: Given,
        file: ConfigFile,
        *,
        project: str | None = None,
        lenient: bool | None = None,
        allowed_hosts: Sequence[str] = (),
    ) -> None:
        server = file.server
        self.host, self.port = _address(given, file)
        self.store = given.store or StoreKind(server.store or StoreKind.SQLITE)
        if given.store is StoreKind.MEMORY:
            _refuse_what_needs_a_file(given)
        directory = given.data_dir or (file.directory / server.data_dir if server.data_dir else DATA_DIR_DEFAULT)
        self.data_dir = directory.absolute()
        self.durability = given.durability or DurabilityKind(server.durability or DurabilityKind.FULL)
        budget = given.memory_budget_bytes or _parsed(file, "memory_budget", parse_size)
        self.memory_budget_bytes: int = budget or MEMORY_BUDGET_BYTES
        retention = given.event_retention_ns
        if retention is None:
            retention = _parsed(file, "event_retention", parse_duration)
        self.event_retention_ns: int = parse_duration(EVENT_RETENTION_DEFAULT) if retention is None else retention
        self.project = project or server.project or ""
        self.lenient = bool(server.lenient if lenient is None else lenient)
        self.allowed_hosts = (*allowed_hosts, *server.allowed_hosts)


def parse_host_port(text: str) -> tuple[str, int]:
    """`localhost:8085`, `0.0.0.0:8085`, `[::1]:8085`, `:8085`.

    Raises:
        typer.BadParameter: it is none of these.
    """
    host, colon, port = text.strip().rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    fits = colon and port.isascii() and port.isdigit() and int(port) <= 65535 and (is_bracketed or ":" not in host)
    if not fits:
        raise typer.BadParameter(f"{text!r} is not HOST:PORT: write localhost:8085 or [::1]:8085")
    return (host[1:-1] if is_bracketed else host) or HOST_DEFAULT, int(port)


def _address(given: Given, file: ConfigFile) -> tuple[str, int]:
    server = file.server
    host, port = server.host or HOST_DEFAULT, PORT_DEFAULT if server.port is None else server.port
    if server.host_port is not None:
        if server.host is not None or server.port is not None:
            file.refuse("server.host_port stands for host and port: give one or the other", "server", key="host_port")
        host, port = _parsed(file, "host_port", parse_host_port) or (host, port)
    if given.host_port is not None:
        if given.host is not None or given.port is not None:
            raise typer.BadParameter("it stands for --host and --port: give one or the other", param_hint="--host-port")
        return parse_host_port(given.host_port)
    return given.host or host, port if given.port is None else given.port


def _refuse_what_needs_a_file(given: Given) -> None:
    options = {
        "--data-dir": given.data_dir,
        "--durability": given.durability,
        "--memory-budget": given.memory_budget_bytes,
    }
    for option, value in options.items():
        if value is not None:
            raise typer.BadParameter(f"a memory store has no file: leave out {option}", param_hint=option)


def _parsed(file: ConfigFile, key: str, parse: Callable[[str], T]) -> T | None:
    """What the file says under [server], read as on the command line."""
    value = getattr(file.server, key)
    if value is None:
        return None
    try:
        return parse(str(value))
    except typer.BadParameter as error:
        file.refuse(f"server.{key}: {error.message}", "server", key=key)
