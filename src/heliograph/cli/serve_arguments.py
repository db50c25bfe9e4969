"""What `heliograph serve` takes on the command line, with its help. What is left out is None, and decided in
`serving_options.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heliograph.broker.housekeeping import MEMORY_BUDGET_BYTES
from heliograph.cli.config import CONFIG_DEFAULT
from heliograph.cli.duration import parse_duration
from heliograph.cli.serving_options import (
    DATA_DIR_DEFAULT,
    EVENT_RETENTION_DEFAULT,
    PORT_DEFAULT,
    DurabilityKind,
    StoreKind,
)
from heliograph.cli.size import parse_size, show_size

Config = Annotated[
    Path | None,
    typer.Option(
        help="A file with options for this command in its table server, and with what is to exist "
        f"(docs/configuration.md; default {CONFIG_DEFAULT}, if there is one).",
        metavar="FILE",
    ),
]
Host = Annotated[str | None, typer.Option(help="Address to listen on (default localhost, which is 127.0.0.1 and ::1).")]
Port = Annotated[
    int | None,
    typer.Option(help=f"Port to listen on; 0 = a free one (default {PORT_DEFAULT}).", min=0, max=65535),
]
HostPort = Annotated[
    str | None, typer.Option(help="Both at once, as for the official emulator: [::1]:8085", metavar="HOST:PORT")
]
DataDir = Annotated[
    Path | None,
    typer.Option(help=f"Directory for the data, made if missing (default {DATA_DIR_DEFAULT}).", metavar="DIR"),
]
Store = Annotated[
    StoreKind | None,
    typer.Option(help="Keep everything in a file (sqlite, the default), or nothing beyond the process (memory)."),
]
Durability = Annotated[
    DurabilityKind | None,
    typer.Option(
        help="What an answer survives: a killed process and a power cut (full, the default), a killed process "
        "(process), or a killed process while a power cut may destroy the file (none)."
    ),
]
MemoryBudget = Annotated[
    int | None,
    typer.Option(
        help="Messages beyond so much leave memory and are read from the file when due: 64MB, 1GiB, or bytes "
        f"(default {show_size(MEMORY_BUDGET_BYTES)}).",
        parser=parse_size,
        metavar="SIZE",
    ),
]
EventRetention = Annotated[
    int | None,
    typer.Option(
        help="How long the event log is kept (what was published, delivered, acknowledged, nacked, expired or "
        "dead-lettered, and when): 24h, 7d, or 0 for none; at most 256 MB of it "
        f"(default {EVENT_RETENTION_DEFAULT}).",
        parser=parse_duration,
        metavar="SPAN",
    ),
]
Project = Annotated[str | None, typer.Option(help="Project of the names in the configuration file that are short.")]
Lenient = Annotated[
    bool | None,
    typer.Option(
        "--lenient",
        help="Take what the official emulator takes, though the real service refuses it: any name, ack deadlines "
        "from 1 s.",
    ),
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(help="A further name that browsers may reach it by; may be repeated.", metavar="NAME"),
]
EndWithStdin = Annotated[
    bool,
    typer.Option(
        "--end-with-stdin",
        help="End in order when standard input is closed: for a program that starts a broker and is not to leave it "
        "behind, however it ends itself.",
    ),
]
AdminTestHooks = Annotated[
    bool,
    typer.Option(
        "--admin-test-hooks",
        help="For tests: serve /admin/v1, where whoever reaches it can move time on, make calls fail and empty the "
        "broker.",
    ),
]
