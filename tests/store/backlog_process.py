"""The broker of `test_big_backlog.py`, a process of its own so that its memory is its own: `fill` and end as if killed,
or `consume` and check every message. Prints what it saw as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from heliograph.broker.broker import LocalBroker
from heliograph.broker.reply import Reply
from heliograph.engine.dead_letter import DeadLetterPolicy
from heliograph.engine.message import Draft, Extras
from heliograph.engine.settings import SubscriptionSettings
from heliograph.store.sqlite import SqliteStore

BATCH = 1_000
IN_FLIGHT = 16
PRIORITIES = 3
QUEUE = SubscriptionSettings(prioritised=True, message_retention_ns=0, dead_letter_policy=DeadLetterPolicy(None, 4))


def fill(broker: LocalBroker, kind: str, messages: int) -> None:
    """Publish `messages` numbered ones of 100 bytes, durably."""
    broker.create_topic("t").result()
    broker.create_subscription("s", "t", QUEUE if kind == "queue" else SubscriptionSettings()).result()
    extras = [None] if kind == "plain" else [Extras(priority=priority) for priority in range(PRIORITIES)]
    waiting: deque[Reply[list[str]]] = deque()
    for first in range(0, messages, BATCH):
        numbers = range(first, min(first + BATCH, messages))
        waiting.append(broker.publish("t", [Draft(b"%0100d" % n, extras=extras[n % len(extras)]) for n in numbers]))
        if len(waiting) == IN_FLIGHT:
            waiting.popleft().result()
    for reply in waiting:
        reply.result()


def consume(broker: LocalBroker, kind: str, messages: int) -> None:
    """Pull and acknowledge everything, in order: the highest priority first, then the oldest."""
    expected = _in_order(kind, messages)
    while deliveries := broker.pull("s", BATCH).result():
        for delivery in deliveries:
            number = int(delivery.message.data)
            assert number == next(expected), f"{number} came too early"
        broker.acknowledge("s", [delivery.ack_id for delivery in deliveries]).result()
    assert next(expected, None) is None, "not everything came"


def _in_order(kind: str, messages: int) -> Iterator[int]:
    if kind == "plain":
        yield from range(messages)
    else:
        for priority in reversed(range(PRIORITIES)):
            yield from range(priority, messages, PRIORITIES)


def main(task: str, directory: str, kind: str, messages: int, budget_bytes: int) -> dict[str, Any]:
    began = time.perf_counter()
    broker = LocalBroker(SqliteStore(Path(directory)), memory_budget_bytes=budget_bytes)
    opened = time.perf_counter()
    {"fill": fill, "consume": consume}[task](broker, kind, messages)
    done = time.perf_counter()
    return {
        "opened_seconds": opened - began,
        "messages_per_second": messages / (done - opened),
        "peak_rss_bytes": _peak_rss_bytes(),
    }


def _peak_rss_bytes() -> int:
    """Of this process alone: what `getrusage` tells begins with that of whoever started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:4], *map(int, sys.argv[4:6]))), flush=True)  # type: ignore[call-arg]
    os._exit(0)  # as if killed: nothing is closed
