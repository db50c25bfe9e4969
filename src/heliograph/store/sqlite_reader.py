"""Reading the SQLite store: recovery, and a topic's log from any thread beside the writer."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from heliograph.engine.facts import CheckpointBegun, Fact, MessagesPublished, TopicRestored
from heliograph.engine.message import Message
from heliograph.engine.ranges import Run
from heliograph.errors import Internal, Unavailable
from heliograph.store.directory import damaged
from heliograph.store.log_check import logged_pages
from heliograph.store.rows import Damaged, decode_facts, decode_messages, trim_checksum
from heliograph.store.sqlite_file import PAGE_BYTES, Connect, open_reader

READ_BYTES = 1024 * 1024  # of bodies per batch, and
READ_MESSAGES = 1_000  # given at once, at least, as far as there are so many
READ_ROWS = 100  # rows per batch; whichever comes first ends it
CHECKED_BYTES_MAX = 2 * 1024**3  # of a file that is looked at as a whole after a crash: about a second per GiB

# How a damaged file shows: a number that is none any more is a TypeError, an error text with damaged names in it a
# ValueError.
DAMAGE = (Damaged, sqlite3.Error, TypeError, ValueError)

_ROWS = """
    SELECT first_sequence, last_sequence, checksum, body FROM messages
    WHERE topic_number = ? AND last_sequence >= ? ORDER BY last_sequence
"""


_GAPS = """
    SELECT topic_number, before + 1, first_sequence - 1 FROM (
        SELECT topic_number, first_sequence,
            lag(last_sequence, 1, 0) OVER (PARTITION BY topic_number ORDER BY last_sequence) AS before FROM messages)
    WHERE first_sequence != before + 1
"""


class Readers:
    """Connections for reading, lent to whoever reads, for the time of one query.

    Args:
        path: the file.
        connect: `sqlite3.connect`, or what a test puts in its place.
    """

    def __init__(self, path: Path, connect: Connect) -> None:
        self._path = path
        self._connect = connect
        self._lock = threading.Lock()
        self._free: list[sqlite3.Connection] = []
        self._closed = False

    @contextmanager
    def lend(self) -> Iterator[sqlite3.Connection]:
        """A connection that nobody else uses meanwhile.

        Raises:
            Unavailable: the store is closed, or the file cannot be read.
        """
        with self._lock:
            if self._closed:
                raise Unavailable("The store is closed")
            connection = self._free.pop() if self._free else None
        try:
            if connection is None:
                connection = open_reader(self._path, self._connect)
            yield connection
        except sqlite3.Error as error:
            if connection is not None:
                connection.close()
            raise Unavailable(f"The store cannot be read: {error}") from error
        except BaseException:
            self._give_back(connection)
            raise
        self._give_back(connection)

    def close(self) -> None:
        """Close those that are free now, and each lent one when it comes back. Idempotent."""
        with self._lock:
            self._closed = True
            free, self._free = self._free, []
        for connection in free:
            connection.close()

    def _give_back(self, connection: sqlite3.Connection | None) -> None:
        if connection is None:
            return
        with self._lock:
            if not self._closed:
                self._free.append(connection)
                return
        connection.close()


def read_log(readers: Readers, topic_number: int, first: int, last: int) -> Iterator[list[Message]]:
    """The messages with sequences in [first, last], in batches; no query is open while the caller works on one."""
    while first <= last:
        with readers.lend() as connection:
            rows, more = _read_rows(connection, topic_number, first, last)
        messages: list[Message] = []
        for row_first, row_last, checksum, body in rows:
            try:
                decoded = decode_messages(row_first, row_last, checksum, body)
            except Damaged as error:
                raise Internal(
                    f"Messages {row_first} to {row_last} of topic {topic_number} are damaged in the store: {error}"
                ) from error
            messages += decoded[max(first - row_first, 0) : last - row_first + 1]
            if len(messages) >= READ_MESSAGES:  # soon, while they are in the processor's caches
                yield messages
                messages = []
        if messages:
            yield messages
        if not more:
            return
        first = rows[-1][1] + 1


def read_messages(connection: sqlite3.Connection, topic_number: int, first: int, last: int) -> list[Message]:
    """The same, all at once, from a connection that is not changed meanwhile. Raises: Damaged."""
    messages: list[Message] = []
    for row_first, row_last, checksum, body in connection.execute(_ROWS, (topic_number, first)):
        if row_first > last:
            break
        decoded = decode_messages(row_first, row_last, checksum, body)
        messages += decoded[max(first - row_first, 0) : last - row_first + 1]
    return messages


def _read_rows(
    connection: sqlite3.Connection, topic_number: int, first: int, last: int
) -> tuple[list[tuple[int, int, int, bytes]], bool]:
    """Rows from `first` on, enough for a batch, and whether there may be more."""
    rows: list[tuple[int, int, int, bytes]] = []
    size_bytes = 0
    cursor = connection.execute(_ROWS, (topic_number, first))
    try:
        for row in cursor:
            if row[0] > last:
                return rows, False
            rows.append(row)
            size_bytes += len(row[3])
            if size_bytes >= READ_BYTES or len(rows) == READ_ROWS:
                return rows, True
        return rows, False
    finally:
        cursor.close()


def log_bounds(readers: Readers, topic_number: int, trimmed_up_to: int) -> tuple[int, int]:
    """(first, last) sequence from `trimmed_up_to` on; see `Store.log_bounds`."""
    with readers.lend() as connection:
        lowest = connection.execute(
            "SELECT first_sequence FROM messages WHERE topic_number = ? AND last_sequence >= ? "
            "ORDER BY last_sequence LIMIT 1",
            (topic_number, trimmed_up_to),
        ).fetchone()
        if lowest is None:
            return trimmed_up_to, trimmed_up_to - 1
        highest = connection.execute(
            "SELECT max(last_sequence) FROM messages WHERE topic_number = ?", (topic_number,)
        ).fetchone()
    return max(lowest[0], trimmed_up_to), highest[0]


def log_extent(readers: Readers, topic_number: int, first: int, bytes_max: int) -> int:
    """The last sequence of a range from `first` on of about `bytes_max`; from the sizes of rows alone."""
    reached, left = first, bytes_max
    with readers.lend() as connection:
        cursor = connection.execute(
            "SELECT first_sequence, last_sequence, length(body) FROM messages "
            "WHERE topic_number = ? AND last_sequence >= ? ORDER BY last_sequence",
            (topic_number, first),
        )
        try:
            for row_first, row_last, size_bytes in cursor:
                begin = max(row_first, first)
                size_bytes = size_bytes * (row_last - begin + 1) // (row_last - row_first + 1)
                if size_bytes > left:
                    return max(int(begin + (row_last - begin + 1) * left // size_bytes) - 1, reached)
                reached, left = int(row_last), left - size_bytes
        finally:
            cursor.close()
    return reached


def log_offset(readers: Readers, topic_number: int, trimmed_up_to: int, published_ns: int) -> int:
    """The first sequence from `trimmed_up_to` on that was published at that instant or later; see `Store`."""
    with readers.lend() as connection:
        row = connection.execute(
            "SELECT first_sequence, last_sequence FROM messages WHERE topic_number = ? AND last_sequence >= ? AND "
            "newest_publish_time_ns >= ? ORDER BY last_sequence LIMIT 1",
            (topic_number, trimmed_up_to, published_ns),
        ).fetchone()
    if row is not None:
        for messages in read_log(readers, topic_number, max(row[0], trimmed_up_to), row[1]):
            for message in messages:
                if message.publish_time_ns >= published_ns:
                    return message.sequence
    return log_bounds(readers, topic_number, trimmed_up_to)[1] + 1 if row is None else int(row[1]) + 1


def first_kept(readers: Readers, topic_number: int, begin: int, up_to: int, published_before_ns: int) -> int:
    """The first sequence of the oldest row from `begin` on that is not wholly below `up_to`, or not wholly published
    before that instant; `up_to` if it is lower. What is not in the file yet may be younger, so it is kept."""
    with readers.lend() as connection:
        row = connection.execute(
            "SELECT first_sequence FROM messages WHERE topic_number = ? AND last_sequence >= ? AND "
            "(last_sequence >= ? OR newest_publish_time_ns >= ?) ORDER BY last_sequence LIMIT 1",
            (topic_number, begin, up_to, published_before_ns),
        ).fetchone()
        if row is None:
            row = connection.execute(
                "SELECT coalesce(max(last_sequence), 0) + 1 FROM messages WHERE topic_number = ?", (topic_number,)
            ).fetchone()
    return min(up_to, int(row[0]))


def topic_numbers(connection: sqlite3.Connection) -> set[int]:
    """Topics of which there are messages: one step in the index for each."""
    numbers: set[int] = set()
    number = 0
    while True:
        (number,) = connection.execute(
            "SELECT min(topic_number) FROM messages WHERE topic_number > ?", (number,)
        ).fetchone()
        if number is None:
            return numbers
        numbers.add(number)


def journal_bytes(connection: sqlite3.Connection) -> int:
    """How much a recovery reads at least: messages apart."""
    return int(connection.execute("SELECT coalesce(sum(length(body)), 0) FROM journal").fetchone()[0])


def read_trims(connection: sqlite3.Connection) -> dict[int, int]:
    """For each topic the sequence below which messages are gone. Raises: Damaged."""
    trims: dict[int, int] = {}
    for topic_number, up_to, checksum in connection.execute("SELECT topic_number, up_to, checksum FROM trims"):
        if checksum != trim_checksum(topic_number, up_to):
            raise Damaged(f"the trim of topic {topic_number}: checksum mismatch")
        trims[topic_number] = up_to
    return trims


def stored_below(connection: sqlite3.Connection, topic_number: int, begin: int) -> list[Run]:
    """The runs of messages below `begin`, by row: from the index alone."""
    runs: list[Run] = connection.execute(
        "SELECT first_sequence, last_sequence + 1 FROM messages WHERE topic_number = ? AND last_sequence < ? "
        "ORDER BY last_sequence",
        (topic_number, begin),
    ).fetchall()
    row = connection.execute(
        "SELECT first_sequence FROM messages WHERE topic_number = ? AND last_sequence >= ? "
        "ORDER BY last_sequence LIMIT 1",
        (topic_number, begin),
    ).fetchone()
    return [*runs, (row[0], begin)] if row is not None and row[0] < begin else runs


def topics_with_rows_below(connection: sqlite3.Connection, begins: dict[int, int]) -> set[int]:
    """Those of the topics of which whole rows are left before their logs begin."""
    query = "SELECT 1 FROM messages WHERE topic_number = ? AND last_sequence < ? LIMIT 1"
    return {number for number, begin in begins.items() if connection.execute(query, (number, begin)).fetchone()}


class Recovery:
    """One pass over the journal.

    Args:
        path: the file, for error texts.
        connection: to read it; not used by anybody else meanwhile.
        crashed: it was not closed in order, so that more is looked at before it is trusted.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, *, crashed: bool = False) -> None:
        self._path = path
        self._connection = connection
        self._crashed = crashed
        self._trims: dict[int, int] = {}
        self._last: dict[int, int] = {}  # sequence by topic
        self._number = 0  # the last that topics had before the checkpoint
        # the rows of the journal row at hand, by topic: batches that share one are decoded once
        self._decoded: dict[int, tuple[int, int, list[Message]]] = {}

    def facts(self) -> Iterator[Fact]:
        """Every fact, in order.

        Raises:
            StoreRefused: the file is damaged.
        """
        try:
            self._trims = read_trims(self._connection)
            self._check_pages()
            yield from self._journal()
            self._check_end()
            if self._crashed:
                self._check_gaps()
        except DAMAGE as error:
            raise damaged(self._path, error) from error

    def _journal(self) -> Iterator[Fact]:
        expected = 0
        for position, checksum, body in self._connection.execute(
            "SELECT position, checksum, body FROM journal ORDER BY position"
        ):
            try:
                facts = decode_facts(body, checksum)
            except Damaged as error:
                raise Damaged(f"journal row {position}: {error}") from error
            if expected == 0:
                # the journal begins with its first row, or with a checkpoint
                expected = position if type(facts[0]) is CheckpointBegun else 1
            if position != expected:
                raise Damaged(f"journal row {expected} is missing")
            self._decoded.clear()
            for fact in facts:
                yield self._restored(fact) if type(fact) is MessagesPublished else fact
                if type(fact) is TopicRestored:
                    self._last[fact.number] = fact.next_sequence - 1
                elif type(fact) is CheckpointBegun:
                    self._number = fact.number
            expected += 1

    def _check_pages(self) -> None:
        """Rows at the end of the journal would not be missed if a page had forgotten them. After a crash a file that
        is not huge is looked at as a whole: messages are not read until they are due."""
        whole = self._crashed and self._path.stat().st_size <= CHECKED_BYTES_MAX
        what = "" if whole else "('journal')"
        (found,) = self._connection.execute(f"PRAGMA quick_check{what}").fetchone()
        if found != b"ok":
            raise Damaged(" ".join(found.decode(errors="replace").split()))
        if self._crashed:
            self._check_size()

    def _check_size(self) -> None:
        """What the file is too short for is in its log, from where it is copied now and then. SQLite takes a page that
        is in neither for one of zeros."""
        (pages,) = self._connection.execute("PRAGMA page_count").fetchone()
        whole = self._path.stat().st_size // PAGE_BYTES
        if whole < pages:
            lost = set(range(whole + 1, pages + 1)) - logged_pages(self._path.with_name(self._path.name + "-wal"))
            if lost:
                raise Damaged(f"{len(lost)} pages are missing at its end")

    def _check_end(self) -> None:
        """Nor would they if the whole journal, or all messages, were those of an earlier time."""
        found: dict[int, int] = {}
        for topic_number, last in self._connection.execute(
            "SELECT topic_number, max(last_sequence) FROM messages GROUP BY topic_number"
        ):
            found[topic_number] = last
            if topic_number not in self._last and topic_number <= self._number:
                continue  # deleted before the checkpoint, and not trimmed yet
            if last > self._last.get(topic_number, 0):
                raise Damaged(f"the journal does not know message {last} of topic {topic_number}")
        for topic_number, last in self._last.items():
            first = max(found.get(topic_number, 0) + 1, self._trims.get(topic_number, 1))
            if first <= last:
                raise Damaged(f"messages {first} to {last} of topic {topic_number} are missing")

    def _check_gaps(self) -> None:
        for topic_number, first, last in self._connection.execute(_GAPS):
            first = max(first, self._trims.get(topic_number, 1))
            if first <= last:
                raise Damaged(f"messages {first} to {last} of topic {topic_number} are missing")

    def _restored(self, fact: MessagesPublished) -> MessagesPublished:
        """The fact with its messages."""
        first, last = fact.first_sequence, fact.last_sequence
        if first == 0:
            return fact
        self._last[fact.topic_number] = last
        return msgspec.structs.replace(fact, messages=self._messages(fact.topic_number, first, last))

    def _messages(self, topic_number: int, first: int, last: int) -> list[Message]:
        """All of [first, last], which are in one row. Raises: Damaged."""
        row_first, row_last, messages = self._decoded.get(topic_number, (1, 0, []))
        if not row_first <= first <= last <= row_last:
            row_first, row_last, messages = self._decoded[topic_number] = self._decode(topic_number, first, last)
        return messages[first - row_first : last - row_first + 1]

    def _decode(self, topic_number: int, first: int, last: int) -> tuple[int, int, list[Message]]:
        what = f"messages {first} to {last} of topic {topic_number}"
        row = self._connection.execute(_ROWS + " LIMIT 1", (topic_number, first)).fetchone()
        if row is None or not row[0] <= first <= last <= row[1]:
            raise Damaged(f"{what} are missing")
        try:
            return row[0], row[1], decode_messages(*row)
        except Damaged as error:
            raise Damaged(f"{what}: {error}") from error
