"""`heliograph serve` with a configuration file, with the environment of the official emulator's wrappers, and on the
addresses that clients use."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from heliograph.cli.failure import Failure
from heliograph.cli.serve import serve as start_serving
from tests.cli.conftest import SECONDS_MAX, Run, Start

CONFIG = """
[server]
port = 0
data_dir = "data"
project = "shop"

[[topics]]
name = "orders"

[[subscriptions]]
name = "billing"
topic = "orders"
ack_deadline_seconds = 60

[[queues]]
name = "thumbnails"
"""


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no ::1")


def get(port: int, path: str, host: str = "127.0.0.1") -> Any:
    with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=30) as answer:
        return json.load(answer)


@pytest.mark.slow
def test_what_the_file_asks_for_exists_at_the_start_and_stays_as_it_is_later(serve: Start, tmp_path: Path) -> None:
    (tmp_path / "heliograph.toml").write_text(CONFIG)
    server = serve()
    names = [one["name"] for one in get(server.port, "/v1/projects/shop/subscriptions")["subscriptions"]]
    assert names == ["projects/shop/subscriptions/billing"]
    server.stop(signal.SIGTERM)
    assert (tmp_path / "data" / "heliograph.db").is_file()
    (tmp_path / "other.toml").write_text(CONFIG.replace("= 60", "= 20"))
    again = serve("--config", "other.toml")
    kept = get(again.port, "/v1/projects/shop/subscriptions/billing")
    _, _, err = again.stop(signal.SIGTERM)
    assert kept["ackDeadlineSeconds"] == 60
    assert (
        "subscriptions[0] (billing): projects/shop/subscriptions/billing exists already and stays as it is, although "
        "its ack_deadline_seconds is 60, not 20"
    ) in err


def test_a_field_that_is_none_is_told_before_anything_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "heliograph.toml").write_text(CONFIG.replace("topic = ", "topc = "))
    with pytest.raises(Failure) as caught:
        start_serving()
    assert str(caught.value) == "heliograph.toml:12: subscriptions[0] (billing): unknown key topc"
    assert caught.value.exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["heliograph.toml"]


@pytest.mark.parametrize("arguments", [(), ("--config", "heliograph.toml")])
def test_a_file_that_nobody_asked_for_is_told_of(heliograph: Run, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    (tmp_path / "heliograph.toml").write_text(CONFIG.replace("= 60", "= 5"))  # refused, so that it ends at once
    told = "configured by the heliograph.toml of this directory" in heliograph("serve", *arguments).stderr
    assert told is not bool(arguments)


@pytest.mark.slow
def test_what_the_broker_refuses_is_one_line_with_its_line_and_exit_code_2(heliograph: Run, tmp_path: Path) -> None:
    (tmp_path / "heliograph.toml").write_text(CONFIG.replace("= 60", "= 5"))
    ran = heliograph("serve")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.splitlines()[-1] == (
        "heliograph: heliograph.toml:10: subscriptions[0] (billing): Invalid ack deadline given (ack_deadline=5). The "
        "ack deadline must be between 10 and 600 seconds."
    )


@pytest.mark.slow
def test_the_environment_of_the_emulators_wrappers_and_lenient_names_work(
    serve: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PUBSUB_PROJECT1", "p,t:s")
    server = serve("--store", "memory", "--lenient", "--project", "unused")
    assert get(server.port, "/v1/projects/p/topics/t/subscriptions") == {
        "subscriptions": ["projects/p/subscriptions/s"]
    }


@needs_ipv6
@pytest.mark.slow
def test_it_listens_on_both_loopback_addresses_unless_told_otherwise(serve: Start) -> None:
    server = serve("--store", "memory")
    for host in ("127.0.0.1", "[::1]"):
        assert get(server.port, "/healthz", host)["status"] == "ok"


@needs_ipv6
@pytest.mark.slow
def test_the_official_client_finds_it_at_an_ipv6_address(serve: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PUBSUB_PROJECT1", "p,topic-1")
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as free:
        port = free.getsockname()[1]
    serve("--store", "memory", host_port=f"[::1]:{port}")
    program = (
        "from google.cloud import pubsub_v1; publisher = pubsub_v1.PublisherClient(); "
        "print([topic.name for topic in publisher.list_topics(project='projects/p', timeout=20)])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PUBSUB_EMULATOR_HOST": f"[::1]:{port}"},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert ran.stdout == "['projects/p/topics/topic-1']\n", ran.stderr
