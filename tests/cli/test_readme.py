from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import SECONDS_MAX, Start, environment

README = Path(__file__).parents[2] / "README.md"


def test_the_readmes_example_says_what_the_readme_says(serve: Start) -> None:
    found = re.search(r"<<'END'\n(.+?)END\n(.+?)```", README.read_text(), re.DOTALL)
    assert found is not None
    program, output = found.groups()
    server = serve("--store", "memory")
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**environment(), "PUBSUB_EMULATOR_HOST": f"127.0.0.1:{server.port}"},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert (ran.stdout, ran.returncode) == (output, 0), ran.stderr


def test_the_readmes_programs_without_a_server_run() -> None:
    programs = re.findall(r"```python\n(.+?)```", README.read_text(), re.DOTALL)
    ran = [
        subprocess.run(
            [sys.executable, "-c", program], env=environment(), capture_output=True, text=True, timeout=SECONDS_MAX
        )
        for program in programs
    ]
    printed = ["handled {'id': 1, 'item': 'lamp'}\n", "b'hello' {'language': 'en'}\n", "done {'video': 17}\n"]
    assert [(run.stdout, run.stderr) for run in ran] == [(text, "") for text in printed]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_readmes_example_with_curl_answers_what_the_readme_says(serve: Start, tmp_path: Path) -> None:
    found = re.search(r"```console\n(\$ curl.+?)```", README.read_text(), re.DOTALL)
    assert found is not None
    server = serve("--store", "memory")
    for step in found[1].removeprefix("$ ").split("\n$ "):
        command, _, output = step.strip().partition("\n")
        assert "localhost:8085" in command
        ran = subprocess.run(
            command.replace("localhost:8085", f"localhost:{server.port}"),
            shell=True,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
        )
        assert (ran.stdout.strip(), ran.stderr, ran.returncode) == (output, "", 0)
