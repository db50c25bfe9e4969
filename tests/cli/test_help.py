"""What `--help` shows: every word of it, and an example that the command takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from rich.text import Text

from heliograph.cli.main import app

ROOT = typer.main.get_command(app)
WITHOUT_EXAMPLE = {"heliograph version"}


def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The command and all below it, by what a shell is given."""
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from commands(below, f"{path} {name}")


COMMANDS = dict(commands(ROOT, "heliograph"))
LEAVES = sorted(path for path, command in COMMANDS.items() if not hasattr(command, "commands"))


def example_of(path: str) -> str:
    """The first example in a command's help; a name that is short for the command counts as the command's."""
    short = path.replace("topic publish", "publish").replace("subscription pull", "pull")
    found = re.search(rf"^ *Examples?: {short}( .*)?$", COMMANDS[path].help or "", re.MULTILINE)
    assert found is not None, f"the help of {path} has no example"
    return path + (found[1] or "")


@pytest.mark.parametrize("path", COMMANDS)
def test_help_shows_every_word_also_those_in_brackets(path: str) -> None:
    command = COMMANDS[path]
    texts = [command.help or "", *(getattr(parameter, "help", None) or "" for parameter in command.params)]
    assert [Text.from_markup(text).plain for text in texts] == texts


@pytest.mark.parametrize("path", [path for path in LEAVES if path not in WITHOUT_EXAMPLE])
def test_help_has_an_example_that_the_command_takes(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("order.avsc", "order-2.avsc", "order.json"):
        Path(file).touch()
    example = example_of(path)
    words = shlex.split(example.partition(" | ")[0].partition(" > ")[0])
    COMMANDS[path].make_context(path, words[len(path.split()) :])  # parses, and runs nothing
