"""A server for one command on a data directory: in a thread of this process, on a free loopback port."""

from __future__ import annotations

from pathlib import Path

from heliograph.broker.broker import LocalBroker
from heliograph.cli.duration import parse_duration
from heliograph.cli.failure import ExitCode, Failure
from heliograph.cli.serving_options import EVENT_RETENTION_DEFAULT
from heliograph.server.app import ServeOptions
from heliograph.server.server_thread import ServerThread


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
        # without a retention it would forget the event log that is there
        retention_ns = parse_duration(EVENT_RETENTION_DEFAULT)
        self._thread = ServerThread(
            lambda: LocalBroker.open(data_dir, event_retention_ns=retention_ns), ServeOptions(port=0)
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """Where it listens."""
        serving = self._thread.serving
        return f"http://{serving.host}:{serving.port}"

    def stop(self) -> None:
        """End it; everything answered is in the directory afterwards."""
        self._thread.stop()
