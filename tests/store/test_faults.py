"""Disks that fail: publish answers Unavailable, the broker says why, nothing answered is lost, and all goes on when the
disk does."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.broker.clock import SimulatedClock
from heliograph.engine.dead_letter import DeadLetterPolicy
from heliograph.engine.message import Draft
from heliograph.engine.page import PAGE_MESSAGES
from heliograph.engine.retention import SWEEP_NS
from heliograph.engine.settings import SECOND_NS, SubscriptionSettings
from heliograph.errors import HeliographError, Unavailable
from heliograph.store import sqlite
from heliograph.store.memory import MemoryStore
from heliograph.store.sqlite import SqliteStore
from heliograph.testing.faulty_store import FaultyStore
from tests.engine.invariants import check_engine, differences, full_state
from tests.portions import quick_first
from tests.store.facts import until
from tests.store.traffic import Traffic, comparable, small_limits

NO_SPACE = "No space left on device"


class Bench:
    """A broker with topic `t` and subscription `s` on a store that fails on demand."""

    def __init__(self) -> None:
        self.clock = SimulatedClock()
        self.store = FaultyStore(MemoryStore(keep_facts=True))
        self.broker = LocalBroker(self.store, self.clock, memory_budget_bytes=0)
        self.broker.create_topic("t").result()
        self.broker.create_subscription("s", "t").result()

    def publish(self, *payloads: bytes) -> list[str]:
        return self.broker.publish("t", [Draft(payload) for payload in payloads]).result()

    def pull(self, count: int = 100, subscription: str = "s") -> list[bytes]:
        return [delivery.message.data for delivery in self.broker.pull(subscription, count).result()]

    def restart(self) -> LocalBroker:
        """What another broker makes of the store."""
        self.broker = LocalBroker(self.store.inner, self.clock, memory_budget_bytes=0)
        return self.broker


@pytest.fixture
def bench() -> Bench:
    return Bench()


# ── a commit that fails ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_publish_whose_commit_fails_is_unavailable_and_says_why(bench: Bench) -> None:
    bench.store.fail_next()
    with pytest.raises(Unavailable, match=NO_SPACE):
        bench.publish(b"1")


def test_while_the_store_fails_a_publish_is_refused_before_it_changes_anything(bench: Bench) -> None:
    bench.store.fail_next()
    with suppress(Unavailable):
        bench.publish(b"1")
    before = bench.broker._engine.topics["t"].log.next_sequence
    with pytest.raises(Unavailable, match=NO_SPACE):
        bench.publish(b"2")
    assert bench.broker._engine.topics["t"].log.next_sequence == before


def test_while_the_store_fails_the_broker_s_health_says_why(bench: Bench) -> None:
    bench.store.fail_next()
    with suppress(Unavailable):
        bench.publish(b"1")
    assert NO_SPACE in bench.broker.health().reason


def test_what_was_published_while_the_commit_failed_is_delivered_at_most_once_and_nothing_answered_is_lost(
    bench: Bench,
) -> None:
    bench.publish(b"answered")
    bench.store.fail_next()
    with suppress(Unavailable):
        bench.publish(b"not answered")
    bench.store.retry()
    bench.publish(b"answered later")
    assert bench.pull() == [b"answered", b"not answered", b"answered later"]


def test_a_pull_whose_commit_fails_hands_nothing_out_and_its_messages_come_again(bench: Bench) -> None:
    bench.publish(b"1")
    bench.store.fail_next()
    with pytest.raises(Unavailable, match=NO_SPACE):
        bench.pull()
    bench.store.retry()
    bench.clock.advance(11)
    assert bench.pull() == [b"1"]


def test_leases_that_end_while_the_store_fails_are_over_when_it_works_again(bench: Bench) -> None:
    bench.publish(b"1")
    bench.pull()
    bench.store.fail_next(100)
    bench.clock.advance(11)
    bench.store.fail_next(0)
    bench.store.retry()
    assert bench.pull() == [b"1"]
    assert bench.restart().statistics("s").outstanding == 1


def test_no_checkpoint_is_made_while_the_store_fails(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.publish(b"1")
    monkeypatch.setattr(MemoryStore, "checkpoint_due", True)
    bench.store.fail_next(100)
    with suppress(Unavailable):
        bench.publish(b"2")
    monkeypatch.undo()
    bench.store.fail_next(0)
    bench.store.retry()
    bench.restart()
    assert bench.pull() == [b"1", b"2"]


# ── reads that fail ─────────────────────────────────────────────────────────────────────────────────────────────────


def fill_pages(bench: Bench) -> None:
    """So much is published that pages leave memory."""
    for _ in range(3):
        bench.broker.publish("t", [Draft(b"x")] * PAGE_MESSAGES).result()


def test_a_pull_of_what_cannot_be_read_changes_nothing(bench: Bench) -> None:
    fill_pages(bench)
    bench.store.unreadable = "disk I/O error"
    with pytest.raises(Unavailable, match="disk I/O error"):
        bench.pull()
    bench.store.unreadable = None
    assert len(bench.pull(5_000)) == 3 * PAGE_MESSAGES
    assert bench.broker.statistics("s").totals.delivered == 3 * PAGE_MESSAGES


def test_an_acknowledgement_that_needs_what_cannot_be_read_changes_nothing(bench: Bench) -> None:
    fill_pages(bench)
    ack_ids = [delivery.ack_id for delivery in bench.broker.pull("s", PAGE_MESSAGES).result()]
    bench.publish(b"memory is given back after each operation")
    bench.store.unreadable = "disk I/O error"
    with pytest.raises(Unavailable, match="disk I/O error"):
        bench.broker.acknowledge("s", ack_ids)
    bench.store.unreadable = None
    assert bench.broker.acknowledge("s", ack_ids).result() == []


def test_while_old_messages_cannot_be_read_new_ones_are_taken(bench: Bench) -> None:
    fill_pages(bench)
    bench.store.unreadable = "disk I/O error"
    bench.clock.advance(SWEEP_NS / SECOND_NS + 1)
    bench.publish(b"new")
    bench.store.unreadable = None
    assert bench.broker.statistics("s").ready == 3 * PAGE_MESSAGES + 1


def test_what_cannot_be_trimmed_now_is_trimmed_later(bench: Bench) -> None:
    bench.broker.acknowledge("s", _lease_some(bench)).result()
    bench.store.unreadable = "disk I/O error"
    bench.clock.advance(SWEEP_NS / SECOND_NS + 1)
    bench.store.unreadable = None
    bench.clock.advance(SWEEP_NS / SECOND_NS + 1)
    first, last = bench.broker.log_bounds("t")
    assert last == first - 1


def _lease_some(bench: Bench) -> list[str]:
    bench.publish(b"1", b"2")
    return [delivery.ack_id for delivery in bench.broker.pull("s", 9).result()]


def test_after_a_fact_that_could_not_be_carried_out_the_broker_stops_and_another_is_where_it_was(bench: Bench) -> None:
    fill_pages(bench)
    bench.broker.pull("s", PAGE_MESSAGES, ack_deadline_ns=10 * SECOND_NS).result()
    bench.publish(b"memory is given back after each operation")
    bench.store.unreadable = "disk I/O error"
    with suppress(HeliographError):
        bench.clock.advance(11)  # leases end, and their messages are needed for it
    bench.store.unreadable = None
    with pytest.raises(Unavailable, match="must be started again"):
        bench.publish(b"refused")
    assert "must be started again" in bench.broker.health().reason
    assert len(bench.restart().pull("s", 9_999).result()) == 3 * PAGE_MESSAGES + 1
    check_engine(bench.broker._engine)


def test_a_dead_letter_that_cannot_be_read_is_forwarded_when_it_can(bench: Bench) -> None:
    bench.broker.create_topic("graves").result()
    bench.broker.create_subscription("g", "graves").result()
    settings = SubscriptionSettings(dead_letter_policy=DeadLetterPolicy("missing", 1))
    bench.broker.create_subscription("mortal", "t", settings).result()
    fill_pages(bench)
    (delivery,) = bench.broker.pull("mortal", 1).result()
    bench.broker.modify_ack_deadline("mortal", [delivery.ack_id], 0).result()
    bench.publish(b"memory is given back after each operation")
    bench.store.unreadable = "disk I/O error"
    bench.broker.create_topic("missing").result()
    bench.broker.create_subscription("m", "missing").result()
    bench.store.unreadable = None
    assert bench.broker.statistics("mortal").dead_letters == 1
    bench.clock.advance(SWEEP_NS / SECOND_NS + 1)
    assert bench.broker.statistics("mortal").dead_letters == 0
    assert bench.broker.get_topic("missing").next_sequence == 2


# ── statements that fail at random, in everything that a broker does ────────────────────────────────────────────────


STORM_FAILURES_MAX = 200


class Flaky:
    """Connections whose statements fail now and then, before they have an effect or after it."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.share = 0.0
        self.reads_too = False
        self.failures = 0

    def let_through(self, store: SqliteStore) -> Callable[[], bool]:
        """Whether the store commits again. A transaction of a hundred statements may never do at such odds: so a storm
        ends after some failures, as real ones do."""
        ends_at = self.failures + STORM_FAILURES_MAX

        def commits() -> bool:
            if self.failures > ends_at:
                self.share = 0.0
            return store.failing is None

        return commits

    def connect(self, path: str, **options: Any) -> sqlite3.Connection:
        flaky, is_reader = self, "uri" in options

        class Connection(sqlite3.Connection):
            def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
                if (is_reader and not flaky.reads_too) or flaky.chance.random() >= flaky.share:
                    return super().execute(statement, *values)
                flaky.failures += 1
                if flaky.chance.random() < 0.3:
                    super().execute(statement, *values).close()
                raise sqlite3.OperationalError("disk I/O error")

        return sqlite3.connect(path, factory=Connection, **options)


@pytest.mark.parametrize("seed", quick_first(range(6), 2))
def test_whatever_statement_fails_the_file_has_everything_in_order(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_limits(monkeypatch)
    flaky = Flaky(seed)
    traffic = Traffic(tmp_path, seed, connect=flaky.connect)
    for _ in range(4):
        for step in range(40):
            flaky.share = 0.1 if step < 30 else 0.0
            traffic.step()
            until(flaky.let_through(traffic.store))
        traffic.settle()
        traffic.restart()
        now_ns = traffic.clock.now_ns()
        ours = comparable(full_state(traffic.engine, now_ns))
        assert differences(ours, traffic.expected(len(traffic.store.appends))) == []
    traffic.broker.close()
    assert flaky.failures > 10


@pytest.mark.parametrize("seed", quick_first(range(4), 1))
def test_whatever_read_fails_what_is_stored_leads_to_the_same_state(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_limits(monkeypatch)
    flaky = Flaky(seed)
    flaky.reads_too = True
    traffic = Traffic(tmp_path, seed, connect=flaky.connect, memory_budget_bytes=0)
    for _ in range(8):
        for _ in range(20):
            flaky.share = 0.05
            traffic.step()
        flaky.share = 0.0
        until(lambda: traffic.store.failing is None)
        traffic.settle()
        traffic.restart()
        now_ns = traffic.clock.now_ns()
        ours = comparable(full_state(traffic.engine, now_ns))
        assert differences(ours, traffic.expected(len(traffic.store.appends))) == []
    traffic.broker.close()


# ── a disk that is full ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of three megabytes."""
    place = tmp_path / "small"
    place.mkdir()
    mount = shutil.which("mount")
    if mount is None or sys.platform != "linux":
        pytest.skip("needs mount")
    done = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"may not mount a file system: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


def publish_until_refused(broker: LocalBroker, answered: list[bytes], *, most: int = 10_000) -> str:
    """Publish until the broker does not want any more; its reason."""
    for _ in range(most):
        payload = os.urandom(2_000)
        try:
            broker.publish("t", [Draft(payload)]).result(30)
        except Unavailable as error:
            return error.message
        answered.append(payload)
    raise AssertionError("it was never refused")


def drain(broker: LocalBroker) -> list[bytes]:
    """Everything that is waiting, acknowledged."""
    found: list[bytes] = []
    while deliveries := broker.pull("s", 100).result(30):
        found += [delivery.message.data for delivery in deliveries]
        broker.acknowledge("s", [delivery.ack_id for delivery in deliveries]).result(30)
    return found


def open_broker(directory: Path) -> LocalBroker:
    store = SqliteStore(directory, retry_seconds=(0.0, 0.01), trim_delay_seconds=0.0)
    return LocalBroker(store, memory_budget_bytes=0)


def create(broker: LocalBroker) -> None:
    broker.create_topic("t").result(30)
    broker.create_subscription("s", "t").result(30)


def missing(expected: list[bytes], found: list[bytes]) -> list[bytes]:
    return [payload for payload in expected if payload not in set(found)]


@pytest.mark.parametrize("checkpoints", [False, True], ids=["", "while checkpoints happen"])
def test_a_full_disk_refuses_publishes_says_why_and_goes_on_when_there_is_space(
    small_disk: Path, checkpoints: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if checkpoints:
        monkeypatch.setattr(sqlite, "CHECKPOINT_BYTES_MIN", 10_000)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(1_000_000))
    broker, answered = open_broker(small_disk / "data"), list[bytes]()
    create(broker)
    reason = publish_until_refused(broker, answered)
    assert "full" in reason or NO_SPACE in reason or "I/O" in reason
    assert broker.health().reason == reason
    ballast.unlink()
    until(lambda: not broker.health().reason)
    broker.publish("t", [Draft(b"after")]).result(30)
    assert missing([*answered, b"after"], drain(broker)) == []
    broker.close()


def test_a_full_disk_and_a_killed_broker_lose_nothing_that_was_answered(small_disk: Path, tmp_path: Path) -> None:
    broker, answered = open_broker(small_disk / "data"), list[bytes]()
    create(broker)
    publish_until_refused(broker, answered)
    shutil.copytree(small_disk / "data", tmp_path / "copy")
    with suppress(Unavailable):
        broker.close()
    again = open_broker(tmp_path / "copy")
    assert missing(answered, drain(again)) == []
    again.close()


def test_a_broker_starts_on_a_full_disk_and_tells_what_it_has(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(1_000_000))
    broker, answered = open_broker(small_disk / "data"), list[bytes]()
    create(broker)
    publish_until_refused(broker, answered)
    with suppress(Unavailable):
        broker.close()
    ballast.write_bytes(bytes(1_000_000 + _free_bytes(small_disk)))
    again = open_broker(small_disk / "data")
    assert again.get_topic("t").next_sequence > len(answered)
    with suppress(Unavailable):
        again.publish("t", [Draft(os.urandom(100_000))]).result(30)
    ballast.unlink()
    until(lambda: not again.health().reason)
    assert missing(answered, drain(again)) == []
    again.close()


def _free_bytes(place: Path) -> int:
    state = os.statvfs(place)
    return state.f_bavail * state.f_frsize


# ── a write that ends half way ──────────────────────────────────────────────────────────────────────────────────────

_LIMITED = """
import os, resource, sys
from pathlib import Path
from heliograph.errors import Unavailable
from tests.store.facts import until
from tests.store import test_faults as faults

directory, checkpoints = Path(sys.argv[1]), sys.argv[2] == "True"
if checkpoints:
    faults.sqlite.CHECKPOINT_BYTES_MIN = 10_000
broker, answered = faults.open_broker(directory), []
faults.create(broker)
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
for limit in (200_001, 333_333, 1_000_003, 5_000_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    reason = faults.publish_until_refused(broker, answered)
    print(limit, len(answered), reason, flush=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    until(lambda: not broker.health().reason)
    broker.publish("t", [faults.Draft(b"after %d" % limit)]).result(30)
    answered.append(b"after %d" % limit)
if checkpoints:
    print("checkpoints", broker._store._writing.checkpoint_bytes > 0)
if len(answered) % 2:
    broker.close()
    broker = faults.open_broker(directory)
assert faults.missing(answered, faults.drain(broker)) == []
os._exit(0)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
@pytest.mark.parametrize("checkpoints", [False, True], ids=["", "while checkpoints happen"])
def test_writes_that_end_half_way_lose_nothing_that_was_answered(tmp_path: Path, checkpoints: bool) -> None:
    """The system refuses what would make a file too long, after it wrote the part that fits."""
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(tmp_path), str(checkpoints)],
        capture_output=True,
        text=True,
        env=environment,
        timeout=50,
        check=False,
    )
    assert (done.returncode, done.stderr.count("Traceback")) == (0, 0), done.stdout + done.stderr


# ── a disk that does not confirm ────────────────────────────────────────────────────────────────────────────────────

_UNCONFIRMED = """
import os, sys
from pathlib import Path
from tests.store.facts import until
from tests.store import test_faults as faults

directory, switch = Path(sys.argv[1]), Path(os.environ["FSYNC_FAILS"])
broker, answered = faults.open_broker(directory), []
faults.create(broker)
for round in range(3):
    for number in range(20):
        answered.append(b"%d of %d" % (number, round))
        broker.publish("t", [faults.Draft(answered[-1])]).result(30)
    switch.touch()
    refused = []
    reason = faults.publish_until_refused(broker, refused, most=1)
    assert not refused and broker.health().reason == reason
    print(reason, flush=True)
    switch.unlink()
    until(lambda: not broker.health().reason)
broker.publish("t", [faults.Draft(b"after")]).result(30)
print("reached", broker._store.commits > 60)
os._exit(0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs LD_PRELOAD")
def test_an_fsync_that_fails_is_no_answer_and_nothing_answered_before_or_after_is_lost(tmp_path: Path) -> None:
    """The real one of the system, for which a shared library is put."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    library, root = tmp_path / "failing_fsync.so", Path(__file__).parents[2]
    source = Path(__file__).with_name("failing_fsync.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)]),
        "LD_PRELOAD": str(library),
        "FSYNC_FAILS": str(tmp_path / "switch"),
    }
    done = subprocess.run(
        [sys.executable, "-c", _UNCONFIRMED, str(tmp_path / "data")],
        capture_output=True,
        text=True,
        env=environment,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("I/O error") == 3, done.stdout
    expected = [b"%d of %d" % (number, round) for round in range(3) for number in range(20)] + [b"after"]
    again = open_broker(tmp_path / "data")
    assert missing(expected, drain(again)) == []
    again.close()
