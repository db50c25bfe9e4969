from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from heliograph import __version__
from heliograph.cli import failure
from heliograph.cli.failure import ExitCode, Failure, failure_of, import_extra
from heliograph.errors import FailedPrecondition, QueueExists, StoreRefused, TopicNotFound, Unavailable
from tests.cli.conftest import Run


@pytest.mark.parametrize("argument", ["version", "--version"])
def test_the_version_is_the_packages(heliograph: Run, argument: str) -> None:
    assert heliograph(argument).stdout.startswith(f"heliograph {__version__} (Python 3.")


def test_help_imports_nothing_of_the_extras() -> None:
    program = (
        "import sys; sys.argv = ['heliograph', '--help']\n"
        "from heliograph.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('heavy:', sorted({'google', 'grpc', 'h2corn', 'pandas', 'pyarrow', 'pyspark'} & set(sys.modules)))"
    )
    source = Path(failure.__file__).parents[2]
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={"PYTHONPATH": str(source)}, timeout=30
    )
    assert ran.stdout.splitlines()[-1] == "heavy: []"


def test_a_package_that_is_not_installed_names_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_door.py").write_text("import a_package_that_nobody_has")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(Failure) as caught:
        import_extra("a_door", extra="server", for_what="serve")
    assert str(caught.value) == (
        "serve needs the package a_package_that_nobody_has, which is not installed: pip install 'heliograph[server]'"
    )
    assert caught.value.exit_code == ExitCode.NOT_READY


@pytest.mark.parametrize(
    ("error", "line", "code"),
    [
        (StoreRefused("it is damaged: restore it"), "it is damaged: restore it", ExitCode.DATA_REFUSED),
        (FailedPrecondition("no Java: install one"), "no Java: install one", ExitCode.NOT_READY),
        (TopicNotFound("t"), "Topic not found: t", ExitCode.NOT_FOUND),
        (QueueExists("q is there"), "q is there", ExitCode.CONFLICT),
        (Unavailable("the disk is full"), "the disk is full", ExitCode.FAILED),
        (FileNotFoundError(2, "No such file", "/a"), "/a: No such file", ExitCode.FAILED),
        (OSError("no more threads"), "no more threads", ExitCode.FAILED),
        (Failure("no such flight", ExitCode.USAGE), "no such flight", ExitCode.USAGE),
    ],
)
def test_an_expected_error_is_one_line_and_a_code(error: Exception, line: str, code: ExitCode) -> None:
    found = failure_of(error)
    assert found is not None
    assert (str(found), found.exit_code) == (line, code)


def test_a_defect_keeps_its_traceback() -> None:
    assert failure_of(KeyError("x")) is None
