"""`heliograph tail`: watch a topic's messages go by. Nothing is consumed: it reads the topic's log."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Annotated, Any

import typer

from heliograph.cli.door import Door
from heliograph.cli.failure import ExitCode, import_extra
from heliograph.cli.messages import ShownMessage, print_message, print_message_json
from heliograph.cli.show import AsJson, instant
from heliograph.cli.target import Target, on_broker
from heliograph.engine.settings import SECOND_NS

POLL_SECONDS = 0.25
READ_MESSAGES_MAX = 1000
COLUMNS = "sequence,message_id,publish_time,data,attributes,ordering_key"


@on_broker
def tail(
    target: Target,
    name: Annotated[str, typer.Argument(metavar="TOPIC", help="Its id, or full name; queues/NAME for a work queue.")],
    last: Annotated[int, typer.Option("--last", "-n", min=0, help="Begin so many messages back.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="End after so many messages.")] = None,
    once: Annotated[bool, typer.Option("--once", help="End at what is the end now.")] = False,
    as_json: AsJson = False,
) -> None:
    """Watch messages go by, without consuming them. Ctrl-C ends it. With --json, each is a line.

    Example: heliograph tail orders --last 10
    """
    with target as door:
        full = door.topic(name)
        bounds = _bounds(door, full)
        position = max(bounds["last"] + 1 - last, bounds["first"])
        shown = 0
        try:
            while limit is None or shown < limit:
                if position > bounds["last"]:
                    if once:
                        return
                    time.sleep(POLL_SECONDS)  # the log is read by ranges: nothing tells that it grew
                    bounds = _bounds(door, full)
                    if position < bounds["first"] or position > bounds["last"] + 1:  # the latter: it was made anew
                        position = bounds["first"]
                    continue
                most = READ_MESSAGES_MAX if limit is None else min(limit - shown, READ_MESSAGES_MAX)
                end = min(position + most - 1, bounds["last"])
                for row in _read(door, full, position, end):
                    _print(row, as_json)
                    shown += 1
                position = end + 1
        except KeyboardInterrupt:
            raise typer.Exit(ExitCode.DONE) from None


def _bounds(door: Door, topic: str) -> dict[str, Any]:
    return door.get("/api/v1/log/bounds", topic=topic)


def _read(door: Door, topic: str, first: int, last: int) -> list[dict[str, Any]]:
    pa = import_extra("pyarrow", extra="server", for_what="tail")
    stream = door.get_bytes("/api/v1/log/read", topic=topic, first=first, last=last, columns=COLUMNS)
    rows: list[dict[str, Any]] = pa.ipc.open_stream(stream).read_all().to_pylist()
    return rows


def _print(row: dict[str, Any], as_json: bool) -> None:
    published: datetime = row["publish_time"]
    attributes = dict(row["attributes"] or {})
    shown = ShownMessage(row["message_id"], published.isoformat(), row["data"], attributes, row["ordering_key"] or "")
    if as_json:
        print_message_json(shown)
    else:
        print_message(shown, instant(int(published.timestamp()) * SECOND_NS))
