"""One broker's HTTP doors, as the driver and the executors ask them.

Standard library and pyarrow only: executors import this in every worker.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode, urlsplit

import pyarrow as pa

from heliograph.errors import FailedPrecondition, HeliographError, InvalidArgument, Unavailable, error_named
from heliograph.wire.arrow import END_OF_STREAM

TIMEOUT_SECONDS = 60.0
"""Longest silence of the broker, when connecting or between two pieces of a stream."""

ATTEMPTS_MAX = 7
"""Tries in a row without any progress before a call gives up; with the pauses below over about 25 seconds, which a
broker that starts again takes, with millions of messages or on a busy machine."""

FIRST_PAUSE_SECONDS = 0.4
"""Pause after the first failed try; doubled after each further one."""

ERROR_BYTES_MAX = 64 * 1024

T = TypeVar("T")


class Address(NamedTuple):
    """Where a broker is, and who asks.

    Args:
        endpoint: `http://host:port`, `https://host:port` or `host:port`.
        timeout_seconds: see `TIMEOUT_SECONDS`.
        token: sent as a bearer token; "" = none. It is in no text that is made of an address.
    """

    endpoint: str
    timeout_seconds: float = TIMEOUT_SECONDS
    token: str = ""

    def __repr__(self) -> str:
        token = "…" if self.token else ""
        return f"Address(endpoint={self.endpoint!r}, timeout_seconds={self.timeout_seconds!r}, token={token!r})"

    @property
    def headers(self) -> dict[str, str]:
        """Those that tell who asks. Raises: InvalidArgument (the token is none that HTTP can carry)."""
        if not self.token:
            return {}
        if not (self.token.isascii() and self.token.isprintable()):  # http.client's own error would show it
            raise InvalidArgument("The option token has a character that no bearer token has, such as a line break")
        return {"Authorization": f"Bearer {self.token}"}

    def refusal(self, status: int, call: str) -> FailedPrecondition:
        """The error of an answer 401 or 403, which trying again does not change, to a call such as `GET /path`."""
        if status == 403:
            name, what = "Forbidden", "has not got the right to do this"
        else:
            name, what = "Unauthorized", "is not valid there, or not any more" if self.token else "is missing"
        return FailedPrecondition(
            f"{self.endpoint} answered {status} ({name}) to {call}: the option token {what} "
            "(in the shell: --token, or HELIOGRAPH_TOKEN)"
        )


class Door:
    """Requests to one broker. Holds no connection between calls, so it can be pickled.

    Args:
        address: where it is.

    Raises:
        InvalidArgument: the endpoint is no address, or the token is none.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        endpoint = address.endpoint
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
        self._timeout_seconds = address.timeout_seconds
        self._headers = address.headers

    def get(self, path: str, parameters: Mapping[str, Any]) -> Any:
        """The JSON that a GET answers. Raises: HeliographError as the broker names it, Unavailable."""
        with self._request("GET", path, parameters) as response:
            return json.loads(response.read())

    def post(self, path: str, value: Any) -> Any:
        """The JSON that a POST of `value`, as JSON, answers. Raises: as `get`."""
        return self.post_bytes(path, json.dumps(value).encode(), "application/json", {})

    def post_bytes(self, path: str, body: bytes, media_type: str, parameters: Mapping[str, Any]) -> Any:
        """The JSON that a POST of a body answers. Raises: as `get`."""
        with self._request("POST", path, parameters, body, media_type) as response:
            return json.loads(response.read())

    def batches(self, path: str, parameters: Mapping[str, Any], what: str) -> Iterator[pa.RecordBatch]:
        """The record batches of an Arrow stream.

        Args:
            path, parameters: of a GET.
            what: is read, for error texts.

        Raises:
            HeliographError: as the broker names it.
            Unavailable: no answer, or the stream broke off; what came before is right.
        """
        with self._request("GET", path, parameters) as response:
            body = _Body(response)
            try:
                with pa.ipc.open_stream(body) as stream:
                    yield from stream
            except pa.ArrowInvalid as error:
                raise Unavailable(f"{self} broke off while sending {what}: {error}") from None
            if not body.is_whole:
                raise Unavailable(f"{self} broke off before the end of {what}")

    @contextlib.contextmanager
    def _request(
        self, method: str, path: str, parameters: Mapping[str, Any], body: bytes | None = None, media_type: str = ""
    ) -> Iterator[HTTPResponse]:
        kind = HTTPSConnection if self._secure else HTTPConnection
        connection = kind(self._host, self._port, timeout=self._timeout_seconds)
        headers = self._headers | ({"Content-Type": media_type} if media_type else {})
        try:
            connection.request(method, f"{path}?{urlencode(parameters)}" if parameters else path, body, headers)
            with connection.getresponse() as response:
                if response.status != 200:
                    raise self._error(response.status, response.read(ERROR_BYTES_MAX), f"{method} {path}")
                yield response
        except (OSError, HTTPException) as error:
            reason = getattr(error, "strerror", None) or repr(error)
            raise Unavailable(f"No whole answer from a broker at {self}: {reason}") from None
        finally:
            connection.close()

    def _error(self, status: int, body: bytes, call: str) -> HeliographError:
        """The broker's answer, as the error that it is."""
        if status in (401, 403):
            return self._address.refusal(status, call)
        try:
            answer = json.loads(body)
            reason, message = str(answer["code"]), str(answer["error"])
        except (ValueError, KeyError, TypeError):
            kind = Unavailable if status >= 500 or status == 429 else FailedPrecondition  # a proxy's words, then
            return kind(f"{self} answered {status}; is a Heliograph broker there?")
        if status >= 500:
            return Unavailable(f"{self}: {message}")
        return error_named(reason, message, otherwise=FailedPrecondition)

    def __str__(self) -> str:
        return f"{'https' if self._secure else 'http'}://{self._host}:{self._port}"


def persistently(call: Callable[[], T]) -> T:
    """`call()`, again after a pause when no broker answers, which it must bear.

    Raises:
        Unavailable: several times in a row.
    """
    failures = 0
    while True:
        try:
            return call()
        except Unavailable:
            failures += 1
            pause(failures)


def pause(failures: int) -> None:
    """Wait before the next try after so many failures in a row. Raises: the error that is being handled, if there were
    too many."""
    if failures >= ATTEMPTS_MAX:
        raise
    # Spark calls readers and writers from threads that do nothing else meanwhile
    time.sleep(FIRST_PAUSE_SECONDS * 2 ** (failures - 1))


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
