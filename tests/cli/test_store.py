"""`heliograph store …`, as a shell would run it."""

from __future__ import annotations

import http.client
import json
import signal
from pathlib import Path

import pytest

from tests.cli.conftest import Run, Start
from tests.store.directories import contents, edit, flip, make, offset_of, payload


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """`data`, as a shell in `tmp_path` names it."""
    return make(tmp_path / "data")


def damage(data_dir: Path) -> None:
    """Messages 401 to 500 of topic b."""
    file = data_dir / "heliograph.db"
    flip(file, offset_of(file, payload("b", 420)))


def publish(port: int, queue: str, count: int) -> None:
    """Messages to a work queue, each answered."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    commands = [{"command": "queue.create", "payload": {"name": queue}}]
    commands += [{"command": "queue.publish", "payload": {"queue": queue, "message": "m" * 100}}] * count
    for command in commands:
        connection.request("POST", "/api/v1/command", json.dumps(command))
        answer = json.load(connection.getresponse())
        assert answer["success"], answer
    connection.close()


# ── check ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("data_dir")
def test_a_sound_store_is_one_line_and_code_0(heliograph: Run) -> None:
    ran = heliograph("store", "check", "data")
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout == (
        "data/heliograph.db is sound: 2,000 messages in 20 rows, 26 journal rows, 2 topics, 2 subscriptions, format 1\n"
    )


def test_a_flipped_byte_is_told_with_what_it_affects_and_is_code_1(heliograph: Run, data_dir: Path) -> None:
    damage(data_dir)
    before = contents(data_dir)
    ran = heliograph("store", "check", "data")
    assert ran.returncode == 1
    assert ran.stdout.splitlines()[:2] == [
        "messages: messages 401 to 500 of topic b: checksum mismatch",
        "  affects subscriptions that have not acknowledged all of them: b-reader",
    ]
    assert ran.stderr == (
        "heliograph: data/heliograph.db is damaged in 1 place: stop its broker, keep a copy of the directory as it is, "
        "and restore a backup\n"
    )
    assert contents(data_dir) == before


def test_a_report_is_also_had_as_json(heliograph: Run, data_dir: Path) -> None:
    damage(data_dir)
    ran = heliograph("store", "check", "data", "--json")
    report = json.loads(ran.stdout)
    (finding,) = report["findings"]
    assert (ran.returncode, ran.stderr) == (1, "")
    assert (finding["topic"], finding["first_sequence"], finding["last_sequence"]) == ("b", 401, 500)
    assert finding["subscriptions"] == ["b-reader"]


@pytest.mark.parametrize("command", ["check", "stats", "compact"])
def test_a_directory_without_a_store_is_one_line_and_code_4(heliograph: Run, tmp_path: Path, command: str) -> None:
    ran = heliograph("store", command, "nowhere")
    assert (ran.returncode, ran.stdout) == (4, "")
    assert ran.stderr == (
        "heliograph: There is no Heliograph store in nowhere: name the directory that `serve` was given\n"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_newer_store_is_one_line_and_code_4(heliograph: Run, data_dir: Path) -> None:
    edit(data_dir / "heliograph.db", "PRAGMA user_version = 99")
    ran = heliograph("store", "check", "data")
    assert ran.returncode == 4
    assert "was made by a newer Heliograph (format 99, this one knows 1)" in ran.stderr
    assert ran.stderr.count("\n") == 1


# ── stats ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("data_dir")
def test_stats_are_a_page_for_people(heliograph: Run) -> None:
    ran = heliograph("store", "stats", "data", "--subscriptions")
    lines = ran.stdout.splitlines()
    assert (ran.returncode, ran.stderr) == (0, "")
    assert lines[0] == "data/heliograph.db, format 1"
    assert [line.split() for line in lines[5:8]] == [
        ["topic", "messages", "held", "before", "size", "first", "last", "oldest", "published"],
        ["a", "1,000", "0", "134", "KB", "1", "1000", "2001-09-09", "01:46:40", "UTC"],
        ["b", "1,000", "0", "134", "KB", "1", "1000", "2001-09-09", "01:46:40", "UTC"],
    ]
    assert [line.split() for line in lines[9:]] == [
        ["subscription", "waiting", "delayed", "outstanding", "dead", "letters", "topic"],
        ["a-reader", "700", "0", "100", "0", "a"],
        ["b-reader", "1,000", "0", "0", "0", "b"],
    ]


@pytest.mark.usefixtures("data_dir")
def test_stats_are_also_had_as_json(heliograph: Run) -> None:
    found = json.loads(heliograph("store", "stats", "data", "--json").stdout)
    assert [topic["messages"] for topic in found["topics"]] == [1_000, 1_000]
    assert found["subscriptions"] is None


# ── backup and compact ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.usefixtures("data_dir")
def test_a_backup_passes_the_check_and_is_never_overwritten(heliograph: Run) -> None:
    assert heliograph("store", "backup", "data", "copy").returncode == 0
    assert heliograph("store", "check", "copy").returncode == 0
    again = heliograph("store", "backup", "data", "copy", "--json")
    assert (again.returncode, again.stdout) == (4, "")
    assert again.stderr == (
        "heliograph: copy is not empty, and was left as it is: name a directory that is missing or empty\n"
    )


@pytest.mark.slow
def test_a_server_is_backed_up_and_looked_at_while_it_serves(heliograph: Run, serve: Start, tmp_path: Path) -> None:
    server = serve("--data-dir", "data")
    publish(server.port, "orders", 20)
    made = json.loads(heliograph("store", "backup", "data", "copy", "--json").stdout)
    checked = json.loads(heliograph("store", "check", "data", "--json").stdout)
    publish(server.port, "more", 20)
    code, _, _ = server.stop(signal.SIGTERM)
    assert (code, made["in_use"], checked["in_use"], checked["findings"]) == (0, True, True, [])
    copied, original = (json.loads(heliograph("store", "check", name, "--json").stdout) for name in ("copy", "data"))
    assert (copied["messages"], copied["findings"]) == (20, [])
    assert (original["messages"], original["findings"]) == (40, [])
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == ["heliograph.db", "heliograph.lock"]


@pytest.mark.slow
def test_a_server_starts_from_a_backup(heliograph: Run, serve: Start) -> None:
    server = serve("--data-dir", "data")
    publish(server.port, "orders", 3)
    server.stop(signal.SIGTERM)
    heliograph("store", "backup", "data", "copy")
    publish(serve("--data-dir", "copy").port, "orders", 2)
    found = json.loads(heliograph("store", "stats", "copy", "--json", "--subscriptions").stdout)
    assert [subscription["waiting"] for subscription in found["subscriptions"]] == [5]


@pytest.mark.slow
@pytest.mark.usefixtures("data_dir")
def test_a_compaction_tells_the_bytes_before_and_after(heliograph: Run) -> None:
    compacted = json.loads(heliograph("store", "compact", "data", "--json").stdout)
    assert compacted["bytes_after"] < compacted["bytes_before"]
    assert heliograph("store", "compact", "data").stdout.startswith("data/heliograph.db: ")


@pytest.mark.slow
def test_a_server_is_not_compacted_while_it_serves(heliograph: Run, serve: Start) -> None:
    serve("--data-dir", "data")
    ran = heliograph("store", "compact", "data")
    assert ran.returncode == 4
    assert "is in use by another broker: stop that one" in ran.stderr
