"""`store check`: what is sound passes, and every damage is told with what it affects."""

from __future__ import annotations

import random
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from heliograph.broker.broker import LocalBroker
from heliograph.engine.facts import MessagesAcknowledged
from heliograph.errors import StoreRefused
from heliograph.store.findings import FINDINGS_MAX, CheckReport, Finding
from heliograph.store.inspection import stats
from heliograph.store.sqlite import SqliteStore
from heliograph.store.verification import check
from tests.store import directories
from tests.store.directories import contents, edit, fill, flip, make, offset_of, payload, root_page


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return make(tmp_path / "data")


@pytest.fixture
def file(data_dir: Path) -> Path:
    return data_dir / "heliograph.db"


def the_one(report: CheckReport) -> Finding:
    assert len(report.findings) == 1, report.findings
    return report.findings[0]


def of_messages(report: CheckReport) -> list[tuple[str, int, int, list[str]]]:
    """Which messages are lost, and who holds them."""
    return [
        (finding.topic, finding.first_sequence, finding.last_sequence, finding.subscriptions)
        for finding in report.findings
        if finding.where == "messages" and finding.first_sequence
    ]


# ── what is sound ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_sound_store_has_no_findings_and_is_counted(data_dir: Path) -> None:
    report = check(data_dir)
    assert report.is_sound
    assert report.not_checked == []
    counted = (report.format_version, report.messages, report.message_rows, report.topics, report.subscriptions)
    assert counted == (1, 2_000, 20, 2, 2)


@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_check_leaves_every_file_as_it_was(tmp_path: Path, checkpoint: bool) -> None:
    data_dir = make(tmp_path / "data", checkpoint=checkpoint)
    before = contents(data_dir)
    assert check(data_dir).is_sound
    assert contents(data_dir) == before


def test_what_a_killed_broker_left_is_sound_and_left_as_it_was(tmp_path: Path) -> None:
    data_dir = directories.killed(tmp_path / "data", tmp_path / "killed")
    before = contents(data_dir)
    report = check(data_dir)
    assert (report.is_sound, report.messages) == (True, 2_000)
    assert contents(data_dir) == before


def test_a_store_whose_messages_were_trimmed_is_sound(data_dir: Path) -> None:
    store = SqliteStore(data_dir)
    assert list(store.recover())
    store.trim(1, 150)
    store.close()
    report = check(data_dir)
    assert (report.is_sound, report.messages) == (True, 1_900)


def test_an_empty_store_is_sound(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "data").close()
    assert check(tmp_path / "data").is_sound


def test_a_broker_may_serve_meanwhile(tmp_path: Path) -> None:
    broker = LocalBroker(SqliteStore(tmp_path / "data"))
    fill(broker)
    report = check(tmp_path / "data")
    assert (report.in_use, report.is_sound, report.messages) == (True, True, 2_000)
    broker.publish("a", [directories.Draft(b"more")]).result()
    assert check(tmp_path / "data").messages == 2_001
    broker.close()


def test_a_stopped_directory_is_kept_from_brokers_meanwhile(data_dir: Path) -> None:
    refused: list[str] = []

    def look(_step: str, _done: int, _total: int | None) -> None:
        if not refused:
            with pytest.raises(StoreRefused) as caught:
                SqliteStore(data_dir)
            refused.append(caught.value.message)

    assert check(data_dir, progress=look).is_sound
    assert "in use" in refused[0]
    SqliteStore(data_dir).close()


# ── what is refused ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_not_a_store_is_refused_and_gets_no_lock(tmp_path: Path) -> None:
    (tmp_path / "heliograph.db").write_bytes(b"something else" * 100)
    with pytest.raises(StoreRefused, match="is not a Heliograph store"):
        check(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["heliograph.db"]


@pytest.mark.parametrize("name", ["missing", "empty", "file"])
def test_a_directory_without_a_store_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreRefused, match="There is no Heliograph store in"):
        check(tmp_path / name)


def test_a_newer_store_is_refused(data_dir: Path, file: Path) -> None:
    edit(file, "PRAGMA user_version = 99")
    with pytest.raises(StoreRefused, match="made by a newer Heliograph"):
        check(data_dir)


# ── flipped bytes ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_flipped_byte_in_a_message_names_topic_sequences_and_holders(data_dir: Path, file: Path) -> None:
    flip(file, offset_of(file, payload("b", 420)))
    finding = the_one(check(data_dir))
    assert (finding.where, finding.problem) == ("messages", "checksum mismatch")
    assert (finding.topic, finding.first_sequence, finding.last_sequence) == ("b", 401, 500)
    assert finding.affects == "subscriptions that have not acknowledged all of them: b-reader"


def test_a_flipped_byte_in_what_everybody_has_acknowledged_affects_no_subscription(data_dir: Path, file: Path) -> None:
    flip(file, offset_of(file, payload("a", 42)))
    report = check(data_dir)
    assert of_messages(report) == [("a", 1, 100, [])]
    assert the_one(report).affects == "no subscription: it was kept for readers of the topic's log only"


def test_a_flipped_byte_in_leased_messages_is_their_holders_affair(data_dir: Path, file: Path) -> None:
    flip(file, offset_of(file, payload("a", 250)))
    assert of_messages(check(data_dir)) == [("a", 201, 300, ["a-reader"])]


def test_a_flipped_byte_in_the_journal_names_its_row(data_dir: Path, file: Path) -> None:
    flip(file, offset_of(file, b"b-reader"))
    report = check(data_dir)
    finding = the_one(report)
    assert (finding.where, finding.problem) == ("journal", "row 4: checksum mismatch")
    assert finding.affects == "what was committed there is not known any more, so no broker can start with this file"
    assert report.not_checked == ["the state of topics and subscriptions, since the journal is damaged"]


def test_a_damaged_index_costs_no_message(data_dir: Path, file: Path) -> None:
    flip(file, root_page(file, "messages_by_sequence"), bits=0xFF)
    finding = the_one(check(data_dir))
    assert finding.where == "index"
    assert finding.affects.startswith("no message: all of them are whole")


def test_a_damaged_index_is_mended_by_building_it_anew(data_dir: Path, file: Path) -> None:
    flip(file, root_page(file, "messages_by_sequence") + directories.PAGE_BYTES - 3)  # in its first entry
    assert the_one(check(data_dir)).where == "index"
    edit(file, "REINDEX")
    assert check(data_dir).is_sound


def test_a_page_of_the_table_that_cannot_be_read_names_the_messages_of_all_its_rows(data_dir: Path, file: Path) -> None:
    flip(file, root_page(file, "messages"), bits=0xFF)
    lost = of_messages(check(data_dir))
    assert sorted((topic, first, last) for topic, first, last, _ in lost) == [
        (topic, first, first + 99) for topic in ("a", "b") for first in range(1, 1_000, 100)
    ]


def test_a_flipped_byte_among_free_pages_affects_nothing(data_dir: Path, file: Path) -> None:
    edit(file, "CREATE TABLE t (x); INSERT INTO t VALUES (zeroblob(20000)); DROP TABLE t;")
    flip(file, 39, bits=0x01)  # the header's count of free pages
    finding = the_one(check(data_dir))
    assert (finding.where, finding.affects) == (
        "pages",
        "no message and nothing of the journal: only how free space is kept",
    )


def test_a_file_that_cannot_be_opened_at_all_is_a_finding(data_dir: Path, file: Path) -> None:
    flip(file, 100, bits=0xFF)  # the first page's kind
    report = check(data_dir)
    assert the_one(report).where == "file"
    assert the_one(report).affects == "everything: restore it from a backup"


def everything(file: Path) -> object:
    """All that the file says; or that it cannot be read."""
    queries = (
        "SELECT * FROM journal ORDER BY position",
        "SELECT * FROM messages NOT INDEXED ORDER BY id",
        "SELECT * FROM trims",
        "SELECT id, topic_number, first_sequence, last_sequence FROM messages INDEXED BY messages_by_sequence "
        "ORDER BY topic_number, last_sequence",
        "PRAGMA auto_vacuum",
    )
    try:
        with closing(sqlite3.connect(file.absolute().as_uri() + "?immutable=1", uri=True)) as connection:
            return [connection.execute(query).fetchall() for query in queries]
    except sqlite3.Error as error:
        return error


@pytest.mark.parametrize("seed", range(4))
def test_a_flipped_byte_anywhere_is_found_or_changes_nothing(data_dir: Path, file: Path, seed: int) -> None:
    chance = random.Random(seed)
    whole, said = file.read_bytes(), everything(file)
    for _ in range(40):
        page = chance.randrange(len(whole) // PAGES_OF)
        # where pages say what they hold a flip does most; most of the rest is bodies
        offset = page * PAGES_OF + chance.choice([chance.randrange(16), chance.randrange(200), chance.randrange(4096)])
        flip(file, offset, bits=1 << chance.randrange(8))
        try:
            found = not check(data_dir).is_sound
        except StoreRefused:
            found = True
        assert found or everything(file) == said, f"byte {offset}"
        file.write_bytes(whole)


PAGES_OF = directories.PAGE_BYTES


# ── rows that are not there, or too often ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("checkpoint", [False, True])
def test_messages_that_are_held_and_missing_are_found(tmp_path: Path, checkpoint: bool) -> None:
    data_dir = make(tmp_path / "data", checkpoint=checkpoint)
    edit(data_dir / "heliograph.db", "DELETE FROM messages WHERE topic_number = 3 AND first_sequence IN (501, 901)")
    report = check(data_dir)
    assert of_messages(report) == [("b", 501, 600, ["b-reader"]), ("b", 901, 1000, ["b-reader"])]
    assert {finding.problem for finding in report.findings} == {"they are missing"}


def test_messages_trimmed_while_they_are_held_are_found(tmp_path: Path) -> None:
    data_dir = make(tmp_path / "data", checkpoint=True)
    store = SqliteStore(data_dir)
    assert list(store.recover())
    store.trim(1, 301)  # 201 to 300 are leased
    store.close()
    assert of_messages(check(data_dir)) == [("a", 201, 300, ["a-reader"])]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("DELETE FROM journal WHERE position = 5", "row 5 is missing"),
        ("DELETE FROM journal WHERE position IN (1, 2)", "rows 1 to 2 are missing"),
        ("DELETE FROM journal", "it knows messages of topic number 1 up to 0 only"),
        ("UPDATE journal SET body = x'90' WHERE position = 7", "row 7: checksum mismatch"),
        ("UPDATE journal SET checksum = 'x' WHERE position = 7", "row 7: checksum mismatch"),
    ],
)
def test_a_journal_with_a_hole_is_found(data_dir: Path, file: Path, change: str, problem: str) -> None:
    edit(file, change)
    findings = [finding for finding in check(data_dir).findings if finding.where == "journal"]
    assert findings[0].problem == problem


def test_a_journal_of_an_earlier_time_is_found(data_dir: Path, file: Path) -> None:
    edit(file, "DELETE FROM journal WHERE position > 22")
    report = check(data_dir)
    assert {finding.where for finding in report.findings} == {"journal"}
    assert {finding.topic for finding in report.findings} == {"a", "b"}


def test_messages_stored_twice_are_found(data_dir: Path, file: Path) -> None:
    store = SqliteStore(data_dir)
    store.close()
    edit(
        file,
        "INSERT INTO messages SELECT 100, topic_number, first_sequence, last_sequence + 1, newest_publish_time_ns, "
        "checksum, body FROM messages WHERE id = 3",
    )
    assert not check(data_dir).is_sound


def test_a_wrong_note_of_a_publish_time_is_found(data_dir: Path, file: Path) -> None:
    edit(file, "UPDATE messages SET newest_publish_time_ns = 5 WHERE topic_number = 1 AND first_sequence = 301")
    finding = the_one(check(data_dir))
    assert finding.affects == "they can be read, but may leave earlier or later than their retention says"
    assert (finding.topic, finding.first_sequence, finding.last_sequence) == ("a", 301, 400)


def test_a_damaged_trim_is_found(data_dir: Path, file: Path) -> None:
    edit(file, "INSERT INTO trims VALUES (1, 500, 0)")
    finding = the_one(check(data_dir))
    assert (finding.where, finding.problem) == ("trims", "of topic a: checksum mismatch")


def test_a_damaged_trim_is_not_taken_for_missing_messages(data_dir: Path, file: Path) -> None:
    store = SqliteStore(data_dir)
    assert list(store.recover())
    store.trim(1, 150)
    store.close()
    edit(file, "UPDATE trims SET checksum = 5")
    assert [finding.where for finding in check(data_dir).findings] == ["trims"]


def test_a_journal_that_leads_to_no_state_is_found(data_dir: Path) -> None:
    store = SqliteStore(data_dir)
    assert list(store.recover())
    store.append([MessagesAcknowledged("nobody", [1])]).wait()
    store.close()
    finding = the_one(check(data_dir))
    assert (finding.where, finding.affects) == ("state", "no broker can start with this file")


def test_very_many_damages_are_counted_not_listed(tmp_path: Path) -> None:
    broker = LocalBroker(SqliteStore(tmp_path / "data", durability="none"))
    fill(broker, batches=FINDINGS_MAX)
    broker.close()
    edit(tmp_path / "data" / "heliograph.db", "UPDATE messages SET checksum = 1")
    report = check(tmp_path / "data")
    assert (len(report.findings), report.findings_left_out) == (FINDINGS_MAX, FINDINGS_MAX)


# ── the write-ahead log ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_flipped_byte_in_the_log_is_not_taken_for_its_end(tmp_path: Path) -> None:
    data_dir = directories.killed(tmp_path / "data", tmp_path / "killed")
    log = data_dir / "heliograph.db-wal"
    flip(log, offset_of(log, payload("a", 450)))
    finding = check(data_dir).findings[0]
    assert finding.where == "log"
    assert finding.affects == "commits that were answered may be missing, and nothing else in the file tells which"


def test_a_log_that_ends_in_the_middle_of_a_commit_is_sound(tmp_path: Path) -> None:
    data_dir = directories.killed(tmp_path / "data", tmp_path / "killed")
    log = data_dir / "heliograph.db-wal"
    log.write_bytes(log.read_bytes()[:-5_000])
    assert check(data_dir).is_sound


# ── beside a broker of this process ─────────────────────────────────────────────────────────────────────────────────


def _another_program_looks(file: Path) -> None:
    program = f"import sqlite3\nsqlite3.connect({str(file)!r}).execute('SELECT * FROM journal').fetchall()"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)


@pytest.mark.parametrize("look", [check, stats])
def test_a_look_beside_a_broker_leaves_its_locks_on_the_file(tmp_path: Path, look: Callable[[Path], object]) -> None:
    broker = LocalBroker(SqliteStore(tmp_path / "data"))
    fill(broker)
    look(tmp_path / "data")
    _another_program_looks(tmp_path / "data" / "heliograph.db")
    broker.publish("a", [directories.Draft(b"more")]).result()
    assert broker.log_bounds("a") == (1, 1_001)
    broker.close()
