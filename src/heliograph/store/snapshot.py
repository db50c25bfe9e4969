"""Looking into a data directory without changing it: stopped, or beside the broker that serves it.

What is read is the file as it was at one moment. While a broker commits, its write-ahead log grows until the look is
over; a stopped directory is locked meanwhile, so that no broker starts under it.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from heliograph.engine.engine import Engine
from heliograph.engine.facts import CheckpointBegun, Fact, MessagesPublished, TopicCreated, TopicDeleted, TopicRestored
from heliograph.engine.message import Message
from heliograph.store.directory import FILE_NAME, LOCK_NAME, missing, unusable
from heliograph.store.lock import DirectoryLock
from heliograph.store.sqlite_file import APPLICATION_ID, Connect, check_header, not_ours, open_reader

MEMORY_BYTES = 64 * 1024 * 1024
"""Of messages, in memory, while facts are replayed."""

Progress = Callable[[str, int, int | None], None]
"""(what is being done, how much of it is done, how much there is: None = not known)."""


def no_progress(_step: str, _done: int, _total: int | None) -> None:
    """Nobody looks."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A store at one moment.

    Args:
        path: the file.
        connection: reads it, in one transaction.
        in_use: a broker serves it.
        format_version: of the file.
    """

    path: Path
    connection: sqlite3.Connection
    in_use: bool
    format_version: int

    def number(self, query: str) -> int:
        """The one number that a query answers."""
        return int(self.connection.execute(query).fetchone()[0])


@contextmanager
def snapshot(directory: Path, connect: Connect = sqlite3.connect) -> Iterator[Snapshot]:
    """The store in a data directory, for the time of the block.

    Raises:
        StoreRefused: there is none, it is not ours, newer, or cannot be read.
        sqlite3.Error: it is damaged, as far as opening it tells; and whatever the block raises.
    """
    path = directory / FILE_NAME
    lock, in_use = _locked(path)
    try:
        connection = open_reader(path, connect, alone=not in_use)
        try:
            connection.execute("BEGIN")
            if connection.execute("PRAGMA application_id").fetchone() != (APPLICATION_ID,):
                raise not_ours(path)
            (version,) = connection.execute("PRAGMA user_version").fetchone()
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # the moment is now
            yield Snapshot(path, connection, in_use, version)
        finally:
            connection.close()
    finally:
        if lock is not None:
            lock.release()


def _locked(path: Path) -> tuple[DirectoryLock | None, bool]:
    """The directory's lock, and whether a broker has it. Neither where nobody may write: then nobody does."""
    lock_path = path.with_name(LOCK_NAME)
    try:
        if not path.exists():
            raise missing(path.parent)
        if not lock_path.exists():
            check_header(path)  # as in `directory.take`: never beside a broker
        lock = None
        try:
            lock = DirectoryLock(lock_path)
        except BlockingIOError:
            return None, True
        except OSError:
            if os.access(lock_path if lock_path.exists() else path.parent, os.W_OK):
                raise
        try:
            check_header(path)
        except BaseException:
            if lock is not None:
                lock.release()
            raise
    except OSError as error:
        raise unusable(path.parent, error) from error
    return lock, False


def replay(
    facts: Iterable[Fact], read_log: Callable[[int, int, int], list[Message]], advance: Callable[[], None]
) -> Engine:
    """The state to which the facts lead, as of the last of them: time does not go on.

    Args:
        facts: from `Recovery`.
        read_log: see `State`.
        advance: called after each fact.
    """
    engine = Engine(read_log)
    for fact in facts:
        engine.replay(fact)
        engine.shed_memory(MEMORY_BYTES, 0)
        advance()
    return engine


class KnownTopic:
    """What the journal tells of a topic."""

    def __init__(self, name: str, number: int, next_sequence: int, *, deleted: bool) -> None:
        self.name = name
        self.number = number
        self.next_sequence = next_sequence
        self.deleted = deleted


class KnownTopics:
    """Topics by number, from facts alone: without messages, and also where the journal has holes."""

    def __init__(self) -> None:
        self.by_number: dict[int, KnownTopic] = {}
        self._numbers: dict[str, int] = {}  # of those that are not deleted
        self.forgotten_up_to = 0  # topics up to this number may have been deleted before the checkpoint

    def note(self, fact: Fact) -> None:
        """The next fact of the journal."""
        match fact:
            case TopicCreated():
                self._add(KnownTopic(fact.name, fact.number, 1, deleted=False))
            case TopicRestored():
                self._add(KnownTopic(fact.name, fact.number, fact.next_sequence, deleted=fact.deleted))
            case TopicDeleted():
                number = self._numbers.pop(fact.name, 0)
                if number in self.by_number:
                    self.by_number[number].deleted = True
            case MessagesPublished():
                topic = self.by_number.get(fact.topic_number)
                if topic is None:
                    topic = self._add(KnownTopic(fact.topic, fact.topic_number, 1, deleted=False))
                topic.next_sequence = max(topic.next_sequence, fact.last_sequence + 1)
            case CheckpointBegun():
                self.by_number.clear()
                self._numbers.clear()
                self.forgotten_up_to = fact.number

    def _add(self, topic: KnownTopic) -> KnownTopic:
        self.by_number[topic.number] = topic
        if not topic.deleted:
            self._numbers[topic.name] = topic.number
        return topic

    def name(self, number: int) -> str:
        """What to call a topic."""
        topic = self.by_number.get(number)
        return f"number {number}" if topic is None else topic.name
