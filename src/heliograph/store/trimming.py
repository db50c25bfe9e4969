"""What nobody needs any more leaves the file: whole rows, and of a row that is mostly unheld all that is not held."""

from __future__ import annotations

import sqlite3
from bisect import bisect_left
from collections.abc import Sequence
from contextlib import suppress

from heliograph.engine.ranges import Run
from heliograph.store.protocol import EVERYTHING
from heliograph.store.rows import (
    MESSAGE_COLUMNS,
    Damaged,
    MessageRow,
    Trim,
    decode_messages,
    message_row,
    trim_checksum,
)

TRIMMED_ROWS_MAX = 500  # per commit, so that a large trim does not hold up the facts that it goes with
LOOKED_AT_MAX = 10_000  # rows per commit that may turn out to stay

_NOTE = """
    INSERT INTO trims VALUES (?, ?, ?) ON CONFLICT (topic_number)
    DO UPDATE SET up_to = excluded.up_to, checksum = excluded.checksum WHERE excluded.up_to > up_to
"""
_ROWS = """
    SELECT id, first_sequence, last_sequence FROM messages
    WHERE topic_number = ? AND last_sequence >= ? AND last_sequence < ? ORDER BY last_sequence LIMIT ?
"""


def trim_rows(connection: sqlite3.Connection, trims: dict[int, Trim], rows_max: int) -> dict[int, Trim]:
    """Note the trims, and delete up to `rows_max` rows in all. Returns the trims that may have more. What cannot be
    read stays, for a check to find."""
    unfinished: dict[int, Trim] = {}
    for topic_number, trim in trims.items():
        if not trim.up_to:
            continue  # of no topic: see `sqlite_file.GIVE_BACK`
        connection.execute(_NOTE, (topic_number, trim.up_to, trim_checksum(topic_number, trim.up_to)))
        reached = trim.reached
        if rows_max > 0:
            removed, reached = _trim_topic(connection, topic_number, trim, rows_max)
            rows_max -= removed
        if reached < trim.up_to:
            unfinished[topic_number] = trim._replace(reached=reached)
        elif trim.up_to >= EVERYTHING:  # the topic is gone, and so is its last message
            connection.execute("DELETE FROM trims WHERE topic_number = ?", (topic_number,))
    return unfinished


def _trim_topic(connection: sqlite3.Connection, topic_number: int, trim: Trim, rows_max: int) -> tuple[int, int]:
    """How many rows went, and the sequence below which all is done."""
    bounds = (topic_number, trim.reached, trim.up_to)
    rows = connection.execute(_ROWS, (*bounds, LOOKED_AT_MAX if trim.held else rows_max)).fetchall()
    emptied: list[tuple[int]] = []
    thinned: list[tuple[int, list[Run]]] = []
    limit = LOOKED_AT_MAX if trim.held else rows_max
    reached = trim.up_to if len(rows) < limit else rows[-1][2] + 1
    for row_id, first, last in rows:
        held = _within(trim.held, first, last + 1)
        if not held:
            emptied.append((row_id,))
        elif 2 * sum([stop - start for start, stop in held]) <= last - first + 1:
            thinned.append((row_id, held))
        if len(emptied) + len(thinned) == rows_max:
            reached = last + 1
            break
    connection.executemany("DELETE FROM messages WHERE id = ?", emptied)
    for row_id, held in thinned:
        with suppress(Damaged):
            _thin(connection, topic_number, row_id, held)
    return len(emptied) + len(thinned), reached


def _within(runs: Sequence[Run], first: int, stop: int) -> list[Run]:
    """The parts of growing runs that lie in [first, stop)."""
    parts: list[Run] = []
    for index in range(max(bisect_left(runs, (first, 0)) - 1, 0), len(runs)):
        run_first, run_stop = runs[index]
        if run_first >= stop:
            break
        if run_stop > first:
            parts.append((max(run_first, first), min(run_stop, stop)))
    return parts


def _thin(connection: sqlite3.Connection, topic_number: int, row_id: int, held: list[Run]) -> None:
    """Put rows of the held messages only in the place of one. Raises: Damaged."""
    query = "SELECT first_sequence, last_sequence, checksum, body FROM messages WHERE id = ?"
    first, last, checksum, body = connection.execute(query, (row_id,)).fetchone()
    messages = decode_messages(first, last, checksum, body)
    connection.execute("DELETE FROM messages WHERE id = ?", (row_id,))
    for start, stop in held:
        insert_messages(connection, [message_row(topic_number, messages[start - first : stop - first])])


def insert_messages(connection: sqlite3.Connection, rows: list[MessageRow]) -> None:
    """Add rows, in one statement."""
    values = ", ".join(["(?, ?, ?, ?, ?, ?)"] * len(rows))
    connection.execute(
        f"INSERT INTO messages ({MESSAGE_COLUMNS}) VALUES {values}", [value for row in rows for value in row]
    )
