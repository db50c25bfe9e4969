"""The event log in the SQLite file: what the journal told before the last checkpoint, kept for a while.

A checkpoint takes the place of the journal's rows. Where an event log is kept they move to the table `history` instead
of going; a reader sees both as one growing list of positions. Nothing is written twice while messages flow, and a
recovery reads no more than before. Messages are not in it, only what happened to them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from heliograph.engine.facts import Fact
from heliograph.errors import Internal
from heliograph.store.protocol import EVERYTHING
from heliograph.store.rows import CHECKPOINT_MARK, Damaged, decode_facts, instant_of
from heliograph.store.sqlite_reader import Readers

FORGOTTEN_ROWS_MAX = 20_000
"""Rows that leave with one checkpoint, so that a long stand-still does not become one long commit."""

READ_ROWS = 1_000
READ_BYTES = 1024 * 1024
"""Of one query; whichever comes first ends it."""

_MARK_END = 40  # of the first bytes of a body, where a checkpoint shows

_ROWS = f"""
    SELECT position, checksum, body FROM history WHERE position BETWEEN ?1 AND ?2
    UNION ALL
    SELECT position, checksum, body FROM journal
    WHERE position BETWEEN ?1 AND ?2 AND instr(substr(body, 1, {_MARK_END}), x'{CHECKPOINT_MARK.hex()}') = 0
    ORDER BY position
"""


class HistoryKeeper:
    """The writer's part: rows that the journal is done with come here, and the oldest go. For one thread, save
    `forget_before`.

    Args:
        bytes_max: of rows that are kept, about; 0 = none is; None = all, where there are some already.

    Attributes:
        forget_before: rows below this position may go; set from any thread.
    """

    def __init__(self, bytes_max: int | None) -> None:
        self.forget_before = 0
        self._bytes_max = EVERYTHING if bytes_max is None else bytes_max
        self._only_if_any = bytes_max is None
        self._bytes = -1  # of what is there; -1 = not counted yet

    def take_over(self, connection: sqlite3.Connection, position: int) -> None:
        """Within a transaction: the journal's rows up to `position` are about to go."""
        if self._bytes < 0:
            self._bytes = connection.execute("SELECT coalesce(sum(length(body)), 0) FROM history").fetchone()[0]
        if self._bytes_max and not (self._only_if_any and not self._bytes):
            where = f"position <= ? AND instr(substr(body, 1, {_MARK_END}), ?) = 0"
            (added,) = connection.execute(
                f"SELECT coalesce(sum(length(body)), 0) FROM journal WHERE {where}", (position, CHECKPOINT_MARK)
            ).fetchone()
            connection.execute(
                f"INSERT INTO history SELECT position, checksum, body FROM journal WHERE {where}",
                (position, CHECKPOINT_MARK),
            )
            self._bytes += added
        if self._bytes:
            self._forget(connection)

    def _forget(self, connection: sqlite3.Connection) -> None:
        last = 0
        for position, size_bytes in connection.execute(
            "SELECT position, length(body) FROM history ORDER BY position LIMIT ?", (FORGOTTEN_ROWS_MAX,)
        ):
            if self._bytes <= self._bytes_max and position >= self.forget_before:
                break
            last = position
            self._bytes -= size_bytes
        if last:
            connection.execute("DELETE FROM history WHERE position <= ?", (last,))


def event_bounds(readers: Readers) -> tuple[int, int]:
    """(first, last) position that `read_events` can give; see `Store.event_bounds`."""
    with readers.lend() as connection:
        first, last, journal_first = connection.execute(
            "SELECT (SELECT min(position) FROM history), (SELECT max(position) FROM journal), "
            "(SELECT min(position) FROM journal)"
        ).fetchone()
    if last is None:
        return 1, 0
    return (journal_first if first is None else first), last


def read_events(readers: Readers, first: int, last: int) -> Iterator[tuple[int, list[Fact]]]:
    """Positions in [first, last] with their facts, in order; see `Store.read_events`."""
    while first <= last:
        rows = _rows(readers, first, last, READ_ROWS)
        for position, checksum, body in rows:
            try:
                yield position, decode_facts(body, checksum)
            except Damaged as error:
                raise Internal(f"Row {position} of the event log is damaged: {error}") from error
        if not rows:
            return
        first = rows[-1][0] + 1


def event_offset(readers: Readers, at_ns: int) -> int:
    """The first position at which something happened at that instant or later; see `Store.event_offset`."""
    first, last = event_bounds(readers)
    low, high = first, last + 1  # what is before `low` is earlier; what is from `high` on is not
    while low < high:
        middle = (low + high) // 2
        position, instant_ns = _next_instant(readers, middle, last)
        if instant_ns is None or instant_ns >= at_ns:
            high = middle
        else:
            low = position + 1
    return low


def _next_instant(readers: Readers, first: int, last: int) -> tuple[int, int | None]:
    """The first position from `first` on that tells a time, and that; None if there is none."""
    while first <= last:
        rows = _rows(readers, first, last, 50)
        if not rows:
            break
        for position, checksum, body in rows:
            instant_ns = instant_of(decode_facts(body, checksum))
            if instant_ns is not None:
                return position, instant_ns
        first = rows[-1][0] + 1
    return last, None


def _rows(readers: Readers, first: int, last: int, count: int) -> list[tuple[int, int, bytes]]:
    rows: list[tuple[int, int, bytes]] = []
    size_bytes = 0
    with readers.lend() as connection:
        cursor = connection.execute(_ROWS, (first, last))
        try:
            for row in cursor:
                rows.append(row)
                size_bytes += len(row[2])
                if size_bytes >= READ_BYTES or len(rows) == count:
                    break
        finally:
            cursor.close()
    return rows
