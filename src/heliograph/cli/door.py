"""What commands say to a server, over HTTP: Pub/Sub's REST methods, and the commands of work queues."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx

from heliograph.cli.failure import ExitCode, Failure

TIMEOUT_SECONDS = 60.0
"""No command of this door waits so long; those that wait for messages say how long."""

PAGE_SIZE = 1000

Resource = dict[str, Any]


class Door:
    """A connection to one server.

    Args:
        url: scheme, host and port.
        project: of names that do not begin with `projects/`.
    """

    def __init__(self, url: str, project: str) -> None:
        self.url = url
        self.project = project
        try:
            self._http = httpx.Client(base_url=url, timeout=TIMEOUT_SECONDS)
        except httpx.InvalidURL as error:
            raise Failure(f"{url} is not the address of a server: {error}", ExitCode.USAGE) from error

    def close(self) -> None:
        """End the connection."""
        self._http.close()

    def name(self, kind: str, short: str) -> str:
        """The full name of a resource.

        Args:
            kind: `topics`, `subscriptions`, `snapshots` or `schemas`.
            short: its id, or the full name.
        """
        return short if short.startswith("projects/") else f"projects/{self.project}/{kind}/{short}"

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
        return self._send("GET", path, None, query).content

    def _send(
        self,
        method: str,
        path: str,
        body: Resource | None,
        query: dict[str, str | int],
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> httpx.Response:
        try:
            answer = self._http.request(method, path, json=body, params=query or None, timeout=timeout_seconds)
        except httpx.UnsupportedProtocol as error:
            raise Failure(
                f"{self.url} is not the address of a server: write http://HOST:PORT", ExitCode.USAGE
            ) from error
        except httpx.ConnectError as error:
            raise Failure(
                f"no server answers at {self.url}: start one with `heliograph serve`, or name another with --server",
                ExitCode.NOT_READY,
            ) from error
        except httpx.HTTPError as error:
            raise Failure(f"the server at {self.url} broke off: {error}") from error
        if answer.is_error:
            raise Failure(_reason(answer), _exit_code(answer))
        return answer

    def _json(self, answer: httpx.Response) -> Resource:
        try:
            told = answer.json()
        except ValueError:
            told = None
        if not isinstance(told, dict):
            raise Failure(f"{self.url} is not a Heliograph server: it answers {answer.text[:60]!r}", ExitCode.NOT_READY)
        return told


def _reason(answer: httpx.Response) -> str:
    """The server's own words; both its error bodies are understood."""
    try:
        error = answer.json()["error"]
    except (ValueError, KeyError, TypeError):
        return f"{answer.request.url} answers {answer.status_code} {answer.reason_phrase}"
    return str(error["message"]) if isinstance(error, dict) and "message" in error else str(error)


def _exit_code(answer: httpx.Response) -> ExitCode:
    if answer.status_code == HTTPStatus.NOT_FOUND:
        return ExitCode.NOT_FOUND
    if answer.status_code == HTTPStatus.CONFLICT:
        return ExitCode.CONFLICT
    return ExitCode.FAILED
