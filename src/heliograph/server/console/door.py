"""The console's door: `GET /console/pipeline`, and `GET /console`, which leads there.

A page is drawn by the server, and its script asks for it again every few seconds: one renderer makes all that anybody
sees (docs/adr/0020-a-plain-page-before-a-console.md). The page's security policy lets nothing run but that one script.
"""

from __future__ import annotations

import base64
import hashlib

from heliograph import __version__
from heliograph.broker.protocol import Broker
from heliograph.errors import NotFound
from heliograph.page import Html, document, escape
from heliograph.server.console.pipeline import STYLE, pipeline_page
from heliograph.server.http import HTML, TEXT, answer
from heliograph.server.job_status import JobStatuses
from heliograph.server.routing import Receive, Route, Scope, Send

CONSOLE, PIPELINE = "/console", "/console/pipeline"

SCRIPT = """
let isAsking = false;
const refresh = async () => {
  if (document.hidden || isAsking) return;
  isAsking = true;
  const away = document.getElementById("away");
  try {
    const answer = await fetch(location.pathname, { cache: "no-store", signal: AbortSignal.timeout(5000) });
    if (!answer.ok) throw new Error(answer.status);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const old = document.querySelector("main"), fresh = page.querySelector("main");
    if (old.innerHTML !== fresh.innerHTML) old.replaceWith(fresh);
    away.hidden = true;
  } catch {
    const now = new Date().toLocaleTimeString();
    if (away.hidden) away.textContent = `No answer from the broker since ${now}: what is below is older.`;
    away.hidden = false;
  }
  isAsking = false;
};
setInterval(refresh, 3000);
document.addEventListener("visibilitychange", refresh);
"""

_SCRIPT_HASH = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
POLICY = (
    f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{_SCRIPT_HASH}'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    HTML,
    (b"content-security-policy", POLICY.encode()),
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
)


def console_routes(statuses: JobStatuses) -> list[Route]:
    """The routes.

    Args:
        statuses: what the pipeline's jobs have told.
    """

    async def pipeline(scope: Scope, _receive: Receive, send: Send, broker: Broker) -> None:
        """`GET /console/pipeline`."""
        address = _address(scope)
        body = pipeline_page(statuses.listed(), broker.now_ns(), address)
        await answer(send, _page("Data pipeline", address, body).encode(), headers=HEADERS)

    async def lead(scope: Scope, _receive: Receive, send: Send, _broker: Broker) -> None:
        """`GET /console` leads to its first page. Raises: NotFound (there is no such page)."""
        if scope["path"].rstrip("/") != CONSOLE:
            raise NotFound(f"The console has no page {scope['path']}; it has {PIPELINE}")
        await answer(send, b"", status=302, headers=(TEXT, (b"location", PIPELINE.encode())))

    handlers = {PIPELINE: pipeline, CONSOLE: lead, f"{CONSOLE}/": lead}
    return [Route(method, path, handler) for path, handler in handlers.items() for method in ("GET", "HEAD")]


def _page(title: str, address: str, main: Html) -> str:
    body = (
        f'<p class="faint broker">Heliograph {__version__} at {escape(address)}</p>\n'
        f'<p id="away" class="notice bad" role="status" hidden></p>\n<main>\n{main}\n</main>'
    )
    script = f"<script>{SCRIPT}</script>\n"
    return document(f"Heliograph: {title}", body, heading=title, style=STYLE, end=script, is_dark_too=True)


def _address(scope: Scope) -> str:
    """Of the broker, as the reader has reached it."""
    host = dict(scope["headers"]).get(b"host", b"localhost").decode("latin-1")
    return f"{scope.get('scheme') or 'http'}://{host}"
