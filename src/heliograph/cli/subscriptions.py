"""`heliograph subscription …` and `heliograph pull`."""

from __future__ import annotations

import base64
import time
from typing import Annotated, Any

import typer

from heliograph.cli.door import Door
from heliograph.cli.duration import parse_instant, parse_seconds, proto_duration
from heliograph.cli.failure import ExitCode
from heliograph.cli.messages import ShownMessage, print_message, print_message_json
from heliograph.cli.show import AsJson, Labels, pairs, parse_pairs, print_fields, print_json, print_table
from heliograph.cli.target import Target, on_broker

PULL_MESSAGES_MAX = 1000

subscription_app = typer.Typer(
    help="Subscriptions: create, list, describe, pull, seek, detach, delete.", no_args_is_help=True
)

Name = Annotated[
    str, typer.Argument(metavar="SUBSCRIPTION", help="Its id, or its full name projects/P/subscriptions/S.")
]


@subscription_app.command("create")
@on_broker
def create(
    target: Target,
    name: Name,
    topic: Annotated[str, typer.Option(help="The topic to receive from.")],
    ack_deadline: Annotated[int, typer.Option(min=10, max=600, metavar="SECONDS", help="How long a lease is.")] = 10,
    ordering: Annotated[bool, typer.Option("--ordering", help="Deliver each ordering key in order.")] = False,
    exactly_once: Annotated[bool, typer.Option("--exactly-once", help="Exactly-once delivery.")] = False,
    filter_: Annotated[str, typer.Option("--filter", help='Such as: attributes.kind = "order"')] = "",
    dead_letter_topic: Annotated[str | None, typer.Option(help="Where what keeps failing goes.")] = None,
    max_delivery_attempts: Annotated[int, typer.Option(min=5, max=100, help="After so many deliveries.")] = 5,
    minimum_backoff: Annotated[
        float | None, typer.Option(parser=parse_seconds, metavar="DURATION", help="First wait before redelivery.")
    ] = None,
    maximum_backoff: Annotated[
        float | None, typer.Option(parser=parse_seconds, metavar="DURATION", help="Longest wait.")
    ] = None,
    retention: Annotated[
        float | None,
        typer.Option(
            parser=parse_seconds, metavar="DURATION", help="Keep unacknowledged messages so long: 10m to 31d."
        ),
    ] = None,
    retain_acked: Annotated[bool, typer.Option("--retain-acked", help="Keep acknowledged ones, too.")] = False,
    push_endpoint: Annotated[str, typer.Option(metavar="URL", help="Push to this address.")] = "",
    label: Labels = None,
    as_json: AsJson = False,
) -> None:
    """Create a subscription. It receives what is published from now on.

    Example: heliograph subscription create billing --topic orders --filter 'attributes.kind = "order"'
    """
    with target as door:
        body: dict[str, Any] = {
            "topic": door.name("topics", topic),
            "ackDeadlineSeconds": ack_deadline,
            "enableMessageOrdering": ordering,
            "enableExactlyOnceDelivery": exactly_once,
            "filter": filter_,
            "retainAckedMessages": retain_acked,
            "labels": parse_pairs(label, "label"),
        }
        if dead_letter_topic is not None:
            body["deadLetterPolicy"] = {
                "deadLetterTopic": door.name("topics", dead_letter_topic),
                "maxDeliveryAttempts": max_delivery_attempts,
            }
        if minimum_backoff is not None or maximum_backoff is not None:
            backoffs = {"minimumBackoff": minimum_backoff, "maximumBackoff": maximum_backoff}
            body["retryPolicy"] = {name: proto_duration(value) for name, value in backoffs.items() if value is not None}
        if retention is not None:
            body["messageRetentionDuration"] = proto_duration(retention)
        if push_endpoint:
            body["pushConfig"] = {"pushEndpoint": push_endpoint}
        made = door.rest("PUT", door.name("subscriptions", name), body)
        if as_json:
            print_json(made)
        else:
            print(f"Created {made['name']}")


@subscription_app.command("list")
@on_broker
def list_subscriptions(
    target: Target,
    topic: Annotated[str | None, typer.Option(help="Only those of this topic.")] = None,
    as_json: AsJson = False,
) -> None:
    """List the project's subscriptions.

    Example: heliograph subscription list --topic orders
    """
    with target as door:
        found = door.every(f"projects/{door.project}/subscriptions", "subscriptions")
        if topic is not None:
            full = door.name("topics", topic)
            door.rest("GET", full)  # an unknown topic is an error, not an empty list
            found = [subscription for subscription in found if subscription["topic"] == full]
        if as_json:
            print_json(found)
        else:
            print_table(
                ("subscription", "ack deadline", "kind", "topic"),
                [(s["name"], f"{s.get('ackDeadlineSeconds', 10)} s", _kind(s), s["topic"]) for s in found],
            )


@subscription_app.command("describe")
@on_broker
def describe(target: Target, name: Name, as_json: AsJson = False) -> None:
    """Show a subscription, and what it holds.

    Example: heliograph subscription describe billing --json
    """
    with target as door:
        full = door.name("subscriptions", name)
        found = door.rest("GET", full)
        (counted,) = door.get("/api/v1/statistics", subscription=full)["subscriptions"]
        if as_json:
            print_json(found | {"statistics": counted})
            return
        letters, retry = found.get("deadLetterPolicy", {}), found.get("retryPolicy", {})
        print_fields(
            (
                ("name", found["name"]),
                ("topic", found["topic"]),
                ("kind", _kind(found)),
                ("ack deadline", f"{found.get('ackDeadlineSeconds', 10)} s"),
                ("retention", found.get("messageRetentionDuration")),
                ("filter", found.get("filter")),
                ("dead letters to", letters.get("deadLetterTopic")),
                ("after attempts", letters.get("maxDeliveryAttempts")),
                ("backoff", f"{retry['minimumBackoff']} to {retry['maximumBackoff']}" if retry else None),
                ("push to", found.get("pushConfig", {}).get("pushEndpoint")),
                ("labels", pairs(found.get("labels", {}))),
                ("detached", "yes" if found.get("detached") else None),
                ("waiting", f"{counted['ready'] + counted['delayed']:,}"),
                ("outstanding", f"{counted['outstanding']:,}"),
                ("acknowledged", f"{counted['acknowledged_total']:,}"),
            )
        )


@on_broker
def pull(
    target: Target,
    name: Name,
    limit: Annotated[int, typer.Option(min=1, help="At most so many messages.")] = 1,
    auto_ack: Annotated[bool, typer.Option("--auto-ack", help="Acknowledge them once they are printed.")] = False,
    wait: Annotated[
        float, typer.Option(parser=parse_seconds, metavar="DURATION", help="Wait so long for a first one.")
    ] = "0",  # type: ignore[assignment]  # typer parses defaults of parsed options
    as_json: AsJson = False,
) -> None:
    """Pull messages from a subscription. Exit code 7 if there were none.

    Without --auto-ack they come back when their lease ends. With --json, each is a line.

    Example: heliograph pull billing --limit 10 --auto-ack --json | jq .data
    """
    with target as door:
        full = door.name("subscriptions", name)
        ends = time.monotonic() + wait
        seen = 0
        while seen < limit:
            received = _pull(door, full, min(limit - seen, PULL_MESSAGES_MAX), waits=not seen and wait > 0)
            if received:
                for each in received:
                    _print_received(each, as_json)
                if auto_ack:
                    door.rest("POST", f"{full}:acknowledge", {"ackIds": [each["ackId"] for each in received]})
                seen += len(received)
            elif seen or time.monotonic() >= ends:
                break
        if not seen:
            raise typer.Exit(ExitCode.EMPTY)


subscription_app.command("pull")(pull)


@subscription_app.command("seek")
@on_broker
def seek(
    target: Target,
    name: Name,
    to_time: Annotated[
        str | None,
        typer.Option("--time", metavar="INSTANT", help="To 2026-11-28T02:35:00Z, to now (purge), or to 10m ago."),
    ] = None,
    to_snapshot: Annotated[str | None, typer.Option("--snapshot", help="To where a snapshot was taken.")] = None,
) -> None:
    """Move a subscription to an instant or a snapshot: what came before counts as acknowledged, the rest does not.

    Example: heliograph subscription seek billing --time 1h
    """
    if (to_time is None) == (to_snapshot is None):
        raise typer.BadParameter("give --time or --snapshot")
    with target as door:
        full = door.name("subscriptions", name)
        if to_time is not None:
            body = {"time": parse_instant(to_time)}
        else:
            assert to_snapshot is not None
            body = {"snapshot": door.name("snapshots", to_snapshot)}
        door.rest("POST", f"{full}:seek", body)
        print(f"Moved {full}")


@subscription_app.command("detach")
@on_broker
def detach(target: Target, name: Name) -> None:
    """Detach a subscription from its topic. What it holds is dropped, and nothing more comes.

    Example: heliograph subscription detach billing
    """
    with target as door:
        full = door.name("subscriptions", name)
        door.rest("POST", f"{full}:detach")
        print(f"Detached {full}")


@subscription_app.command("delete")
@on_broker
def delete(target: Target, name: Name) -> None:
    """Delete a subscription, and what it holds.

    Example: heliograph subscription delete billing
    """
    with target as door:
        full = door.name("subscriptions", name)
        door.rest("DELETE", full)
        print(f"Deleted {full}")


def _pull(door: Door, full: str, limit: int, *, waits: bool) -> list[dict[str, Any]]:
    answer = door.rest("POST", f"{full}:pull", {"maxMessages": limit, "returnImmediately": not waits})
    received: list[dict[str, Any]] = answer.get("receivedMessages", [])
    return received


def _print_received(received: dict[str, Any], as_json: bool) -> None:
    message = received["message"]
    shown = ShownMessage(
        message["messageId"],
        message["publishTime"],
        base64.b64decode(message.get("data", "")),
        message.get("attributes", {}),
        message.get("orderingKey", ""),
    )
    if as_json:
        attempt = {"delivery_attempt": received["deliveryAttempt"]} if "deliveryAttempt" in received else {}
        print_message_json(shown, **attempt, ack_id=received["ackId"])
    else:
        print_message(shown, shown.message_id, shown.publish_time)


def _kind(subscription: dict[str, Any]) -> str:
    if subscription.get("detached"):
        return "detached"
    if subscription.get("pushConfig", {}).get("pushEndpoint"):
        return "push"
    words = {"enableMessageOrdering": "ordered", "enableExactlyOnceDelivery": "exactly once"}
    return ", ".join(["pull", *(word for field, word in words.items() if subscription.get(field))])
