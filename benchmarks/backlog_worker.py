"""The broker process of `benchmarks.scenarios.backlog`: prints its figures as JSON; closes nothing."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections import deque
from pathlib import Path

from benchmarks.scenarios.durable import SUBSCRIPTION, TOPIC, WAIT_SECONDS_MAX, consume
from heliograph.broker.broker import LocalBroker
from heliograph.broker.housekeeping import MEMORY_BUDGET_BYTES
from heliograph.broker.reply import Reply
from heliograph.engine.message import Draft, Extras
from heliograph.engine.settings import SubscriptionSettings
from heliograph.store.sqlite import SqliteStore

BATCH = 100
PUBLISHERS = 64
CONSUMED_BATCH = 1000
CONSUMERS = 16
TRAFFIC = 300_000  # messages to compare rates with
TRAFFIC_TURN = 20_000  # published, then consumed: an empty broker stays about empty


def fill(directory: str, subscription: str, messages: int, payload_bytes: int) -> dict[str, float]:
    """Publish until so many wait, where only the directory is of interest."""
    broker = _broker(SqliteStore(directory, durability="none"), subscription)
    _publish(broker, subscription, messages, payload_bytes)
    return {}


def compare(directory: str, subscription: str, messages: int, payload_bytes: int) -> dict[str, float]:
    """Rates of an empty broker, then those of one with a backlog; its memory."""
    store = SqliteStore(directory)
    broker = _broker(store, subscription)
    traffic = min(TRAFFIC, messages)
    empty_publish, empty_consume = _traffic(broker, subscription, traffic, payload_bytes)
    before, begin = store.commits, time.perf_counter()
    _publish(broker, subscription, messages, payload_bytes)
    fill_rate, commits = messages / (time.perf_counter() - begin), store.commits - before
    resident = _memory_mb("VmRSS")
    publish_rate, consume_rate = _traffic(broker, subscription, traffic, payload_bytes)
    assert broker.statistics(SUBSCRIPTION).ready == messages
    return {
        "publish/s, filling": fill_rate,
        "commits": commits,
        "MB resident": resident,
        "MB at most": _memory_mb("VmHWM"),
        "publish/s": publish_rate,
        "publish × empty": publish_rate / empty_publish,
        "consume/s": consume_rate,
        "consume × empty": consume_rate / empty_consume,
    }


def recover(directory: str, subscription: str, messages: int, payload_bytes: int) -> dict[str, float]:
    """How long opening takes, with the first delivery; the memory then."""
    begin = time.perf_counter()
    broker = LocalBroker.open(directory)
    opened = time.perf_counter() - begin
    assert broker.statistics(SUBSCRIPTION).ready == messages
    begin = time.perf_counter()
    (delivery,) = broker.pull(SUBSCRIPTION, 1).result(WAIT_SECONDS_MAX)
    assert len(delivery.message.data) == payload_bytes
    return {
        "s to recover": opened,
        "s to deliver then": time.perf_counter() - begin,
        "MB resident": _memory_mb("VmRSS"),
        "MB at most": _memory_mb("VmHWM"),
    }


def _broker(store: SqliteStore, subscription: str) -> LocalBroker:
    """With a topic and a subscription."""
    broker = LocalBroker(store, memory_budget_bytes=MEMORY_BUDGET_BYTES)
    broker.create_topic(TOPIC).result(WAIT_SECONDS_MAX)
    settings = SubscriptionSettings(prioritised=subscription != "plain")
    broker.create_subscription(SUBSCRIPTION, TOPIC, settings).result(WAIT_SECONDS_MAX)
    return broker


def _traffic(broker: LocalBroker, subscription: str, messages: int, payload_bytes: int) -> tuple[float, float]:
    """Publish and consume by turns; the rate of each."""
    publishing = consuming = 0.0
    for first in range(0, messages, TRAFFIC_TURN):
        count = min(TRAFFIC_TURN, messages - first)
        begin = time.perf_counter()
        _publish(broker, subscription, count, payload_bytes)
        between = time.perf_counter()
        consume(broker, count, CONSUMED_BATCH, CONSUMERS)
        publishing += between - begin
        consuming += time.perf_counter() - between
    return messages / publishing, messages / consuming


def _publish(broker: LocalBroker, subscription: str, messages: int, payload_bytes: int) -> None:
    """Each message has a payload of its own, and with ten priorities each has its share."""
    extras = [Extras(priority) if subscription == "ten_priorities" else None for priority in range(10)]
    replies: deque[Reply[list[str]]] = deque()
    for first in range(0, messages, BATCH):
        numbers = range(first, min(first + BATCH, messages))
        drafts = [Draft(b"%0*d" % (payload_bytes, number), extras=extras[number % 10]) for number in numbers]
        replies.append(broker.publish(TOPIC, drafts))
        if len(replies) >= PUBLISHERS:
            replies.popleft().result(WAIT_SECONDS_MAX)
    for reply in replies:
        reply.result(WAIT_SECONDS_MAX)


def _memory_mb(name: str) -> float:
    """A figure of /proc/self/status, in MB of 1,000,000 bytes."""
    found = re.search(rf"^{name}:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"this system does not tell {name}")
    return int(found.group(1)) * 1024 / 1e6


if __name__ == "__main__":
    task, directory, subscription, messages, payload_bytes = sys.argv[1:]
    work = {"fill": fill, "compare": compare, "recover": recover}[task]
    print(json.dumps(work(directory, subscription, int(messages), int(payload_bytes))), flush=True)
    os._exit(0)  # as killed: recovery has to do with what is in the file
