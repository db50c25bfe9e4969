"""Sending push requests: one client for all endpoints. Loading aiohttp takes a quarter of a second, so nothing imports
this before there is something to send."""

from __future__ import annotations

import asyncio
import contextlib
import io
from typing import Any, NoReturn

import aiohttp

from heliograph.server.push.envelope import NotAcknowledged, PushRequest

ACKNOWLEDGED = frozenset((102, 200, 201, 202, 204))  # 1.13.2
CONNECTIONS_MAX = 400  # to all endpoints together
PIECEMEAL_BYTES = 512 * 1024  # a larger body is sent in pieces, so that other requests get their turn
ERROR_CHARACTERS_MAX = 200
ERROR_BODY_SECONDS = 1.0


class _Processing(Exception):
    """The endpoint answered 102, which acknowledges, whatever comes after it."""


class _Response(aiohttp.ClientResponse):
    """One that notices a 102: to HTTP it only announces an answer, and the client would wait for that."""

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        protocol = connection.protocol
        read = protocol.read

        async def noticing() -> Any:
            message, payload = await read()
            if message.code == 102:
                raise _Processing
            return message, payload

        protocol.read = noticing
        try:
            return await super().start(connection)
        finally:
            del protocol.read


class Client:
    """Posts to endpoints. Event loop thread only."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def post(self, url: str, request: PushRequest) -> None:
        """Deliver; returns when the endpoint has acknowledged. Whoever calls limits the time.

        Raises:
            NotAcknowledged: it did not.
        """
        body: bytes | io.BytesIO = request.body
        if len(request.body) > PIECEMEAL_BYTES:
            body = io.BytesIO(request.body)
        try:
            # a redirect is no acknowledgement, and nobody checks certificates of endpoints in tests (1.13.2, 1.13.8)
            async with self._started().post(
                url, data=body, headers=request.headers, allow_redirects=False, ssl=False
            ) as response:
                if response.status not in ACKNOWLEDGED:
                    await _refuse(response)
        except _Processing:
            return
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise NotAcknowledged(_one_line(f"{type(error).__name__}: {error}")) from None

    async def close(self) -> None:
        """End every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _started(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX),
                cookie_jar=aiohttp.DummyCookieJar(),
                response_class=_Response,
                timeout=aiohttp.ClientTimeout(total=None),
                auto_decompress=False,
            )
        return self._session


async def _refuse(response: aiohttp.ClientResponse) -> NoReturn:
    text = ""
    with contextlib.suppress(aiohttp.ClientError, OSError, TimeoutError):
        async with asyncio.timeout(ERROR_BODY_SECONDS):
            text = (await response.content.read(ERROR_CHARACTERS_MAX)).decode(errors="replace")
    reason = f"HTTP {response.status} {response.reason or ''}".rstrip()
    raise NotAcknowledged(_one_line(f"{reason}: {text}" if text.strip() else reason))


def _one_line(text: str) -> str:
    return " ".join(text.split())[:ERROR_CHARACTERS_MAX]
