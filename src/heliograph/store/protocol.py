"""What the broker asks of a store: append facts, commit them, read a topic's log, recover, trim.

A store never decides anything; it keeps what it is given, in the order it is given. `tests/store/` holds one
conformance suite for every implementation.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, Protocol

from heliograph.engine.facts import Fact
from heliograph.engine.message import Message
from heliograph.engine.ranges import Run
from heliograph.engine.settings import NEVER_NS

_log = logging.getLogger(__name__)


class Commit:
    """The durable moment that a group of facts shares. Many operations wait for one commit (group commit)."""

    __slots__ = ("_callbacks", "_event", "_lock", "_waiting", "done", "error")

    def __init__(self) -> None:
        self.done = False
        self.error: Exception | None = None
        self._lock = threading.Lock()
        self._event: threading.Event | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._waiting: dict[Any, list[Any]] = {}

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Block until committed or failed (then `error` is set). False if the time ran out first."""
        with self._lock:
            if self.done:
                return True
            if self._event is None:
                self._event = threading.Event()
            event = self._event
        return event.wait(timeout_seconds)

    def add_done_callback(self, callback: Callable[[], None]) -> None:
        """Call `callback()` once committed or failed: at once if so already, else from the store's writer thread."""
        with self._lock:
            if not self.done:
                self._callbacks.append(callback)
                return
        callback()

    def waiting_on(self, loop: Any) -> list[Any] | None:
        """The futures of one event loop that wait for this commit, to be added to by that loop; None once done."""
        with self._lock:
            return None if self.done else self._waiting.setdefault(loop, [])

    def finish(self, error: Exception | None = None) -> None:
        """For the store: the group is durable, or failed with `error`. A callback that raises is the waiter's defect:
        it is logged, and neither the store nor the other waiters notice."""
        with self._lock:
            self.error = error
            self.done = True
            callbacks, self._callbacks = self._callbacks, []
            if self._event is not None:
                self._event.set()
        for callback in callbacks:
            try:
                callback()
            except Exception:
                _log.exception("a callback of a commit failed")


EVERYTHING = 2**62  # above every sequence: the topic is gone, and nothing of it is needed

COMMITTED = Commit()
COMMITTED.finish()


Durability = Literal["full", "process", "none"]
"""What a commit survives: "full", a killed process and a power cut; "process", a killed process, and after a power cut
the last commits may be missing, never some from between; "none", no promise about power cuts, and of memory none at
all."""


class Store(Protocol):
    """Durability of facts. Calls come under the broker's lock, one at a time, save `read_log`, `log_bounds` and
    `recover`.

    A store that cannot commit (a full disk, an I/O error) keeps what was appended, in order, and retries it before
    anything newer. So an operation whose commit failed may still take effect later, nothing that was answered is lost,
    and the file never has a hole.
    """

    @property
    def kind(self) -> str:
        """What it keeps things in, in one word for people: "sqlite", "memory"."""

    @property
    def durability(self) -> Durability:
        """What a commit survives."""

    @property
    def failing(self) -> Exception | None:
        """Why the store cannot commit at present; None while all is well. As long as it is set, whatever is appended
        is kept in memory: refuse operations before they change anything."""

    def recover(self) -> Iterator[Fact]:
        """Every fact since the beginning (or the last checkpoint's equivalent), in order. Called once, before the
        first `append`.

        Raises:
            StoreRefused: the file is damaged, newer, or not ours; it is left untouched.
        """

    def append(self, facts: Sequence[Fact]) -> Commit:
        """Queue facts, in order, for the next group commit; returns at once with the commit they will share. The
        facts of one call become durable together. No facts: the commit after which everything appended so far is
        durable. The caller does not change `facts` afterwards.

        Raises:
            Unavailable: the store is closed.
        """

    def read_log(self, topic_number: int, first: int, last: int, *, held: bool = False) -> Iterator[list[Message]]:
        """The durable messages of a topic with sequences in [first, last], in order, in batches of the store's
        choice. Trimmed ones are missing: all below `log_bounds`, with `held` save those that a trim left since they
        are held. Safe from any thread.

        Raises:
            Unavailable: the store is closed, or cannot be read.
            Internal: what was read is damaged.
        """

    def log_bounds(self, topic_number: int) -> tuple[int, int]:
        """(first, last) sequence that `read_log` can give; when there is none, `last` is `first` - 1, and `first` where
        the log goes on as far as the store knows: behind what was trimmed, or 1. Safe from any thread.

        Raises:
            Unavailable: the store is closed, or cannot be read.
        """

    def held_below(self, topic_number: int) -> list[Run]:
        """Which messages below `log_bounds` are left, and `read_log` gives with `held`: at least those that the last
        trim named. Safe from any thread.

        Raises:
            Unavailable: the store is closed, or cannot be read.
        """

    def log_offset(self, topic_number: int, published_ns: int) -> int:
        """The first sequence that `read_log` can give of a message published at that instant or later; one behind the
        last if there is none. Publish times are taken to grow with the sequences; where they do not (dead letters keep
        theirs) older messages may follow. Safe from any thread.

        Raises:
            Unavailable: the store is closed, or cannot be read.
            Internal: what was read is damaged.
        """

    def log_extent(self, topic_number: int, first: int, bytes_max: int) -> int:
        """The last sequence of a range that begins at `first` and has about `bytes_max` of messages: at least `first`,
        at most the last there is. Safe from any thread. Raises: Unavailable."""

    @property
    def keeps_facts(self) -> bool:
        """Whether `recover` of a later object gives what is appended to this one."""

    @property
    def facts_written(self) -> int:
        """How many of the facts appended to this object are durable: a growing prefix of them."""

    @property
    def checkpoint_due(self) -> bool:
        """Whether so much was appended since the last checkpoint that recovery would gain by another."""

    def checkpoint(self, facts: Sequence[Fact]) -> Commit:
        """As `append`, with facts that recreate everything as it is: `recover` begins with them from now on, and what
        was appended before is dropped. They do not count in `facts_written`."""

    def event_bounds(self) -> tuple[int, int]:
        """(first, last) durable position of the event log; when there is none, `last` is `first` - 1. Positions grow;
        some are missing. Safe from any thread.

        Raises:
            Unavailable: the store is closed, or cannot be read.
        """

    def read_events(self, first: int, last: int) -> Iterator[tuple[int, list[Fact]]]:
        """What happened, as far as the store still has it: positions in [first, last], each with facts that were
        appended, in order; of MessagesPublished without the messages. Safe from any thread.

        Raises:
            Unavailable: the store is closed, or cannot be read.
            Internal: what was read is damaged.
        """

    def event_offset(self, at_ns: int) -> int:
        """The first position of the event log at which something happened at that instant or later; one behind the last
        if there is none. Safe from any thread. Raises: Unavailable, Internal."""

    def forget_events(self, before: int) -> None:
        """Positions of the event log below `before` are not needed any more; they go with a later checkpoint."""

    def topic_numbers(self) -> set[int]:
        """Topics of which there are messages. Safe from any thread."""

    def trim(
        self, topic_number: int, up_to: int, published_before_ns: int = NEVER_NS, held: Sequence[Run] = ()
    ) -> None:
        """The oldest messages of the topic, as far as their sequences are below `up_to` and they were published before
        `published_before_ns`, are no part of its log any more: it begins behind them. Those of them in the growing
        runs `held` stay for whoever holds them; the others' space comes back later. Each trim of a topic replaces the
        one before, save that the log never grows back. No fact since the last checkpoint, nor that itself, may need
        what goes: so a checkpoint comes first.

        Raises:
            Unavailable: the store is closed.
        """

    def close(self) -> None:
        """Commit what is queued, then release the file. Idempotent.

        Raises:
            Unavailable: what was queued could not be written (its commits had failed). The file is released.
        """
