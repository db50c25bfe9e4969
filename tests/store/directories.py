"""Data directories with something in them, and ways to damage them."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from heliograph.broker.broker import LocalBroker
from heliograph.broker.clock import SimulatedClock
from heliograph.engine.message import Draft
from heliograph.store.sqlite import SqliteStore

PAGE_BYTES = 4096
BATCH = 100  # messages a row


def payload(topic: str, sequence: int) -> bytes:
    """Unlike any other in the file."""
    return f"<{topic}/{sequence}>".encode().ljust(120, b".")


def fill(broker: LocalBroker, batches: int = 10) -> None:
    """Topics `a` and `b` with a subscription each, `batches` rows of 100 messages; of `a` the first 200 are done."""
    for topic in ("a", "b"):
        broker.create_topic(topic).result()
        broker.create_subscription(f"{topic}-reader", topic).result()
    for batch in range(batches):
        for topic in ("a", "b"):
            first = batch * BATCH + 1
            drafts = [Draft(payload(topic, sequence)) for sequence in range(first, first + BATCH)]
            broker.publish(topic, drafts).result()
    deliveries = broker.pull("a-reader", 300).result()
    broker.acknowledge("a-reader", [delivery.ack_id for delivery in deliveries[:200]])


def store_of(broker: LocalBroker) -> SqliteStore:
    """Its store."""
    store = broker._store
    assert isinstance(store, SqliteStore)
    return store


def make(directory: Path, *, checkpoint: bool = False) -> Path:
    """A stopped broker's data directory; with `checkpoint`, its journal begins with one."""
    broker = LocalBroker(SqliteStore(directory, durability="none"), SimulatedClock())
    fill(broker)
    if checkpoint:
        store_of(broker).checkpoint(broker._engine.checkpoint())
    broker.close()
    return directory


def killed(directory: Path, target: Path) -> Path:
    """A copy as a killed process leaves it: what is committed is in the write-ahead log."""
    broker = LocalBroker(SqliteStore(directory, durability="none"), SimulatedClock())
    fill(broker)
    broker._store.append(()).wait()
    target.mkdir()
    for name in ("heliograph.db", "heliograph.db-wal"):
        shutil.copy(directory / name, target / name)
    broker.close()
    return target


def flip(path: Path, offset: int, bits: int = 0x40) -> None:
    """Flip bits of one byte of a file."""
    content = bytearray(path.read_bytes())
    content[offset] ^= bits
    path.write_bytes(content)


def offset_of(path: Path, content: bytes) -> int:
    """Where in the file it stands."""
    offset = path.read_bytes().find(content)
    assert offset >= 0
    return offset


def root_page(path: Path, name: str) -> int:
    """The offset of the root page of a table or an index."""
    with closing(sqlite3.connect(path)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (name,)).fetchone()
    return (int(page) - 1) * PAGE_BYTES


def edit(path: Path, change: str) -> None:
    """Change the file behind the store's back."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(change)


def contents(directory: Path) -> dict[str, bytes]:
    """Every file's content, but the lock and SQLite's shared memory, which hold nothing."""
    return {
        path.name: path.read_bytes()
        for path in directory.iterdir()
        if path.name != "heliograph.lock" and not path.name.endswith("-shm")
    }
