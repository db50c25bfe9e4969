"""`heliograph topic …` and `heliograph publish`."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from heliograph.cli.door import Door
from heliograph.cli.duration import parse_seconds, proto_duration
from heliograph.cli.messages import print_published, publish_all
from heliograph.cli.show import (
    AsJson,
    Labels,
    input_lines,
    pairs,
    parse_pairs,
    print_fields,
    print_json,
    print_table,
)
from heliograph.cli.target import Target, on_broker

topic_app = typer.Typer(help="Topics: create, list, describe, update, delete, publish.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="Its id, or its full name projects/P/topics/T.")]
Retention = Annotated[
    float | None,
    typer.Option(
        parser=parse_seconds,
        metavar="DURATION",
        help="Keep messages readable so long after publication, acknowledged or not: 10m to 31d.",
    ),
]


@topic_app.command("create")
@on_broker
def create(
    target: Target,
    name: Name,
    label: Labels = None,
    retention: Retention = None,
    schema: Annotated[str | None, typer.Option(help="Schema that messages must follow.")] = None,
    encoding: Annotated[str, typer.Option(help="How they are encoded: json or binary.")] = "json",
    as_json: AsJson = False,
) -> None:
    """Create a topic.

    Example: heliograph topic create orders --label team=shop --retention 7d
    """
    with target as door:
        body: dict[str, Any] = {"labels": parse_pairs(label, "label")}
        if retention is not None:
            body["messageRetentionDuration"] = proto_duration(retention)
        if schema is not None:
            body["schemaSettings"] = {"schema": door.name("schemas", schema), "encoding": encoding.upper()}
        made = door.rest("PUT", door.name("topics", name), body)
        if as_json:
            print_json(made)
        else:
            print(f"Created {made['name']}")


@topic_app.command("list")
@on_broker
def list_topics(target: Target, as_json: AsJson = False) -> None:
    """List the project's topics.

    Example: heliograph topic list --json | jq -r '.[].name'
    """
    with target as door:
        topics = door.every(f"projects/{door.project}/topics", "topics")
        if as_json:
            print_json(topics)
        else:
            print_table(
                ("topic", "retention", "labels"),
                [(t["name"], t.get("messageRetentionDuration", "-"), pairs(t.get("labels", {}))) for t in topics],
            )


@topic_app.command("describe")
@on_broker
def describe(target: Target, name: Name, as_json: AsJson = False) -> None:
    """Show a topic, and its subscriptions.

    Example: heliograph topic describe orders
    """
    with target as door:
        full = door.name("topics", name)
        topic = door.rest("GET", full)
        subscriptions = door.every(f"{full}/subscriptions", "subscriptions")
        if as_json:
            print_json(topic | {"subscriptions": subscriptions})
            return
        schema = topic.get("schemaSettings", {})
        print_fields(
            (
                ("name", topic["name"]),
                ("labels", pairs(topic.get("labels", {}))),
                ("retention", topic.get("messageRetentionDuration")),
                ("schema", f"{schema['schema']} ({schema['encoding'].lower()})" if schema else None),
                ("subscriptions", "\n               ".join(subscriptions)),
            )
        )


@topic_app.command("update")
@on_broker
def update(
    target: Target,
    name: Name,
    label: Labels = None,
    retention: Retention = None,
    clear_labels: Annotated[bool, typer.Option("--clear-labels", help="Remove all labels first.")] = False,
    clear_retention: Annotated[bool, typer.Option("--clear-retention", help="Keep nothing beyond need.")] = False,
    as_json: AsJson = False,
) -> None:
    """Change a topic's labels or retention.

    Example: heliograph topic update orders --retention 1d --label team=shop
    """
    labels = parse_pairs(label, "label")
    with target as door:
        full = door.name("topics", name)
        changes: dict[str, Any] = {}
        mask = []
        if labels or clear_labels:
            kept = {} if clear_labels else door.rest("GET", full).get("labels", {})
            changes["labels"] = kept | labels
            mask.append("labels")
        if retention is not None or clear_retention:
            mask.append("messageRetentionDuration")
            if retention is not None:
                changes["messageRetentionDuration"] = proto_duration(retention)
        if not mask:
            raise typer.BadParameter("nothing to change: give --label, --retention, or --clear-…")
        made = door.rest("PATCH", full, {"topic": {"name": full} | changes, "updateMask": ",".join(mask)})
        if as_json:
            print_json(made)
        else:
            print(f"Updated {made['name']}")


@topic_app.command("delete")
@on_broker
def delete(target: Target, name: Name) -> None:
    """Delete a topic. Its subscriptions stay, with what they hold.

    Example: heliograph topic delete orders
    """
    with target as door:
        full = door.name("topics", name)
        door.rest("DELETE", full)
        print(f"Deleted {full}")


@on_broker
def publish(
    target: Target,
    name: Name,
    data: Annotated[
        list[str] | None,
        typer.Argument(metavar="[DATA]...", help="A message each; - reads standard input, a message a line."),
    ] = None,
    attribute: Annotated[
        list[str] | None, typer.Option("--attribute", metavar="KEY=VALUE", help="An attribute; may be repeated.")
    ] = None,
    ordering_key: Annotated[str, typer.Option("--ordering-key", metavar="KEY", help="Ordering key of them all.")] = "",
    as_json: AsJson = False,
) -> None:
    """Publish messages to a topic.

    Examples: heliograph publish orders "first" "second" --attribute origin=shop

    cat lines.txt | heliograph publish orders -
    """
    attributes = parse_pairs(attribute, "attribute")
    if not data and not attributes:
        raise typer.BadParameter("give the data of a message, - for standard input, or an --attribute")
    with target as door:
        full = door.name("topics", name)
        from_input = data == ["-"]
        texts: Iterable[str] = input_lines() if from_input else data or [""]
        messages = (_message(text, attributes, ordering_key) for text in texts)
        ids = publish_all(messages, _size, lambda batch: _publish(door, full, batch))
    print_published(ids, full, "messageIds", as_json=as_json, in_short=from_input)


topic_app.command("publish")(publish)


def _publish(door: Door, full: str, batch: list[dict[str, Any]]) -> list[str]:
    ids: list[str] = door.rest("POST", f"{full}:publish", {"messages": batch})["messageIds"]
    return ids


def _message(text: str, attributes: dict[str, str], ordering_key: str) -> dict[str, Any]:
    message: dict[str, Any] = {"data": base64.b64encode(text.encode("utf-8", "surrogateescape")).decode()}
    if attributes:
        message["attributes"] = attributes
    if ordering_key:
        message["orderingKey"] = ordering_key
    return message


def _size(message: dict[str, Any]) -> int:
    return len(message["data"])
