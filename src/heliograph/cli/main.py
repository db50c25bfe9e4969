"""The command line: `heliograph COMMAND`. Every failure is one line and an exit code (`cli/failure.py`).

Commands import what they need when they run, so that `heliograph --help` is quick and works without the extras.
"""

from __future__ import annotations

import platform
import sys
from typing import Annotated, NoReturn

import typer

from heliograph import __version__
from heliograph.cli.completion import completion, prepare_completion
from heliograph.cli.dead_letters import dead_letter_app
from heliograph.cli.doctor import doctor
from heliograph.cli.failure import failure_of
from heliograph.cli.pipeline import pipeline_app
from heliograph.cli.queues import queue_app
from heliograph.cli.schemas import schema_app
from heliograph.cli.serve import serve
from heliograph.cli.snapshots import snapshot_app
from heliograph.cli.store import store_app
from heliograph.cli.subscriptions import pull, subscription_app
from heliograph.cli.tail import tail
from heliograph.cli.top import top
from heliograph.cli.topics import publish, topic_app
from heliograph.demo.run import demo

HELP_OPTIONS = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    help="Heliograph, a message broker: Google Cloud Pub/Sub's protocol, work queues, a Spark pipeline.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings=HELP_OPTIONS,
)
app.command()(serve)
app.command()(demo)
for command in (publish, pull, top, tail, doctor, completion):
    app.command()(command)
for name, group in (
    ("topic", topic_app),
    ("subscription", subscription_app),
    ("queue", queue_app),
    ("dead-letter", dead_letter_app),
    ("snapshot", snapshot_app),
    ("schema", schema_app),
    ("store", store_app),
    ("pipeline", pipeline_app),
):
    app.add_typer(group, name=name, no_args_is_help=True, context_settings=HELP_OPTIONS)


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """What stands before the command."""


@app.command()
def version() -> None:
    """Print the version."""
    print(f"heliograph {__version__} (Python {platform.python_version()})")


def main() -> NoReturn:
    """Run one command and exit."""
    prepare_completion()
    try:
        app(prog_name="heliograph")
    except Exception as error:
        failure = failure_of(error)
        if failure is None:
            raise
        print(f"heliograph: {failure}", file=sys.stderr)
        sys.exit(failure.exit_code)
    sys.exit()
