"""Group commit: one writer thread, and everything that is appended while a commit runs goes into the next one.

A lone append is written at once; under load the cost of a commit is shared by all who wait for it. What cannot be
written is kept and retried before anything newer, for ever, with growing pauses: the file never has a hole. While that
lasts every append is answered with a failed commit.

This module knows nothing of SQLite.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from heliograph.engine.facts import Fact
from heliograph.errors import Unavailable
from heliograph.store.protocol import COMMITTED, Commit
from heliograph.store.rows import Append, Group, Trim, groups

TRIM_DELAY_SECONDS = 1.0  # trims go along with the next facts; alone when none come for so long
RETRY_SECONDS = (0.05, 2.0)  # the first pause after a failure, and the longest

_log = logging.getLogger(__name__)


class GroupCommit:
    """The queue of what is to be written, and the thread that writes it.

    Args:
        write: makes one group durable, all or nothing, and may be called again with it after a failure. Called from
            the writer thread only. Returns those of the group's trims that it has not finished.
        close: called once, when nothing will be written any more; from the writer thread if there was one.
        retry_seconds: the first pause after a failure, doubled after each further one up to the second number.
        trim_delay_seconds: how long a trim waits for facts to go along with.
        trims: that were not finished earlier.

    Attributes:
        commits: how many groups are written.
        facts_written: how many facts were in them.
        journal_bytes: what a recovery would read.
        checkpoint_bytes: of that, the last checkpoint.
        failing: why the latest attempt failed; None once one succeeded.
    """

    def __init__(
        self,
        write: Callable[[Group], dict[int, Trim]],
        close: Callable[[], None],
        *,
        retry_seconds: tuple[float, float] = RETRY_SECONDS,
        trim_delay_seconds: float = TRIM_DELAY_SECONDS,
        trims: dict[int, Trim] | None = None,
        journal_bytes: int = 0,
    ) -> None:
        self.commits = 0
        self.journal_bytes = journal_bytes
        self.checkpoint_bytes = 0
        self.facts_written = 0
        self.failing: Exception | None = None
        self._write = write
        self._close = close
        self._retry_seconds = retry_seconds
        self._trim_delay_seconds = trim_delay_seconds
        self._changed = threading.Condition(threading.Lock())
        self._queued: list[Append] = []
        self._trims: dict[int, Trim] = dict(trims or {})
        self._next = Commit()  # of what is queued
        self._current: Commit | None = None  # of what is being written
        self._closing = False
        self._thread: threading.Thread | None = None

    def append(self, facts: Sequence[Fact], *, replaces: bool = False) -> Commit:
        """See `Store.append`; with `replaces`, `Store.checkpoint`."""
        with self._changed:
            self._check_open()
            if self.failing is not None:
                if facts:
                    self._queued.append(Append(facts, replaces))
                commit = Commit()
                commit.finish(self.failing)
                return commit
            if not facts and not self._queued:
                return self._current or COMMITTED
            if facts:
                self._queued.append(Append(facts, replaces))
                self._wake()
            return self._next

    def trim(self, topic_number: int, trim: Trim) -> None:
        """See `Store.trim`. It is written with or after the facts that were appended before; the latest of a topic
        counts."""
        with self._changed:
            self._check_open()
            first = not self._trims
            self._trims[topic_number] = trim
            if first:
                self._wake()

    def close(self) -> None:
        """Write what is queued, or try once more if that fails; then stop. Idempotent.

        Raises:
            Unavailable: something could not be written.
        """
        with self._changed:
            first = not self._closing
            self._closing = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()
        elif first:
            self._close()
        if first and self.failing is not None:
            raise Unavailable(f"The store was closed while it could not commit: {self.failing}")

    def _check_open(self) -> None:
        if self._closing:
            raise Unavailable("The store is closed")

    def _wake(self) -> None:
        if self._thread is None:
            # a daemon, so that a program that forgets to close the store can end; SqliteStore closes it at exit
            self._thread = threading.Thread(target=self._run, name="heliograph-store", daemon=True)
            self._thread.start()
        self._changed.notify()

    # ── the writer thread ───────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        try:
            while (taken := self._take()) is not None and self._write_all(*taken):
                pass
        except Exception as error:  # a defect, such as a fact that cannot be encoded: nothing after it may be written
            _log.exception("the store's writer thread failed")
            self._failed(error)
        finally:
            self._close()

    def _take(self) -> tuple[Commit, list[Append], dict[int, Trim]] | None:
        """Wait for something to write; None when the store closes and there is nothing."""
        with self._changed:
            while not self._queued and not (self._closing and self._trims):
                if self._closing:
                    return None
                if not self._changed.wait(self._trim_delay_seconds if self._trims else None):
                    break
            appends, self._queued = self._queued, []
            trims, self._trims = self._trims, {}
            commit, self._next = self._next, Commit()
            self._current = commit
            return commit, appends, trims

    def _write_all(self, commit: Commit, appends: list[Append], trims: dict[int, Trim]) -> bool:
        """Write it, however long it takes. False: the store closes and it could not be written."""
        for group in groups(appends, trims):
            if not self._write_one(group):
                return False
        if not commit.done:
            commit.finish()
        with self._changed:
            self._current = None
        return True

    def _write_one(self, group: Group) -> bool:
        pause_seconds, longest_seconds = self._retry_seconds
        while True:
            last_attempt = self._closing
            try:
                unfinished = self._write(group)
            except Exception as error:
                if self.failing is None:
                    _log.error("the store cannot commit, and will retry: %s", error)
                self._failed(error)
                if last_attempt:
                    return False
                with self._changed:
                    self._changed.wait_for(lambda: self._closing, pause_seconds)
                pause_seconds = min(pause_seconds * 2, longest_seconds)
            else:
                self._succeeded(group, unfinished)
                return True

    def _failed(self, error: Exception) -> None:
        """Whoever waits learns it, also those whose facts are only queued."""
        with self._changed:
            self.failing = error
            commits = [self._next] if self._current is None else [self._current, self._next]
            self._next = Commit()
        for commit in commits:
            if not commit.done:
                commit.finish(error)

    def _succeeded(self, group: Group, unfinished: dict[int, Trim]) -> None:
        self.commits += 1
        self.facts_written += group.fact_count
        if group.journal is not None:
            self.journal_bytes += len(group.journal.body) + sum([len(row.body) for row in group.messages])
            if group.replaces:
                self.journal_bytes = self.checkpoint_bytes = len(group.journal.body)
        if self.failing is None and not unfinished:
            return
        if self.failing is not None:
            _log.warning("the store commits again")
        with self._changed:
            self.failing = None
            if not self._closing:
                self._trims = unfinished | self._trims
