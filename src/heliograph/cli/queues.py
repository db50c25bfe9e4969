"""`heliograph queue …`: work queues."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from heliograph.cli.door import Door
from heliograph.cli.duration import parse_seconds
from heliograph.cli.failure import ExitCode, Failure
from heliograph.cli.messages import print_published, print_text, publish_all
from heliograph.cli.show import (
    AsJson,
    age,
    input_lines,
    pairs,
    parse_pairs,
    print_fields,
    print_json,
    print_json_line,
    print_table,
)
from heliograph.cli.target import Target, on_broker

CONSUME_MESSAGES_MAX = 1000

queue_app = typer.Typer(
    help="Work queues: create, list, publish, consume, peek, stats, purge, delete.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(metavar="QUEUE", help="Its name.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def duration_option(help_: str) -> Any:
    """An option that takes a duration."""
    return typer.Option(parser=parse_seconds, metavar="DURATION", help=help_)


@queue_app.command("create")
@on_broker
def create(
    target: Target,
    name: Name,
    max_depth: Annotated[int | None, typer.Option(min=1, help="Refuse more waiting messages (default 100000).")] = None,
    ack_deadline: Annotated[float | None, duration_option("How long a lease is (default 30s).")] = None,
    max_retries: Annotated[
        int | None, typer.Option(min=0, help="Dead letter after so many retries (default 3).")
    ] = None,
    priority: Annotated[int | None, typer.Option(help="Of messages that name none, 0 to 9 (default 5).")] = None,
    prefetch: Annotated[
        int | None, typer.Option(min=1, help="A consumer's unacknowledged messages (default 10).")
    ] = None,
    ttl: Annotated[float | None, duration_option("Messages expire after so long.")] = None,
    retry_delays: Annotated[
        str | None, typer.Option(metavar="DURATIONS", help="Waits before each retry, such as 10s,60s,5m.")
    ] = None,
    aging: Annotated[float | None, duration_option("Lift what waits one priority per so long.")] = None,
) -> None:
    """Create a work queue; again with the same settings changes nothing.

    Example: heliograph queue create tasks --max-retries 3 --retry-delays 10s,60s,5m
    """
    delays = None if retry_delays is None else [parse_seconds(text) for text in retry_delays.split(",")]
    with target as door:
        door.command(
            "queue.create",
            name=name,
            max_depth=max_depth,
            ack_deadline_secs=ack_deadline,
            default_max_retries=max_retries,
            default_priority=priority,
            prefetch=prefetch,
            ttl=ttl,
            retry_delays=delays,
            priority_aging_seconds=aging,
        )
        print(f"Queue {name} is there")


@queue_app.command("list")
@on_broker
def list_queues(target: Target, as_json: AsJson = False) -> None:
    """List the queues, with how deep they are.

    Example: heliograph queue list
    """
    with target as door:
        names = door.command("queue.list")["queues"]
        if as_json:
            print_json(names)
            return
        counted = [door.command("queue.stats", queue=name) for name in names]
        print_table(
            ("queue", "depth", "outstanding", "dead letters", "oldest"),
            [
                (
                    stats["queue"],
                    f"{stats['depth']:,}",
                    f"{stats['outstanding']:,}",
                    f"{stats['dead_letters']:,}",
                    age(stats["oldest_message_age_secs"]),
                )
                for stats in counted
            ],
        )


@queue_app.command("publish")
@on_broker
def publish(
    target: Target,
    name: Name,
    messages: Annotated[
        list[str],
        typer.Argument(metavar="MESSAGE...", help="JSON, or any text; - reads standard input, a message a line."),
    ],
    priority: Annotated[int | None, typer.Option(min=0, max=9, help="0 to 9; 9 is delivered first.")] = None,
    delay: Annotated[float | None, duration_option("Deliver not before so long.")] = None,
    ttl: Annotated[float | None, duration_option("Expire after so long.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", metavar="KEY=VALUE", help="A header; may be repeated.")
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="Take each as text, also if it is JSON.")] = False,
    as_json: AsJson = False,
) -> None:
    """Publish messages to a work queue.

    Examples: heliograph queue publish tasks '{"video": 17}' --priority 9

    cat tasks.jsonl | heliograph queue publish tasks -
    """
    shared = {
        "priority": priority,
        "delay": delay,
        "ttl": ttl,
        "headers": parse_pairs(header, "header") or None,
    }
    given = {key: value for key, value in shared.items() if value is not None}
    from_input = messages == ["-"]
    lines: Iterable[str] = input_lines() if from_input else messages
    drafts = ({"message": _value(line, as_text=text)} | given for line in lines)
    with target as door:
        ids = publish_all(drafts, lambda draft: len(str(draft).encode()), lambda batch: _publish(door, name, batch))
    print_published(ids, name, "message_ids", as_json=as_json, in_short=from_input)


@queue_app.command("consume")
@on_broker
def consume(
    target: Target,
    name: Name,
    limit: Annotated[int, typer.Option(min=1, help="At most so many messages.")] = 1,
    auto_ack: Annotated[bool, typer.Option("--auto-ack", help="Acknowledge them once they are printed.")] = False,
    wait: Annotated[float | None, duration_option("Wait so long for a first one.")] = None,
    ack_deadline: Annotated[float | None, duration_option("How long the lease is.")] = None,
    as_json: AsJson = False,
) -> None:
    """Take messages from a work queue. Exit code 7 if there were none.

    Without --auto-ack they come back when their lease ends. With --json, each is a line.

    Example: heliograph queue consume tasks --limit 10 --wait 30s --auto-ack
    """
    seen = 0
    with target as door:
        while seen < limit:
            taken = _consume(door, name, min(limit - seen, CONSUME_MESSAGES_MAX), 0.0 if seen else wait, ack_deadline)
            if not taken:
                break
            for message in taken:
                _print_message(message, as_json)
            if auto_ack:
                _acknowledge(door, name, taken)
            seen += len(taken)
    if not seen:
        raise typer.Exit(ExitCode.EMPTY)


@queue_app.command("peek")
@on_broker
def peek(
    target: Target,
    name: Name,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many messages.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Show what would be delivered next, without taking it.

    Example: heliograph queue peek tasks --limit 5
    """
    with target as door:
        messages = door.command("queue.peek", queue=name, count=limit)["messages"]
        if as_json:
            print_json(messages)
            return
        for message in messages:
            _print_message(message, as_json=False)


@queue_app.command("stats")
@on_broker
def stats(target: Target, name: Name, as_json: AsJson = False) -> None:
    """Show what a queue holds, and what it has done.

    Example: heliograph queue stats tasks --json
    """
    with target as door:
        found = door.command("queue.stats", queue=name)
        if as_json:
            print_json(found)
            return
        by_priority = found.pop("depth_by_priority")
        shown = {key.replace("_", " "): _number(key, value) for key, value in found.items()}
        bands = " ".join(f"{band}:{count:,}" for band, count in sorted(by_priority.items(), reverse=True))
        print_fields([*shown.items(), ("depth by priority", bands)])


@queue_app.command("purge")
@on_broker
def purge(target: Target, name: Name, yes: Yes = False) -> None:
    """Drop all waiting messages; those that consumers hold stay.

    Example: heliograph queue purge tasks --yes
    """
    confirm(f"Drop everything that waits in {name}?", yes)
    with target as door:
        print(f"Purged {door.command('queue.purge', queue=name)['purged']:,} messages from {name}")


@queue_app.command("delete")
@on_broker
def delete(target: Target, name: Name, yes: Yes = False) -> None:
    """Delete a queue, with all that it holds.

    Example: heliograph queue delete tasks --yes
    """
    confirm(f"Delete {name} with all that it holds?", yes)
    with target as door:
        door.command("queue.delete", queue=name)
        print(f"Deleted {name}")


def confirm(question: str, yes: bool) -> None:
    """Ask on a terminal; a script that cannot be asked must say --yes."""
    import sys

    if yes:
        return
    if not sys.stdin.isatty():
        raise Failure(f"{question} Say so with --yes", ExitCode.USAGE)
    typer.confirm(question, abort=True)


def _value(line: str, *, as_text: bool) -> Any:
    import msgspec  # Python's own takes NaN for JSON, and the door does not

    try:
        line.encode()
    except UnicodeEncodeError:
        raise Failure(f"A message of a queue is JSON or text, and this is no UTF-8: {line[:40]!r}") from None
    if as_text:
        return line
    try:
        return msgspec.json.decode(line)
    except msgspec.MsgspecError:
        return line
    except RecursionError:
        raise Failure(f"A message is nested too deeply: {line[:40]!r}") from None


def _publish(door: Door, name: str, batch: list[dict[str, Any]]) -> list[str]:
    ids: list[str] = door.command("queue.publish_batch", queue=name, messages=batch)["message_ids"]
    return ids


def _consume(door: Door, name: str, limit: int, wait: float | None, ack_deadline: float | None) -> list[dict[str, Any]]:
    answer = door.command(
        "queue.consume",
        queue=name,
        max_messages=limit,
        prefetch=max(limit, 1),
        timeout=wait or 0,
        ack_deadline=ack_deadline,
    )
    if "messages" in answer:
        found: list[dict[str, Any]] = answer["messages"]
        return found
    return [answer] if answer["message_id"] is not None else []


def _acknowledge(door: Door, name: str, taken: list[dict[str, Any]]) -> None:
    results = door.command(
        "queue.ack",
        queue=name,
        message_ids=[message["message_id"] for message in taken],
        lease_ids=[message["lease_id"] for message in taken],
    )["results"]
    failed = [result for result in results if not result["success"]]
    if failed:
        raise Failure(f"{len(failed)} of {len(taken)} could not be acknowledged: {failed[0]['error']}")


def _print_message(message: dict[str, Any], as_json: bool) -> None:
    if as_json:
        message.pop("at_prefetch_limit", None)
        print_json_line(message)
        return
    retry = f"retry {message['retry_count']}" if message.get("retry_count") else ""
    text = json.dumps(message["message"], ensure_ascii=False)
    print_text(text, message["message_id"], f"priority {message['priority']}", retry, pairs(message["headers"]))


def _number(key: str, value: Any) -> str:
    if key.endswith("_secs"):
        return age(value)
    return f"{value:,.1f}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)
