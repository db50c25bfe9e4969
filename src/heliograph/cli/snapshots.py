"""`heliograph snapshot …`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from heliograph.cli.show import AsJson, Labels, pairs, parse_pairs, print_fields, print_json, print_table
from heliograph.cli.target import Target, on_broker

snapshot_app = typer.Typer(
    help="Snapshots of what a subscription has not acknowledged: create, list, describe, delete.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(metavar="SNAPSHOT", help="Its id, or its full name projects/P/snapshots/S.")]


@snapshot_app.command("create")
@on_broker
def create(
    target: Target,
    name: Name,
    subscription: Annotated[str, typer.Option(help="The subscription to take it of.")],
    label: Labels = None,
    as_json: AsJson = False,
) -> None:
    """Keep in mind what a subscription has not acknowledged; `subscription seek` goes back to it.

    Example: heliograph snapshot create before-release --subscription billing
    """
    with target as door:
        body: dict[str, Any] = {
            "subscription": door.name("subscriptions", subscription),
            "labels": parse_pairs(label, "label"),
        }
        made = door.rest("PUT", door.name("snapshots", name), body)
        if as_json:
            print_json(made)
        else:
            print(f"Created {made['name']}, kept until {made['expireTime']}")


@snapshot_app.command("list")
@on_broker
def list_snapshots(target: Target, as_json: AsJson = False) -> None:
    """List the project's snapshots.

    Example: heliograph snapshot list
    """
    with target as door:
        found = door.every(f"projects/{door.project}/snapshots", "snapshots")
        if as_json:
            print_json(found)
        else:
            print_table(("snapshot", "kept until", "topic"), [(s["name"], s["expireTime"], s["topic"]) for s in found])


@snapshot_app.command("describe")
@on_broker
def describe(target: Target, name: Name, as_json: AsJson = False) -> None:
    """Show a snapshot.

    Example: heliograph snapshot describe before-release
    """
    with target as door:
        found = door.rest("GET", door.name("snapshots", name))
        if as_json:
            print_json(found)
            return
        labels = pairs(found.get("labels", {}))
        fields = (("name", "name"), ("topic", "topic"), ("kept until", "expireTime"))
        print_fields([*((shown, found[field]) for shown, field in fields), ("labels", labels)])


@snapshot_app.command("delete")
@on_broker
def delete(target: Target, name: Name) -> None:
    """Delete a snapshot.

    Example: heliograph snapshot delete before-release
    """
    with target as door:
        full = door.name("snapshots", name)
        door.rest("DELETE", full)
        print(f"Deleted {full}")
