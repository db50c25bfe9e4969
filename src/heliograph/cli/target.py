"""Which broker a command works on: a server, or a data directory that no server has open.

A data directory is opened by a server of its own, on a free loopback port and for as long as the command runs, so that
every command goes through the same doors.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Concatenate, ParamSpec

import typer

from heliograph.cli.door import Door
from heliograph.cli.failure import import_extra
from heliograph.client.pubsub import DEFAULT_PROJECT_ID

SERVER_DEFAULT = "http://127.0.0.1:8085"

P = ParamSpec("P")

_Server = Annotated[
    str | None,
    typer.Option(
        help=f"The server to talk to (default $HELIOGRAPH_SERVER, $PUBSUB_EMULATOR_HOST, or {SERVER_DEFAULT}).",
        metavar="URL",
    ),
]
_DataDir = Annotated[
    Path | None,
    typer.Option(help="Work on this data directory in place of a server; no server may have it open.", metavar="DIR"),
]
_Project = Annotated[
    str | None,
    typer.Option(
        help=f"Project of names without one (default $PUBSUB_PROJECT_ID, or {DEFAULT_PROJECT_ID}).",
        metavar="ID",
    ),
]


class Target:
    """The broker of one command; a context manager around its door.

    Args:
        server: URL or host:port; None = from the environment, or the default.
        data_dir: a data directory in place of a server.
        project: of short names; None = from the environment, or the default.

    Raises:
        typer.BadParameter: both a server and a data directory are given.
    """

    def __init__(self, server: str | None = None, data_dir: Path | None = None, project: str | None = None) -> None:
        if server is not None and data_dir is not None:
            raise typer.BadParameter("name a server or a data directory, not both", param_hint="--data-dir")
        self._server = server
        self._data_dir = data_dir
        self.project = project or os.environ.get("PUBSUB_PROJECT_ID") or DEFAULT_PROJECT_ID
        self._end: Callable[[], None] = lambda: None

    def __enter__(self) -> Door:
        if self._data_dir is None:
            return Door(_url(self._server or _from_environment()), self.project)
        local = import_extra("heliograph.cli.local", extra="server", for_what="a data directory")
        serving = local.LocalServer(self._data_dir)
        self._end = serving.stop
        return Door(serving.url, self.project)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()


def on_broker(command: Callable[Concatenate[Target, P], None]) -> Callable[..., None]:
    """Give a command whose first parameter is a `Target` the options that every such command has: `--server`,
    `--data-dir` and `--project`."""

    @functools.wraps(command)
    def run(
        *arguments: Any,
        server: str | None = None,
        data_dir: Path | None = None,
        project: str | None = None,
        **named: Any,
    ) -> None:
        command(Target(server, data_dir, project), *arguments, **named)

    signature = inspect.signature(command, eval_str=True)
    own = list(signature.parameters.values())[1:]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in (("server", _Server), ("data_dir", _DataDir), ("project", _Project))
    ]
    run.__signature__ = signature.replace(parameters=[*own, *shared])  # type: ignore[attr-defined]
    # typer asks for the annotations besides
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in (*own, *shared)} | {"return": None}
    del run.__wrapped__
    return run


def _from_environment() -> str:
    return os.environ.get("HELIOGRAPH_SERVER") or os.environ.get("PUBSUB_EMULATOR_HOST") or SERVER_DEFAULT


def _url(text: str) -> str:
    url = text if "://" in text else f"http://{text}"
    return url.rstrip("/")
