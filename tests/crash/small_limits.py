"""`heliograph serve` whose checkpoints and trims come so often that a crash of a few seconds meets them: a program of
its own, given the arguments of `heliograph`."""

from __future__ import annotations

from heliograph.broker import housekeeping
from heliograph.cli.main import main
from heliograph.engine import engine
from heliograph.store import sqlite, sqlite_file

if __name__ == "__main__":
    sqlite.CHECKPOINT_BYTES_MIN = 100_000
    sqlite.CHECKPOINT_GROWTH = 1
    housekeeping.CHECKPOINT_SHARE = 0.5
    engine.SWEEP_NS = 300_000_000
    sqlite_file.FREE_PAGES_MIN = 16
    sqlite_file.VACUUM_PAGES = 64
    sqlite_file.TRIMMED_ROWS_MAX = 20
    sqlite_file.CHECKPOINT_PAGES = 200
    main()
