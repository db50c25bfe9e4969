from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import HELIOGRAPH, SECONDS_MAX, Run, Serve, Start, environment
from tests.portions import quick_first


def lines(text: str) -> list[str]:
    return text.splitlines()


def healthz(port: int) -> dict[str, str]:
    """What the server says of itself."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", "/healthz")
    answer: dict[str, str] = json.load(connection.getresponse())
    connection.close()
    return answer


def the_one_line(ran: subprocess.CompletedProcess[str]) -> str:
    """What a command that failed says: one line, on standard error."""
    assert ran.stdout == ""
    assert len(lines(ran.stderr)) == 1, ran.stderr
    return lines(ran.stderr)[0]


def test_the_readiness_line_names_the_port_that_answers(serve: Start) -> None:
    server = serve("--store", "memory")
    assert healthz(server.port)["status"] == "ok"


@pytest.mark.parametrize("number", quick_first([signal.SIGINT, signal.SIGTERM], 1))
def test_a_signal_ends_it_in_order(serve: Start, number: signal.Signals) -> None:
    server = serve("--store", "memory")
    code, out, _ = server.stop(number)
    assert (code, out) == (0, "")


def test_it_ends_with_its_standard_input_when_told_to(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*HELIOGRAPH, "serve", "--port", "0", "--store", "memory", "--end-with-stdin"],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert healthz(Serve(process).port)["status"] == "ok"
        process.communicate("said\n", timeout=SECONDS_MAX)  # and closes it
    assert process.returncode == 0


def test_it_says_where_the_data_are(serve: Start, tmp_path: Path) -> None:
    server = serve("--data-dir", "data")
    _, _, err = server.stop(signal.SIGTERM)
    assert err.endswith(
        f"keeping data in {tmp_path / 'data'}, durability full: an answer survives a killed process and a power cut\n"
    )


@pytest.mark.slow
def test_the_durability_that_was_asked_for_is_told_at_the_start_and_by_healthz(serve: Start) -> None:
    server = serve("--data-dir", "data", "--durability", "none", "--memory-budget", "64MB")
    answer = healthz(server.port)
    _, _, err = server.stop(signal.SIGTERM)
    assert "durability none: an answer survives a killed process; a power cut may destroy the file" in err
    assert (answer["store"], answer["durability"]) == ("sqlite", "none")


@pytest.mark.slow
def test_healthz_says_nothing_of_where_the_data_are(serve: Start, tmp_path: Path) -> None:
    server = serve("--data-dir", "data")
    assert str(tmp_path) not in json.dumps(healthz(server.port))


@pytest.mark.slow
def test_without_a_directory_named_the_data_are_in_heliograph_data(serve: Start, tmp_path: Path) -> None:
    serve().stop(signal.SIGTERM)
    assert [path.name for path in tmp_path.iterdir()] == ["heliograph-data"]


@pytest.mark.slow
def test_a_memory_store_leaves_nothing_behind(serve: Start, tmp_path: Path) -> None:
    serve("--store", "memory").stop(signal.SIGTERM)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_an_address_that_others_reach_is_warned_of(serve: Start) -> None:
    server = serve("--store", "memory", "--host", "0.0.0.0")
    _, _, err = server.stop(signal.SIGTERM)
    assert "0.0.0.0 is reachable from other machines" in err


def test_a_taken_port_is_one_line_and_nothing_is_written(heliograph: Run, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        ran = heliograph("serve", "--port", str(port))
    assert ran.returncode == 3
    assert the_one_line(ran) == (
        f"heliograph: port {port} on localhost is taken: end the program that uses it, or choose another with --port "
        "(0 = a free one)"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_an_address_of_another_machine_is_one_line(heliograph: Run) -> None:
    ran = heliograph("serve", "--port", "0", "--host", "192.0.2.1")  # reserved for documentation: nobody has it
    assert ran.returncode == 3
    assert "192.0.2.1 is not an address of this machine" in the_one_line(ran)


def test_a_file_in_place_of_the_data_directory_is_one_line(heliograph: Run, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("mine")
    ran = heliograph("serve", "--port", "0", "--data-dir", "data")
    assert ran.returncode == 4
    assert the_one_line(ran) == (f"heliograph: {tmp_path / 'data'} is not a directory: choose another data directory")
    assert (tmp_path / "data").read_text() == "mine"


@pytest.mark.slow
def test_a_data_directory_that_cannot_be_made_is_one_line(heliograph: Run) -> None:
    ran = heliograph("serve", "--port", "0", "--data-dir", "/proc/heliograph-data")  # closed to root as well
    assert ran.returncode == 4
    assert "/proc/heliograph-data cannot be used" in the_one_line(ran)


@pytest.mark.slow
def test_data_of_a_newer_version_are_refused_and_left_untouched(heliograph: Run, serve: Start, tmp_path: Path) -> None:
    serve("--data-dir", "data").stop(signal.SIGTERM)
    file = tmp_path / "data" / "heliograph.db"
    newer = bytearray(file.read_bytes())
    newer[60:64] = (999).to_bytes(4, "big")  # SQLite's user_version: the format of the file
    file.write_bytes(newer)
    ran = heliograph("serve", "--port", "0", "--data-dir", "data")
    assert ran.returncode == 4
    assert "was made by a newer Heliograph" in the_one_line(ran)
    assert file.read_bytes() == newer


@pytest.mark.slow
def test_somebody_elses_file_is_refused_and_left_untouched(heliograph: Run, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    file = tmp_path / "data" / "heliograph.db"
    file.write_bytes(b"not a database at all" * 100)
    ran = heliograph("serve", "--port", "0", "--data-dir", "data")
    assert ran.returncode == 4
    assert "is not a Heliograph store" in the_one_line(ran)
    assert file.read_bytes() == b"not a database at all" * 100


@pytest.mark.slow
def test_a_data_directory_in_use_is_one_line(heliograph: Run, serve: Start) -> None:
    serve("--data-dir", "data")
    ran = heliograph("serve", "--port", "0", "--data-dir", "data")
    assert ran.returncode == 4
    assert "is in use by another broker" in the_one_line(ran)


@pytest.mark.parametrize(
    "arguments",
    quick_first(
        [
            ("--port", "70000"),
            ("--store", "tape"),
            ("--store", "memory", "--data-dir", "data"),
            ("--store", "memory", "--durability", "full"),
            ("--store", "memory", "--memory-budget", "1GB"),
            ("--durability", "some"),
            ("--memory-budget", "much"),
            ("--event-retention", "long"),
            ("--memory-budget", "0"),
            ("--no-such-option",),
        ],
        2,
    ),
)
def test_wrong_usage_has_its_own_exit_code(heliograph: Run, arguments: tuple[str, ...]) -> None:
    assert heliograph("serve", *arguments).returncode == 2


@pytest.mark.slow
def test_the_test_hooks_are_off_unless_asked_for_and_take_nothing_away(serve: Start) -> None:
    assert _status(serve("--store", "memory").port, "/admin/v1/clock") == 404
    for arguments in (("--store", "memory"), ("--data-dir", "data")):
        server = serve(*arguments, "--admin-test-hooks")
        assert _status(server.port, "/admin/v1/clock") == 200
        assert _status(server.port, "/api/v1/events/bounds") == 200
        _, _, err = server.stop(signal.SIGTERM)
        assert "whoever reaches them can empty this broker" in err


def _status(port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", path)
    status = connection.getresponse().status
    connection.close()
    return status
