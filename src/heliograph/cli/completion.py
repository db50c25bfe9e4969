"""`heliograph completion`: what a shell needs to complete commands and options."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated

import typer

COMPLETE_VARIABLE = "_HELIOGRAPH_COMPLETE"
"""The script that a shell runs sets it to ask for completions."""


class Shell(StrEnum):
    """The shells that are known."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="Which shell.")]) -> None:
    """Print the script that completes commands and options.

    Examples: heliograph completion bash > ~/.local/share/bash-completion/completions/heliograph

    heliograph completion fish > ~/.config/fish/completions/heliograph.fish
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # imported there, not listed

    print(get_completion_script(prog_name="heliograph", complete_var=COMPLETE_VARIABLE, shell=shell.value))


def prepare_completion() -> None:
    """Where a shell asks: let typer's own answers be given, which the options that we leave out would have set up."""
    if COMPLETE_VARIABLE in os.environ:
        from typer.completion import completion_init  # type: ignore[attr-defined]  # imported there, not listed

        completion_init()
