"""Reads a topic's log from a broker over HTTP (`heliograph.server.log`), on the driver and on the executors.

Standard library and pyarrow only: executors import this in every worker.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, NamedTuple
from urllib.parse import urlencode, urlsplit

import pyarrow as pa

from heliograph.errors import FailedPrecondition, HeliographError, InvalidArgument, TopicNotFound, Unavailable
from heliograph.wire.arrow import END_OF_STREAM

TIMEOUT_SECONDS = 60.0
"""Longest silence of the broker, when connecting or between two pieces of a stream."""

ATTEMPTS_MAX = 5
"""Tries in a row without one row of progress before a read gives up; with the pauses below over about six seconds,
which a broker that starts again takes."""

FIRST_PAUSE_SECONDS = 0.4
"""Pause after the first failed try; doubled after each further one."""


class LogBounds(NamedTuple):
    """What a topic's log holds: sequences `first` to `last`, inclusive; first 1, last 0 when it holds nothing.

    `topic_number` tells topics of one name apart: it is another one after a topic was deleted and created again.
    """

    topic_number: int
    first: int
    last: int


class LogClient:
    """One broker's log door. Holds no connection between calls, so it can be pickled.

    Args:
        endpoint: `http://host:port`, `https://host:port` or `host:port`.
        timeout_seconds: see `TIMEOUT_SECONDS`.

    Raises:
        InvalidArgument: the endpoint is no such address.
    """

    def __init__(self, endpoint: str, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        parts = urlsplit(endpoint if "://" in endpoint else f"http://{endpoint}")
        try:
            port = parts.port
        except ValueError:
            port = None
        if parts.scheme not in ("http", "https") or not parts.hostname or port is None:
            raise InvalidArgument(f"endpoint must look like http://127.0.0.1:8085, not {endpoint!r}")
        self._secure = parts.scheme == "https"
        self._host = parts.hostname
        self._port = port
        self._timeout_seconds = timeout_seconds

    def bounds(self, topic: str) -> LogBounds:
        """What the log of `topic`, a full name, holds now. Raises: TopicNotFound, Unavailable."""
        with self._get("bounds", {"topic": topic}) as response:
            found = json.loads(response.read())
        return LogBounds(found["topic_number"], found["first"], found["last"])

    def read(
        self, topic: str, topic_number: int, first: int, last: int, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Record batches with the messages of sequences `first` to `last`, inclusive, in order.

        A stream that breaks is taken up again where it broke, also when the broker was started anew meanwhile. Messages
        that the broker has trimmed are missing.

        Args:
            topic: its full name.
            topic_number: from `bounds`.
            first, last: sequences that the log holds.
            columns: names of `heliograph.wire.arrow.SCHEMA`; `sequence` must be one.

        Raises:
            TopicNotFound, FailedPrecondition: the topic is gone, or another one by now.
            Unavailable: the broker did not answer, or not to the end, several times.
        """
        failures = 0
        while True:
            try:
                for batch in self._read_once(topic, topic_number, first, last, columns):
                    if not batch.num_rows:
                        continue
                    failures = 0
                    first = batch.column("sequence")[-1].as_py() + 1
                    yield batch
                return
            except Unavailable:
                failures += 1
                if failures >= ATTEMPTS_MAX:
                    raise
                time.sleep(FIRST_PAUSE_SECONDS * 2 ** (failures - 1))
            if first > last:
                return

    def _read_once(
        self, topic: str, topic_number: int, first: int, last: int, columns: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        wanted = {
            "topic": topic,
            "topic_number": topic_number,
            "first": first,
            "last": last,
            "columns": ",".join(columns),
        }
        with self._get("read", wanted) as response:
            body = _Body(response)
            try:
                with pa.ipc.open_stream(body) as stream:
                    yield from stream
            except pa.ArrowInvalid as error:
                raise Unavailable(f"{self} broke off while sending the log of {topic}: {error}") from None
            if not body.is_whole:
                raise Unavailable(f"{self} broke off before the end of the log of {topic}")

    @contextlib.contextmanager
    def _get(self, path: str, parameters: dict[str, Any]) -> Iterator[HTTPResponse]:
        kind = HTTPSConnection if self._secure else HTTPConnection
        connection = kind(self._host, self._port, timeout=self._timeout_seconds)
        try:
            connection.request("GET", f"/api/v1/log/{path}?{urlencode(parameters)}")
            with connection.getresponse() as response:
                if response.status != 200:
                    raise self._error(response.status, response.read(), parameters)
                yield response
        except (OSError, HTTPException) as error:
            raise Unavailable(f"No whole answer from a broker at {self}: {error!r}") from None
        finally:
            connection.close()

    def _error(self, status: int, body: bytes, parameters: dict[str, Any]) -> HeliographError:
        """The broker's answer, as the error that it is."""
        try:
            answer = json.loads(body)
            reason, message = str(answer["code"]), str(answer["error"])
        except (ValueError, KeyError, TypeError):
            return FailedPrecondition(f"{self} answered {status}; is a Heliograph broker there?")
        if reason == TopicNotFound.__name__:
            return TopicNotFound(str(parameters["topic"]))
        if status >= 500:
            return Unavailable(f"{self}: {message}")
        return InvalidArgument(message) if reason == InvalidArgument.__name__ else FailedPrecondition(message)

    def __str__(self) -> str:
        return f"{'https' if self._secure else 'http'}://{self._host}:{self._port}"


class _Body:
    """A response's body as the file that Arrow reads, remembering its last bytes."""

    closed = False

    def __init__(self, response: HTTPResponse) -> None:
        self._response = response
        self._tail = b""

    def read(self, size: int = -1) -> bytes:
        """As of any file."""
        data = self._response.read(size if size >= 0 else None)
        self._tail = (self._tail + data[-8:])[-8:]
        return data

    @property
    def is_whole(self) -> bool:
        """It ended where the broker meant it to end."""
        return self._tail == END_OF_STREAM
