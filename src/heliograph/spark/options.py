"""The options of the Spark source, read and checked; `source.py` has the table of them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from heliograph.errors import InvalidArgument
from heliograph.spark.door import TIMEOUT_SECONDS, Address
from heliograph.spark.known_options import READ, check_options

MODES = ("log", "queue", "events")
PROTOCOLS = ("heliograph", "pubsub")
ENDPOINT_DEFAULT = "http://127.0.0.1:8085"
CONSUMER_DEFAULT = "spark"
CLAIM_SIZE_DEFAULT = 10_000
CLAIM_TTL_SECONDS_DEFAULT = 3600
QUEUE_MESSAGES_PER_TRIGGER_DEFAULT = 100_000
TRIGGER_DELAY_SECONDS_DEFAULT = 900  # Kafka's

EARLIEST, LATEST = "earliest", "latest"

_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)?")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_SIZE = re.compile(r"(\d+)\s*([kmgt]?)i?b?")


class Position(NamedTuple):
    """Where reading begins or ends: by one of these, the others are empty.

    Args:
        named: "earliest" or "latest".
        by_topic: the first sequence (not) to read, by full name; the key "" is any other topic.
        time_ns: the first message published at this instant or later; 0 = none.
        snapshot: what this snapshot had not acknowledged; "" = none.
    """

    named: str = ""
    by_topic: Mapping[str, int] = {}
    time_ns: int = 0
    snapshot: str = ""


class Limits(NamedTuple):
    """How much one micro-batch takes; None = no bound."""

    messages_max: int | None
    bytes_max: int | None
    messages_min: int | None
    delay_seconds_max: float


class ReadOptions(NamedTuple):
    """The options of the table in `source.py`, checked."""

    address: Address
    mode: str
    topics: tuple[str, ...]
    topic_pattern: str
    starting: Position | None
    ending: Position
    limits: Limits
    partitions_min: int | None
    left_out: frozenset[str]
    fail_on_data_loss: bool
    pushdown: bool
    subscription: str
    consumer: str
    claim_size: int
    claim_ttl_seconds: float
    protocol: str

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> ReadOptions:
        """The options as Spark hands them over.

        Raises:
            InvalidArgument: one is missing, not known or not what the table says; the message names it.
        """
        check_options(options, READ, "source")
        subscription = _full_name(options, "subscription", "subscriptions")
        mode = _one_of(options, "mode", MODES, "queue" if subscription else "log")
        topics = _topics(options)
        pattern = _pattern(options)
        if mode == "log" and bool(topics) == bool(pattern):
            raise InvalidArgument(
                "Give one of the options topic (the topic to read, such as projects/p/topics/t), topics, topicPattern "
                "or, to take messages from a queue, subscription"
            )
        if mode == "queue" and not subscription:
            raise InvalidArgument("The option subscription is missing: mode queue takes the messages of one")
        return cls(
            address=address_of(options),
            mode=mode,
            topics=topics,
            topic_pattern=pattern,
            starting=_position(options, "starting"),
            ending=_position(options, "ending") or Position(LATEST),
            limits=_limits(options, mode),
            partitions_min=whole_number(options, "minPartitions"),
            left_out=_left_out(options),
            fail_on_data_loss=_truth(options, "failOnDataLoss", True),
            pushdown=_truth(options, "pushdown", True),
            subscription=subscription,
            consumer=options.get("consumer", "") or CONSUMER_DEFAULT,
            claim_size=whole_number(options, "claimSize") or CLAIM_SIZE_DEFAULT,
            claim_ttl_seconds=seconds_of(options, "claimTtl", CLAIM_TTL_SECONDS_DEFAULT),
            protocol=_one_of(options, "protocol", PROTOCOLS, "heliograph"),
        )


def address_of(options: Mapping[str, str]) -> Address:
    """Where the broker is. Raises: InvalidArgument."""
    endpoint = options.get("endpoint") or os.environ.get("PUBSUB_EMULATOR_HOST") or ENDPOINT_DEFAULT
    timeout_seconds = whole_number(options, "timeoutSeconds") or TIMEOUT_SECONDS
    return Address(endpoint, timeout_seconds, options.get("token", "").strip())


def full_topic_name(options: Mapping[str, str], name: str) -> str:
    """A topic's full name, of a full or a short one. Raises: InvalidArgument."""
    if "/" in name:
        return name
    project = options.get("project", "")
    if not project:
        raise InvalidArgument(
            f"topic {name!r} is a short name: give its full name, or its project in the option project"
        )
    return f"projects/{project}/topics/{name}"


def seconds_of(options: Mapping[str, str], name: str, default: float) -> float:
    """A span such as 90s, 15m, 1h, or a number of seconds. Raises: InvalidArgument."""
    text = options.get(name, "").strip().lower()
    if not text:
        return default
    found = _SPAN.fullmatch(text)
    if found is None or not float(found[1]):
        raise InvalidArgument(f"{name} must be a span of time such as 90s, 15m or 1h, not {text!r}")
    return float(found[1]) * _SECONDS[found[2] or "s"]


def _topics(options: Mapping[str, str]) -> tuple[str, ...]:
    names = [options.get("topic", ""), *options.get("topics", "").split(",")]
    return tuple(dict.fromkeys(full_topic_name(options, name.strip()) for name in names if name.strip()))


def _pattern(options: Mapping[str, str]) -> str:
    pattern = options.get("topicPattern", "")
    try:
        re.compile(pattern)
    except re.error as error:
        raise InvalidArgument(f"topicPattern is not a regular expression: {error}") from None
    return pattern


def _full_name(options: Mapping[str, str], name: str, kind: str) -> str:
    value, project = options.get(name, ""), options.get("project", "")
    if not value or "/" in value:
        return value
    if not project:
        raise InvalidArgument(f"{name} {value!r} is a short name: give its full name, or its project in project")
    return f"projects/{project}/{kind}/{value}"


def _position(options: Mapping[str, str], which: str) -> Position | None:
    """Of `startingOffsets`, `startingTimestamp` and `startingSnapshot`, or their counterparts; None if none is
    given."""
    offsets, timestamp = options.get(f"{which}Offsets", "").strip(), options.get(f"{which}Timestamp", "").strip()
    snapshot = _full_name(options, "startingSnapshot", "snapshots") if which == "starting" else ""
    if bool(offsets) + bool(timestamp) + bool(snapshot) > 1:
        raise InvalidArgument(f"Give only one of {which}Offsets, {which}Timestamp and startingSnapshot")
    if timestamp:
        return Position(time_ns=_instant_ns(timestamp, f"{which}Timestamp"))
    if snapshot:
        return Position(snapshot=snapshot)
    if not offsets:
        return None
    if offsets.lower() in (EARLIEST, LATEST):
        return Position(offsets.lower())
    if _is_sequence(offsets):
        return Position(by_topic={"": int(offsets)})
    return Position(by_topic=_offsets_by_topic(options, offsets, f"{which}Offsets"))


def _offsets_by_topic(options: Mapping[str, str], text: str, name: str) -> dict[str, int]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(value, int) and value >= 1 for value in found.values()):
        raise InvalidArgument(
            f"{name} must be earliest, latest, a sequence number from 1, or JSON such as "
            f'{{"projects/p/topics/t": 1042}}, not {text[:80]!r}'
        )
    return {full_topic_name(options, topic): value for topic, value in found.items()}


def _is_sequence(text: str) -> bool:
    return text.isascii() and text.isdigit() and 1 <= int(text) < 10**18


def _instant_ns(text: str, name: str) -> int:
    """Milliseconds since the epoch, as Kafka's source has it, or ISO 8601; without a zone it is UTC."""
    if text.isascii() and text.isdigit():
        return int(text) * 1_000_000
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(
            f"{name} must be milliseconds since the epoch or a time such as 2026-11-28T12:00:00Z, not {text!r}"
        ) from None
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    return max(int((instant - datetime.fromtimestamp(0, UTC)).total_seconds() * 1_000_000) * 1_000, 0)


def _limits(options: Mapping[str, str], mode: str) -> Limits:
    messages_max = whole_number(options, "maxMessagesPerTrigger") or whole_number(options, "maxOffsetsPerTrigger")
    if messages_max is None and mode == "queue":
        messages_max = QUEUE_MESSAGES_PER_TRIGGER_DEFAULT
    messages_min = whole_number(options, "minMessagesPerTrigger") or whole_number(options, "minOffsetsPerTrigger")
    if messages_min and messages_max and messages_min > messages_max:
        raise InvalidArgument("minMessagesPerTrigger is larger than maxMessagesPerTrigger")
    delay_seconds = seconds_of(options, "maxTriggerDelay", TRIGGER_DELAY_SECONDS_DEFAULT)
    return Limits(messages_max, _size_bytes(options, "maxBytesPerTrigger"), messages_min, delay_seconds)


def _size_bytes(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name, "").strip().lower()
    if not text:
        return None
    found = _SIZE.fullmatch(text)
    if found is None or not int(found[1]):
        raise InvalidArgument(f"{name} must be a size such as 64m, 1g or a number of bytes, not {text!r}")
    return int(found[1]) * int(1024 ** (" kmgt".index(found[2] or " ")))


def _left_out(options: Mapping[str, str]) -> frozenset[str]:
    columns = {"includePayload": "data", "includeAttributes": "attributes"}
    return frozenset(column for option, column in columns.items() if not _truth(options, option, True))


def _one_of(options: Mapping[str, str], name: str, known: tuple[str, ...], default: str) -> str:
    value = options.get(name, "").strip().lower() or default
    if value not in known:
        raise InvalidArgument(f"{name} must be {' or '.join(known)}, not {value!r}")
    return value


def whole_number(options: Mapping[str, str], name: str) -> int | None:
    """A whole number from 1, or None where the option is missing. Raises: InvalidArgument."""
    text = options.get(name)
    if text is None:
        return None
    if text.isascii() and text.isdigit() and int(text) >= 1:
        return int(text)
    raise InvalidArgument(f"{name} must be a whole number from 1, not {text!r}")


def _truth(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name, str(default)).strip().lower()
    if text in ("true", "false"):
        return text == "true"
    raise InvalidArgument(f"{name} must be true or false, not {text!r}")
