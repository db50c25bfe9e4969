"""A part of the story in a process of its own, as it would be in life.

In one process all parts would share Python's one lock: hundreds of publishing threads then keep the subscribers' few
from their turns until leases run out unseen, and a worker's call takes a hundred times as long as the broker's answer.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Generic, Protocol, TypeVar

import msgspec

from heliograph.errors import HeliographError, Unavailable

REPORT_EVERY_SECONDS = 0.05
START_SECONDS_MAX = 60.0

Result = TypeVar("Result", covariant=True)


class Part(Protocol[Result]):
    """What can be run so: something that goes on by itself until it is complete."""

    complete: threading.Event
    completed: float

    def start(self) -> None:
        """Begin."""

    def expect(self, count: int) -> None:
        """Learn how much there is in all, where that shows later."""

    def done(self) -> int:
        """How much is done."""

    def failure(self) -> BaseException | None:
        """Why it cannot go on; None = it can."""

    def result(self) -> Result:
        """What it brought, when it is complete: something that msgpack can carry."""

    def stop(self) -> None:
        """End what still runs."""


class _Report(msgspec.Struct, frozen=True):
    """How far a part is; at last what it brought, or why it failed."""

    done: int = 0
    completed: float = 0.0
    result: bytes | None = None  # msgpack in itself: only the reader knows its type
    failure: str | None = None


class PartProcess(Generic[Result]):
    """A part, seen from the process that started it; it ends with that process.

    The process is started at once, so that the part is ready when `start` tells it to begin.

    Args:
        name: of the process.
        make: makes the part from its task; a function of a module, as it is called in the process.
        task: what the part has to do, as bytes that `make` understands.
        result_type: of the part's result.
        on_progress: called with how much is done, from another thread.
    """

    def __init__(
        self,
        name: str,
        make: Callable[[bytes], Part[Result]],
        task: bytes,
        result_type: type[Result],
        on_progress: Callable[[int], None],
    ) -> None:
        self.complete = threading.Event()
        self.completed = 0.0
        self._name = name
        self._result: Result | None = None
        self._result_type = result_type
        self._on_progress = on_progress
        self._failure: Exception | None = None
        self._reader: threading.Thread | None = None
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(theirs, make), name=name, daemon=True)
        self._process.start()
        theirs.close()
        self._pipe.send_bytes(task)

    def start(self) -> None:
        """Tell the part to begin. Raises: Unavailable (its process did not start)."""
        if not self._pipe.poll(START_SECONDS_MAX):
            raise Unavailable(f"The process of the {self._name} was not ready in {START_SECONDS_MAX:.0f} s")
        self._reader = threading.Thread(target=self._read, name=f"{self._name}-reports", daemon=True)
        self._reader.start()
        self._pipe.send_bytes(b"go")

    def expect(self, count: int) -> None:
        """See `Part.expect`."""
        with contextlib.suppress(OSError):  # it has ended: `failure` says so
            self._pipe.send_bytes(msgspec.msgpack.encode(count))

    def failure(self) -> BaseException | None:
        """See `Part.failure`."""
        return self._failure

    def result(self) -> Result:
        """See `Part.result`."""
        assert self._result is not None, "it is not complete"
        return self._result

    def stop(self) -> None:
        """End the process. Idempotent."""
        self._process.terminate()
        self._process.join()
        if self._reader is not None:
            self._reader.join()
        self._pipe.close()

    def _read(self) -> None:
        decode = msgspec.msgpack.Decoder(_Report).decode
        try:
            while not self.complete.is_set() and self._failure is None:
                self._take(decode(self._pipe.recv_bytes()))
        except (EOFError, OSError):
            self._failure = Unavailable("their process ended before its time")
        except Exception as error:  # a defect must end the story, not this thread alone
            self._failure = error

    def _take(self, report: _Report) -> None:
        self._on_progress(report.done)
        if report.failure is not None:
            self._failure = Unavailable(report.failure)
        if report.result is not None:
            self._result = msgspec.msgpack.decode(report.result, type=self._result_type)
            self.completed = report.completed
            self.complete.set()


def _run(pipe: Connection, make: Callable[[bytes], Part[object]]) -> None:
    """The process: the task comes in, a first report says that the part is ready, and at `go` it begins."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both; the demonstration ends this one
    logging.getLogger().addHandler(logging.NullHandler())  # what fails for good is reported, not logged
    encode = msgspec.msgpack.Encoder().encode
    part = make(pipe.recv_bytes())
    pipe.send_bytes(encode(_Report()))
    pipe.recv_bytes()
    part.start()
    failure: BaseException | None = None
    while not part.complete.wait(REPORT_EVERY_SECONDS) and failure is None:
        while pipe.poll():
            part.expect(msgspec.msgpack.decode(pipe.recv_bytes(), type=int))
        failure = part.failure()
        pipe.send_bytes(encode(_Report(part.done(), failure=None if failure is None else in_one_line(failure))))
    if failure is None:
        pipe.send_bytes(encode(_Report(part.done(), part.completed, encode(part.result()))))
        part.stop()


def in_one_line(error: BaseException) -> str:
    """What an error says, in one line."""
    text = error.message if isinstance(error, HeliographError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())
