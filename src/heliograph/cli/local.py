"""A server for one command on a data directory: in a thread of this process, on a free loopback port."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from heliograph.broker.broker import LocalBroker
from heliograph.cli.failure import ExitCode, Failure
from heliograph.server.app import ServeOptions, Serving, serve


class LocalServer:
    """A server that is up.

    Args:
        data_dir: an existing data directory.

    Raises:
        Failure: there is no such directory; nothing is made.
        StoreRefused: it cannot be opened; it is left untouched.
    """

    def __init__(self, data_dir: Path) -> None:
        if not data_dir.exists():
            raise Failure(f"There is no data directory {data_dir}", ExitCode.DATA_REFUSED)
        self._up = threading.Event()
        self._serving: Serving | None = None
        self._failure: BaseException | None = None
        self._data_dir = data_dir
        self._thread = threading.Thread(target=self._run, name="heliograph-server", daemon=True)
        self._thread.start()
        self._up.wait()
        self.url = self._address()

    def _address(self) -> str:
        if self._serving is None:
            assert self._failure is not None
            raise self._failure
        return f"http://{self._serving.host}:{self._serving.port}"

    def _run(self) -> None:
        options = ServeOptions(port=0, announce=False, handle_signals=False)
        try:
            asyncio.run(serve(lambda: LocalBroker.open(self._data_dir), options, on_started=self._started))
        except BaseException as error:
            self._failure = error
        finally:
            self._up.set()

    def _started(self, serving: Serving) -> None:
        self._serving = serving
        self._up.set()

    def stop(self) -> None:
        """End it; everything answered is in the directory afterwards."""
        assert self._serving is not None
        self._serving.stop()
        self._thread.join()
