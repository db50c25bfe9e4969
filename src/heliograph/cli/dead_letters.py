"""`heliograph dead-letter …`: what work queues gave up."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from heliograph.cli.queues import Yes, confirm
from heliograph.cli.show import AsJson, instant, print_json, print_table
from heliograph.cli.target import Target, on_broker
from heliograph.engine.settings import SECOND_NS

TEXT_CHARACTERS_MAX = 60

dead_letter_app = typer.Typer(help="Dead letters of a work queue: list, retry, purge.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue that gave them up.")]


@dead_letter_app.command("list")
@on_broker
def list_dead_letters(
    target: Target,
    name: Name,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many, the oldest first.")] = 100,
    as_json: AsJson = False,
) -> None:
    """List them, with the reason.

    Example: heliograph dead-letter list tasks --json
    """
    with target as door:
        found = door.command("dlq.list", queue=name, limit=limit)
        if as_json:
            print_json(found)
            return
        print_table(
            ("message", "reason", "retries", "dead since", "content"), [_row(letter) for letter in found["messages"]]
        )
        if found["total"] > len(found["messages"]):
            print(f"and {found['total'] - len(found['messages']):,} more")


@dead_letter_app.command("retry")
@on_broker
def retry(
    target: Target,
    name: Name,
    message_ids: Annotated[list[str] | None, typer.Argument(metavar="[MESSAGE]...", help="Only these.")] = None,
) -> None:
    """Put them back into the queue, all or those named, with a fresh retry count.

    Example: heliograph dead-letter retry tasks
    """
    with target as door:
        retried = door.command("dlq.retry", queue=name, message_ids=message_ids or None)["retried"]
        print(f"Put back {retried:,} messages into {name}")


@dead_letter_app.command("purge")
@on_broker
def purge(target: Target, name: Name, yes: Yes = False) -> None:
    """Drop them all.

    Example: heliograph dead-letter purge tasks --yes
    """
    confirm(f"Drop all dead letters of {name}?", yes)
    with target as door:
        print(f"Purged {door.command('dlq.purge', queue=name)['purged']:,} dead letters of {name}")


def _row(letter: dict[str, Any]) -> tuple[str, ...]:
    text = json.dumps(letter["message"], ensure_ascii=False)
    if len(text) > TEXT_CHARACTERS_MAX:
        text = text[: TEXT_CHARACTERS_MAX - 1] + "…"
    died = instant(int(letter["dead_lettered_at"]) * SECOND_NS)
    return (letter["message_id"], letter["reason"], str(letter["retry_count"]), died, text)
