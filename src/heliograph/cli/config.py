"""`heliograph.toml`: how to serve, and what is to exist (docs/configuration.md).

Reads the file and says what is wrong in it; what a topic or a queue may be is not known here.
"""

from __future__ import annotations

import datetime
import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NoReturn

import msgspec

from heliograph.cli.failure import ExitCode, Failure, reason_of
from heliograph.cli.toml_lines import line_of

CONFIG_DEFAULT = Path("heliograph.toml")

KINDS = ("topics", "subscriptions", "schemas", "queues")


class ServerConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The table `[server]`: the options of `heliograph serve`, which outrank it."""

    host: str | None = None
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] | None = None
    host_port: str | None = None
    data_dir: str | None = None
    store: Literal["sqlite", "memory"] | None = None
    durability: Literal["full", "process", "none"] | None = None
    memory_budget: str | int | None = None
    event_retention: str | None = None
    project: str | None = None
    lenient: bool | None = None
    allowed_hosts: list[str] = []


class Entry(NamedTuple):
    """A resource that is to exist.

    Args:
        kind: one of `KINDS`.
        position: which of its kind in the file, from 0.
        place: where it is asked for, for people.
        document: its fields.
    """

    kind: str
    position: int
    place: str
    document: dict[str, Any]


class ConfigFile:
    """A configuration file that was read.

    Args:
        path: where it is; None = there is none, and everything is as without.
        text: what is in it.

    Raises:
        Failure: something is wrong in it.
    """

    def __init__(self, path: Path | None, text: str = "") -> None:
        self.path = path
        self._text = text
        document = self._parsed()
        self._check_names(document)
        self.server = self._server(document)
        self.entries = [entry for kind in KINDS for entry in self._entries(document, kind)]

    @property
    def directory(self) -> Path:
        """What relative paths in it are relative to."""
        return Path() if self.path is None else self.path.parent

    def refuse(self, problem: str, table: str = "", index: int = 0, key: str = "") -> NoReturn:
        """Tell a mistake with its line.

        Args:
            problem: what is wrong.
            table, index, key: see `toml_lines.line_of`.

        Raises:
            Failure: always.
        """
        line = line_of(self._text, table, index, key)
        raise Failure(f"{self.path}{f':{line}' if line else ''}: {problem}", ExitCode.USAGE)

    def _parsed(self) -> dict[str, Any]:
        try:
            return tomllib.loads(self._text)
        except tomllib.TOMLDecodeError as error:
            raise Failure(f"{self.path}: it is not TOML: {error}", ExitCode.USAGE) from None

    def _check_names(self, document: Mapping[str, Any]) -> None:
        for name in document:
            if name not in ("server", *KINDS):
                known = ("server", *KINDS)
                table = name if isinstance(document[name], (dict, list)) else ""
                self.refuse(f"unknown key {name}{_meant(name, known)}", table, key="" if table else name)

    def _server(self, document: Mapping[str, Any]) -> ServerConfig:
        table = document.get("server", {})
        if not isinstance(table, dict):
            self.refuse("server must be a table: write [server]", key="server")
        known = ServerConfig.__struct_fields__
        for name in table:
            if name not in known:
                self.refuse(f"unknown key {name} under [server]{_meant(name, known)}", "server", key=name)
        try:
            return msgspec.convert(table, ServerConfig)
        except msgspec.ValidationError as error:
            problem, _, path = str(error).partition(" - at `$.")
            key = path.rstrip("`").partition("[")[0]
            self.refuse(f"server.{key}: {problem}", "server", key=key)

    def _entries(self, document: Mapping[str, Any], kind: str) -> Iterable[Entry]:
        tables = document.get(kind, [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            is_table = isinstance(tables, dict)
            self.refuse(f"{kind} must be tables: write [[{kind}]] over each", kind if is_table else "", key=kind)
        for index, table in enumerate(tables):
            fields = {name: _as_json(value) for name, value in table.items()}
            if kind == "schemas":
                self._take_definition(fields, index)
            name = fields.get("name")
            place = f"{kind}[{index}]" + (f" ({name})" if isinstance(name, str) else "")
            yield Entry(kind, index, place, fields)

    def _take_definition(self, fields: dict[str, Any], index: int) -> None:
        """A schema's definition may be in a file of its own, `definition_file`."""
        name = fields.pop("definition_file", None)
        if name is None:
            return
        if not isinstance(name, str) or "definition" in fields:
            problem = "definition_file must be a path, and stand without definition"
            self.refuse(f"schemas[{index}]: {problem}", "schemas", index, "definition_file")
        try:
            fields["definition"] = (self.directory / name).read_text("utf-8")
        except (OSError, UnicodeError) as error:
            problem = reason_of(error) if isinstance(error, OSError) else "it is not UTF-8"
            self.refuse(f"schemas[{index}]: {name}: {problem}", "schemas", index, "definition_file")


def read_config(path: Path | None) -> ConfigFile:
    """The configuration file.

    Args:
        path: None = `heliograph.toml` in the current directory, if there is one.

    Raises:
        Failure: it cannot be read, or something is wrong in it.
    """
    if path is None and not CONFIG_DEFAULT.is_file():
        return ConfigFile(None)
    path = path or CONFIG_DEFAULT
    try:
        return ConfigFile(path, path.read_text("utf-8"))
    except OSError as error:
        raise Failure(f"{path}: {reason_of(error)}", ExitCode.USAGE) from error
    except UnicodeError:
        raise Failure(f"{path}: it is not UTF-8", ExitCode.USAGE) from None


def _meant(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f": did you mean {near[0]}?" if near else f"; known are {', '.join(sorted(known))}"


def _as_json(value: Any) -> Any:
    """TOML has instants, which JSON writes as strings."""
    if isinstance(value, dict):
        return {name: _as_json(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_as_json(item) for item in value]
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    return value
