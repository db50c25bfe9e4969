"""What is in a store, counted: for `heliograph store stats`."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import msgspec

from heliograph.engine.facts import CheckpointBegun
from heliograph.engine.message import Message
from heliograph.store.directory import FILE_NAME, damaged
from heliograph.store.rows import decode_facts, decode_messages
from heliograph.store.snapshot import KnownTopics, Progress, Snapshot, no_progress, replay, snapshot
from heliograph.store.sqlite_file import Connect
from heliograph.store.sqlite_reader import DAMAGE, Recovery, read_messages, read_trims, topic_numbers


class TopicStats(msgspec.Struct, frozen=True):
    """Messages of a topic that can be read.

    Args:
        name: "" for one that was deleted long ago, whose messages are on their way out.
        number: message ids begin with it.
        deleted: it is gone, and perhaps subscriptions are left.
        messages, bytes: how many, and what they take in the file, with those held before.
        first_sequence, last_sequence: of them; 0 if there are none.
        oldest_publish_time_ns: of the first of them; 0 if there are none.
        held_before: messages from before them that subscriptions hold, or that are on their way out.
    """

    name: str
    number: int
    deleted: bool
    messages: int
    bytes: int
    first_sequence: int
    last_sequence: int
    oldest_publish_time_ns: int
    held_before: int = 0


class SubscriptionStats(msgspec.Struct, frozen=True):
    """What a subscription holds, as of the last commit."""

    name: str
    topic: str
    waiting: int
    delayed: int
    outstanding: int
    dead_letters: int


class StoreStats(msgspec.Struct, frozen=True):
    """A store in numbers; sizes in bytes.

    Args:
        path: the file.
        in_use: a broker serves it.
        format_version: of the file.
        file_bytes, log_bytes: the file, and SQLite's write-ahead log beside it.
        free_bytes: in the file, to be used again or given back.
        live_bytes: messages that can be read, the journal and the event log: what all the rest is there for.
        message_bytes: of those.
        journal_rows, journal_bytes: what a recovery reads, the checkpoint included.
        checkpoint_bytes: of those, the checkpoint; 0 = there was none yet.
        event_bytes: the event log, as far as it is older than the checkpoint.
        topics: by number.
        subscriptions: by name; None = not asked for.
    """

    path: str
    in_use: bool
    format_version: int
    file_bytes: int
    log_bytes: int
    free_bytes: int
    live_bytes: int
    message_bytes: int
    journal_rows: int
    journal_bytes: int
    checkpoint_bytes: int
    event_bytes: int
    topics: list[TopicStats]
    subscriptions: list[SubscriptionStats] | None


def stats(
    directory: Path,
    *,
    subscriptions: bool = False,
    progress: Progress = no_progress,
    connect: Connect = sqlite3.connect,
) -> StoreStats:
    """Count what is in a data directory; also while a broker serves it.

    Args:
        directory: the data directory.
        subscriptions: replay the journal as well, to count what each subscription holds.
        progress: told of the work.
        connect: `sqlite3.connect`, or what a test puts in its place.

    Raises:
        StoreRefused: there is no store, or it is not ours, newer or damaged.
    """
    try:
        with snapshot(directory, connect) as taken:
            return _stats(taken, progress, subscriptions=subscriptions)
    except DAMAGE as error:
        raise damaged(directory / FILE_NAME, error) from error


def _stats(taken: Snapshot, progress: Progress, *, subscriptions: bool) -> StoreStats:
    connection = taken.connection
    known = KnownTopics()
    rows = journal_bytes = checkpoint_bytes = 0
    for checksum, body in connection.execute("SELECT checksum, body FROM journal ORDER BY position"):
        facts = decode_facts(body, checksum)
        rows, journal_bytes = rows + 1, journal_bytes + len(body)
        if type(facts[0]) is CheckpointBegun:
            checkpoint_bytes = len(body)
        for fact in facts:
            known.note(fact)
        progress("reading the journal", rows, None)
    trims = read_trims(connection)
    topics = []
    numbers = sorted(topic_numbers(connection) | known.by_number.keys())
    for done, number in enumerate(numbers, 1):
        found = _topic(connection, known, number, trims.get(number, 1))
        if found.messages or found.held_before or not found.deleted:
            topics.append(found)
        progress("counting messages", done, len(numbers))
    message_bytes = sum(topic.bytes for topic in topics)
    event_bytes = taken.number("SELECT coalesce(sum(length(body)), 0) FROM history") if _has_history(connection) else 0
    log = taken.path.with_name(taken.path.name + "-wal")
    return StoreStats(
        path=str(taken.path),
        in_use=taken.in_use,
        format_version=taken.format_version,
        file_bytes=taken.path.stat().st_size,
        log_bytes=log.stat().st_size if log.exists() else 0,
        free_bytes=taken.number("PRAGMA freelist_count") * taken.number("PRAGMA page_size"),
        live_bytes=message_bytes + journal_bytes + event_bytes,
        message_bytes=message_bytes,
        journal_rows=rows,
        journal_bytes=journal_bytes,
        checkpoint_bytes=checkpoint_bytes,
        event_bytes=event_bytes,
        topics=topics,
        subscriptions=_subscriptions(taken, progress) if subscriptions else None,
    )


def _has_history(connection: sqlite3.Connection) -> bool:
    return connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'history'").fetchone() is not None


_ROWS = "FROM messages WHERE topic_number = ? AND last_sequence >= ?"


def _topic(connection: sqlite3.Connection, known: KnownTopics, number: int, kept_from: int) -> TopicStats:
    messages, size_bytes, last = connection.execute(
        "SELECT coalesce(sum(last_sequence - max(first_sequence, ?) + 1), 0), coalesce(sum(length(body)), 0), "
        f"coalesce(max(last_sequence), 0) {_ROWS}",
        (kept_from, number, kept_from),
    ).fetchone()
    before, before_bytes = connection.execute(
        "SELECT coalesce(sum(last_sequence - first_sequence + 1), 0), coalesce(sum(length(body)), 0) "
        "FROM messages WHERE topic_number = ? AND last_sequence < ?",
        (number, kept_from),
    ).fetchone()
    first: Message | None = None
    if messages:
        row = connection.execute(
            f"SELECT first_sequence, last_sequence, checksum, body {_ROWS} ORDER BY last_sequence LIMIT 1",
            (number, kept_from),
        ).fetchone()
        first = decode_messages(*row)[max(kept_from - row[0], 0)]
    topic = known.by_number.get(number)
    return TopicStats(
        name="" if topic is None else topic.name,
        number=number,
        deleted=topic is None or topic.deleted,
        messages=messages,
        bytes=size_bytes + before_bytes,
        first_sequence=first.sequence if first else 0,
        last_sequence=last,
        oldest_publish_time_ns=first.publish_time_ns if first else 0,
        held_before=before,
    )


def _subscriptions(taken: Snapshot, progress: Progress) -> list[SubscriptionStats]:
    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        progress("replaying the journal", done, None)

    engine = replay(
        Recovery(taken.path, taken.connection).facts(),
        lambda number, first, last: read_messages(taken.connection, number, first, last),
        advance,
    )
    return [
        SubscriptionStats(
            name=subscription.name,
            topic=subscription.topic.name,
            waiting=subscription.waiting,
            delayed=subscription.delayed,
            outstanding=len(subscription.leases),
            dead_letters=len(subscription.dead),
        )
        for _, subscription in sorted(engine.subscriptions.items())
    ]
