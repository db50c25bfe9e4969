"""Facts as rows of a table and back: one journal row for each group of facts that is committed together, and apart
from it the messages that the group publishes.

In the journal a MessagesPublished keeps its place and its sequences; its messages are in rows of their own, one for a
published batch. Small batches that follow each other in one topic share a row, because a row costs as much as fifty
small messages. Every body carries its CRC-32.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from heliograph.engine.facts import CheckpointBegun, Fact, MessagesPublished
from heliograph.engine.message import Message
from heliograph.engine.ranges import Run

GROUP_BYTES_MAX = 32 * 1024 * 1024  # a group ends when it is larger: bounds memory and the length of a commit
SHARED_BATCH_MESSAGES_MAX = 32  # a larger batch has its own row
SHARED_BATCH_BYTES_MAX = 64 * 1024  # of payload; a larger batch has its own row
SHARED_ROW_MESSAGES_MAX = 256  # a shared row takes no more

CHECKPOINT_MARK = CheckpointBegun.__name__.encode()  # among the first bytes of a checkpoint's body, and of no other
MESSAGE_COLUMNS = "topic_number, first_sequence, last_sequence, newest_publish_time_ns, checksum, body"

_encoder = msgspec.msgpack.Encoder()
_facts_decoder = msgspec.msgpack.Decoder(list[Fact])
_messages_decoder = msgspec.msgpack.Decoder(list[Message])


class Damaged(Exception):
    """A body is not what was written."""


class JournalRow(NamedTuple):
    """The facts of a group, without messages. Its position in the journal is given when it is written."""

    checksum: int
    body: bytes


class MessageRow(NamedTuple):
    """Messages with consecutive sequences of one topic."""

    topic_number: int
    first_sequence: int
    last_sequence: int
    newest_publish_time_ns: int
    checksum: int
    body: bytes


class Append(NamedTuple):
    """The facts of one call; `replaces`: they are a checkpoint, which takes the place of everything before."""

    facts: Sequence[Fact]
    replaces: bool


class Trim(NamedTuple):
    """What of a topic may leave the file: see `Store.trim`.

    Args:
        up_to: messages from here on stay.
        held: of those below, the ones that stay as well: runs, in order.
        reached: rows below are dealt with.
    """

    up_to: int
    held: Sequence[Run] = ()
    reached: int = 0


class Group(NamedTuple):
    """What one transaction writes.

    Args:
        journal: its facts; None = only trims.
        messages: their messages.
        fact_count: how many facts that happened, which those of a checkpoint did not.
        trims: topic number to what goes of its messages.
        replaces: the journal before it goes.
    """

    journal: JournalRow | None
    messages: list[MessageRow]
    fact_count: int
    trims: dict[int, Trim]
    replaces: bool = False


def groups(appends: Sequence[Append], trims: dict[int, Trim]) -> Iterator[Group]:
    """Encode what is to be written. Facts of one append stay in one group; a group ends at `GROUP_BYTES_MAX`; a
    checkpoint is one of its own. Trims come last."""
    facts: list[Fact] = []
    rows: list[MessageRow] = []
    shared: dict[int, list[Message]] = {}
    size_bytes = 0
    for append in appends:
        if append.replaces:
            if facts:
                yield _group(facts, shared, rows, {})
            facts, rows, shared, size_bytes = [], [], {}, 0
            yield _group(list(append.facts), {}, [], {})._replace(fact_count=0, replaces=True)
            continue
        for fact in append.facts:
            if type(fact) is MessagesPublished and fact.messages:
                size_bytes += _take_messages(fact, shared, rows)
                fact = without_messages(fact)
            facts.append(fact)
        if size_bytes > GROUP_BYTES_MAX:
            yield _group(facts, shared, rows, {})
            facts, rows, shared, size_bytes = [], [], {}, 0
    if facts or trims:
        yield _group(facts, shared, rows, trims)


def decode_facts(body: bytes, checksum: int) -> list[Fact]:
    """The facts of a journal row. Raises: Damaged."""
    _verify(body, checksum)
    try:
        return _facts_decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise Damaged(str(error)) from error


def decode_messages(first_sequence: int, last_sequence: int, checksum: int, body: bytes) -> list[Message]:
    """The messages of a row. Raises: Damaged."""
    _verify(body, checksum)
    try:
        messages = _messages_decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise Damaged(str(error)) from error
    if len(messages) != last_sequence - first_sequence + 1 or messages[0].sequence != first_sequence:
        raise Damaged("it has other messages than it says")
    return messages


def instant_of(facts: Sequence[Fact]) -> int | None:
    """When the first of these facts happened, of those that tell."""
    for fact in facts:
        details = getattr(fact, "details", None)
        if details is not None:
            return int(details.at_ns)
    return None


def trim_checksum(topic_number: int, up_to: int) -> int:
    """What a row of trims carries, so that no damaged one hides messages."""
    return zlib.crc32(b"%d %d" % (topic_number, up_to))


def _verify(body: object, checksum: object) -> None:
    # in a damaged row either may be of any type
    if not isinstance(body, bytes) or zlib.crc32(body) != checksum:
        raise Damaged("checksum mismatch")


def _take_messages(fact: MessagesPublished, shared: dict[int, list[Message]], rows: list[MessageRow]) -> int:
    """Put the fact's messages where they belong; returns about how many bytes they have."""
    topic_number, messages = fact.topic_number, fact.messages
    before = shared.get(topic_number)
    size_bytes = _shared_bytes(messages)
    if size_bytes is None:
        if before is not None:
            rows.append(message_row(topic_number, shared.pop(topic_number)))
        row = message_row(topic_number, messages)
        rows.append(row)
        return len(row.body)
    if before is not None and len(before) + len(messages) <= SHARED_ROW_MESSAGES_MAX:
        assert before[-1].sequence + 1 == messages[0].sequence, f"topic {topic_number} has a gap in its sequences"
        before.extend(messages)
        return size_bytes
    if before is not None:
        rows.append(message_row(topic_number, before))
    shared[topic_number] = list(messages)
    return size_bytes


def _shared_bytes(messages: list[Message]) -> int | None:
    """About how many bytes a batch has that may share a row; None for one that may not."""
    if len(messages) > SHARED_BATCH_MESSAGES_MAX:
        return None
    size_bytes = sum([len(message.data) for message in messages])
    return size_bytes if size_bytes <= SHARED_BATCH_BYTES_MAX else None


def message_row(topic_number: int, messages: list[Message]) -> MessageRow:
    """A row of messages with consecutive sequences."""
    body = _encoder.encode(messages)
    newest = max([message.publish_time_ns for message in messages])
    return MessageRow(topic_number, messages[0].sequence, messages[-1].sequence, newest, zlib.crc32(body), body)


def without_messages(fact: MessagesPublished) -> MessagesPublished:
    """The fact, which has messages, as the journal has it."""
    messages = fact.messages
    first, last = messages[0].sequence, messages[-1].sequence
    return msgspec.structs.replace(fact, messages=[], first_sequence=first, last_sequence=last)


def _group(
    facts: list[Fact], shared: dict[int, list[Message]], rows: list[MessageRow], trims: dict[int, Trim]
) -> Group:
    rows.extend([message_row(topic_number, messages) for topic_number, messages in shared.items()])
    body = _encoder.encode(facts)
    return Group(JournalRow(zlib.crc32(body), body) if facts else None, rows, len(facts), trims)
