"""A store that fails when it is told to: how brokers and doors behave when nothing can be committed."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator, Sequence

from heliograph.engine.facts import Fact
from heliograph.engine.message import Message
from heliograph.engine.ranges import Run
from heliograph.engine.settings import NEVER_NS
from heliograph.errors import Unavailable
from heliograph.store.protocol import Commit, Durability, Store


class FaultyStore:
    """A `Store` around another one, which it keeps from committing.

    It fails as the SQLite store does: the facts of a failed commit are kept, in order, and reach the inner store before
    anything newer.

    Args:
        inner: the store that keeps things.

    Attributes:
        unreadable: while it is set nothing can be read: the text of the Unavailable that is raised.
    """

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.unreadable: str | None = None
        self._lock = threading.RLock()
        self._failures_left = 0
        self._error: Exception = OSError(errno.ENOSPC, "No space left on device")
        self._failing: Exception | None = None
        self._held: Commit | None = None
        self._waiting: list[tuple[Sequence[Fact], bool]] = []  # and whether they are a checkpoint

    # ── the switches ────────────────────────────────────────────────────────────────────────────────────────────────

    def fail_next(self, commits: int = 1, error: Exception | None = None) -> None:
        """Let the next `commits` attempts to commit fail, with `error` or else as on a full disk. Each append is an
        attempt, and so is `retry()`."""
        with self._lock:
            self._failures_left = commits
            if error is not None:
                self._error = error

    def retry(self) -> None:
        """Try to commit what was kept, as the SQLite store does by itself after a moment."""
        with self._lock:
            self._attempt()

    def hold(self) -> None:
        """Begin a commit that does not end: what is appended waits for `release()`."""
        with self._lock:
            self._held = self._held or Commit()

    def release(self) -> None:
        """Let the commit that `hold()` began end: durable, or failed if a failure was ordered."""
        with self._lock:
            held, self._held = self._held, None
            if held is None:
                return
            inner = self._attempt()
        if inner is None:
            held.finish(self._failing)
        else:
            inner.add_done_callback(lambda: held.finish(inner.error))

    # ── the store ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def kind(self) -> str:
        """See `Store.kind`."""
        return self.inner.kind

    @property
    def durability(self) -> Durability:
        """See `Store.durability`."""
        return self.inner.durability

    @property
    def failing(self) -> Exception | None:
        """See `Store.failing`."""
        return self._failing or self.inner.failing

    @property
    def keeps_facts(self) -> bool:
        """See `Store.keeps_facts`."""
        return self.inner.keeps_facts

    @property
    def facts_written(self) -> int:
        """See `Store.facts_written`."""
        return self.inner.facts_written

    @property
    def checkpoint_due(self) -> bool:
        """See `Store.checkpoint_due`."""
        return self.inner.checkpoint_due

    def recover(self) -> Iterator[Fact]:
        """See `Store.recover`."""
        return self.inner.recover()

    def append(self, facts: Sequence[Fact]) -> Commit:
        """See `Store.append`."""
        return self._queue(facts, is_checkpoint=False)

    def checkpoint(self, facts: Sequence[Fact]) -> Commit:
        """See `Store.checkpoint`."""
        return self._queue(facts, is_checkpoint=True)

    def _queue(self, facts: Sequence[Fact], *, is_checkpoint: bool) -> Commit:
        with self._lock:
            if facts:
                self._waiting.append((facts, is_checkpoint))
            if self._held is not None:
                return self._held
            inner = self._attempt() if facts else None if self._failing else self.inner.append(())
            if inner is not None:
                return inner
            commit = Commit()
            commit.finish(self._failing)
            return commit

    def read_log(self, topic_number: int, first: int, last: int, *, held: bool = False) -> Iterator[list[Message]]:
        """See `Store.read_log`."""
        self._check_readable()
        return self.inner.read_log(topic_number, first, last, held=held)

    def log_bounds(self, topic_number: int) -> tuple[int, int]:
        """See `Store.log_bounds`."""
        self._check_readable()
        return self.inner.log_bounds(topic_number)

    def held_below(self, topic_number: int) -> list[Run]:
        """See `Store.held_below`."""
        self._check_readable()
        return self.inner.held_below(topic_number)

    def log_offset(self, topic_number: int, published_ns: int) -> int:
        """See `Store.log_offset`."""
        self._check_readable()
        return self.inner.log_offset(topic_number, published_ns)

    def log_extent(self, topic_number: int, first: int, bytes_max: int) -> int:
        """See `Store.log_extent`."""
        self._check_readable()
        return self.inner.log_extent(topic_number, first, bytes_max)

    def event_bounds(self) -> tuple[int, int]:
        """See `Store.event_bounds`."""
        self._check_readable()
        return self.inner.event_bounds()

    def read_events(self, first: int, last: int) -> Iterator[tuple[int, list[Fact]]]:
        """See `Store.read_events`."""
        self._check_readable()
        return self.inner.read_events(first, last)

    def event_offset(self, at_ns: int) -> int:
        """See `Store.event_offset`."""
        self._check_readable()
        return self.inner.event_offset(at_ns)

    def forget_events(self, before: int) -> None:
        """See `Store.forget_events`."""
        self.inner.forget_events(before)

    def topic_numbers(self) -> set[int]:
        """See `Store.topic_numbers`."""
        self._check_readable()
        return self.inner.topic_numbers()

    def trim(
        self, topic_number: int, up_to: int, published_before_ns: int = NEVER_NS, held: Sequence[Run] = ()
    ) -> None:
        """See `Store.trim`."""
        self._check_readable()
        self.inner.trim(topic_number, up_to, published_before_ns, held)

    def close(self) -> None:
        """See `Store.close`."""
        self.inner.close()

    def _check_readable(self) -> None:
        if self.unreadable is not None:
            raise Unavailable(f"The store cannot be read: {self.unreadable}")

    def _attempt(self) -> Commit | None:
        """One attempt to commit all that waits: the inner store's commit, or None if it was made to fail."""
        if self._failures_left > 0:
            self._failures_left -= 1
            self._failing = self._error
            return None
        self._failing = None
        waiting, self._waiting = self._waiting, []
        commit = self.inner.append(())
        for facts, is_checkpoint in waiting:
            commit = self.inner.checkpoint(facts) if is_checkpoint else self.inner.append(facts)
        return commit
