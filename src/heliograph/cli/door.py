"""What commands say to a server, over HTTP: Pub/Sub's REST methods, and the commands of work queues.

Standard library only: a command is one or a few requests, and must be quick to start.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from heliograph.broker.queues import QUEUE_PREFIX
from heliograph.cli.failure import ExitCode, Failure
from heliograph.server.pubsub.names import ID_RULE

INVALID_NAME = "] name: (name="
"""Of the real service's text on the name of a new resource: `Invalid [topics] name: (name=…)`."""

TIMEOUT_SECONDS = 60.0
"""No command of this door waits so long; those that wait for messages say how long."""

PAGE_SIZE = 1000

Resource = dict[str, Any]


class _Answer(NamedTuple):
    """Of an HTTP request."""

    url: str
    status: int
    body: bytes


class Door:
    """One server. Each request has a connection of its own, so there is nothing to close.

    Args:
        url: scheme, host and port; a path is put before those of the doors.
        project: of names that do not begin with `projects/`.

    Raises:
        Failure: `url` is no address.
    """

    def __init__(self, url: str, project: str) -> None:
        self.url = url
        self.project = project
        try:
            parts = urlsplit(url)
            self._host, self._port, self._path = parts.hostname or "", parts.port, parts.path
            HTTPConnection(self._host, self._port)  # connects to nothing yet
        except (ValueError, HTTPException) as error:
            raise Failure(f"{url} is not the address of a server: {error}", ExitCode.USAGE) from error
        if parts.scheme not in ("http", "https") or not self._host:
            raise Failure(f"{url} is not the address of a server: write http://HOST:PORT", ExitCode.USAGE)
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection

    def name(self, kind: str, short: str) -> str:
        """The full name of a resource.

        Args:
            kind: `topics`, `subscriptions`, `snapshots` or `schemas`.
            short: its id, or the full name.
        """
        return short if short.startswith("projects/") else f"projects/{self.project}/{kind}/{short}"

    def topic(self, short: str) -> str:
        """The full name of a topic, or of a work queue's: `queues/NAME`."""
        return short if short.startswith(QUEUE_PREFIX) else self.name("topics", short)

    # ── Pub/Sub ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def rest(self, method: str, path: str, body: Resource | None = None, **query: str | int) -> Resource:
        """Call a REST method of Pub/Sub.

        Args:
            method: the HTTP method.
            path: below `/v1/`.
            body: the JSON to send.
            query: query parameters.

        Returns:
            What was answered.

        Raises:
            Failure: with the server's own words, or because it does not answer.
        """
        return self._json(self._send(method, f"/v1/{quote(path, safe='/:@')}", body, query))

    def every(self, path: str, field: str, **query: str | int) -> list[Any]:
        """All entries of a listing, page by page.

        Args:
            path: below `/v1/`.
            field: where an answer has its entries.
            query: more query parameters.
        """
        found: list[Any] = []
        token = ""
        while True:
            page = self.rest("GET", path, None, **query, pageSize=PAGE_SIZE, pageToken=token)
            found += page.get(field, [])
            token = page.get("nextPageToken", "")
            if not token:
                return found

    # ── work queues ─────────────────────────────────────────────────────────────────────────────────────────────────

    def command(self, command: str, **payload: Any) -> Resource:
        """Run a command of work queues (queue-protocol.md); arguments that are None are left out.

        Raises:
            Failure: as for `rest`.
        """
        given = {name: value for name, value in payload.items() if value is not None}
        waits = float(given.get("timeout", 0)) + TIMEOUT_SECONDS
        answer = self._send("POST", "/api/v1/command", {"command": command, "payload": given}, {}, waits)
        told: Resource = self._json(answer)["payload"]
        return told

    # ── everything else ─────────────────────────────────────────────────────────────────────────────────────────────

    def get(self, path: str, **query: str | int) -> Resource:
        """An answer in JSON. Raises: Failure."""
        return self._json(self._send("GET", path, None, query))

    def get_bytes(self, path: str, **query: str | int) -> bytes:
        """An answer as it comes. Raises: Failure."""
        return self._send("GET", path, None, query).body

    def _send(
        self,
        method: str,
        path: str,
        body: Resource | None,
        query: dict[str, str | int],
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> _Answer:
        target = self._path + path + (f"?{urlencode(query)}" if query else "")
        content = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        connection = self._kind(self._host, self._port, timeout=timeout_seconds)
        try:
            connection.connect()
        except (OSError, UnicodeError) as error:  # also where it is no name that could be looked up
            raise Failure(
                f"no server answers at {self.url}: start one with `heliograph serve`, or name another with --server",
                ExitCode.NOT_READY,
            ) from error
        try:
            connection.request(method, target, content, {"Content-Type": "application/json"} if content else {})
            with connection.getresponse() as response:
                answer = _Answer(self.url + path, response.status, response.read())
        except (OSError, HTTPException) as error:
            raise Failure(f"the server at {self.url} broke off: {error}") from error
        finally:
            connection.close()
        if answer.status >= HTTPStatus.BAD_REQUEST:
            raise Failure(_reason(answer), _exit_code(answer))
        return answer

    def _json(self, answer: _Answer) -> Resource:
        try:
            told = json.loads(answer.body)
        except ValueError:
            told = None
        if not isinstance(told, dict):
            shown = answer.body[:60].decode(errors="replace")
            raise Failure(f"{self.url} is not a Heliograph server: it answers {shown!r}", ExitCode.NOT_READY)
        return told


def _reason(answer: _Answer) -> str:
    """The server's own words; both its error bodies are understood."""
    try:
        error = json.loads(answer.body)["error"]
    except (ValueError, KeyError, TypeError):
        return f"{answer.url} answers {answer.status}"
    if not isinstance(error, dict) or "message" not in error:
        return str(error)
    metadata = (detail.get("metadata", {}) for detail in error.get("details", []) if isinstance(detail, dict))
    found = [
        str(each["revisionInfo"]) for each in metadata if "revisionInfo" in each
    ]  # where a message breaks a schema
    return explained(" ".join([str(error["message"]), *found]))


def explained(text: str) -> str:
    """A text of the real service, and what to do where it does not say so."""
    return f"{text}: {ID_RULE}" if INVALID_NAME in text else text


def _exit_code(answer: _Answer) -> ExitCode:
    if answer.status == HTTPStatus.NOT_FOUND:
        return ExitCode.NOT_FOUND
    if answer.status == HTTPStatus.CONFLICT:
        return ExitCode.CONFLICT
    return ExitCode.FAILED
