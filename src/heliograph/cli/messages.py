"""Messages on the command line: how they are shown, and sent in batches."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

from heliograph.cli.failure import Failure
from heliograph.cli.show import counting, pairs, print_json, print_json_line

BATCH_MESSAGES_MAX = 500
BATCH_BYTES_MAX = 4_000_000
"""Of one request to publish; a larger message goes alone."""

T = TypeVar("T")


class ShownMessage(NamedTuple):
    """What is shown of a message of a topic, as every command has it. `publish_time` is RFC 3339."""

    message_id: str
    publish_time: str
    data: bytes
    attributes: dict[str, str]
    ordering_key: str


def print_message(message: ShownMessage, *first: str) -> None:
    """A message as a line for people; what is no UTF-8 is escaped.

    Args:
        first: what stands in the brackets before ordering key and attributes.
    """
    key = f"key {message.ordering_key}" if message.ordering_key else ""
    print_text(message.data.decode(errors="backslashreplace"), *first, key, pairs(message.attributes))


def print_text(text: str, *beside: str) -> None:
    """A text, and in brackets what is known of it besides; at once, since messages come one by one."""
    print(f"{text}  [{', '.join(part for part in beside if part)}]", flush=True)


def print_message_json(message: ShownMessage, **more: object) -> None:
    """A message as a line of JSON: `data`, or `data_base64` of what is no UTF-8.

    Args:
        more: further fields, which come last.
    """
    told: dict[str, Any] = {"message_id": message.message_id, "publish_time": message.publish_time}
    try:
        told["data"] = message.data.decode()
    except UnicodeDecodeError:
        told["data_base64"] = base64.b64encode(message.data).decode()
    print_json_line(told | {"attributes": message.attributes, "ordering_key": message.ordering_key} | more)


def publish_all(
    messages: Iterable[T], size_bytes: Callable[[T], int], publish: Callable[[list[T]], list[str]]
) -> list[str]:
    """Publish messages as they come, in batches that fit into one request.

    Args:
        size_bytes: of a message, about.
        publish: publishes a batch; gives the ids.

    Returns:
        The ids of all.

    Raises:
        Failure: as `publish` and `messages` do; it tells how many had been published before.
    """
    ids: list[str] = []
    try:
        with counting("publishing") as step:
            for batch in batches(messages, size_bytes):
                made = publish(batch)
                step(len(made))
                ids += made
    except Failure as failure:
        if not ids:
            raise
        raise Failure(f"{failure} (the first {len(ids):,} messages were published)", failure.exit_code) from failure
    return ids


def print_published(ids: list[str], where: str, key: str, *, as_json: bool, in_short: bool) -> None:
    """What was published: the ids, under `key` in JSON; in short their number."""
    if as_json:
        print_json({key: ids})
    elif in_short:
        print(f"Published {len(ids):,} messages to {where}")
    else:
        print("\n".join(ids))


def batches(messages: Iterable[T], size_bytes: Callable[[T], int]) -> Iterator[list[T]]:
    """Messages as they come, in lists that fit into one request."""
    gathered: list[T] = []
    gathered_bytes = 0
    for message in messages:
        size = size_bytes(message)
        if gathered and (len(gathered) == BATCH_MESSAGES_MAX or gathered_bytes + size > BATCH_BYTES_MAX):
            yield gathered
            gathered, gathered_bytes = [], 0
        gathered.append(message)
        gathered_bytes += size
    if gathered:
        yield gathered
