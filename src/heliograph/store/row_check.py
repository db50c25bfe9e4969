"""Every row of a store, read and checked by itself, also where pages between them cannot be read."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any, NamedTuple

from heliograph.engine.facts import CheckpointBegun
from heliograph.store.findings import Finding, Findings, Spans
from heliograph.store.rows import Damaged, decode_facts, decode_messages, trim_checksum
from heliograph.store.snapshot import KnownTopics, Progress, Snapshot

UNREADABLE = (sqlite3.DatabaseError, sqlite3.OperationalError)

_JOURNAL = "SELECT position, checksum, body FROM journal WHERE position > ? ORDER BY position"
_MESSAGES = (
    "SELECT id, topic_number, first_sequence, last_sequence, newest_publish_time_ns, checksum, body "
    "FROM messages NOT INDEXED WHERE id > ? ORDER BY id"
)
_INDEX = (
    "SELECT id, topic_number, first_sequence, last_sequence FROM messages INDEXED BY messages_by_sequence "
    "ORDER BY topic_number, last_sequence"
)


class Loss(NamedTuple):
    """Messages of a topic that cannot be read, and why."""

    topic_number: int
    first_sequence: int
    last_sequence: int
    problem: str


class Walk:
    """A table in the order of its rowid, as far as its pages can be read.

    Args:
        connection: reads it.
        query: with one parameter, the rowid after which to begin; gives the rowid first.
        last: the query for the highest rowid.

    Attributes:
        unreadable: rowids at which a page could not be read; whether there was a row is not known.
        end_unknown: from where on nothing could be read, and not even how much there is; 0 = that is not so.
    """

    def __init__(self, connection: sqlite3.Connection, query: str, last: str) -> None:
        self._connection = connection
        self._query = query
        self._last = last
        self.unreadable = Spans()
        self.problem = ""
        self.end_unknown = 0

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Each row that can be read."""
        reached, last = 0, -1
        while True:
            try:
                for row in self._connection.execute(self._query, (reached,)):
                    reached = max(reached, row[0])
                    yield row
                return
            except UNREADABLE as error:
                self.problem = self.problem or str(error)
            if last < 0:
                last = self._highest()
            reached += 1
            if not last:
                self.end_unknown = reached
                return
            self.unreadable.add(reached, reached)
            if reached >= last:
                return

    def _highest(self) -> int:
        try:
            return int(self._connection.execute(self._last).fetchone()[0] or 0)
        except (*UNREADABLE, TypeError):
            return 0


def _rows(first: int, last: int) -> str:
    return f"row {first} is" if first == last else f"rows {first} to {last} are"


class RowCheck:
    """What the rows of a snapshot tell.

    Args:
        taken: the snapshot.
        findings: where to put what is wrong.
        progress: told of the work.

    Attributes:
        known: topics of which the journal tells.
        trims: for each topic the sequence below which messages are gone.
        stored: for each topic the sequences of which there are messages that can be read.
        losses: messages that are there and cannot be read.
    """

    def __init__(self, taken: Snapshot, findings: Findings, progress: Progress) -> None:
        self._taken = taken
        self._connection = taken.connection
        self._findings = findings
        self._progress = progress
        self.known = KnownTopics()
        self.trims: dict[int, int] = {}
        self.stored: dict[int, Spans] = {}
        self.losses: list[Loss] = []
        self.journal_rows = self.message_rows = self.messages = 0
        self._entries = 0  # the sum of the hashes of what the index must have

    # ── the journal ─────────────────────────────────────────────────────────────────────────────────────────────────

    def journal(self) -> None:
        """Every row whole, and none missing."""
        walk = Walk(self._connection, _JOURNAL, "SELECT max(position) FROM journal")
        total = self._count("SELECT count(*) FROM journal")
        seen, begin = Spans(), 0
        for position, checksum, body in walk.rows():
            self.journal_rows += 1
            self._progress("checking the journal", self.journal_rows, total)
            begins = self._journal_row(position, checksum, body)
            begin = begin or (position if begins else 1)
            if position <= seen.last:
                self._journal_problem(f"row {position} is not in its place")
            seen.add(position, position)
        for gap in seen.missing(begin or 1, seen.last):
            for first, last in walk.unreadable.missing(*gap):
                self._journal_problem(f"{_rows(first, last)} missing")
        for first, last in walk.unreadable:
            self._journal_problem(f"{_rows(first, last)} not to be read ({walk.problem})")
        if walk.end_unknown:
            self._journal_problem(f"nothing can be read from row {walk.end_unknown} on ({walk.problem})")

    def _journal_row(self, position: int, checksum: int, body: bytes) -> bool:
        """Whether it begins a checkpoint, as far as that can be known."""
        try:
            facts = decode_facts(body, checksum)
        except Damaged as error:
            self._journal_problem(f"row {position}: {error}")
            return True
        for fact in facts:
            self.known.note(fact)
        return type(facts[0]) is CheckpointBegun

    def _journal_problem(self, problem: str) -> None:
        affects = "what was committed there is not known any more, so no broker can start with this file"
        self._findings.add(Finding("journal", problem, affects))

    # ── trims ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def read_trims(self) -> None:
        """Every one whole."""
        walk = Walk(
            self._connection,
            "SELECT topic_number, up_to, checksum FROM trims WHERE topic_number > ? ORDER BY topic_number",
            "SELECT max(topic_number) FROM trims",
        )
        affects = "which messages may be missing is not known, so no broker can start with this file"
        for number, up_to, checksum in walk.rows():
            if not isinstance(up_to, int) or checksum != trim_checksum(number, up_to):
                topic = self.known.name(number)
                self._findings.add(Finding("trims", f"of topic {topic}: checksum mismatch", affects, topic))
            else:
                self.trims[number] = up_to
        if walk.problem:
            self._findings.add(Finding("trims", f"some cannot be read ({walk.problem})", affects))

    # ── messages ────────────────────────────────────────────────────────────────────────────────────────────────────

    def read_messages(self) -> None:
        """Every row whole, and what is lost known by topic and sequence."""
        walk = Walk(self._connection, _MESSAGES, "SELECT max(id) FROM messages NOT INDEXED")
        total = self._count("SELECT count(*) FROM messages NOT INDEXED")
        damaged: dict[int, str] = {}
        for row in walk.rows():
            self.message_rows += 1
            self._progress("checking messages", self.message_rows, total)
            problem = self._message_row(*row[1:])
            self._entries += hash(row[:4])
            if problem:
                damaged[row[0]] = problem
        if damaged or walk.problem:
            self._find_lost(walk, damaged)

    def _message_row(
        self, number: object, first: object, last: object, newest_ns: object, checksum: int, body: bytes
    ) -> str:
        """What is wrong with it; "" = nothing."""
        if not (isinstance(number, int) and isinstance(first, int) and isinstance(last, int)):
            return "its place in the topic cannot be read"
        try:
            messages = decode_messages(first, last, checksum, body)
        except Damaged as error:
            return str(error)
        self.messages += len(messages)
        self.stored.setdefault(number, Spans()).add(first, last)
        if max(message.publish_time_ns for message in messages) != newest_ns:
            topic = self.known.name(number)
            self._findings.add(
                Finding(
                    "messages",
                    "the note of their newest publish time is wrong",
                    "they can be read, but may leave earlier or later than their retention says",
                    topic,
                    first,
                    last,
                )
            )
        return ""

    def _find_lost(self, walk: Walk, damaged: dict[int, str]) -> None:
        """The index knows which messages a row had that cannot be read."""
        try:
            for row_id, number, first, last in self._connection.execute(_INDEX):
                problem = damaged.pop(row_id, "")
                if not problem and (walk.unreadable.meets(row_id, row_id) or 0 < walk.end_unknown <= row_id):
                    problem = walk.problem
                if problem:
                    self.losses.append(Loss(number, first, last, problem))
        except (*UNREADABLE, TypeError):
            pass  # what is missing between the rows that can be read is found without it
        for row_id, problem in damaged.items():
            affects = "which messages it had is not known: the index does not tell either"
            self._findings.add(Finding("messages", f"row {row_id}: {problem}", affects))

    def index_is_right(self) -> bool:
        """Whether the index has the rows that the table has. Only where all of those can be read."""
        try:
            return sum(map(hash, self._connection.execute(_INDEX))) == self._entries
        except UNREADABLE:
            return False

    # ── between the rows ────────────────────────────────────────────────────────────────────────────────────────────

    def completeness(self, *, journal_is_whole: bool) -> None:
        """No message is there twice, and none is missing that was published and not trimmed."""
        self._progress("comparing messages with the journal", 0, None)
        for number, spans in self.stored.items():
            for first, last in spans.doubled():
                topic = self.known.name(number)
                problem, affects = "they are stored twice", "which of the two is right is not known"
                self._findings.add(Finding("messages", problem, affects, topic, first, last))
        for topic_number in sorted(self.known.by_number.keys() | self.stored.keys()):
            self._topic(topic_number, journal_is_whole=journal_is_whole)

    def _topic(self, number: int, *, journal_is_whole: bool) -> None:
        topic = self.known.by_number.get(number)
        stored = self.stored.get(number, Spans())
        lost = Spans((loss.first_sequence, loss.last_sequence) for loss in self.losses if loss.topic_number == number)
        published = topic.next_sequence - 1 if topic is not None else 0
        if topic is None and number <= self.known.forgotten_up_to:
            return  # deleted before the checkpoint; what is left is on its way out
        if stored.last > published and journal_is_whole:
            self._findings.add(
                Finding(
                    "journal",
                    f"it knows messages of topic {self.known.name(number)} up to {published} only",
                    "rows at its end are missing, so no broker can start with this file",
                    self.known.name(number),
                    published + 1,
                    stored.last,
                )
            )
        for first, last in stored.missing(max(1, self.trims.get(number, 1)), max(published, stored.last)):
            for gap_first, gap_last in lost.missing(first, last):
                self.losses.append(Loss(number, gap_first, gap_last, "they are missing"))

    def _count(self, query: str) -> int | None:
        """For the progress only."""
        try:
            return self._taken.number(query)
        except (*UNREADABLE, TypeError):
            return None
