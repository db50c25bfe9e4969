"""A reverse proxy in front of a broker, as people put one there: it asks for tokens, and it breaks off when told to."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import aiohttp
from aiohttp import web
from yarl import URL

READ, WRITE = "read", "write"
GOOD, READER = "secret-of-all-rights", "secret-of-reading"
RIGHTS: Mapping[str, Collection[str]] = {GOOD: (READ, WRITE), READER: (READ,)}


class Passed(NamedTuple):
    """A request that came, and what was answered; status 0 = the answer was broken off."""

    method: str
    path: str
    status: int


class Gateway:
    """A context manager around a proxy on a free port of this machine, in a thread of this process.

    Args:
        endpoint: of the broker.
        rights: by token; without the right READ, GET is refused with 403, without WRITE everything else; without a
            token that is known, all with 401. None = nobody is asked.
        cuts: by path, which answers to pass on by half only, counted from 1. `on_cut` is called in between, so a broker
            that it kills is killed in the middle of an answer.
        fails: by path, which requests to pass on and then answer with 400.
        on_cut: see above.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        rights: Mapping[str, Collection[str]] | None = None,
        cuts: Mapping[str, Sequence[int]] | None = None,
        fails: Mapping[str, Sequence[int]] | None = None,
        on_cut: Callable[[], None] = lambda: None,
    ) -> None:
        self.passed: list[Passed] = []
        self.rights = rights
        self._broker = endpoint
        self._cuts = cuts or {}
        self._fails = fails or {}
        self._on_cut = on_cut
        self._counts: Counter[str] = Counter()
        self._port = 0
        self._started, self._stopped = threading.Event(), asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def statuses(self, path: str) -> list[int]:
        """What was answered to requests to `path`, in order."""
        return [each.status for each in self.passed if each.path == path]

    def __enter__(self) -> Gateway:
        self._thread.start()
        assert self._started.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join(30)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        application = web.Application(client_max_size=2**30)
        application.router.add_route("*", "/{path:.*}", self._pass)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as self._session:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self._port = runner.addresses[0][1]
            self._started.set()
            await self._stopped.wait()
            await runner.cleanup()

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        status = self._refusal(request)
        if not status:
            self._counts[request.path] += 1
            count = self._counts[request.path]
            try:
                return await self._forward(request, body, count)
            except aiohttp.ClientError:
                status = 502
        self.passed.append(Passed(request.method, request.path, status))
        return web.Response(status=status, text=f"<h1>{status}</h1>", content_type="text/html")

    def _refusal(self, request: web.Request) -> int:
        if self.rights is None:
            return 0
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        if kind != "Bearer" or token not in self.rights:
            return 401
        return 0 if (READ if request.method == "GET" else WRITE) in self.rights[token] else 403

    async def _forward(self, request: web.Request, body: bytes, count: int) -> web.StreamResponse:
        headers = {name: request.headers[name] for name in ("Content-Type",) if name in request.headers}
        target = URL(f"{self._broker}{request.raw_path}", encoded=True)
        async with self._session.request(request.method, target, headers=headers, data=body) as answer:
            if count in self._fails.get(request.path, ()):
                self.passed.append(Passed(request.method, request.path, 400))
                return web.json_response({"code": "InvalidArgument", "error": "This fails once"}, status=400)
            response = web.StreamResponse(status=answer.status, headers={"Content-Type": answer.content_type})
            await response.prepare(request)
            is_cut = count in self._cuts.get(request.path, ())
            self.passed.append(Passed(request.method, request.path, 0 if is_cut else answer.status))
            with contextlib.suppress(ConnectionResetError, aiohttp.ClientError):  # either side has gone
                async for part in answer.content.iter_any():
                    if is_cut:
                        await response.write(part[: len(part) // 2])
                        self._on_cut()
                        break
                    await response.write(part)
                else:
                    await response.write_eof()
                    return response
        assert request.transport is not None
        request.transport.abort()
        return response
