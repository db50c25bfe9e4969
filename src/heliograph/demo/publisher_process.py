"""The publishers in a process of their own, as they would be in life.

In one process with the subscribers they would share Python's one lock: hundreds of publishing threads then keep the
subscribers' few from their turns, and leases run out unseen.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection

import msgspec

from heliograph.demo.flights import Flight
from heliograph.demo.latency import Durations
from heliograph.demo.publishers import Answer, Publishers
from heliograph.errors import Unavailable

REPORT_EVERY_SECONDS = 0.05
START_SECONDS_MAX = 60.0


class _Report(msgspec.Struct, frozen=True):
    """What the process tells from time to time: what is new, and at last that everything is answered, or why not."""

    answers: list[Answer] = []
    completed: float | None = None
    failure: str | None = None


class PublisherProcess:
    """All airlines' publishers, as one process that ends with this one.

    It is started at once, so that it is ready when `start` tells it to begin.

    Args:
        topic: full resource name.
        airlines: flights per airline, in the order in which they are to be published.
        on_answered: called once per flight, from another thread.
    """

    def __init__(self, topic: str, airlines: Mapping[str, Sequence[Flight]], on_answered: Callable[[], None]) -> None:
        self.durations = Durations()
        self.complete = threading.Event()
        self.completed = 0.0
        self.published: dict[str, dict[int, str]] = {carrier: {} for carrier in airlines}
        self._on_answered = on_answered
        self._failure: Exception | None = None
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(theirs,), name="publishers", daemon=True)
        self._process.start()
        theirs.close()
        self._pipe.send_bytes(msgspec.msgpack.encode((topic, airlines)))
        self._reader: threading.Thread | None = None

    def start(self) -> None:
        """Begin to publish. Raises: Unavailable (the process did not start)."""
        if not self._pipe.poll(START_SECONDS_MAX):
            raise Unavailable(f"The publishers' process was not ready in {START_SECONDS_MAX:.0f} s")
        self._reader = threading.Thread(target=self._read, name="publisher-reports", daemon=True)
        self._reader.start()
        self._pipe.send_bytes(b"go")

    def failure(self) -> BaseException | None:
        """Why not everything can be published; None = it goes on, or is done."""
        return self._failure

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

    def _take(self, report: _Report) -> None:
        for answer in report.answers:
            self.published[answer.carrier][answer.row] = answer.message_id
            self.durations.add(answer.duration_ns)
            self._on_answered()
        if report.failure is not None:
            self._failure = Unavailable(report.failure)
        if report.completed is not None:
            self.completed = report.completed
            self.complete.set()


def _run(pipe: Connection) -> None:
    """The process: what to publish comes in, a first report says that it is ready, and at `go` it begins."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches both; the demonstration ends this one
    logging.getLogger().addHandler(logging.NullHandler())  # what fails for good is reported, not logged
    encode = msgspec.msgpack.Encoder().encode
    topic, airlines = msgspec.msgpack.decode(pipe.recv_bytes(), type=tuple[str, dict[str, list[Flight]]])
    publishers = Publishers(topic, airlines)
    pipe.send_bytes(encode(_Report()))
    pipe.recv_bytes()
    publishers.start()
    known = 0
    complete = False
    while not complete:
        complete = publishers.complete.wait(REPORT_EVERY_SECONDS)
        answers = publishers.answers(known)
        known += len(answers)
        failure = publishers.failure()
        pipe.send_bytes(
            encode(
                _Report(
                    answers,
                    publishers.completed if complete else None,
                    None if failure is None else f"{type(failure).__name__}: {failure}",
                )
            )
        )
        if failure is not None:
            return
    publishers.stop()
