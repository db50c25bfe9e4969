"""Spark's failures in one line: what an executor's Python raised is buried in pages of traces from two languages."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from heliograph import errors
from heliograph.errors import HeliographError, Internal

_PY4J = "An error occurred while calling "
"""What says nothing; the next line does."""

_OURS = re.compile(r"^heliograph\.errors\.(\w+): (.+)$", re.MULTILINE)


@contextlib.contextmanager
def in_one_line(what: str) -> Iterator[None]:
    """Whatever Spark raises within the block becomes an error of ours with one line, and Spark's own as its cause.

    Args:
        what: what failed, as the beginning of a sentence, such as "Archiving the topic".

    Raises:
        HeliographError: what our own code raised on an executor, or an `Internal` with Spark's first line.
    """
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith(("pyspark.", "py4j.")):
            raise
        raise translated(what, str(error)) from error


def translated(what: str, text: str) -> HeliographError:
    """The error in the text of an exception of Spark's."""
    ours = _OURS.findall(text)
    if ours:
        name, message = ours[-1]
        return _kind(name)(message)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) > 1 and lines[0].startswith(_PY4J):
        lines = [lines[1].removeprefix(": ")]
    return Internal(f"{what} failed: {lines[0] if lines else 'Spark does not say why'}")


def _kind(name: str) -> type[HeliographError]:
    """The class of that name, or its nearest base that is made from a message alone."""
    kind = getattr(errors, name, Internal)
    if not (isinstance(kind, type) and issubclass(kind, HeliographError)):
        return Internal
    bases = (base for base in kind.__mro__ if issubclass(base, HeliographError) and "__init__" not in vars(base))
    return next(bases, Internal)
