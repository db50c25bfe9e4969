"""What needs a terminal or a shell: `heliograph top` on a whole screen, and completion."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time

import pytest

from heliograph.testing import Server
from tests.cli.conftest import HELIOGRAPH, SECONDS_MAX, environment

ALTERNATE_SCREEN, NORMAL_SCREEN = b"\x1b[?1049h", b"\x1b[?1049l"


def read_until(terminal: int, wanted: bytes) -> bytes:
    """What a terminal shows, up to and with `wanted`."""
    seen, ends = b"", time.monotonic() + SECONDS_MAX
    while wanted not in seen:
        ready, _, _ = select.select([terminal], [], [], max(ends - time.monotonic(), 0))
        assert ready, f"{wanted!r} did not come after {seen[-500:]!r}"
        seen += os.read(terminal, 65536)
    return seen


def test_top_fills_the_screen_until_q_is_pressed_and_then_gives_it_back() -> None:
    ours, theirs = pty.openpty()
    with Server() as server:
        process = subprocess.Popen(
            [*HELIOGRAPH, "top", "--server", f"{server.host}:{server.port}", "--interval", "0.2"],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**environment(), "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "30"},
        )
        os.close(theirs)
        try:
            first = read_until(ours, b"outstanding")
            assert ALTERNATE_SCREEN in first
            read_until(ours, b"outstanding")  # it goes on by itself
            os.write(ours, b"q")
            read_until(ours, NORMAL_SCREEN)
            assert process.wait(SECONDS_MAX) == 0
        finally:
            process.kill()
            process.wait()
            os.close(ours)


@pytest.mark.parametrize(
    ("typed", "index", "offered"),
    [("heliograph que", 1, ["queue"]), ("heliograph queue p", 2, ["publish", "peek", "purge"])],
)
def test_a_shell_is_told_how_a_command_goes_on(typed: str, index: int, offered: list[str]) -> None:
    ran = subprocess.run(
        HELIOGRAPH,
        env={**environment(), "_HELIOGRAPH_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(index)},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert (ran.stdout.split(), ran.returncode) == (offered, 0), ran.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell_asks_the_program_itself(shell: str) -> None:
    ran = subprocess.run(
        [*HELIOGRAPH, "completion", shell], env=environment(), capture_output=True, text=True, timeout=SECONDS_MAX
    )
    assert (ran.returncode, "_HELIOGRAPH_COMPLETE" in ran.stdout) == (0, True)
