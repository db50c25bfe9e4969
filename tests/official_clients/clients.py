"""Official clients, fetched by their own package managers and run against a broker; nothing of them is in this
repository. What was fetched and built stays in `build/official-clients`."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUILD = ROOT / "build" / "official-clients"
CLIENTS: dict[str, Any] = tomllib.loads((HERE / "clients.toml").read_text())
SET_UP_SECONDS_MAX = 400
RUN_SECONDS_MAX = 300
NO_ANSWER = re.compile(
    # how pip, npm, go and Maven tell of names that nobody knows and of connections that fail
    r"name resolution|getaddrinfo|ENOTFOUND|EAI_AGAIN|ECONNRE|ETIMEDOUT|ENETUNREACH|EHOSTUNREACH|no such host"
    r"|unknown host|UnknownHost|dial tcp|failed to establish|cannot connect to proxy|proxyerror|connection broken"
    r"|connection (was )?re(fused|set)|(connection|connect|read) timed out|i/o timeout|TLS handshake"
    r"|network is unreachable|could not transfer artifact|transfer failed|no matching distribution"
    # and of answers that are no package
    r"|\bE(403|404|429|5\d\d)\b|\b(403 Forbidden|404 Not Found|410 Gone|429 Too Many|5\d\d [a-z])"
    r"|status code:? [45]\d\d",
    re.IGNORECASE,
)
"""What a package manager says when it is the registry that fails, and not what we make of the package."""


class Unavailable(Exception):
    """A client cannot be had here: its toolchain is missing, or the registry does not answer."""


class Outcome(msgspec.Struct):
    """What became of one check.

    Args:
        outcome: "passed", "failed" or "skipped".
        reason: of the last two.
    """

    check: str
    outcome: str
    reason: str


class Result(msgspec.Struct):
    """What became of a client's checks."""

    client: str
    version: str
    outcomes: list[Outcome]


_decode_outcome = msgspec.json.Decoder(Outcome).decode


def version_of(client: str) -> str:
    """The version that is run."""
    return _VERSIONS[client]()


def prepare(client: str) -> None:
    """Fetch and build; at once if that is done.

    Raises:
        AssertionError: it was had, and cannot be built.
        Unavailable: it cannot be had.
    """
    inputs = [HERE / "clients.toml", *sorted(path for path in (HERE / client).iterdir() if path.is_file())]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in inputs) + version_of(client).encode()).hexdigest()
    directory, stamp = BUILD / client, BUILD / f"{client}.ready"
    if stamp.exists() and stamp.read_text() == digest:
        return
    stamp.unlink(missing_ok=True)
    shutil.rmtree(directory, ignore_errors=True)  # what was begun and not finished would be taken for whole
    directory.mkdir(parents=True)
    for path in inputs[1:]:
        shutil.copy(path, directory)
    _PREPARE[client](directory)
    stamp.write_text(digest)


def run(client: str, endpoint: str) -> Result:
    """Run what was prepared.

    Args:
        client: its name in `clients.toml`.
        endpoint: HOST:PORT of a broker that has nothing yet.
    """
    directory = BUILD / client
    command, variables = _RUN[client](directory)
    environment = {
        **os.environ,
        "PUBSUB_EMULATOR_HOST": endpoint,
        "METADATA_SERVER_DETECTION": "none",  # else clients look for Google's machines for seconds
        "NO_GCE_CHECK": "true",
        **variables,
    }
    done = subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=RUN_SECONDS_MAX
    )
    file = variables.get("HELIOGRAPH_OUTCOMES")
    text = Path(file).read_text() if file else done.stdout
    outcomes = [_decode_outcome(line) for line in text.splitlines() if line.startswith("{")]
    if not outcomes or (done.returncode != 0 and all(one.outcome != "failed" for one in outcomes)):
        raise AssertionError(f"the checks broke off: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    return Result(client, version_of(client), sorted(outcomes, key=lambda outcome: outcome.check))


# ── Python ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _prepare_python(directory: Path) -> None:
    package, number = CLIENTS["python"]["package"], version_of("python")
    pip = [sys.executable, "-m", "pip"]
    _run([*pip, "install", "--quiet", "--no-deps", "--target", "site", *CLIENTS["python"]["needs"]], directory)
    _run([*pip, "download", "--quiet", "--no-deps", "--no-binary", package, f"{package}=={number}"], directory)
    (archive,) = directory.glob(f"*{number}.tar.gz")
    with tarfile.open(archive) as files:
        (member,) = (one for one in files.getmembers() if one.name.endswith("/tests/system.py"))
        content = files.extractfile(member)
        assert content is not None
        (directory / "system.py").write_bytes(content.read())
    # google.auth.default() wants credentials even where none are used; these are nobody's
    nobody = {"type": "authorized_user", "client_id": "x", "client_secret": "x", "refresh_token": "x"}
    (directory / "credentials.json").write_text(json.dumps(nobody))


def _run_python(directory: Path) -> tuple[list[str], dict[str, str]]:
    skipped = [(entry["tests"], entry["reason"]) for entry in CLIENTS["python"]["skipped"]]
    # most of them sleep most of the time
    options = ["-q", "-n", "4", "-p", "recorder", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", "."]
    return [sys.executable, "-m", "pytest", *options, "system.py"], {
        "PYTHONPATH": os.pathsep.join((str(directory), str(directory / "site"))),
        "GOOGLE_APPLICATION_CREDENTIALS": str(directory / "credentials.json"),
        "GOOGLE_CLOUD_PROJECT": "system-tests",
        "HELIOGRAPH_SKIPPED": json.dumps(skipped),
        "HELIOGRAPH_OUTCOMES": str(directory / "outcomes.jsonl"),
    }


# ── Node, Go, Java, Celery ──────────────────────────────────────────────────────────────────────────────────────────


def _prepare_node(directory: Path) -> None:
    _needs("node", "npm")
    _run(["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts"], directory)


def _run_node(_directory: Path) -> tuple[list[str], dict[str, str]]:
    return ["node", "checks.js"], {}


def _prepare_go(directory: Path) -> None:
    _needs("go")
    # the module's own requirements are its dependencies'; what they are is written into the copy
    _run(
        ["go", "build", "-mod=mod", "-buildvcs=false", "-o", "checks", "."],
        directory,
        {"GOTOOLCHAIN": "local", "GOFLAGS": ""},
    )


def _run_go(directory: Path) -> tuple[list[str], dict[str, str]]:
    return [str(directory / "checks")], {}


def _prepare_java(directory: Path) -> None:
    _needs("mvn", "javac")
    plugin = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
    _run(["mvn", "-q", "-B", plugin, "-DoutputDirectory=lib"], directory)
    _run(["javac", "-d", "classes", "-cp", "lib/*", "Checks.java"], directory)


def _run_java(_directory: Path) -> tuple[list[str], dict[str, str]]:
    return ["java", "-cp", "classes:lib/*", "Checks"], {}


def _prepare_celery(directory: Path) -> None:
    # it pins versions of gRPC of its own, so it gets an environment of its own
    _run([sys.executable, "-m", "venv", "venv"], directory)
    _run(["venv/bin/python", "-m", "pip", "install", "--quiet", *CLIENTS["celery"]["needs"]], directory)


def _run_celery(directory: Path) -> tuple[list[str], dict[str, str]]:
    return [str(directory / "venv/bin/python"), "checks.py"], {"PYTHONPATH": ""}


def _needs(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            raise Unavailable(f"{program} is not installed")


def _run(command: Sequence[str], directory: Path, variables: Mapping[str, str] | None = None) -> None:
    what = " ".join(command[:4])
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            env={**os.environ, **(variables or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SET_UP_SECONDS_MAX,
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"{what} … was not done after {SET_UP_SECONDS_MAX} s") from None
    if done.returncode != 0:
        raise failure_of(what, done.stdout)


def failure_of(what: str, output: str) -> Unavailable | AssertionError:
    """What it means that a package manager or a compiler failed: nothing can be had here, or what was had is broken."""
    for line in output.splitlines():
        if NO_ANSWER.search(line):
            return Unavailable(f"{what} …: the registry does not answer: {line.strip()}")
    return AssertionError(f"{what} … failed:\n{output[-3000:]}")


def _version_in_node() -> str:
    dependencies = json.loads((HERE / "node" / "package.json").read_text())["dependencies"]
    return str(dependencies[CLIENTS["node"]["package"]])


def _version_in_go() -> str:
    lines = (HERE / "go" / "go.mod").read_text().splitlines()
    (line,) = (line for line in lines if CLIENTS["go"]["package"] in line)
    return line.split()[-1].removeprefix("v")


def _version_in_java() -> str:
    found = ElementTree.parse(HERE / "java" / "pom.xml").find(".//{*}dependency/{*}version")
    assert found is not None
    assert found.text is not None
    return found.text


def _version_in_celery() -> str:
    return str(CLIENTS["celery"]["needs"][0]).rpartition("==")[2]


_VERSIONS: dict[str, Callable[[], str]] = {
    "python": lambda: version(CLIENTS["python"]["package"]),
    "node": _version_in_node,
    "go": _version_in_go,
    "java": _version_in_java,
    "celery": _version_in_celery,
}
_PREPARE: dict[str, Callable[[Path], None]] = {
    "python": _prepare_python,
    "node": _prepare_node,
    "go": _prepare_go,
    "java": _prepare_java,
    "celery": _prepare_celery,
}
_RUN: dict[str, Callable[[Path], tuple[list[str], dict[str, str]]]] = {
    "python": _run_python,
    "node": _run_node,
    "go": _run_go,
    "java": _run_java,
    "celery": _run_celery,
}
