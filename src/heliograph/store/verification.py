"""Whether a store is what was written: pages, checksums, what must follow what, and the state that all of it leads to.

Nothing is changed. A damage is told with what it affects, as far as anything can be known of it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from heliograph.engine.engine import Engine
from heliograph.engine.facts import Fact
from heliograph.engine.message import Message
from heliograph.engine.ranges import between, to_runs, union
from heliograph.engine.subscription import Subscription
from heliograph.store.directory import FILE_NAME
from heliograph.store.findings import CheckReport, Finding, Findings, Spans
from heliograph.store.log_check import log_problem
from heliograph.store.row_check import UNREADABLE, Loss, RowCheck
from heliograph.store.rows import Damaged
from heliograph.store.snapshot import Progress, Snapshot, no_progress, replay, snapshot
from heliograph.store.soundness import violations
from heliograph.store.sqlite_file import Connect
from heliograph.store.sqlite_reader import DAMAGE, Recovery, read_messages

PAGE_PROBLEMS_SHOWN = 3


def check(directory: Path, *, progress: Progress = no_progress, connect: Connect = sqlite3.connect) -> CheckReport:
    """Check the store in a data directory: stopped, or as of one moment beside the broker that serves it.

    Args:
        directory: the data directory.
        progress: told of the work.
        connect: `sqlite3.connect`, or what a test puts in its place.

    Raises:
        StoreRefused: there is none, it is not ours, or newer.
    """
    try:
        with snapshot(directory, connect) as taken:
            return _Check(taken, progress).report()
    except DAMAGE as error:
        finding = Finding("file", f"it cannot be read ({error})", "everything: restore it from a backup")
        return CheckReport(str(directory / FILE_NAME), False, 0, 0, 0, 0, 0, 0, [finding], 0, ["anything else"])


class _Check:
    def __init__(self, taken: Snapshot, progress: Progress) -> None:
        self._taken = taken
        self._progress = progress
        self._findings = Findings()
        self._rows = RowCheck(taken, self._findings, progress)
        self._not_checked: list[str] = []
        self._engine: Engine | None = None
        self._index_is_damaged = False

    def report(self) -> CheckReport:
        """Look at everything, from the outside in."""
        findings, rows = self._findings, self._rows
        self._log()
        self._progress("checking pages", 0, None)
        page_problems = self._page_problems("")
        rows.journal()
        rows.read_trims()
        rows.read_messages()
        rows.completeness(journal_is_whole=not findings.any("journal"))
        if page_problems and not rows.losses and not findings.any("messages"):
            self._index_is_damaged = not rows.index_is_right()
        self._state()
        for loss in rows.losses:
            self._tell(loss)
        if page_problems:
            self._pages(page_problems)
        return CheckReport(
            path=str(self._taken.path),
            in_use=self._taken.in_use,
            format_version=self._taken.format_version,
            journal_rows=rows.journal_rows,
            message_rows=rows.message_rows,
            messages=rows.messages,
            topics=sum(not topic.deleted for topic in rows.known.by_number.values()),
            subscriptions=len(self._engine.subscriptions) if self._engine is not None else 0,
            findings=findings.kept,
            findings_left_out=findings.left_out,
            not_checked=self._not_checked,
        )

    # ── pages ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _log(self) -> None:
        if self._taken.in_use:
            self._not_checked.append("the write-ahead log as a file, since a broker is writing it")
            return
        path = self._taken.path
        problem = log_problem(path.with_name(path.name + "-wal"))
        if problem:
            affects = "commits that were answered may be missing, and nothing else in the file tells which"
            self._findings.add(Finding("log", problem, affects))

    def _page_problems(self, table: str) -> list[str]:
        """What SQLite says of its pages: all, or those of one table and its index."""
        pragma = f"PRAGMA integrity_check({table!r})" if table else "PRAGMA integrity_check"
        try:
            texts = [bytes(text).decode(errors="replace") for (text,) in self._taken.connection.execute(pragma)]
        except UNREADABLE as error:
            return [str(error)]
        lines = [line for text in texts for line in text.splitlines() if not line.startswith("***")]
        return [] if lines == ["ok"] else lines

    def _pages(self, problems: list[str]) -> None:
        """Pages are damaged: whose, and does it matter?"""
        findings, place_found = self._findings, False
        for table, where in (
            ("journal", "journal"),
            ("messages", "messages"),
            ("trims", "trims"),
            ("history", "history"),
        ):
            lines = self._page_problems(table)
            if not lines:
                continue
            place_found = True
            if where == "messages" and self._index_is_damaged:
                where = "index"
                affects = "no message: all of them are whole, but they are not found; `REINDEX` in sqlite3 mends it"
            elif findings.any(where):
                affects = f"what is said of the {where} here"
            elif where == "history":
                affects = "readers of the event log only: no message, and no broker's start"
            else:
                affects = "nothing that can be told: every row can be read, but do not write to this file any more"
            findings.add(Finding(where, _few(lines), affects))
        if not place_found:
            affects = "no message and nothing of the journal: only how free space is kept"
            findings.add(Finding("pages", _few(problems), affects))

    # ── the state ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _state(self) -> None:
        """What a broker would make of it."""
        if self._findings.any("journal", "trims"):
            self._not_checked.append("the state of topics and subscriptions, since the journal is damaged")
            return
        if self._index_is_damaged:
            self._not_checked.append("the state of topics and subscriptions, since messages are not found")
            return
        done = 0

        def advance() -> None:
            nonlocal done
            done += 1
            self._progress("replaying the journal", done, None)

        recovery = _LenientRecovery(self._taken, self._rows.trims)
        try:
            self._engine = replay(recovery.facts(), recovery.read, advance)
            self._progress("checking the state", 0, None)
            self._held_are_there(self._engine)
            problems = [] if recovery.has_filled_in or self._rows.losses else list(violations(self._engine))
        except Exception as error:  # a state that cannot be
            if recovery.has_filled_in or self._rows.losses:
                self._not_checked.append("the state of topics and subscriptions, since some messages are missing")
            else:
                what = f"the journal does not lead to a state ({type(error).__name__}: {error})"
                self._findings.add(Finding("state", what, "no broker can start with this file"))
            return
        if recovery.has_filled_in:
            self._not_checked.append("the counts of the state, since some messages could not be read or found")
        for problem in problems:
            self._findings.add(Finding("state", problem, "a broker that starts with this file counts, or delivers, so"))

    def _held_are_there(self, engine: Engine) -> None:
        """Every message that some subscription holds is in the file."""
        snapshots = engine.snapshots_by_topic()
        for topic in engine.all_topics():
            stored = self._rows.stored.get(topic.number, Spans())
            known = Spans((loss[1], loss[2]) for loss in self._rows.losses if loss.topic_number == topic.number)
            held = to_runs(topic.log.held_sequences(1, topic.log.next_sequence - 1))
            for first, stop in union(held, *[of_topic.needed() for of_topic in snapshots.get(topic.number, ())]):
                for gap in stored.missing(first, stop - 1):
                    for lost_first, lost_last in known.missing(*gap):
                        self._rows.losses.append(Loss(topic.number, lost_first, lost_last, "they are missing"))

    def _tell(self, loss: Loss) -> None:
        number, first, last, problem = loss
        holders: list[str] = []
        affects = "whoever reads them"
        if self._engine is not None:
            holders = [s.name for s in self._engine.subscriptions.values() if _holds(s, number, first, last)]
            affects = f"subscriptions that have not acknowledged all of them: {', '.join(holders)}"
            snapshots = self._engine.snapshots_by_topic().get(number, ())
            needing = [one.name for one in snapshots if between(one.needed(), first, last + 1)]
            if needing:
                affects = f"{affects}; snapshots: {', '.join(needing)}"
            elif not holders:
                affects = "no subscription: it was kept for readers of the topic's log only"
        self._findings.add(
            Finding("messages", problem, affects, self._rows.known.name(number), first, last, subscriptions=holders)
        )


def _holds(subscription: Subscription, topic_number: int, first: int, last: int) -> bool:
    if subscription.topic.number != topic_number:
        return False
    held = chain(subscription.waiting_sequences(last), subscription.leases.by_sequence, subscription.dead)
    return any(first <= sequence <= last for sequence in held)


def _few(lines: list[str]) -> str:
    more = f"; and {len(lines) - PAGE_PROBLEMS_SHOWN} more" if len(lines) > PAGE_PROBLEMS_SHOWN else ""
    return "; ".join(lines[:PAGE_PROBLEMS_SHOWN]) + more


class _LenientRecovery(Recovery):
    """Recovery that puts empty messages where some cannot be read: who holds them is still of interest."""

    def __init__(self, taken: Snapshot, trims: dict[int, int]) -> None:
        super().__init__(taken.path, taken.connection)
        self._trims = trims
        self.has_filled_in = False

    def facts(self) -> Iterator[Fact]:
        """See `Recovery.facts`; what is checked there was checked before."""
        return self._journal()

    def read(self, topic_number: int, first: int, last: int) -> list[Message]:
        """For the engine's `read_log`."""
        try:
            found = {
                message.sequence: message for message in read_messages(self._connection, topic_number, first, last)
            }
        except (Damaged, *UNREADABLE):
            return self._empty(first, last)
        # what is not there may be trimmed; whether it is held is looked at in `_held_are_there`
        return [found.get(sequence) or Message(sequence, 0, b"") for sequence in range(first, last + 1)]

    def _messages(self, topic_number: int, first: int, last: int) -> list[Message]:
        try:
            return super()._messages(topic_number, first, last)
        except (Damaged, *UNREADABLE):
            return self._empty(first, last)

    def _empty(self, first: int, last: int) -> list[Message]:
        self.has_filled_in = True
        return [Message(sequence, 0, b"") for sequence in range(first, last + 1)]
