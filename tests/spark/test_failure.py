"""Spark's failures in one line."""

from __future__ import annotations

import pytest

from heliograph.errors import FailedPrecondition, HeliographError, Internal, NotFound, Unavailable
from heliograph.spark.failure import in_one_line, translated

TRACE = """[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):
  File "source.py", line 205, in read
{error}
 SQLSTATE: 38000
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1097)
"""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        ("heliograph.errors.Unavailable: No broker", Unavailable("No broker")),
        ("heliograph.errors.FailedPrecondition: 3 messages are gone", FailedPrecondition("3 messages are gone")),
        ("heliograph.errors.TopicNotFound: Topic not found: t", NotFound("Topic not found: t")),
        ("heliograph.errors.HTTP_STATUS: odd", Internal("odd")),
    ],
)
def test_what_our_code_raised_on_an_executor_comes_back(error: str, expected: HeliographError) -> None:
    found = translated("Archiving", TRACE.format(error=error))
    assert (type(found), str(found)) == (type(expected), str(expected))


def test_anything_else_is_the_first_line_of_spark() -> None:
    found = translated("Archiving", "\n[PATH_ALREADY_EXISTS] Path exists. SQLSTATE: 42K04\n\tat org.apache.spark…")
    assert (type(found), str(found)) == (
        Internal,
        "Archiving failed: [PATH_ALREADY_EXISTS] Path exists. SQLSTATE: 42K04",
    )


def test_what_spark_did_not_raise_is_left_alone() -> None:
    with pytest.raises(KeyError), in_one_line("Archiving"):
        raise KeyError
