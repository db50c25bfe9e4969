"""The work-queue door as this demonstration uses it: `POST /api/v1/command` over one kept connection per thread.

A call is repeated while the broker is away, so every command here may reach it more than once: what a repetition means
(a second message, a lease that is gone) is for the caller to decide.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from heliograph.errors import Unavailable

PATH = "/api/v1/command"
AWAY_SECONDS_MAX = 60.0
BACKOFF_SECONDS_MAX = 1.0
ANSWER_SECONDS_MAX = 30.0


class CommandRefused(Exception):
    """The broker answered, with an error.

    Args:
        reason: the stable name, `QueueNotFound` and so on.
        message: what it says.
        repeated: the call was sent more than once, so an earlier sending may have been carried out.
    """

    def __init__(self, reason: str, message: str, *, repeated: bool) -> None:
        super().__init__(f"{reason}: {message}")
        self.reason = reason
        self.repeated = repeated


class _Answer(msgspec.Struct):
    success: bool
    payload: dict[str, Any] | None = None
    error: str | None = None
    code: str | None = None


# Made once, while there is one thread: msgspec may crash where two threads meet a type for the first time at once.
_answers = msgspec.json.Decoder(_Answer)


class Commands:
    """A client of the work-queue door. Thread-safe.

    Args:
        endpoint: HOST:PORT of the broker.
        stopping: when set, no call is repeated any more.
    """

    def __init__(self, endpoint: str, stopping: threading.Event | None = None) -> None:
        self._endpoint = endpoint
        self._stopping = stopping or threading.Event()
        self._connections = threading.local()
        self._answers = _answers

    def call(self, command: str, payload: Mapping[str, object]) -> dict[str, Any]:
        """Have a command carried out.

        Args:
            command: `queue.publish` and so on.
            payload: its arguments.

        Raises:
            CommandRefused: the broker says no.
            Unavailable: it could not be reached for a minute, or the caller stops.
        """
        body = msgspec.json.encode({"command": command, "payload": payload})
        give_up = time.monotonic() + AWAY_SECONDS_MAX
        backoff = 0.05
        attempt = 0
        while True:
            attempt += 1
            try:
                status, answer = self._send(body)
            except (OSError, http.client.HTTPException) as error:
                self._disconnect()
                cause = str(error) or type(error).__name__
            else:
                if answer.success:
                    return answer.payload or {}
                if status != http.HTTPStatus.SERVICE_UNAVAILABLE:
                    raise CommandRefused(answer.code or str(status), answer.error or "", repeated=attempt > 1)
                cause = answer.error or "the broker is unavailable"
            if time.monotonic() > give_up or self._stopping.wait(backoff):
                raise Unavailable(f"{command} was not answered: {cause}")
            backoff = min(backoff * 2, BACKOFF_SECONDS_MAX)

    def close(self) -> None:
        """Close this thread's connection."""
        self._disconnect()

    def _send(self, body: bytes) -> tuple[int, _Answer]:
        connection: http.client.HTTPConnection | None = getattr(self._connections, "connection", None)
        if connection is None:
            connection = http.client.HTTPConnection(self._endpoint, timeout=ANSWER_SECONDS_MAX)
            self._connections.connection = connection
        connection.request("POST", PATH, body, {"content-type": "application/json"})
        response = connection.getresponse()
        content = response.read()
        try:
            return response.status, self._answers.decode(content)
        except msgspec.DecodeError:
            # no envelope: not the door's own answer but the server's (404 on a broker without queues, 503 at shutdown)
            return response.status, _Answer(success=False, error=f"HTTP {response.status} {response.reason}")

    def _disconnect(self) -> None:
        connection: http.client.HTTPConnection | None = getattr(self._connections, "connection", None)
        if connection is not None:
            connection.close()
            self._connections.connection = None
