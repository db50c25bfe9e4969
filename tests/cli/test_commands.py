"""The commands that work with a broker: what they print, as a person and as a script see it, and how they end."""

from __future__ import annotations

import functools
import io
import json
import re
import socket
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
import typer.main

from heliograph.broker.broker import LocalBroker
from heliograph.cli.main import main
from heliograph.engine.message import Draft
from heliograph.testing import Server
from tests.server.conftest import serving

TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z| UTC|\+00:00)?")


made_once = functools.cache(typer.main.get_command)
"""The commands as Typer makes them of their functions: in one process that takes longer than running them."""


class Ran(NamedTuple):
    """What a command did: its exit code, and what it said, with every instant as TIME."""

    code: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


@pytest.fixture
def run_anywhere(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `heliograph …` in this process, as its entry point would."""
    monkeypatch.setattr("typer.main.get_command", made_once)

    def run(*arguments: str, stdin: str = "") -> Ran:
        monkeypatch.setattr(sys, "argv", ["heliograph", *arguments])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int | None)
        return Ran(code or 0, TIME.sub("TIME", captured.out), captured.err)

    return run


@pytest.fixture
def run(run_anywhere: Run, server: Server, monkeypatch: pytest.MonkeyPatch) -> Run:
    """As `run_anywhere`, against a server of the test's own."""
    monkeypatch.setenv("HELIOGRAPH_SERVER", f"{server.host}:{server.port}")
    return run_anywhere


# ── topics, publish, pull ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_topics_life(run: Run) -> None:
    assert run("topic", "create", "orders", "--label", "team=shop", "--retention", "7d") == (
        0,
        "Created projects/heliograph/topics/orders\n",
        "",
    )
    assert run("topic", "list").out == (
        "topic                              retention  labels\n"
        "projects/heliograph/topics/orders    604800s  team=shop\n"
    )
    run("subscription", "create", "billing", "--topic", "orders")
    run("topic", "update", "orders", "--label", "cost=low", "--clear-retention")
    assert run("topic", "describe", "orders").out == (
        "name           projects/heliograph/topics/orders\n"
        "labels         cost=low team=shop\n"
        "subscriptions  projects/heliograph/subscriptions/billing\n"
    )
    assert run("topic", "delete", "orders").out == "Deleted projects/heliograph/topics/orders\n"
    assert run("topic", "list") == (0, "", "")


def test_a_name_that_is_refused_tells_what_a_name_is(run: Run) -> None:
    assert run("topic", "create", "x") == (
        1,
        "",
        "heliograph: Invalid [topics] name: (name=projects/heliograph/topics/x): an id has 3 to 255 letters, digits "
        "and -_.~+%, begins with a letter, and not with goog\n",
    )


def test_reading_commands_print_json_for_scripts(run: Run) -> None:
    run("topic", "create", "orders")
    assert json.loads(run("topic", "list", "--json").out) == [
        {"name": "projects/heliograph/topics/orders", "state": "ACTIVE"}
    ]
    described = json.loads(run("topic", "describe", "orders", "--json").out)
    assert (described["name"], described["subscriptions"]) == ("projects/heliograph/topics/orders", [])


def test_publish_prints_the_ids_and_pull_the_messages(run: Run) -> None:
    run("topic", "create", "orders")
    run("subscription", "create", "billing", "--topic", "orders")
    ids = run("publish", "orders", "first", "second", "--attribute", "kind=a", "--ordering-key", "k").out.split()
    assert len(ids) == 2
    assert run("pull", "billing", "--limit", "10").out == (
        f"first  [{ids[0]}, TIME, key k, kind=a]\nsecond  [{ids[1]}, TIME, key k, kind=a]\n"
    )


def test_a_dash_publishes_standard_input_line_by_line(run: Run) -> None:
    run("topic", "create", "orders")
    run("subscription", "create", "billing", "--topic", "orders")
    lines = [f"line {number}" for number in range(1200)]
    ran = run("publish", "orders", "-", stdin="\n".join(lines) + "\n")
    assert ran == (0, "Published 1,200 messages to projects/heliograph/topics/orders\n", "")
    pulled = run("pull", "billing", "--limit", "2000", "--auto-ack", "--json").out.splitlines()
    assert [json.loads(line)["data"] for line in pulled] == lines


def test_pull_acknowledges_only_when_told(run: Run, server: Server) -> None:
    run("topic", "create", "orders")
    run("subscription", "create", "billing", "--topic", "orders")
    run("publish", "orders", "one")
    run("pull", "billing")
    server.advance(seconds=11)
    assert json.loads(run("pull", "billing", "--auto-ack", "--json").out)["data"] == "one"
    server.advance(seconds=11)
    assert run("pull", "billing") == (7, "", "")


def test_bytes_that_are_no_text_are_shown_escaped_and_in_json_as_base64(run: Run) -> None:
    run("topic", "create", "orders")
    run("subscription", "create", "billing", "--topic", "orders")
    run("publish", "orders", "\udcff!")  # how Python hands on a byte of the command line that is not UTF-8
    assert run("tail", "orders", "-n", "1", "--once").out == "\\xff!  [TIME]\n"
    assert json.loads(run("pull", "billing", "--json").out)["data_base64"] == "/yE="


def test_tail_shows_messages_without_consuming_them(run: Run) -> None:
    run("topic", "create", "orders")
    run("subscription", "create", "billing", "--topic", "orders")
    run("publish", "orders", "one", "two", "three")
    assert run("tail", "orders", "-n", "2", "--once").out == "two  [TIME]\nthree  [TIME]\n"
    assert [json.loads(line)["data"] for line in run("tail", "orders", "-n", "9", "--limit", "3", "--json").out.split()]
    assert run("pull", "billing", "--limit", "9").out.count("\n") == 3


# ── subscriptions, snapshots ────────────────────────────────────────────────────────────────────────────────────────


def test_a_subscriptions_life(run: Run) -> None:
    run("topic", "create", "orders")
    run("topic", "create", "lost")
    made = run(
        *("subscription", "create", "billing", "--topic", "orders", "--ordering", "--exactly-once"),
        *("--filter", 'attributes.kind = "order"', "--dead-letter-topic", "lost", "--max-delivery-attempts", "6"),
        *("--minimum-backoff", "5s", "--maximum-backoff", "1m", "--ack-deadline", "20", "--label", "team=shop"),
    )
    assert made == (0, "Created projects/heliograph/subscriptions/billing\n", "")
    assert run("subscription", "list", "--topic", "orders").out.splitlines()[1].split("  ")[-1] == (
        "projects/heliograph/topics/orders"
    )
    assert run("subscription", "describe", "billing").out == (
        "name             projects/heliograph/subscriptions/billing\n"
        "topic            projects/heliograph/topics/orders\n"
        "kind             pull, ordered, exactly once\n"
        "ack deadline     20 s\n"
        "retention        604800s\n"
        'filter           attributes.kind = "order"\n'
        "dead letters to  projects/heliograph/topics/lost\n"
        "after attempts   6\n"
        "backoff          5s to 60s\n"
        "labels           team=shop\n"
        "waiting          0\n"
        "outstanding      0\n"
        "acknowledged     0\n"
    )
    assert run("subscription", "detach", "billing").out == "Detached projects/heliograph/subscriptions/billing\n"
    assert run("subscription", "delete", "billing").out == "Deleted projects/heliograph/subscriptions/billing\n"


def test_seek_to_now_purges_and_to_a_snapshot_brings_back(run: Run) -> None:
    run("topic", "create", "orders")
    run("subscription", "create", "billing", "--topic", "orders")
    run("publish", "orders", "one", "two")
    assert run("snapshot", "create", "before", "--subscription", "billing").out == (
        "Created projects/heliograph/snapshots/before, kept until TIME\n"
    )
    assert run("snapshot", "list").out.splitlines()[1].startswith("projects/heliograph/snapshots/before")
    assert run("subscription", "seek", "billing", "--time", "now").out == (
        "Moved projects/heliograph/subscriptions/billing\n"
    )
    assert run("pull", "billing").code == 7
    run("subscription", "seek", "billing", "--snapshot", "before")
    assert run("pull", "billing", "--limit", "9").out.count("\n") == 2
    assert run("snapshot", "delete", "before").code == 0


def test_schemas_are_made_shown_and_applied(run: Run, tmp_path: Path) -> None:
    definition = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}
    file, good, bad = tmp_path / "order.avsc", tmp_path / "good.json", tmp_path / "bad.json"
    file.write_text(json.dumps(definition))
    good.write_text('{"id": 1}')
    bad.write_text('{"id": "x"}')
    assert run("schema", "create", "order", "--type", "avro", "--definition", str(file)).code == 0
    assert json.loads(json.loads(run("schema", "describe", "order", "--json").out)["definition"]) == definition
    assert run("schema", "validate", "order", "--message", str(good)).code == 0
    refused = run("schema", "validate", "order", "--message", str(bad))
    assert refused.code == 1
    assert "failed with status: At $" in refused.err  # and not only that something is wrong with it
    run("topic", "create", "orders", "--schema", "order")
    assert (run("publish", "orders", '{"id": 1}').code, run("publish", "orders", '{"id": "x"}').code) == (0, 1)


# ── work queues ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_queues_life(run: Run) -> None:
    assert run("queue", "create", "tasks", "--max-retries", "1", "--retry-delays", "1s,5s").out == (
        "Queue tasks is there\n"
    )
    run("queue", "publish", "tasks", '{"video": 17}', "--priority", "1")
    run("queue", "publish", "tasks", "plain words", "--priority", "9", "--header", "a=b")
    peeked = run("queue", "peek", "tasks").out
    assert re.sub(r"\[\d+", "[ID", peeked) == (
        '"plain words"  [ID, priority 9, a=b]\n{"video": 17}  [ID, priority 1]\n'
    )
    assert json.loads(run("queue", "consume", "tasks", "--auto-ack", "--json").out)["message"] == "plain words"
    assert run("queue", "list").out.splitlines()[1].split()[:3] == ["tasks", "1", "0"]
    stats = json.loads(run("queue", "stats", "tasks", "--json").out)
    assert (stats["published_total"], stats["acked_total"], stats["depth_by_priority"]) == (2, 1, {"1": 1})
    assert run("queue", "purge", "tasks", "--yes").out == "Purged 1 messages from tasks\n"
    assert run("queue", "consume", "tasks") == (7, "", "")
    assert run("queue", "delete", "tasks", "--yes").out == "Deleted tasks\n"
    assert run("queue", "list", "--json").out == "[]\n"


def test_what_cannot_be_undone_asks_or_must_be_confirmed(run: Run) -> None:
    run("queue", "create", "tasks")
    ran = run("queue", "delete", "tasks")
    assert (ran.code, ran.err) == (2, "heliograph: Delete tasks with all that it holds? Say so with --yes\n")
    assert run("queue", "list", "--json").out == '[\n  "tasks"\n]\n'


def test_dead_letters_are_listed_retried_and_purged(run: Run, server: Server) -> None:
    run("queue", "create", "tasks", "--max-retries", "0", "--ack-deadline", "1s")
    run("queue", "publish", "tasks", "poison")
    run("queue", "consume", "tasks")
    server.advance(seconds=2)
    listed = json.loads(run("dead-letter", "list", "tasks", "--json").out)["messages"]
    assert [(letter["message"], letter["reason"]) for letter in listed] == [("poison", "MaxRetriesExceeded")]
    assert "MaxRetriesExceeded" in run("dead-letter", "list", "tasks").out
    assert run("dead-letter", "retry", "tasks", listed[0]["message_id"]).out == "Put back 1 messages into tasks\n"
    run("queue", "consume", "tasks")
    server.advance(seconds=2)
    assert run("dead-letter", "purge", "tasks", "--yes").out == "Purged 1 dead letters of tasks\n"


# ── top ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_top_counts_subscriptions_and_queues(run: Run) -> None:
    run("topic", "create", "orders")
    run("subscription", "create", "billing", "--topic", "orders")
    run("queue", "create", "tasks")
    run("publish", "orders", "one", "two", "three")
    run("queue", "publish", "tasks", "work")
    run("pull", "billing")
    rows = run("top", "--once", "--interval", "0.2").out.splitlines()
    assert [re.split(r"\s{2,}", row.strip())[0:3] for row in rows if "subscription" in row or " queue" in row][-2:] == [
        ["billing", "2", "1"],
        ["tasks", "1", "0"],
    ]
    counted = json.loads(run("top", "--json").out)["subscriptions"]
    assert {each["name"]: each["published_total"] for each in counted} == {
        "projects/heliograph/subscriptions/billing": 3,
        "tasks": 1,
    }


# ── what goes wrong ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_not_there_is_code_5_and_what_is_there_already_code_6(run: Run) -> None:
    assert run("topic", "describe", "nope") == (5, "", "heliograph: Resource not found (resource=nope).\n")
    assert run("queue", "stats", "nope") == (5, "", "heliograph: Queue not found: nope\n")
    run("topic", "create", "orders")
    assert run("topic", "create", "orders") == (
        6,
        "",
        "heliograph: Resource already exists in the project (resource=orders).\n",
    )


def test_who_breaks_off_is_code_1(run_anywhere: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as pool:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{")

        pool.submit(answer)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        ran = run_anywhere("topic", "list", "--server", url)
    assert ran == (1, "", f"heliograph: the server at {url} broke off: IncompleteRead(1 bytes read, 9 more expected)\n")


def test_no_server_is_code_3_and_says_how_to_start_one(run_anywhere: Run) -> None:
    assert run_anywhere("topic", "list", "--server", "http://127.0.0.1:1") == (
        3,
        "",
        "heliograph: no server answers at http://127.0.0.1:1: start one with `heliograph serve`, or name another with "
        "--server\n",
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("topic", "create", "t", "--label", "nothing"),
        ("topic", "create", "t", "--retention", "soon"),
        ("subscription", "seek", "s"),
        ("subscription", "seek", "s", "--time", "someday"),
        ("publish", "t"),
        ("queue", "publish", "q", "m", "--priority", "10"),
        ("topic", "list", "--server", "http://x", "--data-dir", "d"),
        ("topic", "list", "--server", "ftp://x"),
        ("topic", "list", "--server", "http://x y"),
        ("topic", "list", "--server", "http://x:99999"),
    ],
)
def test_wrong_usage_is_code_2(run_anywhere: Run, arguments: tuple[str, ...]) -> None:
    assert run_anywhere(*arguments).code == 2


def test_an_answer_that_is_an_error_is_code_1_in_the_servers_words(run: Run) -> None:
    ran = run("topic", "create", "orders", "--retention", "1s")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("heliograph: The value for message retention duration is out of bounds.")


# ── on a data directory ─────────────────────────────────────────────────────────────────────────────────────────────


def test_a_data_directory_is_worked_on_without_a_server(run_anywhere: Run, tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    on = ("--data-dir", str(data_dir), "--project", "p")
    assert run_anywhere("topic", "create", "orders", *on).out == "Created projects/p/topics/orders\n"
    run_anywhere("subscription", "create", "billing", "--topic", "orders", *on)
    run_anywhere("publish", "orders", "kept", *on)
    assert json.loads(run_anywhere("pull", "billing", "--json", *on).out)["data"] == "kept"


def test_a_data_directory_that_is_not_there_is_code_4_and_not_made(run_anywhere: Run, tmp_path: Path) -> None:
    ran = run_anywhere("topic", "list", "--data-dir", str(tmp_path / "none"))
    assert (ran.code, ran.err) == (4, f"heliograph: There is no data directory {tmp_path / 'none'}\n")
    assert not (tmp_path / "none").exists()


def test_a_data_directory_that_a_server_has_open_is_code_4(run_anywhere: Run, tmp_path: Path) -> None:
    with Server(data_dir=tmp_path):
        ran = run_anywhere("topic", "list", "--data-dir", str(tmp_path))
    assert (ran.code, "in use by another broker" in ran.err) == (4, True)


# ── strange input ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_publish_that_fails_midway_tells_how_many_were_published(run: Run) -> None:
    run("queue", "create", "tasks", "--max-depth", "1200")
    ran = run("queue", "publish", "tasks", "-", stdin="x\n" * 1_300)
    assert ran.code == 1
    assert "Queue full" in ran.err
    assert "(the first 1,000 messages were published)" in ran.err
    assert json.loads(run("queue", "stats", "tasks", "--json").out)["depth"] == 1_000


def test_what_is_no_json_is_text_also_if_python_takes_it_for_json(run: Run) -> None:
    run("queue", "create", "tasks")
    lines = ["NaN", "-Infinity", "1e400", '"\\ud800"', "", '{"a": 1}', "12345678901234567890123"]
    assert run("queue", "publish", "tasks", "-", stdin="\n".join(lines) + "\n").code == 0
    peeked = json.loads(run("queue", "peek", "tasks", "--json").out)
    assert [message["message"] for message in peeked] == [*lines[:5], {"a": 1}, 12345678901234567890123]


def test_a_line_for_a_queue_that_is_no_utf_8_is_refused_by_itself(run: Run) -> None:
    run("queue", "create", "tasks")
    ran = run("queue", "publish", "tasks", "-", stdin="good\n\udcff\udcfe\n")
    assert (ran.code, ran.err) == (
        1,
        "heliograph: A message of a queue is JSON or text, and this is no UTF-8: '\\udcff\\udcfe'\n",
    )


def test_lines_far_from_ascii_go_in_requests_that_the_server_takes(run: Run) -> None:
    run("queue", "create", "tasks")
    line = "漢" * 900_000  # 2.7 MB each
    assert run("queue", "publish", "tasks", "-", stdin=f"{line}\n" * 8).code == 0
    assert run("queue", "publish", "tasks", "😀" * 2_400_000).code == 0  # 9.6 MB
    assert json.loads(run("queue", "stats", "tasks", "--json").out)["depth"] == 9


def test_tail_goes_on_with_a_topic_that_was_made_anew(run_anywhere: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "projects/test/topics/orders"
    broker = LocalBroker()
    broker.create_topic(name).result()
    broker.publish(name, [Draft(b"old")] * 3).result()
    looks = 0

    def meanwhile(_seconds: float) -> None:
        nonlocal looks
        looks += 1
        assert looks < 3, "what was published anew is not seen"
        if looks == 1:
            broker.delete_topic(name).result()
            broker.create_topic(name).result()
            broker.publish(name, [Draft(b"new")]).result()

    monkeypatch.setattr("heliograph.cli.tail.time.sleep", meanwhile)
    with serving(broker) as server:
        ran = run_anywhere("tail", name, "--limit", "1", "--server", f"http://127.0.0.1:{server.port}")
    assert (ran.code, ran.out.partition(" ")[0]) == (0, "new")
