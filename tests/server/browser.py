"""A real Chromium without a window, driven over its own protocol."""

from __future__ import annotations

import base64
import itertools
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SECONDS_MAX = 30.0


class Page:
    """The browser's one page."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.messages: list[str] = []
        """What it has complained of."""
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Any:
        """One command of the protocol, and its result."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            told = json.loads(self._socket.recv(SECONDS_MAX))
            if told.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.messages.append(json.dumps(told["params"]))
            if told.get("id") == number:
                assert "error" not in told, told
                return told["result"]

    def open(self, url: str) -> None:
        """Go there, and wait until it is there."""
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def until(self, expression: str, seconds: float = SECONDS_MAX) -> None:
        """Wait until a JavaScript expression is true."""
        deadline = time.monotonic() + seconds
        while not self.value(expression):
            assert time.monotonic() < deadline, f"{expression} within {seconds} s; {self.messages}"
            time.sleep(0.1)  # a page tells nobody that it is ready

    def size(self, width: int, height: int, *, is_dark: bool = False) -> None:
        """Of the window, in CSS pixels, and the theme that its user wants."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        theme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[theme])

    def picture(self, path: Path) -> None:
        """A PNG of the window."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def browser(directory: Path) -> Iterator[Page]:
    """A browser with a page, gone at the end.

    Args:
        directory: for the browser's own files.
    """
    assert CHROMIUM is not None
    flags = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
    own = ("--remote-debugging-port=0", f"--user-data-dir={directory}", "--disable-background-networking")
    with subprocess.Popen([CHROMIUM, *flags, *own, "about:blank"], stdout=-3, stderr=-3) as process:
        try:
            with connect(_address(directory, process), max_size=None) as socket:
                yield Page(socket)
        finally:
            process.terminate()
            process.wait(SECONDS_MAX)


def _address(directory: Path, process: subprocess.Popen[bytes]) -> str:
    """Of the page's protocol."""
    import urllib.request

    said, deadline = directory / "DevToolsActivePort", time.monotonic() + SECONDS_MAX
    while not (said.exists() and said.read_text().count("\n")):
        assert process.poll() is None, "Chromium ended"
        assert time.monotonic() < deadline, "Chromium says nothing"
        time.sleep(0.05)  # the browser writes a file, and tells nobody
    port = said.read_text().split()[0]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=SECONDS_MAX) as answer:
        pages = json.loads(answer.read())
    return next(str(page["webSocketDebuggerUrl"]) for page in pages if page["type"] == "page")
