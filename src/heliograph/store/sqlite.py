"""The durable store: one SQLite file in a data directory, written by one thread in group commits."""

from __future__ import annotations

import atexit
import os
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

from heliograph.engine.facts import Fact
from heliograph.engine.message import Message
from heliograph.engine.ranges import Run
from heliograph.engine.settings import NEVER_NS
from heliograph.errors import StoreRefused
from heliograph.store.directory import FILE_NAME, damaged, take
from heliograph.store.group_commit import RETRY_SECONDS, TRIM_DELAY_SECONDS, GroupCommit
from heliograph.store.history import HistoryKeeper, event_bounds, event_offset, read_events
from heliograph.store.lock import DirectoryLock
from heliograph.store.protocol import COMMITTED, Commit, Durability
from heliograph.store.rows import Trim
from heliograph.store.sqlite_file import GIVE_BACK, Connect, Writer, has_log, open_reader, space_to_give_back
from heliograph.store.sqlite_reader import (
    DAMAGE,
    Readers,
    Recovery,
    first_kept,
    journal_bytes,
    log_bounds,
    log_extent,
    log_offset,
    read_log,
    read_trims,
    stored_below,
    topic_numbers,
    topics_with_rows_below,
)

CHECKPOINT_BYTES_MIN = 16 * 1024 * 1024  # of journal, before a checkpoint is worth its while
CHECKPOINT_GROWTH = 4  # and so many times the last checkpoint, so that their cost stays a share of the journal's

_SYNCHRONOUS: dict[str, str] = {"full": "FULL", "process": "NORMAL", "none": "OFF"}


class SqliteStore:
    """A `Store` in the file `heliograph.db` of a data directory.

    Until something is appended the file is only read, so a file that `recover()` refuses is left byte for byte as it
    was.

    Args:
        data_dir: the directory; made if missing, with its parents.
        durability: what a commit survives; with "none" a killed process, but a power cut may damage the file.
        connect: `sqlite3.connect`, or what a test puts in its place.
        lock: of the directory, from `directory.take`, when the caller has and keeps it.
        events_bytes_max: how much of the event log is kept beyond the last checkpoint, about; 0 = nothing; None = all,
            where there is one already.
        retry_seconds: pause after a failed commit, and the longest one that it grows to.
        trim_delay_seconds: how long a trim waits for facts to be written with.

    Raises:
        StoreRefused: the directory cannot be used, another broker uses it, or its file is not ours, newer or damaged.
            The text is one line that says what to do.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str],
        *,
        durability: Durability = "full",
        connect: Connect = sqlite3.connect,
        lock: DirectoryLock | None = None,
        events_bytes_max: int | None = 0,
        retry_seconds: tuple[float, float] = RETRY_SECONDS,
        trim_delay_seconds: float = TRIM_DELAY_SECONDS,
    ) -> None:
        synchronous = _SYNCHRONOUS[durability]
        self._durability = durability
        self.path = Path(data_dir) / FILE_NAME
        self._connect = connect
        self._own_lock = take(self.path, connect) if lock is None else None
        # where each topic's log begins, and the last trim of each that this object was told; None = not told, and there
        # is something to do
        self._begins, self._trims, gives_back, size = self._check()
        self._readers = Readers(self.path, connect)
        self._history = HistoryKeeper(events_bytes_max)
        self._writer = Writer(self.path, connect, synchronous, self._history)
        self._writing = GroupCommit(
            self._writer.write,
            self._release,
            retry_seconds=retry_seconds,
            trim_delay_seconds=trim_delay_seconds,
            trims=gives_back,
            journal_bytes=size,
        )
        self._checkpoint = COMMITTED  # the last one
        atexit.register(self.close)

    @property
    def kind(self) -> str:
        """See `Store.kind`."""
        return "sqlite"

    @property
    def durability(self) -> Durability:
        """See `Store.durability`."""
        return self._durability

    @property
    def failing(self) -> Exception | None:
        """See `Store.failing`."""
        return self._writing.failing

    @property
    def commits(self) -> int:
        """How many transactions this object has committed."""
        return self._writing.commits

    @property
    def facts_written(self) -> int:
        """How many facts it has committed."""
        return self._writing.facts_written

    def recover(self) -> Iterator[Fact]:
        """See `Store.recover`. A store that is refused is closed, and its directory free again."""
        crashed = has_log(self.path)
        connection = open_reader(self.path, self._connect, alone=True)
        try:
            yield from Recovery(self.path, connection, crashed=crashed).facts()
        except StoreRefused:
            self.close()
            raise
        finally:
            connection.close()

    def append(self, facts: Sequence[Fact]) -> Commit:
        """See `Store.append`."""
        return self._writing.append(facts)

    @property
    def keeps_facts(self) -> bool:
        """See `Store.keeps_facts`."""
        return True

    @property
    def checkpoint_due(self) -> bool:
        """See `Store.checkpoint_due`. Never while one waits to be written: each is a commit of its own, and under load
        many operations come by meanwhile."""
        writing = self._writing
        if not self._checkpoint.done:
            return False
        return writing.journal_bytes > max(CHECKPOINT_BYTES_MIN, CHECKPOINT_GROWTH * writing.checkpoint_bytes)

    def checkpoint(self, facts: Sequence[Fact]) -> Commit:
        """See `Store.checkpoint`."""
        self._checkpoint = self._writing.append(facts, replaces=True)
        return self._checkpoint

    def event_bounds(self) -> tuple[int, int]:
        """See `Store.event_bounds`."""
        return event_bounds(self._readers)

    def read_events(self, first: int, last: int) -> Iterator[tuple[int, list[Fact]]]:
        """See `Store.read_events`."""
        return read_events(self._readers, first, last)

    def event_offset(self, at_ns: int) -> int:
        """See `Store.event_offset`."""
        return event_offset(self._readers, at_ns)

    def forget_events(self, before: int) -> None:
        """See `Store.forget_events`."""
        self._history.forget_before = before

    def topic_numbers(self) -> set[int]:
        """See `Store.topic_numbers`."""
        with self._readers.lend() as connection:
            return topic_numbers(connection)

    def read_log(self, topic_number: int, first: int, last: int, *, held: bool = False) -> Iterator[list[Message]]:
        """See `Store.read_log`."""
        begin = 1 if held else self._begins.get(topic_number, 1)
        return read_log(self._readers, topic_number, max(first, begin), last)

    def log_bounds(self, topic_number: int) -> tuple[int, int]:
        """See `Store.log_bounds`."""
        return log_bounds(self._readers, topic_number, self._begins.get(topic_number, 1))

    def log_extent(self, topic_number: int, first: int, bytes_max: int) -> int:
        """See `Store.log_extent`."""
        return log_extent(self._readers, topic_number, first, bytes_max)

    def log_offset(self, topic_number: int, published_ns: int) -> int:
        """See `Store.log_offset`."""
        return log_offset(self._readers, topic_number, self._begins.get(topic_number, 1), published_ns)

    def held_below(self, topic_number: int) -> list[Run]:
        """See `Store.held_below`."""
        with self._readers.lend() as connection:
            return stored_below(connection, topic_number, self._begins.get(topic_number, 1))

    def trim(
        self, topic_number: int, up_to: int, published_before_ns: int = NEVER_NS, held: Sequence[Run] = ()
    ) -> None:
        """See `Store.trim`."""
        begin = self._begins.get(topic_number, 1)
        if published_before_ns != NEVER_NS:
            up_to = first_kept(self._readers, topic_number, begin, up_to, published_before_ns)
        trim = Trim(up_to, tuple(run for run in held if run[0] < up_to))
        if trim != self._trims.get(topic_number, Trim(1)):
            self._writing.trim(topic_number, trim)
            self._trims[topic_number] = trim
            self._begins[topic_number] = max(begin, up_to)

    @property
    def trims(self) -> dict[int, Trim]:
        """What this object was told of each topic."""
        return {number: trim for number, trim in self._trims.items() if trim is not None}

    def close(self) -> None:
        """See `Store.close`."""
        atexit.unregister(self.close)
        self._writing.close()

    def _release(self) -> None:
        self._readers.close()
        self._writer.close()  # last, because the last one to close the file removes what SQLite keeps beside it
        self._release_lock()

    def _release_lock(self) -> None:
        if self._own_lock is not None:
            self._own_lock.release()

    def _check(self) -> tuple[dict[int, int], dict[int, Trim | None], dict[int, Trim], int]:
        """Open the file for reading once, to see that it can be; returns where its topics begin, which of them are
        trimmed, whether there is space to give back, and the bytes of its journal."""
        try:
            connection = open_reader(self.path, self._connect, alone=True)
            try:
                begins = read_trims(connection)
                left = topics_with_rows_below(connection, begins)
                trims = {number: None if number in left else Trim(up_to) for number, up_to in begins.items()}
                gives_back = GIVE_BACK if space_to_give_back(connection) else {}
                return begins, trims, gives_back, journal_bytes(connection)
            finally:
                connection.close()
        except DAMAGE as error:
            self._release_lock()
            raise damaged(self.path, error) from error
        except BaseException:
            self._release_lock()
            raise
