"""How a command ends: its exit code, and the one line that says what to do.

::

    0    done (a server: stopped in order)
    1    the work failed: a balance that does not add up, an answer that is an error
    2    wrong usage: an unknown option, a value out of range, a mistake in the configuration file
    3    this machine is not ready: the port is taken, the address is not its own, no server answers, an extra or Java
         is not installed
    4    the data directory is refused: not writable, in use, damaged, made by a newer version, or not Heliograph's
    5    what the command names is not there
    6    it is there already, or was changed by somebody else meanwhile
    7    no message was there to be had
    130  interrupted with Ctrl-C

Scripts may rely on these; they do not change.
"""

from __future__ import annotations

import importlib
from enum import IntEnum
from types import ModuleType

from heliograph.errors import AlreadyExists, FailedPrecondition, HeliographError, NotFound, StoreRefused


class ExitCode(IntEnum):
    """See the table above."""

    DONE = 0
    FAILED = 1
    USAGE = 2
    NOT_READY = 3
    DATA_REFUSED = 4
    NOT_FOUND = 5
    CONFLICT = 6
    EMPTY = 7
    INTERRUPTED = 130


class Failure(Exception):
    """A command cannot do its work.

    Args:
        message: one line: what is wrong, then what to do about it.
        exit_code: see `ExitCode`.
    """

    def __init__(self, message: str, exit_code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def failure_of(error: Exception) -> Failure | None:
    """The failure that an expected error is; None for a defect, which deserves its traceback."""
    if isinstance(error, Failure):
        return error
    if isinstance(error, StoreRefused):
        return Failure(error.message, ExitCode.DATA_REFUSED)
    if isinstance(error, FailedPrecondition):
        return Failure(error.message, ExitCode.NOT_READY)
    if isinstance(error, NotFound):
        return Failure(error.message, ExitCode.NOT_FOUND)
    if isinstance(error, AlreadyExists):
        return Failure(error.message, ExitCode.CONFLICT)
    if isinstance(error, HeliographError):
        return Failure(error.message)
    if isinstance(error, UnicodeEncodeError):  # an argument that was no UTF-8, or a terminal that cannot show a text
        return Failure(f"{error.object[:40]!r} cannot be written in {error.encoding}: {error.reason}")
    if isinstance(error, OSError):
        return Failure(reason_of(error) if error.filename is None else f"{error.filename}: {reason_of(error)}")
    return None


def reason_of(error: OSError) -> str:
    """What the system says, without number and path."""
    return error.strerror or str(error)


def import_extra(module: str, *, extra: str, for_what: str) -> ModuleType:
    """Import a module that needs the packages of an extra, or is one of them.

    Raises:
        Failure: one of them is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] == "heliograph":
            raise
        raise Failure(
            f"{for_what} needs the package {error.name}, which is not installed: pip install 'heliograph[{extra}]'",
            ExitCode.NOT_READY,
        ) from error
